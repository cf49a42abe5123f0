"""What is simulated of a cluster is what its ranks then do."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.order.partition import Partition
from shoal.orders import Block, Window
from shoal.plan.cluster import simulate_reads


def readers(order: Window | Block, samples: list[int], partition: Partition) -> int:
    """Chunks met by each rank, added up: rank after rank, as a run has them."""
    bound = order.bind(samples, seed=0)
    steps = partition.num_batches(bound.num_samples)
    shares = [partition.share(bound, rank, 0, steps).chunks for rank in range(partition.world_size)]
    return sum(len(np.unique(chunks)) for chunks in shares)


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("world_size", [1, 3, 8])
@pytest.mark.parametrize("order", [Window(32, 4), Window(16, 1), Block(8)], ids=str)
def test_reads_are_those_of_all_ranks(order: Window | Block, world_size: int, remainder: str) -> None:
    samples = np.random.default_rng(0).integers(0, 60, 200).tolist()
    partition = Partition(48, world_size, remainder)
    found = simulate_reads(order, samples, [100] * 200, partition)
    assert found.thinned == 1.0
    assert found.num_reads == readers(order, samples, partition)
    assert found.num_bytes == 100 * found.num_reads


def test_dealing_all_ranks_at_once_is_dealing_one_by_one() -> None:
    bound, partition = Window(32, 4).bind([30] * 100, seed=1), Partition(50, 7)
    chunks, ranks = partition.dealt(bound, 3, 20)
    for rank in range(7):
        assert sorted(chunks[ranks == rank].tolist()) == sorted(partition.share(bound, rank, 3, 20).chunks.tolist())
        assert np.count_nonzero(ranks == rank) == len(partition.share(bound, rank, 3, 20).ids)


def test_what_a_rank_holds_is_its_part_of_the_window() -> None:
    found = simulate_reads(Window(64, 4), [50] * 1000, [1000] * 1000, Partition(64, world_size=4))
    assert 16 <= found.held_chunks <= 18  # slabs are a quarter of a window wide, so some stay a little longer
    assert found.amplification == pytest.approx(1.0, abs=0.01)
    alone = simulate_reads(Window(64, 4), [50] * 1000, [1000] * 1000, Partition(64))
    assert 60 <= alone.held_chunks <= 64


@pytest.mark.parametrize("case", [(256, 16, 200, 4000, 24, 32), (512, 32, 50, 8000, 100, 10)], ids=str)
def test_thinned_chunks_are_read_about_as_often(case: tuple[int, int, int, int, int, int]) -> None:
    chunks, nodes, each, num_chunks, world_size, batch = case
    arguments = (np.full(num_chunks, each), np.full(num_chunks, 1000), Partition(world_size * batch, world_size))
    exact = simulate_reads(Window(chunks, nodes), *arguments)
    thinned = simulate_reads(Window(chunks, nodes), *arguments, most_positions=each * num_chunks // 8)
    assert exact.thinned == 1.0 < thinned.thinned
    assert thinned.num_reads == pytest.approx(exact.num_reads, rel=0.1)
    assert thinned.held_chunks == pytest.approx(exact.held_chunks, rel=0.2)
