"""Simulate the reads of a mixture over an epoch, or over its beginning, without reading a byte.

Sources of a mixture repeat at different times, so a rank may need a chunk several times in an epoch. As in a run, the
rank keeps a chunk from one span of samples to the next, and reads a released chunk again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition
from shoal.order.position_subsets import WithoutGaps
from shoal.order.protocol import BoundOrder
from shoal.reading.schedule.lifetimes import span_positions
from shoal.tools.planning.chunk_uses import TIMES, ChunkUses, chunk_uses
from shoal.tools.planning.simulated_reads import ClusterReads, NodeReads, most_held, uses_of_rest

_MOST_POSITIONS = 1 << 21  # simulated of a longer epoch
_MOST_OF_WINDOWS = 1 << 22  # simulated of longer windows: a quarter of a minute, or more with many sources
_WINDOWS = 4
_LITTLE = 0.01  # of all reads; the window of a source with fewer reads need not be simulated whole


@dataclass(frozen=True, slots=True, eq=False)
class MixedChunks:
    """The chunks of all sources of a mixture, numbered as in its order.

    ``first_chunk`` is the first chunk of each source, then the number of all chunks. ``num_bytes`` are the read bytes
    of a chunk, ``weights`` its memory relative to the mean. ``visits_before`` counts for each source the chunks that
    begin before a position, over all rounds; ``num_full`` counts its chunks with samples. A chunk stays in its window
    for ``window_positions``; a round has ``round_positions``. Weights of sources are constant from ``last_change`` on.
    """

    first_chunk: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    weights: NDArray[np.float64]
    visits_before: Callable[[int], NDArray[np.float64]]
    num_full: NDArray[np.int64]
    window_positions: NDArray[np.float64]
    round_positions: NDArray[np.float64]
    num_samples: int
    last_change: int = 0

    @property
    def visits(self) -> NDArray[np.float64]:
        """Chunks of each source that begin in the epoch, over all rounds."""
        return self.visits_before(self.num_samples)

    @property
    def num_distinct(self) -> float:
        """Chunks that are read at least once."""
        return float(np.minimum(self.visits, self.num_full).sum())

    def source_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the source of each chunk."""
        return np.searchsorted(self.first_chunk, chunks, side="right") - 1

    def num_simulated(self, global_batch: int) -> int:
        """Return the number of positions to simulate: all, or whole global batches over several windows.

        Raises `UsageError` if the windows are too long, or if weights change late in the epoch.
        """
        visits = self.visits
        often = visits >= _LITTLE * visits.sum()
        window = int(self.window_positions[often].max(initial=0.0))
        num_positions = min(max(_MOST_POSITIONS, _WINDOWS * window), _MOST_OF_WINDOWS)
        if self.num_samples <= num_positions:
            return self.num_samples
        if 2 * window > num_positions:
            msg = (
                f"chunks stay in the windows of this mixture for {window:,} samples, but a plan simulates two windows "
            )
            msg += f"in at most {_MOST_OF_WINDOWS:,} samples"
            raise UsageError(msg, hint="a smaller window, or plan each source by itself")
        if self.last_change > num_positions // 2:
            msg = f"weights change until position {self.last_change:,} of {self.num_samples:,} samples, but a plan "
            msg += f"simulates {num_positions:,}: these would not stand for the rest"
            raise UsageError(msg, hint="plan one file for each part of the run, with the weights of that part")
        return max(2, num_positions // global_batch) * global_batch


class _Visits(NamedTuple):
    """Overlapping uses of chunks as visits: the visit of each use, and the chunk and first position of each visit."""

    of_use: NDArray[np.int64]
    chunks: NDArray[np.int64]
    first: NDArray[np.int64]


def simulate_mixture(
    bound: BoundOrder, chunks: MixedChunks, partition: Partition, *, ranks_per_node: int = 1
) -> ClusterReads:
    """Compute the reads of an epoch of a mixture, exactly for a short epoch, otherwise from its beginning.

    In a long epoch, reads of a source with many rounds continue at the rate of its samples. For other sources, all
    chunks with samples are read, each by as many ranks as at the beginning. Takes about 3 us per position, and more
    with many sources.
    """
    num_positions = chunks.num_simulated(partition.global_batch)
    is_exact = num_positions == chunks.num_samples
    order = bound if num_positions == bound.num_samples else WithoutGaps(bound, Runs.span(0, num_positions))
    num_chunks = len(chunks.num_bytes)
    steps = max(1, span_positions(order.parameters, partition.world_size) // partition.global_batch)
    span = steps * partition.global_batch
    uses = chunk_uses(order, 1, partition, num_chunks, span_steps=steps)
    of_nodes = uses if ranks_per_node == 1 else uses.of_nodes(ranks_per_node)
    num_node_visits = len(_joined(uses, ranks_per_node, span).first)
    if is_exact:
        read = np.concatenate([uses.chunks, _read_in_rest(order, partition, uses, num_chunks, span)])
        num_reads, num_bytes, error = float(len(read)), float(chunks.num_bytes[read].sum()), 0.0
    else:
        num_reads, num_bytes, error = _extrapolated(uses, chunks, _joined(uses, partition.world_size, span))
    by_node = num_reads * num_node_visits / max(1, len(uses.ranks))
    held = most_held(uses, partition, 1.0, chunks.weights)
    return ClusterReads(
        num_reads=num_reads,
        num_bytes=num_bytes,
        amplification=num_reads / chunks.num_distinct,
        held_chunks=int(held.max(initial=0)),
        first_chunks=_first_chunks(uses, partition),
        num_positions=uses.num_positions,
        is_exact=is_exact,
        thinned=1.0,
        error=error,
        held_error=0.0,
        held_over_time=held,
        reads_over_time=_over_time(uses),
        heat=uses.heat,
        uses=uses if is_exact else None,
        by_node=NodeReads(
            num_reads=by_node,
            num_bytes=num_bytes * by_node / num_reads,
            amplification=by_node / chunks.num_distinct,
            first_chunks=_first_chunks(of_nodes, partition),
            shared=1.0 - by_node / num_reads,
            reads_over_time=_over_time(of_nodes),
            uses=of_nodes,
        ),
    )


def _first_chunks(uses: ChunkUses, partition: Partition) -> float:
    return np.count_nonzero(uses.first < partition.global_batch) / partition.world_size


def _over_time(uses: ChunkUses) -> NDArray[np.int64]:
    return np.bincount(uses.first * TIMES // max(1, uses.num_positions), minlength=TIMES)


def _read_in_rest(
    order: BoundOrder, partition: Partition, uses: ChunkUses, num_chunks: int, span: int
) -> NDArray[np.int64]:
    """Return the chunk of each read for the last, incomplete batch."""
    if uses.num_positions == order.num_samples:
        return np.zeros(0, dtype=np.int64)
    rest = uses_of_rest(order, partition, uses.num_positions // partition.global_batch, num_chunks)
    is_held = uses.last >= uses.num_positions - span
    late: NDArray[np.int64] = rest[~np.isin(rest, uses.ranks[is_held] * num_chunks + uses.chunks[is_held])] % num_chunks
    return late


def _joined(uses: ChunkUses, ranks: int, span: int) -> _Visits:
    """Join the uses of a chunk by ``ranks`` ranks in a row if they are less than a span apart."""
    num_chunks = int(uses.chunks.max(initial=0)) + 1
    keys = uses.ranks // ranks * num_chunks + uses.chunks
    order = np.lexsort((uses.first, keys))
    group = np.cumsum(np.diff(keys[order], prepend=-1) != 0)
    apart = group * (uses.num_positions + 2 * span)  # positions of different groups never meet
    reach = np.maximum.accumulate(apart + uses.last[order])
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (apart + uses.first[order])[1:] > reach[:-1] + span
    of_use = np.empty(len(order), dtype=np.int64)
    of_use[order] = np.cumsum(begins) - 1
    return _Visits(of_use, uses.chunks[order][begins], uses.first[order][begins])


def _extrapolated(uses: ChunkUses, chunks: MixedChunks, visits: _Visits) -> tuple[float, float, float]:
    """Extrapolate the number and bytes of reads to an epoch; return them and the relative standard error."""
    readers = np.bincount(visits.of_use, minlength=len(visits.first))
    end, half = uses.num_positions, uses.num_positions // 2
    is_whole = visits.first < half  # later visits may continue after the simulated part
    of_visits, of_uses = chunks.source_of(visits.chunks), chunks.source_of(uses.chunks)
    usual = float(readers[is_whole].mean())
    totals = np.zeros(3)  # reads, bytes, and the variance of reads
    before_half, before_end, in_epoch = (chunks.visits_before(position) for position in (half, end, chunks.num_samples))
    for number in range(len(chunks.num_full)):
        num_visits, in_half = float(in_epoch[number]), float(before_end[number] - before_half[number])
        source_readers, first = readers[is_whole & (of_visits == number)], uses.first[of_uses == number]
        if chunks.round_positions[number] <= end / _WINDOWS and in_half:
            late, left = int(np.count_nonzero(first >= half)), float(in_epoch[number] - before_end[number])
            source_reads, spread = len(first) + late / in_half * left, math.sqrt(late) / in_half * left
        elif len(source_readers):
            source_reads = num_visits * float(source_readers.mean())
            spread = num_visits * float(source_readers.std()) / math.sqrt(len(source_readers))
        else:  # the source comes later
            source_reads = spread = num_visits * usual
        sizes = chunks.num_bytes[chunks.first_chunk[number] : chunks.first_chunk[number + 1]]
        mean_bytes = float(sizes[sizes > 0].mean()) if sizes.any() else 0.0
        totals += source_reads, source_reads * mean_bytes, spread**2
    num_reads, num_bytes, variance = totals.tolist()
    return num_reads, num_bytes, math.sqrt(variance) / num_reads
