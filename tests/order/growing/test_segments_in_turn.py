from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import chunk_of, orders, scan, windows
from tests.order.growing.segmented import NOTHING, in_turn, segmented

from shoal.errors import UsageError
from shoal.order.growing_segments import SegmentsInTurn
from shoal.order.orders_without_window import SequentialEpoch
from shoal.order.partition import Partition
from shoal.order.protocol import Dealing, Laned, Narrowing
from shoal.orders import BoundOrder, Order, Sequential, Window

SEEDS = st.integers(0, 2**64 - 1)


@few_examples(20)
@given(segments=segmented(), order=orders(), seed=SEEDS, data=st.data())
def test_any_span_is_that_of_a_scan(
    segments: list[NDArray[np.int64]], order: Order, seed: int, data: st.DataObject
) -> None:
    bound, samples = in_turn(segments, order, seed=seed), np.concatenate(segments)
    total = int(samples.sum())
    assert bound.num_samples == total
    whole = scan(bound)
    assert np.array_equal(np.sort(whole), np.arange(total)), "each sample once"
    for begin, end in zip(bound.first_samples, bound.first_samples[1:], strict=False):
        assert np.array_equal(np.sort(whole[begin:end]), np.arange(begin, end)), "a segment has the numbers of its ids"
    for _ in range(4):
        start = data.draw(st.integers(0, total))
        stop = data.draw(st.integers(start, total))
        fresh = in_turn(segments, order, seed=seed)
        ids, chunks = fresh.locate(start, stop)
        assert np.array_equal(ids, whole[start:stop])
        assert np.array_equal(fresh.ids(start, stop), ids)
        assert np.array_equal(chunks, chunk_of(samples, ids))
        assert np.array_equal(fresh.positions(ids), np.arange(start, stop))
    mixed = np.random.default_rng(0).permutation(total)
    assert np.array_equal(whole[bound.positions(mixed)], mixed)


@few_examples(20)
@given(
    segments=segmented(),
    order=orders(),
    seed=SEEDS,
    world_size=st.integers(1, 17),
    extra=st.integers(0, 600),
    data=st.data(),
)
def test_a_prefix_deals_the_first_batches_of_all(
    segments: list[NDArray[np.int64]], order: Order, seed: int, world_size: int, extra: int, data: st.DataObject
) -> None:
    num_known = data.draw(st.integers(0, len(segments)))
    known, whole = in_turn(segments[:num_known], order, seed=seed), in_turn(segments, order, seed=seed)
    assert np.array_equal(scan(known), whole.ids(0, known.num_samples))
    part = Partition(world_size + extra, world_size)
    num_batches = known.num_samples // part.global_batch
    ids = []
    for rank in range(world_size):
        of_known, of_whole = (part.share(bound, rank, 0, num_batches) for bound in (known, whole))
        for name in ("ids", "positions", "chunks", "repeated", "batch_first"):
            assert np.array_equal(getattr(of_known, name), getattr(of_whole, name))
        ids.append(of_known.ids.reshape(num_batches, part.size_of(rank)))
        for batch in range(max(0, num_batches - 3), num_batches):  # dealt alone, as a worker does
            alone = part.share(known, rank, batch, batch + 1)
            assert np.array_equal(alone.ids, ids[-1][batch])
    batches = np.sort(np.concatenate(ids, axis=1), axis=1)
    end = num_batches * part.global_batch
    assert np.array_equal(batches, np.sort(whole.ids(0, end).reshape(batches.shape), axis=1))


@few_examples(20)
@given(segments=segmented(most=1), order=windows(), world_size=st.integers(2, 17), extra=st.integers(0, 600))
def test_one_segment_is_dealt_as_its_own_order(
    segments: list[NDArray[np.int64]], order: Window, world_size: int, extra: int
) -> None:
    bound = in_turn(segments, order)
    part = Partition(world_size + extra, world_size, "pad")
    stop = part.num_batches(bound.num_samples)
    for rank in range(world_size):
        mine, own = (part.share(each, rank, 0, stop) for each in (bound, bound.segment(0)))
        assert np.array_equal(mine.ids, own.ids)


def reads_per_chunk(world_size: int) -> float:
    """Chunks read, counted once for each rank that reads them, per chunk."""
    segments = [np.full(num_chunks, 64) for num_chunks in (259, 511, 1030, 2041)]
    bound, batch = in_turn(segments, Window(chunks=256, num_canonical_nodes=16), seed=5), 64 * world_size
    part = Partition(batch, world_size)
    stop = part.num_batches(bound.num_samples)
    readers = [np.unique(part.share(bound, rank, 0, stop).chunks).size for rank in range(world_size)]
    return sum(readers) / sum(map(len, segments))


@pytest.mark.parametrize("world_size", [2, 4, *(pytest.param(ranks, marks=pytest.mark.drill) for ranks in (1, 8, 16))])
def test_a_chunk_has_about_one_reader(world_size: int) -> None:
    # Besides those at borders of nodes, and batches at the borders of segments, whose samples are not evenly on nodes.
    assert reads_per_chunk(world_size) <= 1.0 + 4 * 2 * 16 / 3841 + 0.01


@pytest.mark.parametrize("world_size", [3, *(pytest.param(ranks, marks=pytest.mark.drill) for ranks in (7, 15))])
def test_a_chunk_has_few_readers_for_any_number_of_ranks(world_size: int) -> None:
    assert reads_per_chunk(world_size) <= 1.15


def test_lanes_are_those_of_the_segments() -> None:
    segments = [np.full(50, 20), NOTHING, np.full(80, 30)]
    for order in (Window(chunks=16), Sequential()):
        bound = in_turn(segments, order, seed=1)
        chunks = np.random.default_rng(0).permutation(130)
        lanes = bound.lanes(chunks)
        assert lanes.dtype == np.uint16
        assert len(np.unique(lanes >> 12)) == 16, "they are spread over all of the range"
        for number, first in ((0, 0), (2, 50)):
            mine = (chunks >= first) & (chunks < first + len(segments[number]))
            own = bound.segment(number)
            if isinstance(own, Laned):
                assert np.array_equal(lanes[mine], own.lanes(chunks[mine] - first))
        assert bound.lanes(NOTHING).tolist() == []


def test_seeds_and_segments_differ() -> None:
    segments = [np.full(100, 20)] * 3
    one, other = (in_turn(segments, Window(chunks=16), seed=seed) for seed in (0, 1))
    assert not np.array_equal(scan(one), scan(other))
    rows = scan(one).reshape(3, -1) - np.arange(3)[:, None] * 2000
    assert not np.array_equal(rows[0], rows[1]), "segments of one size are ordered differently"


class Dealt(SequentialEpoch):
    """Storage order whose ranks share a batch by the position in it, read backwards."""

    def axis(self, positions: NDArray, chunks: NDArray, batches: NDArray) -> NDArray[np.uint64]:
        return (self.num_samples - 1 - positions).astype(np.uint64)


def test_a_segment_may_deal_by_itself() -> None:
    bound = SegmentsInTurn([0, 6, 12], [0, 1, 2], lambda _: Dealt(np.array([6])), parameters={})
    share = Partition(12, 2).share(bound, 0, 0, 1)
    assert share.ids.tolist() == [3, 4, 5, 9, 10, 11], "each rank has a part of each segment"


def test_spans_can_be_shorter() -> None:
    segments = [np.full(500, 100)] * 3
    bound = in_turn(segments, Window(chunks=64), seed=1)
    assert isinstance(bound, Narrowing)
    assert isinstance(bound, Dealing)
    whole = scan(in_turn(segments, Window(chunks=64), seed=1))
    bound.ids(0, 10)
    bound.narrow(1000)
    bound.narrow(50_000)  # no longer ones
    assert bound.span == 1000
    assert bound.segment(0).span < 2000
    assert bound.segment(2).span < 2000
    assert np.array_equal(scan(bound), whole)


def test_two_segments_are_kept_bound() -> None:
    counted = [0] * 4

    def order_of(number: int) -> BoundOrder:
        counted[number] += 1
        return Sequential().bind([10])

    bound = SegmentsInTurn(range(0, 50, 10), range(5), order_of, parameters={})
    assert counted == [0, 0, 0, 0]
    for start in range(34):
        bound.ids(start, start + 6)  # of one segment, or of two
    assert counted == [1, 1, 1, 1]
    bound.ids(0, 40)
    assert counted == [2, 2, 2, 2]


def test_threads_share_an_order() -> None:
    segments = [np.full(30, 20)] * 6
    whole, bound = scan(in_turn(segments, Window(chunks=8))), in_turn(segments, Window(chunks=8))
    wrong: list[int] = []

    def look(seed: int) -> None:
        rng = np.random.default_rng(seed)
        starts = rng.integers(0, 3500, 60).tolist()
        wrong.extend(start for start in starts if (bound.ids(start, start + 100) != whole[start : start + 100]).any())

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_lies_outside() -> None:
    bound = in_turn([np.array([3, 4]), np.array([5])], Window(chunks=2))
    with pytest.raises(UsageError, match=r"positions \[3, 13\) .* \[0, 12\)"):
        bound.ids(3, 13)
    with pytest.raises(UsageError, match=r"sample ids must lie in \[0, 12\)"):
        bound.positions(np.array([12]))
