"""`filter(refill=True)`: full batches; every kept sample once, over ranks, stops, sizes and epochs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import StateError, UsageError
from shoal.orders import Buffer, Full, Order, Sequential, Window
from shoal.stream.dataset import Dataset
from shoal.stream.ranks import check_agreement

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_SAMPLES = 197
ORDERS: list[Order] = [Window(chunks=12, num_canonical_nodes=3), Full(), Sequential(), Buffer(samples=20)]


def keep(seed: int, tenths: int) -> Callable[[Any], bool]:
    """A filter that keeps about so many tenths of the samples."""
    kept = set(kept_ids(seed, tenths))
    return lambda sample: int(sample["cls"]) in kept


def kept_ids(seed: int, tenths: int) -> list[int]:
    return np.flatnonzero(np.random.default_rng(seed).integers(0, 10, NUM_SAMPLES) < tenths).tolist()


def on_ranks(dataset: Dataset, world_size: int) -> list[Dataset]:
    return [dataset.partition(rank=rank, world_size=world_size) for rank in range(world_size)]


def marks(batch: Any) -> list[bool]:
    return list(batch.get("__pad__", [False] * len(batch["__id__"])))


def ids_of(batch: Any) -> list[int]:
    """The ids of a batch without repeats."""
    return [int(i) for i, again in zip(batch["__id__"], marks(batch), strict=True) if not again]


def forever(dataset: Dataset, num_epochs: int) -> Iterator[Any]:
    """The batches of a rank, epoch after epoch; nothing is kept of a share that is too small."""
    while dataset.epoch < num_epochs:
        yield from dataset


@dataclass(frozen=True)
class Leg:
    """A run of some steps at a world size, with batches of a size."""

    world_size: int
    size: int
    is_global: bool
    remainder: str
    steps: int
    resaves: bool  # each rank is stopped in the middle, and goes on from its own state

    def batched(self, ds: Dataset) -> Dataset:
        if self.is_global:
            return ds.batch(global_batch_size=max(self.size, self.world_size), remainder=self.remainder, steps="apart")
        return ds.batch(self.size, remainder=self.remainder, steps="apart")


LEGS = st.builds(
    Leg,
    st.integers(1, 5),
    st.integers(1, 17),
    st.booleans(),
    st.sampled_from(["keep", "pad"]),
    st.integers(0, 7),
    st.booleans(),
)


def run_leg(leg: Leg, ds: Dataset, state: Any, note: Callable[[Any], None], num_epochs: int | None) -> tuple[Any, list]:
    """The state that the ranks' states merge to after the steps, and their certificates."""
    states, certificates = [], []
    for part in on_ranks(leg.batched(ds), leg.world_size):
        if state is not None:
            part.load_state_dict(json.loads(json.dumps(state)))
        if num_epochs is None:
            run = forever(part, 10**9)
            for step in range(leg.steps):
                note(next(run))
                if leg.resaves and step == leg.steps // 2:
                    certificates.append(part.certificate())
                    part.load_state_dict(json.loads(json.dumps(part.state_dict())))
                    run = forever(part, 10**9)
        else:
            for batch in forever(part, num_epochs):
                note(batch)
        states.append(part.state_dict())
        certificates.append(part.certificate())
    return shoal.merge_states(states), certificates


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_batches_are_cut_from_what_is_kept_of_the_share(tars: Dataset, world_size: int, remainder: str) -> None:
    """The law itself: the rank's share by steps, filtered, in batches of n; the last one by `remainder`."""
    plain = tars.shuffle(ORDERS[0], seed=2, chunk="8KiB").with_ids()
    kept = set(kept_ids(5, 6))
    filled = plain.filter(keep(5, 6), refill=True).batch(9, remainder=remainder, steps="apart")
    for rank, part in enumerate(on_ranks(filled, world_size)):
        share: list[int] = []
        every = plain.batch(9)
        for step in range(len(every.partition(rank=rank, world_size=world_size))):
            mine = {*every.batch_ids(step, rank=rank, world_size=world_size).tolist()} & kept
            share += [int(i) for i in plain.ids() if int(i) in mine]
        batches = list(part)
        found = [i for batch in batches for i in ids_of(batch)]
        if remainder == "drop":
            assert found == share[: len(share) // 9 * 9]
        else:
            assert found == share
        assert [len(batch["__id__"]) for batch in batches[:-1]] == [9] * (len(batches) - 1)
        rest = len(share) % 9 or 9
        assert len(batches[-1]["__id__"]) == (rest if remainder == "keep" else 9)
        if remainder == "pad" and rest < 9:
            assert marks(batches[-1]) == [False] * rest + [True] * (9 - rest)
        stats = part.stats()
        assert stats["num_samples"] - stats["num_repeats"] == len(found)
        if len(share) % 9 and remainder != "drop":  # else what is left behind the last full batch is not counted
            assert stats["num_filtered"] == stats["num_refilled"]
        with pytest.raises(TypeError, match="is unknown before reading"):
            len(part)


def test_damaged_samples_are_refilled_too(tars: Dataset) -> None:
    def fussy(data: bytes) -> bytes:
        if int(data.split(b":")[0]) % 5 == 0:
            message = "damaged"
            raise ValueError(message)
        return data

    ds = tars.shuffle(seed=4).decode({"bin": fussy}).filter(lambda s: int(s["cls"]) % 2, refill=True).with_ids()
    ds = ds.reading(on_error="skip").batch(10)
    batches = [ids_of(batch) for batch in ds]
    good = [i for i in range(NUM_SAMPLES) if i % 2 and i % 5]
    assert sorted(i for batch in batches for i in batch) == good
    assert [len(batch) for batch in batches[:-1]] == [10] * (len(batches) - 1)
    stats = ds.stats()
    assert stats["num_skipped"] == 40
    assert stats["num_filtered"] == NUM_SAMPLES - len(good) - 40
    assert stats["num_refilled"] == NUM_SAMPLES - len(good)


def test_an_error_leaves_state_and_certificate_after_the_last_batch(tars: Dataset) -> None:
    """The filter fails far behind it: few samples are kept, and spans of the schedule have come and gone."""

    def fails(sample: Any) -> bool:
        if int(sample["cls"]) == 190:
            message = "out of luck"
            raise RuntimeError(message)
        return int(sample["cls"]) % 30 == 0

    ds = tars.filter(fails, refill=True).with_ids().batch(4)
    run = iter(ds)
    assert ids_of(next(run)) == [0, 30, 60, 90]
    certificate, state = ds.certificate(), ds.state_dict()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of luck"):
            next(run)
    assert (ds.certificate(), ds.state_dict()) == (certificate, state)
    again = tars.filter(lambda s: int(s["cls"]) % 30 == 0, refill=True).with_ids().batch(4)
    again.load_state_dict(state)
    assert [ids_of(batch) for batch in again] == [[120, 150, 180]]


def test_a_filter_that_keeps_nothing_is_an_error_and_no_endless_loop(tars: Dataset) -> None:
    with pytest.raises(UsageError, match=r"keeps none of the 99 samples that rank 0 gets in epoch 0"):
        list(tars.filter(lambda _: False, refill=True).batch(4, steps="apart").partition(rank=0, world_size=2))


def two_ranks(ds: Dataset, steps: int = 3) -> list[Dataset]:
    parts = on_ranks(ds, 2)
    for part in parts:
        run = iter(part)
        for _ in range(steps):
            next(run)
    return parts


def test_the_state_of_a_rank_is_that_of_a_rank(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).filter(keep(1, 5), refill=True)
    batched = ds.batch(6, steps="apart")
    states = [part.state_dict() for part in two_ranks(batched)]
    assert all(len(json.dumps(state)) < 1000 for state in states)
    for wrong, words in (
        (batched.partition(rank=1, world_size=2), "the state has rank=0; this stream has rank=1"),
        (batched.partition(rank=0, world_size=3), "the state has world_size=2; this stream has world_size=3"),
        (
            ds.batch(7, steps="apart").partition(rank=0, world_size=2),
            "the state has global batch=12; this stream has global batch=14",
        ),
        (batched.without(positions=[(3, 9)]).partition(rank=0, world_size=2), "if without"),
    ):
        with pytest.raises(StateError, match=words) as caught:
            wrong.load_state_dict(states[0])
        assert "merge_states" in str(caught.value)
    with pytest.raises(StateError, match="each rank is at its own position"):
        tars.shuffle(seed=1).filter(keep(1, 5)).batch(6).load_state_dict(states[0])
    tampered = json.loads(json.dumps(states[0]))
    tampered["refill"][0]["taken"] += 1
    with pytest.raises(StateError, match="checksum"):
        batched.partition(rank=0, world_size=2).load_state_dict(tampered)


def test_what_does_not_merge(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).filter(keep(1, 5), refill=True).batch(6, steps="apart")
    states = [part.state_dict() for part in two_ranks(ds)]
    later = [part.state_dict() for part in two_ranks(ds, 5)]
    other = [
        part.state_dict()
        for part in two_ranks(tars.shuffle(seed=2).filter(keep(1, 5), refill=True).batch(6, steps="apart"))
    ]
    bigger = [
        part.state_dict()
        for part in two_ranks(tars.shuffle(seed=1).filter(keep(1, 5), refill=True).batch(9, steps="apart"))
    ]
    three = ds.partition(rank=2, world_size=3).state_dict()
    start = tars.shuffle(seed=1).batch(6).state_dict()
    for given_states, words in (
        (states[:1], "the states of 1 of 2 ranks are missing: 1"),
        ([*states, later[0]], "two different states of rank 0"),
        ([states[0], other[1]], "different runs: seed is 1 and 2"),
        ([states[0], bigger[1]], "are dealt in several ways"),
        ([*states, three], "on 2 and 3 ranks"),
        ([states[0], start], "state 1 belongs to no rank, but other states do"),
    ):
        with pytest.raises(StateError, match=words):
            shoal.merge_states(given_states)
    with pytest.raises(UsageError, match="no states to merge"):
        shoal.merge_states([])
    assert shoal.merge_states([states[1], states[0], states[1]]) == shoal.merge_states(states)
    assert shoal.merge_states([start, start]) == start
    plain = tars.shuffle(seed=1).batch(6)
    with pytest.raises(StateError, match="belong to no rank"):
        shoal.merge_states([start, plain.state_at(12)])


def test_between_epochs_merged_states_are_what_they_are_without_refill(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).filter(keep(1, 5), refill=True).batch(6, steps="apart")
    parts = on_ranks(ds, 3)
    for part in parts:
        list(part)
    merged = shoal.merge_states(part.state_dict() for part in parts)
    assert merged == tars.shuffle(seed=1).batch(6).state_at(0, epoch=1)


@pytest.mark.parametrize("idle", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_stop_before_the_first_batch_forgets_nothing(tars: Dataset, idle: int, seed: int) -> None:
    """Where ranks are ahead of each other, and others have gone on from there."""
    base = tars.shuffle(Full(), seed=seed).filter(keep(seed, 3), refill=True).with_ids()
    found: list[int] = []
    state: Any = None
    legs = [(3, 1, 3), (1, 1, 2), (idle, 2, 0)]
    for world_size, size, steps in legs:
        leg = Leg(world_size, size, is_global=False, remainder="keep", steps=steps, resaves=False)
        state, _ = run_leg(leg, base, state, lambda batch: found.extend(ids_of(batch)), None)
    last = Leg(3, 2, is_global=False, remainder="keep", steps=0, resaves=False)
    run_leg(last, base, state, lambda batch: found.extend(ids_of(batch)), 1)
    assert sorted(found) == sorted(kept_ids(seed, 3))


def test_a_state_grows_with_ranks_and_not_with_stops(tars: Dataset) -> None:
    """What an earlier part of a run has taken is told only until all of it lies behind every rank."""
    ds = tars.shuffle(Full(), seed=1).filter(keep(1, 7), refill=True)
    state: Any = None
    sizes = []
    for stop in range(18):
        world_size = 2 + stop % 3
        parts = on_ranks(ds.batch(1, steps="apart"), world_size)
        for part in parts:
            if state is not None:
                part.load_state_dict(state)
            run = forever(part, 99)
            next(run)
            next(run)
        state = shoal.merge_states(part.state_dict() for part in parts)
        sizes.append(len(json.dumps(state)))
    assert state["epoch"] == 0  # so many deals of one epoch would be longer
    assert max(sizes) < 1000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds: next(iter(ds)), "fills batches, but this dataset has none"),
        (lambda ds: ds.batch(4).batch_ids(0), "only reading shows the samples"),
        (lambda ds: ds.batch(4).without(steps=3), "only reading shows the samples"),
    ],
)
def test_what_is_refused(tars: Dataset, call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(tars.filter(bool, refill=True))


def test_going_back_to_an_epoch_begins_it_anew(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).filter(keep(1, 5), refill=True).with_ids().batch(6, steps="apart")
    state = shoal.merge_states(part.state_dict() for part in two_ranks(ds))
    ds.load_state_dict(state)
    ds.set_epoch(0)  # the current one: the position stays
    assert ds.state_dict() == shoal.merge_states([ds.state_dict()])
    assert len([i for batch in ds for i in ids_of(batch)]) == len(kept_ids(1, 5)) - 36
    ds.set_epoch(0)
    assert sorted(i for batch in ds for i in ids_of(batch)) == kept_ids(1, 5)


def test_an_iterator_from_the_middle_of_a_share_moves_before_its_first_batch(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).filter(keep(1, 5), refill=True).with_ids().batch(6, steps="apart")
    state = two_ranks(ds)[0].state_dict()
    ds = ds.partition(rank=0, world_size=2)
    for move in (lambda: ds.set_epoch(2), lambda: ds.load_state_dict(ds.state_at(0, epoch=1))):
        ds.load_state_dict(state)
        iterator = iter(ds)
        move()
        moved = [ids_of(batch) for batch in iterator]
        move()
        assert moved == [ids_of(batch) for batch in ds]
    ds.load_state_dict(state)
    iterator = iter(ds)
    expected = [ids_of(batch) for batch in ds]
    ds.load_state_dict(state)
    iterator = iter(ds)
    begun = [ids_of(next(iterator))]
    ds.set_epoch(2)  # too late
    assert begun + [ids_of(batch) for batch in iterator] == expected


@settings(max_examples=8)
@given(st.lists(LEGS, min_size=1, max_size=3), st.data())
def test_more_may_be_left_out_when_a_run_goes_on(tars: Dataset, legs: list[Leg], data: st.DataObject) -> None:
    """Of what is left out, only what had come before comes; all else comes once."""
    base = tars.shuffle(ORDERS[0], seed=1, chunk="8KiB").filter(keep(3, 7), refill=True).with_ids()
    found, gaps = Counter[int](), set[int]()
    state: Any = None

    def note(batch: Any) -> None:
        if batch["__epoch__"][0] == 0:
            found.update(ids_of(batch))

    for leg in legs:
        state, _ = run_leg(leg, base, state, note, None)
        start = data.draw(st.integers(0, NUM_SAMPLES - 1))
        stop = data.draw(st.integers(start + 1, min(start + 30, NUM_SAMPLES)))
        before = set(found)
        base = base.without(positions=[(start, stop)])
        gaps |= {int(i) for i in base.ids(0, start, stop)} - before
    for part in on_ranks(base.batch(5, steps="apart"), 2):
        part.load_state_dict(state)
        for batch in forever(part, 1):
            note(batch)
    assert set(found.values()) <= {1}
    assert set(found) == set(kept_ids(3, 7)) - gaps


@pytest.mark.parametrize("options", [{}, {"memory_limit": "64KiB"}, {"copy": False}, {"verify": "always"}], ids=str)
@pytest.mark.parametrize("order", [ORDERS[0], Full()], ids=["window", "full"])
def test_however_bytes_are_read(readers: str, tars: Dataset, order: Order, options: dict[str, Any]) -> None:
    ds = tars.shuffle(order, seed=2, chunk="8KiB") if isinstance(order, Window) else tars.shuffle(order, seed=2)
    ds = ds.filter(keep(5, 4), refill=True).with_ids().reading(**options).batch(6, steps="apart")
    expected = [int(i) for i in ds.ids() if int(i) in set(kept_ids(5, 4))]
    run = iter(ds)
    first = [i for _ in range(5) for i in ids_of(next(run))]
    run.close()
    ds.load_state_dict(ds.state_dict())
    batches = list(ds)
    assert first + [i for batch in batches for i in ids_of(batch)] == expected
    for batch in batches:
        assert all(bytes(data).startswith(b"%d:" % i) for i, data in zip(batch["__id__"], batch["bin"], strict=True))


def test_a_rank_that_did_not_load_the_merged_state_is_found(tars: Dataset) -> None:
    """Positions differ from rank to rank; what was loaded must not."""
    ds = tars.shuffle(seed=1).filter(keep(1, 5), refill=True).batch(6, steps="apart")
    parts = two_ranks(ds)
    check_agreement([part.stream.iterator_spec().settings() for part in parts])
    state = shoal.merge_states(part.state_dict() for part in parts)
    new = on_ranks(ds, 2)
    new[0].load_state_dict(state)
    with pytest.raises(
        UsageError, match=f"in the merged state {state['check']} on rank 0, but the rank's own on rank 1"
    ):
        check_agreement([part.stream.iterator_spec().settings() for part in new])
    new[1].load_state_dict(state)
    check_agreement([part.stream.iterator_spec().settings() for part in new])


def test_the_certificate_of_passes_of_some_steps_is_that_of_the_epoch(tars: Dataset) -> None:
    def passes(num_steps: int | str) -> Dataset:
        filled = tars.shuffle(seed=1).filter(keep(1, 5), refill=True)
        return filled.batch(4, steps=num_steps).partition(rank=0, world_size=1)

    run, whole = passes(7), passes("apart")
    while "1" not in run.certificate()["epochs"]:
        list(run)
    list(whole)
    assert run.certificate()["epochs"]["0"] == whole.certificate()["epochs"]["0"]
