"""Global batches shared by weight: the same samples over all ranks, equally many and about as heavy on each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.order.partition import Partition, balanced
from shoal.order.position_subsets import Gaps, WithoutGaps
from shoal.order.sequences.groupings import Packing
from shoal.order.sequences.packed_order import PackedOrder
from shoal.order.window.order import Window

WORLD_SIZES = st.integers(1, 9)


def order_of(num_samples: int = 2_000, strategy: str = "best_fit") -> PackedOrder:
    lengths = np.random.default_rng(1).lognormal(4, 1, num_samples).astype(np.int64) + 1
    documents = Window(chunks=16, num_canonical_nodes=4).bind(np.full(num_samples // 10, 10), seed=3, epoch=0)
    return PackedOrder(documents, lengths, Packing(512, strategy, block=500), seed=3, epoch=0)


ORDER = order_of()


def test_the_weight_of_a_sequence_is_the_sum_of_its_squared_lengths() -> None:
    pieces = ORDER.pieces(np.arange(ORDER.num_samples))
    sizes = (pieces.stops - pieces.starts).tolist()
    sums = [sum(size**2 for size in sizes[a:b]) for a, b in zip(pieces.first, pieces.first[1:], strict=False)]
    assert ORDER.weights(np.arange(ORDER.num_samples)).tolist() == sums
    some = np.array([5, 300, 3, 3])
    assert ORDER.weights(some).tolist() == [sums[number] for number in some]


@given(
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=40),
    world_size=WORLD_SIZES,
    neighbours=st.integers(2, 9),
)
def test_every_group_of_ranks_keeps_its_samples(weights: list[int], world_size: int, neighbours: int) -> None:
    each, more = divmod(len(weights), world_size)
    sizes = [each + (rank < more) for rank in range(world_size)]
    (found,) = balanced(np.array([weights]), sizes, neighbours).tolist()
    ends = np.cumsum([0, *sizes])
    for first in range(0, world_size, neighbours):
        begin, end = ends[first], ends[min(first + neighbours, world_size)]
        assert sorted(found[begin:end]) == list(range(begin, end))


@given(
    world_size=WORLD_SIZES,
    per_rank=st.integers(1, 9),
    more=st.integers(0, 5),
    neighbours=st.integers(2, 9),
    start=st.integers(0, 100),
    remainder=st.sampled_from(["keep", "pad", "drop"]),
    gap=st.tuples(st.integers(0, 300), st.integers(1, 50)),
)
def test_balance_changes_no_global_batch(
    world_size: int, per_rank: int, more: int, neighbours: int, start: int, remainder: str, gap: tuple[int, int]
) -> None:
    order = WithoutGaps(ORDER, left) if (left := Gaps.of([(0, gap[0], sum(gap))]).left(0, ORDER.num_samples)) else ORDER
    global_batch = world_size * per_rank + min(more, world_size - 1)
    dealt = []
    for balance in (0, neighbours):
        partition = Partition(global_batch, world_size, remainder, balance=balance)
        num_batches = partition.num_batches(order.num_samples, start)
        shares = [partition.share(order, rank, 0, num_batches, start) for rank in range(world_size)]
        whole = [partition.share(order, rank, 1, 2, start) for rank in range(world_size)]
        for share, part in zip(shares, whole, strict=True):  # spans do not matter
            if num_batches > 1:
                assert part.ids.tolist() == share.ids[share.batch_first[1] : share.batch_first[2]].tolist()
            assert all(np.all(np.diff(p) >= 0) for p in np.split(share.positions, share.batch_first[1:-1]))
        batches = [
            sorted(
                (int(i), bool(r))
                for share in shares
                for i, r in zip(
                    share.ids[share.batch_first[number] : share.batch_first[number + 1]],
                    share.repeated[share.batch_first[number] : share.batch_first[number + 1]],
                    strict=True,
                )
            )
            for number in range(num_batches)
        ]
        dealt.append((batches, [share.batch_first.tolist() for share in shares]))
    assert dealt[0] == dealt[1]


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_ranks_have_about_the_same_weight(strategy: str) -> None:
    order = order_of(8_000, strategy)
    spread = {}
    for balance in (0, 8):
        _, ranks = Partition(64, 8, balance=balance).dealt(order, 0, order.num_samples // 64)
        weights = order.weights(np.arange(len(ranks)))
        sums = np.bincount(np.arange(len(ranks)) // 64 * 8 + ranks, weights=weights).reshape(-1, 8)
        spread[balance] = float((sums.max(1) / sums.mean(1)).mean())
    assert spread[8] < 1.08
    assert spread[0] > 1.2


def test_orders_without_weights_are_dealt_as_ever() -> None:
    order = ORDER.documents
    for rank in range(3):
        plain, asked = (Partition(9, 3, balance=balance).share(order, rank, 0, 5) for balance in (0, 3))
        assert plain.ids.tolist() == asked.ids.tolist()
