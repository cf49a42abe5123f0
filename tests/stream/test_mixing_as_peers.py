"""Mixtures as other libraries make them: epochs of their own length, sources that begin anew, states and ranks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.order.peer_mixtures import WITHOUT, mixed_ids
from tests.stream.made import write_lines
from tests.stream.mixed import check, ids_in, mixed, sources_in

import shoal
from shoal.errors import ShoalError, StateError, UsageError
from shoal.mixing import Concatenate, Interleave, MixedDataset, RandomMix, RoundRobin
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mixed")
    sources_in(directory)
    return directory


SHARES = [0.4, 0.3, 0.25, 0.05]
CHOICES: list[Any] = [
    Interleave(SHARES),
    Interleave(SHARES, stopping="all_exhausted"),
    Interleave(SHARES, stopping=WITHOUT),
    Interleave(SHARES, epochs="same"),
    Interleave(stopping="all_exhausted"),
    Concatenate(),
    RandomMix(SHARES),
    RandomMix(longest=True),
    RoundRobin(longest=True),
]


def shuffled_in(home: Path) -> dict[str, Dataset]:
    """The four sources, each in an order of its own."""
    return {name: ds.shuffle(seed=number, window=60_000) for number, (name, ds) in enumerate(sources_in(home).items())}


def made(home: Path, choice: Any, seed: int = 5) -> MixedDataset:
    return shoal.mix(shuffled_in(home), choice=choice, seed=seed)


def expected_ids(home: Path, choice: Any, epoch: int, seed: int = 5) -> list[int]:
    """The ids of an epoch: those of the sources alone, each from its beginning."""
    sources, first = [], 0
    for ds in shuffled_in(home).values():
        sources.append(first + ds.ids(choice.source_epoch(epoch)))
        first += ds.num_samples
    return [int(each) for each in mixed_ids(choice, sources, seed, epoch)]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_an_epoch_is_the_sources_own_epochs_from_their_beginnings(choice: Any, home: Path) -> None:
    ds = made(home, choice)
    for epoch in range(3):
        ids = expected_ids(home, choice, epoch)
        assert ds.ids(epoch).tolist() == ids
        assert [check(sample) for sample in ds] == ids
    assert ds.state_dict()["epoch"] == 3


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_counts_and_sources_agree_over_epochs(choice: Any, home: Path) -> None:
    ds = made(home, choice)
    lengths = [len(expected_ids(home, choice, epoch)) for epoch in range(3)]
    assert (len(ds), ds.num_samples) == (lengths[0], lengths[0])
    sources = ds.source_of(np.arange(sum(lengths)))
    for position in (0, 1, 50, lengths[0], lengths[0] + 30, sum(lengths[:2]), sum(lengths) - 1):
        expected = np.bincount(sources[:position], minlength=4).tolist()
        assert list(ds.counts(position).values()) == expected
    sizes = [each.num_samples for each in shuffled_in(home).values()]
    for source, (name, at) in enumerate(ds.exhausted_at().items()):
        places = np.flatnonzero(sources[: lengths[0]] == source)
        assert at == (int(places[sizes[source] - 1]) + 1 if len(places) >= sizes[source] else None), name
    assert sum(ds.weights_at(7).values()) == pytest.approx(1)
    again = pickle.loads(pickle.dumps(ds))
    assert again.counts(lengths[0] + 30) == ds.counts(lengths[0] + 30)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_run_goes_on_exactly_at_another_world_size(choice: Any, home: Path) -> None:
    whole = [expected_ids(home, choice, epoch) for epoch in range(3)]
    for start in (0, 24, len(whole[0]) - len(whole[0]) % 24, len(whole[0]) + 48):
        ds = made(home, choice).batch(24)
        batches, seen = iter(ds), 0
        while seen < start:
            try:
                seen += len(next(batches)["kind"])
            except StopIteration:
                batches = iter(ds)
        state = ds.state_dict()
        epoch, position = state["epoch"], state["position"]
        found: list[list[int]] = []
        for rank in range(3):
            other = pickle.loads(pickle.dumps(made(home, choice).batch(8).partition(rank=rank, world_size=3)))
            other.load_state_dict(state)
            found.append(ids_in(other))
        assert sorted(each for ids in found for each in ids) == sorted(whole[epoch][position:])
        assert ds.state_at(position, epoch=epoch) == state


def test_states_hold_where_epochs_are_short_and_long(home: Path) -> None:
    choice = Interleave(SHARES)
    ds = made(home, choice).batch(10)
    lengths = [len(expected_ids(home, choice, epoch)) for epoch in range(6)]
    assert len(set(lengths)) > 2
    for epoch, length in enumerate(lengths):
        last = ds.state_at(length - 1, epoch=epoch)
        assert (last["epoch"], last["position"]) == (epoch, length - 1)
        assert ds.state_at(length, epoch=epoch)["epoch"] == epoch + 1
        with pytest.raises(UsageError, match=f"an epoch of {length} samples"):
            ds.state_at(length + 1, epoch=epoch)
        ds.load_state_dict(last)
        assert ids_in(ds) == expected_ids(home, choice, epoch)[-1:]
        left = ds.without(positions=[(length - 5, length)], epoch=epoch)
        left.set_epoch(epoch)
        assert ids_in(left) == expected_ids(home, choice, epoch)[:-5]
        with pytest.raises(UsageError, match=f"epoch {epoch} has {length}"):
            ds.without(positions=[(0, length + 1)], epoch=epoch)


def test_certificates_know_the_length_of_each_epoch(home: Path) -> None:
    ds = made(home, RandomMix(SHARES)).batch(10)
    for _ in range(3):
        assert list(ds)
    certificate = ds.certificate()
    ds.check_certificate(certificate)


@pytest.mark.parametrize(
    "choice", [Interleave(SHARES, world_size=3), Interleave(world_size=3), Concatenate(world_size=3)], ids=str
)
def test_ranks_have_the_examples_that_they_were_split_by(choice: Any, home: Path) -> None:
    ids = expected_ids(home, choice, 0)
    for rank in range(3):
        mine = ids_in(made(home, choice).batch(8).partition(rank=rank, world_size=3))
        assert mine[: len(ids) // 24 * 8] == ids[rank::3][: len(ids) // 24 * 8]


def test_a_mixture_may_be_a_source(home: Path) -> None:
    tar, lines, parquet, mds = shuffled_in(home).items()
    inner = shoal.mix(dict([tar, lines]), choice=Interleave([0.5, 0.5]), seed=1)
    ours = shoal.mix(dict([tar, lines]), seed=1)
    for one in (inner, ours):
        ds = shoal.mix({"inner": one, **dict([parquet, mds])}, choice=RoundRobin(longest=True))
        first = one.stream.spec.opened.index.num_samples
        for epoch in range(3):
            sources = [one.ids(epoch), first + parquet[1].ids(epoch), first + 45 + mds[1].ids(epoch)]
            assert ds.ids(epoch).tolist() == mixed_ids(RoundRobin(longest=True), sources, 0, epoch).tolist()
    # Rounds of a mixture have to be alike in length, where sources carry on.
    same = shoal.mix(dict([tar, lines]), choice=Interleave(stopping=WITHOUT))
    ds = shoal.mix({"inner": same, **dict([mds])}, weights={"inner": 1, "mds": 1}, epoch_size=400)
    assert [each for each in ds.ids(0).tolist() if each < 143][:143] == same.ids(0).tolist()
    with pytest.raises(UsageError, match="epochs of the mixture 'inner' differ in length"):
        shoal.mix({"inner": inner, **dict([mds])})


@pytest.mark.parametrize(
    "arguments",
    [
        {"weights": {"a": 1}},
        {"repeat": {"a": 1}},
        {"epoch_size": 7},
        {"ends": "all"},
        {"unit": "tokens"},
        {"max_repeats": 2},
    ],
    ids=str,
)
def test_other_arguments_do_not_go_with_it(arguments: dict[str, Any], home: Path) -> None:
    with pytest.raises(ShoalError, match=rf"mix\({next(iter(arguments))}=\) cannot be combined with choice=Conc"):
        shoal.mix(sources_in(home), choice=Concatenate(), **arguments)


def test_what_such_a_mixture_cannot_do_is_refused(home: Path) -> None:
    ds = made(home, Interleave(SHARES))
    with pytest.raises(UsageError, match=r"choice=Interleave\(...\) has none that could change"):
        ds.reweight(at=10, weights=dict.fromkeys(ds.sources, 1))
    with pytest.raises(UsageError, match=r"epochs of this mixture differ in length"):
        ds.take(10)
    with pytest.raises(UsageError, match="2 probabilities for 4 sources"):
        made(home, Interleave([0.5, 0.5]))
    taken = made(home, Concatenate()).skip(50).take(20)
    assert taken.ids(0).tolist() == expected_ids(home, Concatenate(), 0)[50:70]


def test_a_state_belongs_to_its_choice(home: Path) -> None:
    state = made(home, Interleave(SHARES)).state_at(30, epoch=1)
    for other in (Interleave([0.4, 0.3, 0.2, 0.1]), Interleave(SHARES, epochs="same"), RandomMix(SHARES)):
        with pytest.raises(StateError):
            made(home, other).load_state_dict(state)
    with pytest.raises(StateError):
        made(home, Interleave(SHARES), seed=6).load_state_dict(state)
    with pytest.raises(StateError):
        mixed(home).load_state_dict(state)
    made(home, Interleave(SHARES, world_size=4)).load_state_dict(state)


def test_a_shuffled_mixture_gives_orders_to_sources_without_one(home: Path) -> None:
    ds = shoal.mix(sources_in(home), choice=Interleave(SHARES, stopping=WITHOUT)).shuffle(seed=3, window=60_000)
    first, second = (ds.ids(epoch).tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(388))
    assert first != second
    assert ds.quality(batch=16).vr[16] > 0


@pytest.mark.parametrize("order", ["hf-block", "hf-reservoir"])
def test_sources_may_have_orders_of_the_library_too(order: str, tmp_path: Path) -> None:
    choice, sources = Interleave([0.6, 0.4], "all_exhausted"), {}
    for name, size in (("a", 20), ("b", 7)):
        write_lines(tmp_path / name, [size, size, size])
        sources[name] = shoal.open(tmp_path / name).shuffle(order, seed=4, buffer_size=5)
    ds = shoal.mix(sources, choice=choice, seed=42)
    for epoch in range(3):
        ids = mixed_ids(choice, [sources["a"].ids(epoch), 60 + sources["b"].ids(epoch)], 42, epoch).tolist()
        assert ds.ids(epoch).tolist() == ids
        own = [("a", number) if number < 60 else ("b", number - 60) for number in ids]
        assert [(sample["__source__"], sample["id"]) for sample in ds] == own
