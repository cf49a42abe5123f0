"""A rank makes the samples of its own canonical nodes only, and gets the same share as from all nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import datasets, windows

from shoal.order import partition as partitions
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition, Share
from shoal.order.position_subsets import OverStored
from shoal.order.protocol import BoundOrder, locate_in
from shoal.order.window.order import WindowEpoch
from shoal.orders import Full, Window


def from_all_nodes(order: BoundOrder, partition: Partition, rank: int, *span: int) -> Share:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "locate_in", lambda *_: None)
        return partition.share(order, rank, *span)


def same(one: Share, other: Share) -> bool:
    names = ("ids", "positions", "chunks", "repeated", "batch_first")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@few_examples(40)
@given(
    samples=datasets(max_samples=20_000),
    order=windows(max_chunks=80),
    world_size=st.integers(2, 40),
    rows=st.integers(1, 30),
    data=st.data(),
)
def test_the_share_of_a_rank_is_the_share_from_all_nodes(
    samples: NDArray[np.int64], order: Window, world_size: int, rows: int, data: st.DataObject
) -> None:
    nodes = order.resolved_nodes
    partition = Partition(max(rows, -(-world_size // nodes)) * nodes, world_size)
    bound, again = (order.bind(samples, seed=2, epoch=1) for _ in range(2))
    start = data.draw(st.integers(0, bound.num_samples))
    stop = min(partition.num_batches(bound.num_samples, start), 30)
    for rank in data.draw(st.lists(st.integers(0, world_size - 1), min_size=1, max_size=4)):
        first = data.draw(st.integers(0, stop))
        span = rank, first, stop, start
        assert same(partition.share(bound, *span), from_all_nodes(again, partition, *span))


@given(samples=datasets(max_samples=5000), order=windows(max_chunks=60), data=st.data())
def test_some_nodes_have_every_so_many_th_position(
    samples: NDArray[np.int64], order: Window, data: st.DataObject
) -> None:
    bound = order.bind(samples, seed=4)
    first = data.draw(st.integers(0, order.resolved_nodes))
    nodes = range(first, data.draw(st.integers(first, order.resolved_nodes)))
    start = data.draw(st.integers(0, bound.num_samples))
    stop = data.draw(st.integers(start, bound.num_samples))
    is_inside = np.isin(np.arange(start, stop) % order.resolved_nodes, nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "span", max(1, bound.num_samples // 3 // order.resolved_nodes) * order.resolved_nodes)
        ids, chunks = bound.locate_in(start, stop, nodes)
        all_ids, all_chunks = bound.locate(start, stop)
    assert ids.tolist() == all_ids[is_inside].tolist()
    assert chunks.tolist() == all_chunks[is_inside].tolist()


@given(samples=datasets(max_samples=5000, max_chunks=100), order=windows(max_chunks=60), data=st.data())
def test_lanes_do_not_depend_on_the_chunks_asked_before(
    samples: NDArray[np.int64], order: Window, data: st.DataObject
) -> None:
    """Also of chunks on several nodes, which have the lane of the last one."""
    filled = np.flatnonzero(samples)
    at_once = order.bind(samples, seed=4).lanes(filled)
    bound = order.bind(samples, seed=4)
    for number in data.draw(st.permutations(range(min(len(filled), 12)))):
        assert bound.lanes(filled[number : number + 1]) == at_once[number]
    assert np.array_equal(bound.lanes(filled), at_once)


def test_a_rank_makes_its_share_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 ranks over 64 nodes: each makes 1/64, also of selected samples."""
    made: list[int] = []
    make = WindowEpoch._make  # counts its positions

    def counted(self: WindowEpoch, start: int, stop: int, nodes: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids, chunks = make(self, start, stop, nodes)
        made.append(len(ids))
        return ids, chunks

    monkeypatch.setattr(WindowEpoch, "_make", counted)
    bound, again = (Window(chunks=1024).bind(np.full(16_000, 50), seed=0) for _ in range(2))
    selected = OverStored(again, Runs.span(100, 100 + again.num_samples))
    partition = Partition(64 * 64, 64)
    for order in (bound, selected):
        made.clear()
        share = partition.share(order, 7, 0, 4)
        assert sum(made) == 4 * bound.span // 64  # a longer span, of one node
        assert same(share, from_all_nodes(order, partition, 7, 0, 4))
    assert locate_in(Full().bind([100]), 0, 10, range(1)) is None


@pytest.mark.parametrize("partition", [Partition(100, 4), Partition(128, 4, balance=2), Partition(128)])
def test_batches_that_no_node_divides_are_made_from_all_nodes(partition: Partition) -> None:
    bound = Window(chunks=64, num_canonical_nodes=8).bind(np.full(512, 40), seed=3)
    for rank in range(partition.world_size):
        assert same(partition.share(bound, rank, 3, 9, 5), from_all_nodes(bound, partition, rank, 3, 9, 5))
