"""Reads of mixtures that are too long to simulate: a beginning stands for the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.order.mixture.endless_source import RepeatedDataset
from shoal.order.mixture.mixed_order import MixedEpoch, MixedSources
from shoal.order.mixture.source_choice import Even
from shoal.order.mixture.source_schedule import Change, SourceSchedule
from shoal.order.partition import Partition
from shoal.order.window.order import Window
from shoal.tools.planning import mixed_reads
from shoal.tools.planning.mixed_reads import MixedChunks, simulate_mixture

NUM_CHUNKS, OF_CHUNK, WEIGHTS, WINDOW = (8000, 6000, 40), 50, (5, 3, 2), Window(64, 4)


def mixture(num_samples: int) -> tuple[MixedEpoch, MixedChunks]:
    """Two sources that last for most of the epoch, and one that comes round often."""
    sources = [
        RepeatedDataset(
            OF_CHUNK * number,
            lambda epoch, number=number: WINDOW.bind([OF_CHUNK] * number, seed=number, epoch=epoch),  # type: ignore[misc]
            num_ids=OF_CHUNK * number,
            num_chunks=number,
            reach=WINDOW.chunks,
        )
        for number in NUM_CHUNKS
    ]
    names = ("a", "b", "c")
    schedule = SourceSchedule(names, (Change(0, dict(zip(names, WEIGHTS, strict=True)), 0),), Even(), seed=0)
    epoch = MixedEpoch(MixedSources(schedule, sources, num_samples=num_samples), 0)
    numbers, shares = np.array(NUM_CHUNKS), np.array(WEIGHTS) / sum(WEIGHTS)
    total = sum(NUM_CHUNKS)
    chunks = MixedChunks(
        first_chunk=np.cumsum([0, *NUM_CHUNKS]),
        num_bytes=np.full(total, 1000),
        weights=np.ones(total),
        visits_before=lambda position: shares * position / OF_CHUNK,
        num_full=numbers,
        window_positions=np.minimum(WINDOW.chunks, numbers) * OF_CHUNK / shares,
        round_positions=numbers * OF_CHUNK / shares,
        num_samples=num_samples,
    )
    return epoch, chunks


@pytest.mark.parametrize("world_size", [*(pytest.param(ranks, marks=pytest.mark.drill) for ranks in (1, 2)), 8])
def test_a_beginning_stands_for_the_epoch(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, chunks = mixture(700_000)
    partition = Partition(64, world_size)
    exact = simulate_mixture(epoch, chunks, partition, ranks_per_node=min(world_size, 2))
    monkeypatch.setattr(mixed_reads, "_MOST_POSITIONS", 200_000)
    part = simulate_mixture(epoch, chunks, partition, ranks_per_node=min(world_size, 2))
    assert exact.is_exact
    assert not part.is_exact
    assert part.num_reads == pytest.approx(exact.num_reads, rel=0.05)
    assert part.num_bytes == pytest.approx(exact.num_bytes, rel=0.05)
    assert part.by_node.num_reads == pytest.approx(exact.by_node.num_reads, rel=0.1)
    assert part.held_chunks == pytest.approx(exact.held_chunks, rel=0.1)
    assert part.error < 0.05


def test_windows_that_last_too_long_are_refused() -> None:
    epoch, chunks = mixture(1 << 40)
    long = replace(chunks, window_positions=np.full(3, float(1 << 30)))
    with pytest.raises(UsageError, match="a plan simulates two windows"):
        simulate_mixture(epoch, long, Partition(64))
