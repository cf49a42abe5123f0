"""A planned chunk cache fetches what the cache itself fetches, and what is new to a node if it holds everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.order.partition import Partition
from shoal.orders import Block, Window
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.tools.planning.node_cache import NodeCache, cached_reads, fullest_node_bytes, node_window_bytes
from shoal.tools.planning.simulated_reads import ClusterReads, simulate_reads

MIB = 1 << 20


def by_node(
    order: Window | Block, samples: list[int], partition: Partition, ranks_per_node: int, epoch: int
) -> set[int]:
    """The pairs of a node and a chunk that one of its ranks uses: rank after rank, as a run has them."""
    bound = order.bind(samples, seed=0, epoch=epoch)
    steps = partition.num_batches(bound.num_samples)
    result: set[int] = set()
    for rank in range(partition.world_size):
        chunks = np.unique(partition.share(bound, rank, 0, steps).chunks)
        result.update((rank // ranks_per_node * len(samples) + chunks).tolist())
    return result


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("ranks_per_node", [1, 3, 4])
@pytest.mark.parametrize("order", [Window(32, 4), Window(16, 1), Block(8)], ids=str)
def test_reads_of_nodes_are_those_of_their_ranks(order: Window | Block, ranks_per_node: int, remainder: str) -> None:
    samples = np.random.default_rng(0).integers(0, 60, 200).tolist()
    partition = Partition(47, 12, remainder)
    result = simulate_reads(order, samples, [100] * 200, partition, ranks_per_node=ranks_per_node, epoch=2)
    nodes = by_node(order, samples, partition, ranks_per_node, epoch=2)
    assert result.by_node.num_reads == len(nodes)
    assert result.by_node.num_bytes == 100 * len(nodes)
    assert result.by_node.amplification == len(nodes) / np.count_nonzero(samples)
    assert result.by_node.uses.samples_of_rank.sum() == result.num_positions
    assert int(result.by_node.reads_over_time.sum()) == len(result.by_node.uses.ranks)
    if ranks_per_node == 1:
        assert result.by_node.num_reads == result.num_reads
    else:
        assert result.by_node.first_chunks <= result.first_chunks


@given(
    reads=st.lists(st.integers(0, 40), max_size=300),
    room=st.integers(2, 45),
    window=st.integers(0, 30),
)
def test_a_planned_cache_keeps_its_budget_and_answers_what_it_has(reads: list[int], room: int, window: int) -> None:
    """Any reads: the first of each is fetched, and with room for all no other."""
    cache = NodeCache(64 * 1024 + room * 68 * 1024, window * 68 * 1024)
    is_fetched = [cache.read(chunk, 60_000) for chunk in reads]
    firsts = {reads.index(chunk) for chunk in set(reads)}
    assert all(is_fetched[place] for place in firsts)
    if room >= len(set(reads)):
        assert sum(is_fetched) == len(firsts)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("room", [20, 60, 150, 250])
def test_a_planned_cache_fetches_as_often_as_the_cache_itself(tmp_path: Path, room: int, *, shared: bool) -> None:
    """200 chunks in four epochs, each once or by two ranks in turn. Hashes of names differ, hence the 4 %."""
    num_bytes, num_chunks, window_bytes = 10_000, 200, 10 * 16_384
    budget_bytes = max(MIB, 64 * 1024 + room * 16_384)
    planned = NodeCache(budget_bytes, window_bytes)
    cache = ChunkCache(tmp_path, budget_bytes=budget_bytes)
    cache.expect(window_bytes)
    num_planned = 0
    for epoch in range(4):
        chunks = np.random.default_rng(epoch).permutation(num_chunks).tolist()
        for place, chunk in enumerate(chunks):
            for each in (chunk, chunks[max(0, place - 5)])[: 1 + shared]:
                num_planned += planned.read(each, num_bytes)
                cache.read(str(each), num_bytes, lambda: bytes(num_bytes))
    num_fetched = cache.counts.num_fills + cache.counts.num_bypasses
    cache.close()
    print(num_fetched, num_planned)
    assert num_planned == pytest.approx(num_fetched, rel=0.04)
    assert (num_fetched == num_chunks) == (room > num_chunks)


def epochs_of(
    order: Window | Block, num_chunks: int, each: int, partition: Partition, **named: int
) -> list[ClusterReads]:
    sizes = np.full(num_chunks, each), np.full(num_chunks, MIB)
    return [simulate_reads(order, *sizes, partition, epoch=epoch, **named) for epoch in range(2)]


@pytest.mark.parametrize(
    ("order", "is_served"), [(Window(64, 8), True), (Window(64, 4), True), (Window(64, 3), False), (Block(32), False)]
)
def test_a_cache_with_room_for_all_serves_the_second_epoch(order: Window | Block, *, is_served: bool) -> None:
    """Wholly where machines share canonical nodes evenly; else in so far as chunks stay with a machine."""
    partition, samples = Partition(64, 8), [50] * 1000
    epochs = epochs_of(order, 1000, 50, partition, ranks_per_node=2)
    budget_bytes = int(fullest_node_bytes(epochs, np.full(1000, MIB))) + 1
    nodes = [by_node(order, samples, partition, 2, epoch) for epoch in range(2)]
    first, second = cached_reads(
        epochs, np.full(1000, MIB), ranks_per_node=2, budget_bytes=budget_bytes, window_bytes=16 * MIB
    )
    assert first.num_reads == len(nodes[0])
    assert second.num_reads == pytest.approx(len(nodes[1] - nodes[0]), abs=2)
    assert (second.num_reads < 8) == is_served
    assert second.num_bytes == pytest.approx(second.num_reads * MIB)


# order, samples in a chunk, chunks, ranks, ranks on a node, batch, what part is simulated
PARTS = [
    (Window(512, 16), 100, 4000, 64, 8, 512, 2 / 3),
    (Window(256, 8), 50, 4000, 8, 8, 256, 1 / 3),
    (Window(512, 1), 50, 4000, 64, 8, 512, 2 / 3),
    (Window(256, 5), 50, 4000, 16, 4, 256, 1 / 2),
]


@pytest.mark.parametrize("case", PARTS, ids=str)
@pytest.mark.parametrize("room", [1.01, 0.5, *(pytest.param(room, marks=pytest.mark.drill) for room in (0.75, 0.25))])
def test_epochs_simulated_in_part_have_the_reads_of_whole_ones(
    case: tuple[Window, int, int, int, int, int, float], room: float
) -> None:
    """With room for this share of what a node reads: within 10 % of the reads of a first epoch."""
    order, each, num_chunks, world_size, ranks_per_node, batch, part = case
    partition, sizes = Partition(batch, world_size), np.full(num_chunks, MIB)
    whole = epochs_of(order, num_chunks, each, partition, ranks_per_node=ranks_per_node)
    most = int(num_chunks * each * part)
    some = epochs_of(order, num_chunks, each, partition, ranks_per_node=ranks_per_node, most_positions=most)
    assert (whole[0].is_exact, some[0].is_exact) == (True, False)
    window_bytes = node_window_bytes(
        chunks=order.chunks, mean_bytes=MIB, ranks_per_node=ranks_per_node, world_size=world_size
    )
    budget_bytes = int(room * max(fullest_node_bytes(epochs, sizes) for epochs in (whole, some)))
    expected, result = (
        cached_reads(epochs, sizes, ranks_per_node=ranks_per_node, budget_bytes=budget_bytes, window_bytes=window_bytes)
        for epochs in (whole, some)
    )
    print(expected, result)
    for one, other in zip(expected, result, strict=True):
        assert other.num_reads == pytest.approx(one.num_reads, abs=0.1 * expected[0].num_reads)
        assert other.num_bytes == pytest.approx(one.num_bytes, abs=0.1 * expected[0].num_bytes)
