"""Where iterators begin, and what `state_dict` speaks of."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stream.made import at, batches_of, check_batch, check_sample, flat, open_finely, write_tars

from shoal.errors import StateError, UsageError
from shoal.order.state_dict import sealed
from shoal.orders import Block, Window
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def ds(tars: Dataset) -> Dataset:
    return tars.shuffle("full", seed=7).batch(10)


def state_at(dataset: Dataset, epoch: int, position: int) -> dict:
    return dataset.state_at(position, epoch=epoch)


def test_a_peek_loses_nothing(ds: Dataset) -> None:
    first = check_batch(next(iter(ds)))
    assert at(ds) == (0, 10)
    assert batches_of(ds)[0] == first
    ds.load_state_dict(state_at(ds, 0, 50))
    peeked = check_batch(next(iter(ds)))
    assert at(ds) == (0, 60)
    got = batches_of(ds)
    assert got[0] == peeked
    assert flat(got) == ds.ids(start=50).tolist()
    assert at(ds) == (1, 0)
    assert flat(batches_of(ds)) == ds.ids(epoch=1).tolist()


def test_an_abandoned_iterator_leaves_the_epoch_and_its_state(ds: Dataset) -> None:
    for step, _ in enumerate(ds):
        if step == 4:
            break
    assert at(ds) == (0, 50)
    assert len(batches_of(ds)) == 20
    assert at(ds) == (1, 0)


def test_two_iterators_run_apart(ds: Dataset) -> None:
    one, two = iter(ds), iter(ds)
    pairs = [(check_batch(a), check_batch(b)) for a, b in zip(one, two, strict=True)]
    assert all(a == b for a, b in pairs)
    assert at(ds) == (1, 0)
    one, two = iter(ds), iter(ds)
    next(one)
    next(one)
    next(two)
    assert at(one) == (1, 20)
    assert two.state_dict() == ds.state_dict()
    assert at(ds) == (1, 10)
    for _ in one:
        pass
    assert at(ds) == (1, 10)  # the newest one still stands there
    assert at(iter(ds)) == (2, 0)


def test_an_iterator_from_before_does_not_move_what_was_loaded(ds: Dataset) -> None:
    old = iter(ds)
    next(old)
    ds.load_state_dict(state_at(ds, 0, 50))
    for _ in old:
        pass
    assert at(ds) == (0, 50)
    assert at(iter(ds)) == (0, 50)
    ds.set_epoch(3)
    ds.set_epoch(0)
    assert at(iter(ds)) == (0, 0)


def test_the_state_of_an_old_iterator_keeps_its_own_numbers(tars: Dataset) -> None:
    ds = tars.shuffle(window="60KiB", chunk="6KiB").batch(4)
    old = iter(ds)
    next(old)
    before = old.state_dict()
    wider = tars.shuffle(window="120KiB", chunk="12KiB")
    assert wider.state_dict()["order"] != before["order"]
    ds.load_state_dict(wider.state_dict())
    assert old.state_dict() == before
    assert ds.state_dict() == wider.state_dict()


def test_set_epoch(ds: Dataset) -> None:
    ds.load_state_dict(state_at(ds, 2, 30))
    ds.set_epoch(2)
    assert at(ds) == (2, 30)
    assert at(iter(ds)) == (2, 30)
    ds.set_epoch(5)
    assert at(ds) == (5, 0)
    assert flat(batches_of(ds)) == ds.ids(epoch=5).tolist()
    ds.set_epoch(6)  # it is there already
    assert at(ds) == (6, 0)
    for wrong in (-1, 1.5, "2"):
        with pytest.raises(UsageError, match="set_epoch"):
            ds.set_epoch(wrong)  # type: ignore[arg-type]


def test_the_usual_loop_over_epochs_goes_on_after_a_resume(ds: Dataset) -> None:
    ds.load_state_dict(state_at(ds, 1, 190))
    seen = []
    for epoch in range(1, 4):
        ds.set_epoch(epoch)
        seen.append(flat(batches_of(ds)))
    assert seen == [ds.ids(epoch=1, start=190).tolist(), ds.ids(epoch=2).tolist(), ds.ids(epoch=3).tolist()]


def test_derived_datasets_start_fresh(ds: Dataset, tars: Dataset) -> None:
    ds.load_state_dict(state_at(ds, 1, 190))
    assert at(ds.map(lambda batch: batch)) == (0, 0)
    assert at(ds.partition(rank=0, world_size=2)) == (0, 0)
    assert at(ds) == (1, 190)
    next(iter(tars.batch(3)))
    assert at(tars) == (0, 0)


def test_a_pickled_dataset_keeps_its_position_and_not_its_iterators(ds: Dataset) -> None:
    ds.load_state_dict(state_at(ds, 1, 180))
    iterator = iter(ds)
    next(iterator)
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.state_dict() == ds.state_dict() == iterator.state_dict()
    assert flat(batches_of(copy)) == ds.ids(epoch=1, start=180).tolist()
    assert at(ds) == (1, 190)


# ---- whose state is it


def test_resolved_numbers_of_a_state_win_over_a_request_in_bytes(tars: Dataset) -> None:
    saved = tars.shuffle(seed=3, window="90KiB", chunk="8KiB").batch(10)
    iterator = iter(saved)
    for _ in range(4):
        next(iterator)
    state = json.loads(json.dumps(saved.state_dict()))
    for window, chunk in ((None, None), ("40KiB", "9000"), ("1GiB", None)):
        other = tars.shuffle(seed=3, window=window, chunk=chunk).batch(10)
        other.load_state_dict(state)
        assert str(other.resolved) == str(saved.resolved)
        assert flat(batches_of(other)) == saved.ids(start=40).tolist()
        assert flat(batches_of(other)) == saved.ids(epoch=1).tolist()
    exact = Window(**saved.resolved.order.parameters)
    same = tars.shuffle(exact, seed=3, chunk="8KiB")
    same.load_state_dict(state)


def test_a_state_of_something_else_is_refused_naming_both_sides(tars: Dataset, lines: Dataset) -> None:
    ds = tars.shuffle(seed=3, window="180KiB", chunk="6KiB")
    state = ds.state_dict()
    nodes = state["order"]["num_canonical_nodes"]
    chunks = state["order"]["chunks"]
    cases = [
        (lines.shuffle(seed=3), r"dataset [0-9a-f]{32}; this dataset is [0-9a-f]{32}"),
        (tars.shuffle(seed=4), "seed=3; this stream has seed=4"),
        (tars.shuffle("full", seed=3), "order .*; this stream has"),
        (tars.shuffle(Block(chunks=chunks), seed=3), "order .*; this stream has"),
        (tars.shuffle(Window(chunks + 2, nodes), seed=3), f"chunks={chunks}; this stream has chunks={chunks + 2}"),
        (
            tars.shuffle(seed=3, num_canonical_nodes=nodes + 1),
            f"num_canonical_nodes={nodes}; this stream has {nodes + 1}",
        ),
        (
            tars.shuffle(seed=3, window="1MiB", num_canonical_nodes=30),
            f"num_canonical_nodes={nodes}; this stream has 30",
        ),
        (tars.take(100).shuffle(seed=3), "before .* saved with no choice; this stream has the choice"),
        (tars.shuffle(seed=3).take(100), "after .* saved with no choice; this stream has the choice"),
        (tars, "this stream has"),
    ]
    for other, message in cases:
        before = other.state_dict()
        with pytest.raises(StateError, match=message) as caught:
            other.load_state_dict(state)
        assert caught.value.hint
        assert other.state_dict() == before
    taken = tars.take(100).shuffle(seed=3)
    with pytest.raises(StateError, match=r"chosen before shuffle\(\) differ: .* the choice .* the choice"):
        taken.load_state_dict(tars.take(99).shuffle(seed=3).state_dict())


def test_what_is_no_state_is_said_so(ds: Dataset) -> None:
    good = ds.state_dict()
    for wrong, message in [
        (None, "the dict that state_dict"),
        (json.dumps(good), "the dict that state_dict"),
        ({}, "not a state"),
        ({**good, "version": 4}, "version 4"),
        ({**good, "version": 2}, "has version 2"),
        (
            {name: value for name, value in {**good, "version": 1}.items() if name != "check"},
            "before the first release",
        ),
        ({**good, "position": -1}, "position must be an integer"),
        ({**good, "epoch": 1.5}, "epoch must be an integer"),
        ({**good, "position": 198}, "the state was changed after it was saved: its checksum is"),
        (sealed({**good, "position": 198}), "position 198 of an epoch of 197"),
        ({**good, "order": None}, "order must be a dict"),
        ({name: value for name, value in good.items() if name != "seed"}, "missing"),
    ]:
        with pytest.raises(StateError, match=message):
            ds.load_state_dict(wrong)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="newer version of shoal: upgrade"):
        ds.load_state_dict({**good, "version": 4})


def test_a_state_for_a_position_of_ones_own_choice(ds: Dataset) -> None:
    ds.load_state_dict(ds.state_at(50, epoch=2))
    assert at(ds) == (2, 50)
    assert flat(batches_of(ds)) == ds.ids(epoch=2, start=50).tolist()
    assert ds.state_at(197, epoch=2) == ds.state_at(0, epoch=3)
    for position, epoch in ((198, 0), (-1, 0), (0, -1), (2**70, 0), (0, 2**70), (1.5, 0)):
        with pytest.raises(UsageError, match=r"state_at\("):
            ds.state_at(position, epoch=epoch)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"set_epoch\(\) takes an integer below 2\*\*63; got 100 bits"):
        ds.set_epoch(10**30)


def test_a_copy_of_the_dataset_accepts_the_state(tmp_path: Path, ds: Dataset, tars: Dataset) -> None:
    counts = [30, 1, 0, 47, 22, 60, 5, 32]
    copy = open_finely(write_tars(tmp_path / "elsewhere", counts)).shuffle("full", seed=7).batch(4)
    copy.load_state_dict(state_at(ds, 0, 40))
    assert flat(batches_of(copy)) == ds.ids(start=40).tolist()


@pytest.mark.parametrize("size", [None, 50])
def test_a_loop_that_counts_to_the_length_has_ended_the_epoch(size: int | None, tars: Dataset) -> None:
    ds = tars if size is None else tars.batch(size)
    for epoch in range(3):
        assert (ds.epoch, at(ds)) == (epoch, (epoch, 0))
        assert len([None for _, _ in zip(range(len(ds)), ds, strict=False)]) == len(ds)


LEAVING_OUT: dict[str, Callable[[Dataset], Dataset]] = {
    "filter": lambda ds: ds.filter(lambda sample: check_sample(sample) % 3),
    "skip": lambda ds: ds.reading(on_error="skip"),
    "quarantine": lambda ds: ds.reading(quarantine="bad.jsonl"),
}


@pytest.mark.parametrize("leaving_out", LEAVING_OUT.values(), ids=LEAVING_OUT)
def test_ranks_of_single_samples_that_are_left_out_have_a_state_between_epochs_alone(
    tars: Dataset, leaving_out: Callable[[Dataset], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten samples, one rank was at position 40 and another at 44: either state lost or repeated samples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").touch()
    ds = leaving_out(tars.shuffle("full", seed=7)).partition(rank=1, world_size=4)
    iterator = iter(ds)
    assert at(ds) == at(iterator) == (0, 0)
    next(iterator)
    for stream in (ds, iterator):
        with pytest.raises(StateError, match=r"(?s)4 ranks get single samples, .* damage drops samples.*batch\(1\)"):
            stream.state_dict()
    list(iterator)
    assert at(ds) == at(iterator) == (1, 0)
    ds.load_state_dict(state_at(ds, 2, 80))
    iterator = iter(ds)
    assert at(ds) == at(iterator) == (2, 80)


@pytest.mark.parametrize("leaving_out", LEAVING_OUT.values(), ids=LEAVING_OUT)
def test_batches_of_one_have_a_state_at_any_step_whatever_is_left_out(
    tars: Dataset, leaving_out: Callable[[Dataset], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").touch()
    described = leaving_out(tars.shuffle("full", seed=7)).batch(1)
    ranks = [iter(described.partition(rank=rank, world_size=4)) for rank in range(4)]
    before = [flat_without_repeats([next(rank) for _ in range(5)]) for rank in ranks]
    assert {at(rank) for rank in ranks} == {(0, 20)}
    resumed = leaving_out(tars.shuffle("full", seed=7)).batch(7)
    resumed.load_state_dict(ranks[2].state_dict())
    delivered = sorted([*flat(before), *flat_without_repeats(list(resumed))])
    expected = (
        [number for number in range(197) if number % 3] if described.stream.spec.has_filters else list(range(197))
    )
    assert delivered == expected


def test_a_single_rank_has_a_state_at_any_sample_whatever_is_left_out(tars: Dataset) -> None:
    ds = LEAVING_OUT["filter"](tars.shuffle("full", seed=7))
    every = [check_sample(sample) for sample in ds]
    ds = LEAVING_OUT["filter"](tars.shuffle("full", seed=7))
    iterator = iter(ds)
    first = [check_sample(next(iterator)) for _ in range(50)]
    resumed = LEAVING_OUT["filter"](tars.shuffle("full", seed=7))
    resumed.load_state_dict(ds.state_dict())
    assert first + [check_sample(sample) for sample in resumed] == every


def flat_without_repeats(batches: list[dict[str, Any]]) -> list[int]:
    """The ids of batches, without marked repeats."""
    return [
        number
        for batch in batches
        for number, again in zip(check_batch(batch), batch.get("__pad__", [False] * 197), strict=False)
        if not again
    ]
