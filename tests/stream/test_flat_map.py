"""`flat_map`: several samples of each; batches are filled, and no part is missed or repeated over stops and sizes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.made import write_tars

import shoal
from shoal.errors import StateError, UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_SAMPLES = 197
MOST = 5
Part = tuple[int, int]


def num_parts(number: int) -> int:
    return number * 7 % (MOST + 1)


def divides(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    number = int(sample["cls"])
    return ({"number": number, "part": part} for part in range(num_parts(number)))


def all_parts(numbers: Any = range(NUM_SAMPLES)) -> list[Part]:
    return [(number, part) for number in numbers for part in range(num_parts(number))]


def parts_in(batch: Any) -> list[Part]:
    return list(zip(batch["number"].tolist(), batch["part"].tolist(), strict=True))


@pytest.fixture
def divided(tars: Dataset) -> Dataset:
    return tars.shuffle(seed=3).flat_map(divides, most=MOST)


def on_ranks(ds: Dataset, world_size: int, state: Any = None) -> list[Dataset]:
    ranks = [ds.partition(rank=rank, world_size=world_size) for rank in range(world_size)]
    for rank in ranks:
        if state is not None:
            rank.load_state_dict(json.loads(json.dumps(state)))
    return ranks


def test_parts_follow_each_other_in_the_order_of_samples(divided: Dataset) -> None:
    expected = all_parts(divided.ids().tolist())
    for size in (1, 4, 7, 1000):
        batches = [parts_in(batch) for batch in divided.batch(size)]
        assert [part for batch in batches for part in batch] == expected
        assert {len(batch) for batch in batches[:-1]} <= {size}


def test_every_stop_is_resumed_at_its_part(divided: Dataset) -> None:
    whole = [parts_in(batch) for batch in divided.batch(3)]
    ds = divided.batch(3)
    run = iter(ds)
    for step in range(len(whole)):
        assert parts_in(next(run)) == whole[step]
        if step % 7 == 0:
            again = divided.batch(3)
            again.load_state_dict(json.loads(json.dumps(ds.state_dict())))
            assert [parts_in(batch) for batch in again] == whole[step + 1 :]


@pytest.mark.parametrize("stops", [[(3, 2, 4), (2, 5, 3), (4, 1, 2)], [(1, 4, 5), (5, 3, 1), (1, 2, 9), (3, 4, 2)]])
def test_open_samples_go_on_at_their_next_part_on_other_ranks(divided: Dataset, stops: list[Any]) -> None:
    """Stops lie within samples, and each state names these samples by the parts that ranks took of them."""
    delivered: list[Part] = []
    state, num_open = None, 0
    for world_size, size, steps in stops:
        ranks = on_ranks(divided.batch(size, steps="apart"), world_size, state)
        for rank in ranks:
            run = iter(rank)
            for _ in range(steps):
                delivered += parts_in(next(run))
        state = shoal.merge_states(rank.state_dict() for rank in ranks)
        num_open += sum(number > 0 for deal in state["refill"] for number in deal["sequences"])
    assert num_open >= 3
    for rank in on_ranks(divided.batch(6, steps="apart"), 2, state):
        delivered += [part for batch in rank for part in parts_in(batch)]
    assert Counter(delivered) == Counter(all_parts())


def test_open_samples_are_remembered_over_stops_that_do_not_reach_them(divided: Dataset) -> None:
    delivered: list[Part] = []
    state = None
    for world_size in (3, 2, 3, 2, 5):
        ranks = on_ranks(divided.batch(1, steps="apart"), world_size, state)
        for number, rank in enumerate(ranks):
            run = iter(rank)
            for _ in range(1 + 3 * (number == 0)):
                delivered += parts_in(next(run))
        state = shoal.merge_states(rank.state_dict() for rank in ranks)
        assert len(json.dumps(state)) < 1500
    for rank in on_ranks(divided.batch(6, steps="apart"), 4, state):
        delivered += [part for batch in rank for part in parts_in(batch)]
    assert Counter(delivered) == Counter(all_parts())


def test_shards_without_an_index(tmp_path: Path) -> None:
    """The growing order begins before all shards are indexed; stops lie in its first segments."""
    data = write_tars(tmp_path / "data", [40, 1, 0, 60, 33, 63])
    ds = shoal.open(data, index="grow").shuffle(seed=3, window="16KiB").flat_map(divides, most=MOST)
    delivered: list[Part] = []
    state = None
    for world_size, size, steps in [(3, 4, 3), (2, 5, 2), (4, 1, 3)]:
        ranks = on_ranks(ds.batch(size, steps="apart"), world_size, state)
        for rank in ranks:
            delivered += [part for batch in itertools.islice(rank, steps) for part in parts_in(batch)]
        state = shoal.merge_states(rank.state_dict() for rank in ranks)
    for rank in on_ranks(ds.batch(6, steps="apart"), 2, state):
        delivered += [part for batch in rank for part in parts_in(batch)]
    assert Counter(delivered) == Counter(all_parts())


def test_certificates_are_those_of_the_samples(tars: Dataset, divided: Dataset) -> None:
    filtered = tars.shuffle(seed=3).filter(lambda sample: num_parts(int(sample["cls"]))).batch(8)
    list(filtered)
    run = iter(divided.batch(4))
    whole = divided.batch(9)
    list(whole)
    assert whole.certificate() == filtered.certificate()
    first = divided.batch(4)
    run = iter(first)
    for _ in range(11):
        next(run)
    rest = divided.batch(4)
    rest.load_state_dict(first.state_dict())
    list(rest)
    assert shoal.merge_certificates([first.certificate(), rest.certificate()]) == filtered.certificate()


def test_stages_behind_it_process_each_part(divided: Dataset) -> None:
    odd = divided.map(lambda part: {**part, "sum": part["number"] + part["part"]}).filter(lambda part: part["sum"] % 2)
    found = [
        part
        for batch in odd.with_ids().batch(7)
        for part in zip(*(batch[name].tolist() for name in batch), strict=True)
    ]
    assert [part[:3] for part in found] == [
        (number, part, number + part) for number, part in all_parts(odd.ids().tolist()) if (number + part) % 2
    ]
    assert [part[3:] for part in found] == [(number, 0, part) for number, part, *_ in found]


def test_random_numbers_of_parts_are_their_own(tars: Dataset) -> None:
    """They depend on seed, epoch, sample and part, and on nothing else."""

    def crops(sample: Any, rng: np.random.Generator) -> list[Any]:
        return [{"number": int(sample["cls"]), "part": part, "crop": rng.integers(1 << 40)} for part in range(3)]

    def jittered(part: Any, rng: np.random.Generator) -> Any:
        return {**part, "jitter": rng.integers(1 << 40)}

    ds = tars.shuffle(seed=3).flat_map(crops, most=3, seed=True).map(jittered, seed=True)

    def drawn(ds: Dataset) -> dict[Part, tuple[int, int]]:
        return {
            part: numbers
            for batch in ds
            for part, numbers in zip(parts_in(batch), zip(batch["crop"], batch["jitter"], strict=True), strict=True)
        }

    first = drawn(ds.batch(4))
    assert len({number for numbers in first.values() for number in numbers}) == 2 * 3 * NUM_SAMPLES
    ranks = [drawn(rank) for rank in on_ranks(ds.batch(7, steps="apart"), 3)]
    assert {part: numbers for rank in ranks for part, numbers in rank.items()} == first
    later = ds.batch(4)
    later.set_epoch(1)
    assert not {*first.values()} & {*drawn(later).values()}


def test_a_seeded_map_before_it_draws_other_numbers(tars: Dataset) -> None:
    def draws(sample: Any, rng: np.random.Generator) -> Any:
        return {"drawn": rng.integers(1 << 40)}

    def divides_again(sample: Any, rng: np.random.Generator) -> Any:
        return [{**sample, "drawn again": rng.integers(1 << 40)}]

    (batch,) = tars.shuffle(seed=3).map(draws, seed=True).flat_map(divides_again, most=1, seed=True).batch(1000)
    assert not {*batch["drawn"].tolist()} & {*batch["drawn again"].tolist()}


def test_a_sample_at_hand_is_the_list_of_its_parts(divided: Dataset) -> None:
    number = divided.ids().tolist()[0]
    assert [(part["number"], part["part"]) for part in divided[number]] == all_parts([number])


def test_a_coroutine_function_makes_parts_of_several_samples_at_a_time(tars: Dataset) -> None:
    begun: list[int] = []
    third_begins = asyncio.Event()

    async def divides_later(sample: dict[str, Any]) -> list[dict[str, Any]]:
        begun.append(1)
        if len(begun) == 3:
            third_begins.set()
        await asyncio.wait_for(third_begins.wait(), timeout=60)
        return [*divides(sample)]

    ds = tars.shuffle(seed=3).flat_map(divides_later, most=MOST)
    assert [part for batch in ds.batch(4) for part in parts_in(batch)] == all_parts(ds.ids().tolist())


def test_the_number_of_batches_is_unknown(divided: Dataset) -> None:
    with pytest.raises(TypeError, match=r"the number of parts flat_map\(\) makes is unknown before reading"):
        len(divided.batch(4))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds: next(iter(ds)), r"flat_map\(\) fills batches, but this dataset has none"),
        (lambda ds: ds.take(5), r"take\(\) takes whole samples, but was called after flat_map\(\)"),
        (lambda ds: ds.flat_map(divides, most=2), r"flat_map\(\) takes whole samples"),
        (lambda ds: ds.pack_sequences(8, lengths=None), r"pack_sequences\(.*takes whole samples"),
        (lambda ds: ds.batch(4).flat_map(divides, most=2), "works on samples, but was called after batch"),
        (lambda ds: ds.batch(4).batch_ids(0), "only reading shows the samples"),
        (lambda ds: shoal.mix({"a": ds, "b": ds}), r"has flat_map\(\), which applies to the whole mixture"),
        (lambda ds: iter(ds.batch(4).partition(rank=0, world_size=2)), "would yield different numbers of batches"),
    ],
)
def test_what_is_refused(divided: Dataset, call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(divided)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _: {"x": 1}, "returned dict"),
        (lambda _: b"some bytes", "returned bytes"),
        (lambda _: 7, "returned int"),
        (lambda sample: [sample] * 6, "up to 5 parts, but this sample has more"),
    ],
)
def test_other_results_are_errors_that_name_the_sample(tars: Dataset, function: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        next(iter(tars.flat_map(function, most=MOST).batch(4)))
    assert "the sample with id 0" in "".join(caught.value.__notes__)


def test_a_state_of_one_rank_is_of_the_same_most_parts(tars: Dataset, divided: Dataset) -> None:
    """A merged state is of any number of parts: `most` does not decide which parts there are."""
    ranks = on_ranks(divided.batch(2, steps="apart"), 2)
    delivered = [part for rank in ranks for part in parts_in(next(iter(rank)))]
    seven = tars.shuffle(seed=3).flat_map(divides, most=7).batch(2, steps="apart")
    with pytest.raises(
        StateError, match=r"the state has packing=\{'most_parts': 5\}; this stream has packing=\{'most_parts': 7\}"
    ):
        seven.partition(rank=0, world_size=2).load_state_dict(ranks[0].state_dict())
    state = shoal.merge_states(rank.state_dict() for rank in ranks)
    delivered += [part for rank in on_ranks(seven, 3, state) for batch in rank for part in parts_in(batch)]
    assert Counter(delivered) == Counter(all_parts())
