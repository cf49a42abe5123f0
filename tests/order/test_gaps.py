"""What is left of an order without some positions is what it is, numbered anew, and dealt as before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import few_examples

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.order.position_subsets import MOST_GAPS, NO_GAPS, Gaps, WithoutGaps, number_in, position_in, span_in
from shoal.order.protocol import BoundOrder
from shoal.orders import Buffer, Full, Window

NUM_SAMPLES = 600
RANGES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, NUM_SAMPLES - 2), st.integers(1, 60)).map(
        lambda each: (each[0], each[1], min(each[1] + each[2], NUM_SAMPLES))
    ),
    max_size=6,
)
ORDERS: list[BoundOrder] = [
    order.bind([20] * 30, seed=3, epoch=1) for order in (Window(8, 2), Full(), Buffer(samples=50))
]


@few_examples(25)
@given(RANGES, RANGES)
def test_gaps_are_the_union_of_their_ranges(ranges: list, more: list) -> None:
    gaps = Gaps.of(ranges).plus(Gaps.of(more))
    for epoch in (0, 1):
        skipped = {place for number, start, stop in [*ranges, *more] if number == epoch for place in range(start, stop)}
        left = gaps.left(epoch, NUM_SAMPLES)
        kept = [place for place in range(NUM_SAMPLES) if place not in skipped]
        members = list(range(NUM_SAMPLES)) if left is None else left.members(np.arange(len(left))).tolist()
        assert members == kept
        for number, position in enumerate(kept):
            assert position_in(left, number, NUM_SAMPLES) == position
            assert number_in(left, position) == number
        assert position_in(left, len(kept), NUM_SAMPLES) == NUM_SAMPLES
        assert number_in(left, NUM_SAMPLES) == len(kept)
        for first, stop in [(0, len(kept)), (len(kept) // 3, len(kept) // 2), (5, 5)]:
            begin, end = span_in(left, first, stop)
            assert first == stop or [place for place in kept if begin <= place < end] == kept[first:stop]
    assert Gaps.of(reversed(gaps.ranges)) == gaps


@few_examples(25)
@given(st.sampled_from(ORDERS), RANGES)
def test_what_is_left_is_the_order_without_the_gaps(order: BoundOrder, ranges: list) -> None:
    left = Gaps.of(ranges).left(1, NUM_SAMPLES)
    if left is None:
        return
    without = WithoutGaps(order, left)
    ids, chunks = order.locate(0, NUM_SAMPLES)
    kept = left.members(np.arange(len(left)))
    found_ids, found_chunks = without.locate(0, without.num_samples)
    assert found_ids.tolist() == ids[kept].tolist()
    assert found_chunks.tolist() == chunks[kept].tolist()
    middle = without.num_samples // 2
    assert without.ids(middle, middle + 7).tolist() == found_ids[middle : middle + 7].tolist()
    assert without.ids(4, 4).tolist() == []
    positions = without.positions(ids)
    assert positions[kept].tolist() == list(range(len(kept)))
    assert np.all(np.delete(positions, kept) == -1)


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_ranks_get_the_batches_that_they_had(order: BoundOrder, world_size: int) -> None:
    """Leaving whole batches out changes nothing of the others, not even which rank gets a sample."""
    partition = Partition(24, world_size)
    left = Gaps.of([(0, 24 * 3, 24 * 5), (0, 24 * 9, 24 * 10)]).left(0, NUM_SAMPLES)
    assert left is not None
    without = WithoutGaps(order, left)
    kept = [step for step in range(25) if step not in (3, 4, 9)]
    assert partition.num_batches(without.num_samples) == len(kept)
    for rank in range(world_size):
        for step, untouched in enumerate(kept):
            now = partition.share(without, rank, step, step + 1)
            before = partition.share(order, rank, untouched, untouched + 1)
            assert now.ids.tolist() == before.ids.tolist()
            assert now.positions.tolist() == before.positions.tolist()
        whole = partition.share(without, rank, 0, len(kept))
        assert len(whole.ids) == len(kept) * 24 // world_size
    chunks, ranks = partition.dealt(without, 0, len(kept))
    assert sorted(chunks[ranks == 0].tolist()) == sorted(partition.share(without, 0, 0, len(kept)).chunks.tolist())


def test_ranges_that_cannot_be() -> None:
    for ranges in ([(0, 5, 5)], [(0, 6, 5)], [(0, -1, 5)], [(-1, 0, 5)]):
        with pytest.raises(UsageError, match="is empty or impossible"):
            Gaps.of(ranges)
    with pytest.raises(UsageError, match=f"a state can name {MOST_GAPS}"):
        Gaps.of([(0, 10 * number, 10 * number + 1) for number in range(MOST_GAPS + 1)])
    assert not NO_GAPS
    assert Gaps.of([(0, 10 * number, 10 * number + 10) for number in range(100)]).ranges == ((0, 0, 1000),)
