"""Deals: what is taken follows from how far each rank has come in its share, one deal on top of the other."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import few_examples

from shoal.order import partition as partitions
from shoal.order.partition import Partition
from shoal.order.position_subsets import WithoutGaps, left_beside
from shoal.order.protocol import BoundOrder
from shoal.order.states.deals import Deal, needed_deals, settled, taken_by
from shoal.orders import Buffer, Full, Window

NUM_SAMPLES = 610
ORDERS: list[BoundOrder] = [
    order.bind([20] * 30 + [10], seed=3, epoch=1) for order in (Window(8, 2), Full(), Buffer(samples=50))
]
SIZES = st.tuples(st.integers(1, 6), st.integers(0, 60)).map(lambda sizes: (sizes[0], sizes[0] + sizes[1]))


def shares(order: BoundOrder, partition: Partition, start: int) -> list[list[int]]:
    """The positions in the share of each rank, in its order."""
    last = partition.num_batches(order.num_samples, start)
    found = [partition.share(order, rank, 0, last, start) for rank in range(partition.world_size)]
    assert not any(share.repeated.any() for share in found)
    return [share.positions.tolist() for share in found]


@few_examples(25)
@given(st.sampled_from(ORDERS), SIZES, st.integers(0, NUM_SAMPLES), st.data(), st.sampled_from([1, 100, 1 << 20]))
def test_what_is_taken_is_the_beginning_of_each_share(
    order: BoundOrder, sizes: tuple[int, int], start: int, data: st.DataObject, at_once: int
) -> None:
    world_size, global_batch = sizes
    partition = Partition(global_batch, world_size, "drop", refills=True)  # which drops nothing of shares
    every = shares(order, partition, start)
    assert sorted(sum(every, [])) == list(range(start, NUM_SAMPLES))  # noqa: RUF017
    for rank, share in enumerate(every):
        assert len(share) == partition.num_samples_of(rank, NUM_SAMPLES - start)
    counts = [data.draw(st.one_of(st.none(), st.integers(0, len(share)))) for share in every]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "_DEALT_AT_ONCE", at_once)
        num_whole, numbers = partition.taken(order, counts, start)
    begin = min(start + num_whole * global_batch, NUM_SAMPLES)
    expected = sorted(place for share, count in zip(every, counts, strict=True) for place in share[:count])
    assert [*range(start, begin), *numbers.tolist()] == expected
    assert not len(numbers) or numbers[0] >= begin


@few_examples(25)
@given(st.sampled_from(ORDERS), st.lists(SIZES, min_size=1, max_size=4), st.data())
def test_a_deal_lies_on_what_those_before_it_have_left(order: BoundOrder, sizes: list, data: st.DataObject) -> None:
    """What is left after each is what its ranks did not take; and forgotten deals are not needed for it."""
    left = list(range(NUM_SAMPLES))
    deals: tuple[Deal, ...] = ()
    begin = 0
    for world_size, global_batch in sizes:
        partition = Partition(global_batch, world_size, refills=True)
        runs = left_beside([], taken_by(settled(deals, order)), NUM_SAMPLES)
        dealt = order if runs is None else WithoutGaps(order, runs)
        start = begin if runs is None else int(runs.count_between(np.array([0, begin]))[0])
        every = shares(dealt, partition, start)
        assert sorted(sum(every, [])) == left  # noqa: RUF017
        counts = tuple(data.draw(st.integers(0, min(len(share), 30))) for share in every)
        left = sorted(place for share, count in zip(every, counts, strict=True) for place in share[count:])
        deal = Deal(1, begin, global_batch, world_size, counts)
        assert Deal.from_dict(json.loads(json.dumps(deal.to_dict()))) == deal
        deals, begin = needed_deals(settled([*deals, deal], order))
    taken = taken_by(settled(deals, order))
    assert [place for place in range(begin, NUM_SAMPLES) if place not in set(taken.tolist())] == left


def test_an_end_is_told_as_all() -> None:
    deal = Deal(3, 0, 24, 3, (70, None, 41), ((5, 9),))
    assert deal.to_dict()["ahead"] == [29, None, 0]
    assert Deal.from_dict(deal.to_dict()) == deal
    with pytest.raises(ValueError, match="2 numbers of samples and 0 numbers of sequences for 3 ranks"):
        Deal.from_dict({**deal.to_dict(), "ahead": [1, 2]})
