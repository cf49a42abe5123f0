"""Orders of mixtures: every source in its own order, whatever is mixed with it, and each position dealt once."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import few_examples
from tests.order.mixtures import CHOICES, NAMES, dataset, epoch_of, mixture, own_ids

from shoal.errors import UsageError
from shoal.order.mixture.mixed_order import MixedEpoch, MixedSources
from shoal.order.mixture.source_choice import Even, PerRank
from shoal.order.mixture.source_schedule import Change, SourceSchedule
from shoal.order.partition import Partition
from shoal.orders import Block, Buffer, Full, Sequential, Window


@st.composite
def mixtures(draw: st.DrawFn) -> MixedSources:
    sizes = draw(st.lists(st.one_of(st.integers(20, 300), st.integers(1, 300)), min_size=1, max_size=6))
    weights = draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)).filter(any))
    return mixture(
        sizes,
        weights,
        choice=draw(st.sampled_from(CHOICES)),
        seed=draw(st.integers(0, 2**64 - 1)),
        num_samples=draw(st.integers(1, 900)),
    )


@few_examples(12)
@given(mixtures())
def test_a_source_comes_in_its_own_order(mixed: MixedSources) -> None:
    ids, chunks = mixed.locate(0, 1200)
    sources = mixed.schedule.sources(0, 1200)
    for number, source in enumerate(mixed.parts):
        mine = sources == number
        own, own_chunks = source.locate(0, int(mine.sum()))
        assert np.array_equal(ids[mine] - mixed.first_id[number], own)
        assert np.array_equal(chunks[mine] - mixed.first_chunk[number], own_chunks)


@few_examples(12)
@given(mixtures(), st.integers(1, 2500))
def test_any_prefix_has_each_sample_k_or_k_plus_1_times(mixed: MixedSources, length: int) -> None:
    ids, counts = mixed.locate(0, length)[0], mixed.schedule.counts(length)
    for number, source in enumerate(mixed.parts):
        visits = np.bincount(ids, minlength=mixed.num_ids)[mixed.first_id[number] : mixed.first_id[number + 1]]
        assert set(visits.tolist()) <= {int(counts[number]) // source.num_samples + more for more in (0, 1)}


@few_examples(12)
@given(mixtures(), st.integers(0, 4), st.integers(0, 900), st.integers(0, 900))
def test_epochs_are_parts_of_one_endless_order(mixed: MixedSources, epoch: int, first: int, last: int) -> None:
    order = epoch_of(mixed, epoch)
    begin, end = sorted((first % (order.num_samples + 1), last % (order.num_samples + 1)))
    offset = epoch * order.num_samples
    fresh = mixed.locate(0, offset + order.num_samples)[0]
    assert np.array_equal(order.ids(begin, end), fresh[offset + begin : offset + end])
    wanted = np.arange(0, mixed.num_ids, max(1, mixed.num_ids // 5))
    ids = order.ids(0, order.num_samples)
    for sample, found in zip(wanted, order.positions(wanted), strict=True):
        places = np.flatnonzero(ids == sample)
        assert found == (places[0] if len(places) else -1)


@few_examples(8)
@given(mixtures(), st.integers(1, 9), st.integers(0, 60), st.sampled_from(["keep", "pad", "drop"]))
def test_every_position_is_dealt_once(mixed: MixedSources, world_size: int, more: int, remainder: str) -> None:
    order = epoch_of(mixed, 1)
    partition = Partition(world_size + more, world_size, remainder)
    num_batches = partition.num_batches(order.num_samples)
    found = []
    for rank in range(world_size):
        share = partition.share(order, rank, 0, num_batches)
        for batch in range(0, num_batches, 1 + num_batches // 3):
            part = partition.share(order, rank, batch, batch + 1)
            first, stop = share.batch_first[batch : batch + 2]
            assert np.array_equal(part.ids, share.ids[first:stop])
        assert np.array_equal(order.ids(0, order.num_samples)[share.positions], share.ids)
        found += share.positions[~share.repeated].tolist()
    due = order.num_samples if remainder != "drop" else num_batches * partition.global_batch
    assert sorted(found) == list(range(due))


@few_examples(8)
@given(mixtures(), st.integers(2, 9), st.integers(1, 60))
def test_what_all_ranks_get_is_what_each_gets(mixed: MixedSources, world_size: int, more: int) -> None:
    order, partition = epoch_of(mixed), Partition(world_size + more, world_size)
    num_batches = order.num_samples // partition.global_batch
    chunks, ranks = partition.dealt(order, 0, num_batches)
    for rank in range(world_size):
        share = partition.share(order, rank, 0, num_batches)
        assert np.array_equal(np.flatnonzero(ranks == rank), share.positions)
        assert np.array_equal(chunks[ranks == rank], share.chunks)


def test_each_source_changes_nothing_for_the_others() -> None:
    few = mixture([100, 60], [3, 1])
    more = mixture([100, 60, 40, 7], [5, 1, 2, 1])
    for number in range(2):
        each = [mixed.locate(0, 3000)[0][mixed.schedule.sources(0, 3000) == number] for mixed in (few, more)]
        shortest = min(map(len, each))
        assert shortest > 300
        assert np.array_equal(*(ids[:shortest] for ids in each))


def test_the_end_of_an_epoch_changes_nothing_before_it() -> None:
    short, long = (mixture([90, 31, 8], [5, 3, 1], num_samples=num) for num in (333, 1000))
    assert np.array_equal(
        np.concatenate([epoch_of(short, epoch).ids(0, 333) for epoch in range(3)]), epoch_of(long).ids(0, 999)
    )


@pytest.mark.parametrize(
    "order",
    [
        Full(),
        Window(chunks=6),
        *(
            pytest.param(order, marks=pytest.mark.drill)
            for order in (Sequential(), Block(chunks=3), Buffer(samples=20))
        ),
    ],
)
def test_nested_mixtures_come_in_their_own_order(order: Any) -> None:
    schedules = [
        SourceSchedule(["a", "b"], [Change(0, weights)], Even(), seed=seed)
        for seed, weights in ((1, {"a": 2, "b": 3}), (2, {"a": 1, "b": 1}))
    ]
    inner = MixedSources(schedules[0], [dataset(name, [7] * 9, order) for name in "xy"], num_samples=50)
    outer = MixedSources(schedules[1], [dataset("z", [5] * 4, order), inner], num_samples=200)
    deepest = MixedSources(schedules[0], [outer, dataset("w", [3] * 5, order)], num_samples=300)
    for mixed, number in ((outer, 1), (deepest, 0)):
        mine = mixed.schedule.sources(0, 900) == number
        ids = mixed.locate(0, 900)[0][mine] - mixed.first_id[number]
        assert np.array_equal(ids, own_ids(mixed.parts[number], 0, len(ids)))
    epoch = MixedEpoch(deepest, 2)
    partition = Partition(24, 3)
    positions = [partition.share(epoch, rank, 0, 13).positions for rank in range(3)]
    assert sorted(np.concatenate(positions)) == list(range(300))
    ids = epoch.ids(0, 300)
    found = epoch.positions(np.arange(deepest.num_ids))
    assert all(ids[place] == sample if place >= 0 else sample not in ids for sample, place in enumerate(found))


def skew(mixed: MixedSources, world_size: int, per_rank: int, steps: int) -> Any:
    """By how many samples of its share a rank is off, at worst, for each source; and these shares."""
    order = MixedEpoch(mixed, 0)
    partition = Partition(world_size * per_rank, world_size)
    chunks, ranks = partition.dealt(order, 0, steps)
    sources = np.searchsorted(mixed.first_chunk, chunks, side="right") - 1
    num_sources = len(mixed.parts)
    counts = np.bincount(ranks * num_sources + sources, minlength=world_size * num_sources).reshape(world_size, -1)
    shares = counts.sum(axis=0) / world_size
    return np.abs(counts - shares).max(axis=0), shares


@pytest.mark.parametrize(
    "kind", ["zipf", *(pytest.param(kind, marks=pytest.mark.drill) for kind in ("large", "equal"))]
)
def test_every_rank_gets_its_share_of_each_source(kind: str) -> None:
    """1,000 steps of 64 ranks, 16 samples each; of ranks that draw at random, the worst is off by 3.7 roots."""
    num = 64
    weights = {"zipf": [10**9 // rank for rank in range(1, num + 1)], "large": [5670, *[10] * 63], "equal": [1] * num}
    mixed = mixture([20_000] * num, weights[kind], num_samples=1_024_000, chunk=100)
    off, shares = skew(mixed, 64, 16, 1000)
    large = shares >= 500
    assert (off[large] <= 0.1 * shares[large]).all()
    assert (off <= 2.4 * np.sqrt(shares)).all()


def test_a_batch_of_a_rank_can_have_a_source_of_its_own() -> None:
    mixed = mixture([300, 200, 100], [3, 2, 1], choice=PerRank(samples=8), num_samples=6400)
    order, partition = epoch_of(mixed), Partition(32, 4)
    several = 0
    for rank in range(4):
        share = partition.share(order, rank, 0, 200)
        sources = mixed.source_of_ids(share.ids).reshape(-1, 8)
        assert (sources == sources[:, :1]).all()
        several += len(np.unique(sources[:, 0])) > 1
    assert several == 4


def test_a_mixture_refuses_positions_behind_its_epoch() -> None:
    order = epoch_of(mixture([10], [1], num_samples=25))
    assert order.ids(20, 25).tolist() == own_ids(mixture([10], [1]).parts[0], 20, 25).tolist()
    with pytest.raises(UsageError, match="an epoch has positions"):
        order.ids(20, 26)
    with pytest.raises(UsageError, match="sample ids must lie"):
        order.positions([10])


@pytest.mark.parametrize("num_sources", [1, 100])
def test_sources_of_one_sample(num_sources: int) -> None:
    mixed = mixture([1] * num_sources, [1] * num_sources, num_samples=8 * num_sources)
    ids = epoch_of(mixed, 5).ids(0, 8 * num_sources)
    assert set(np.bincount(ids, minlength=num_sources).tolist()) <= {6, 7, 8, 9, 10}


def test_spans_have_few_rounds_of_any_source() -> None:
    tiny, large = mixture([1, 1000], [1, 3]), mixture([5000, 1000], [1, 3])
    assert epoch_of(tiny).parameters["most_positions"] == 256 * 4
    assert epoch_of(large).parameters["most_positions"] == 256 * 1333
    schedule = SourceSchedule(["a", "b"], [Change(0, {"a": 1, "b": 1})], Even(), seed=3)
    nested = MixedSources(schedule, [tiny, large], num_samples=1000)
    assert epoch_of(nested).parameters["most_positions"] == 256 * 8


def test_mixtures_are_those_of_every_release() -> None:
    found = hashlib.sha256()
    for choice in CHOICES:
        mixed = mixture([97, 31, 1, 500], [50, 30, 1, 19], choice=choice, seed=7, num_samples=777)
        assert mixed.schedule.names == tuple(NAMES[:4])
        for epoch in (0, 1, 10**6):
            order = epoch_of(mixed, epoch)
            found.update(order.ids(0, 777).astype("<i8").tobytes())
            for rank in range(3):
                found.update(Partition(36, 3).share(order, rank, 0, 22).ids.astype("<i8").tobytes())
    assert found.hexdigest()[:16] == "78a4702deb7028cd"
