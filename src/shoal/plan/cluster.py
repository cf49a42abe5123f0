"""What a cluster will read: the dealing of an epoch, or of a part of it, simulated rank by rank; no byte is read.

A rank reads a chunk when it first needs one of its samples, and keeps it until it has needed the last. So the reads of
a rank are the chunks it meets, and what it holds follows from their first and last uses. All that is a matter of the
order and of how global batches are dealt, so it can be known beforehand, and is here by doing what a run would do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.order.block import Block
from shoal.order.partition import Partition
from shoal.order.protocol import BoundOrder
from shoal.order.window import Window

__all__ = ["ClusterReads", "simulate_reads"]

_MOST_POSITIONS = 1 << 21  # that are simulated
_WINDOWS = 6  # of a longer dataset, so many of its windows; the chunks of the middle ones are counted
_PEAK_RANKS = 16


@dataclass(frozen=True, slots=True)
class ClusterReads:
    """Reads of an epoch.

    Parameters
    ----------
    num_reads, num_bytes
        Over all ranks and the whole epoch.
    amplification
        Reads for each chunk: how many ranks read it, on average.
    held_chunks
        The most chunks that a rank holds in use, of up to 16 ranks; what is read ahead comes on top.
    first_chunks
        Chunks that a rank needs for its first batch, on average.
    num_positions
        Positions that were simulated.
    thinned
        1 where the numbers are exact. Else only every so manieth sample of a chunk was simulated, over six windows, and
        readers that a chunk has for a few of its samples only may be missed.
    """

    num_reads: float
    num_bytes: float
    amplification: float
    held_chunks: int
    first_chunks: float
    num_positions: int
    thinned: float


def simulate_reads(
    order: Window | Block,
    chunk_samples: ArrayLike,
    chunk_bytes: ArrayLike,
    partition: Partition,
    *,
    seed: int = 0,
    epoch: int = 0,
    most_positions: int = _MOST_POSITIONS,
) -> ClusterReads:
    """The reads of an epoch: exactly where it is short, else of six windows of it with fewer samples in each chunk.

    Parameters
    ----------
    order
        An order that keeps to some chunks at a time.
    chunk_samples, chunk_bytes
        Of each chunk, shape (num_chunks,).
    partition
        Global batch and world size.
    most_positions
        Positions to simulate; 0.5 us each.

    Examples
    --------
    >>> found = simulate_reads(Window(chunks=32), [50] * 200, [6000] * 200, Partition(64, world_size=2))
    >>> found.thinned, found.amplification
    (1.0, 1.0)
    """
    samples, sizes = np.asarray(chunk_samples, dtype=np.int64), np.asarray(chunk_bytes, dtype=np.int64)
    holds = samples > 0  # chunks without samples are never read, but have their places in the order
    nodes = order.resolved_nodes if isinstance(order, Window) else 1
    looked, thinned = _thinned(samples, order.chunks, nodes, most_positions)
    bound = order.bind(looked, seed=seed, epoch=epoch)
    num_steps = bound.num_samples // partition.global_batch
    chunks, ranks = partition.dealt(bound, 0, num_steps)
    pairs, first, last = _uses(ranks * len(looked) + chunks)
    readers = np.bincount(pairs % len(looked), minlength=len(looked))
    exact = thinned == 1.0
    if exact and num_steps * partition.global_batch < bound.num_samples and partition.remainder != "drop":
        readers = readers + _readers_of_rest(bound, partition, num_steps, pairs, len(looked))
    mean = float(readers[holds if exact else _in_the_middle(chunks, len(looked))].mean())
    return ClusterReads(
        num_reads=float(readers.sum()) if exact else mean * int(np.count_nonzero(holds)),
        num_bytes=float(readers @ sizes) if exact else mean * float(sizes[holds].sum()),
        amplification=mean,
        held_chunks=_held(pairs // len(looked), first, last, len(chunks), partition.world_size),
        first_chunks=len(np.unique((ranks * len(looked) + chunks)[: partition.global_batch])) / partition.world_size,
        num_positions=len(chunks),
        thinned=thinned,
    )


def _thinned(
    samples: NDArray[np.int64], chunks: int, nodes: int, most_positions: int
) -> tuple[NDArray[np.int64], float]:
    """The chunks that are simulated, and how many samples stand for one."""
    if int(samples.sum()) <= most_positions:
        return samples, 1.0
    wanted = min(len(samples), _WINDOWS * chunks)
    # Nodes of whole chunks are dealt more neatly than nodes that share some, so the rest must be as it was.
    wanted = min(len(samples), wanted // nodes * nodes + len(samples) % nodes)
    some = np.maximum(1, samples[np.arange(wanted) * len(samples) // wanted])
    thinned = max(1.0, float(some.sum()) / most_positions)
    return np.maximum(2, np.rint(some / thinned)).astype(np.int64), max(thinned, 1.0 + 1e-9)


def _in_the_middle(chunks: NDArray[np.int64], num_chunks: int) -> NDArray[np.bool_]:
    """The chunks that live in the middle third of what was simulated: at the ends fewer are alive."""
    used, first, last = _uses(chunks)
    found = np.zeros(num_chunks, dtype=np.bool_)
    half = (first + last) / 2
    found[used[(half > len(chunks) / 3) & (half < len(chunks) * 2 / 3)]] = True
    return found


def _uses(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Keys that are used, and the first and last place of each."""
    by_key = np.argsort(keys, kind="stable")
    ordered = keys[by_key]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.concatenate([starts[1:], [len(keys)]]) - 1
    return ordered[starts], by_key[starts], by_key[ends]


def _held(
    ranks: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64], length: int, world_size: int
) -> int:
    """The most chunks in use at a time on one rank."""
    most = 0
    for rank in sorted({number * world_size // _PEAK_RANKS for number in range(_PEAK_RANKS)}):
        mine = ranks == rank
        change = np.bincount(first[mine], minlength=length + 1) - np.bincount(last[mine] + 1, minlength=length + 1)
        most = max(most, int(np.cumsum(change).max(initial=0)))
    return most


def _readers_of_rest(
    bound: BoundOrder, partition: Partition, num_steps: int, pairs: NDArray[np.int64], num_chunks: int
) -> NDArray[np.int64]:
    """Further readers of each chunk in the last, incomplete batch."""
    more = np.zeros(num_chunks, dtype=np.int64)
    for rank in range(partition.world_size):
        chunks = np.unique(partition.share(bound, rank, num_steps, num_steps + 1).chunks)
        more[chunks[~np.isin(rank * num_chunks + chunks, pairs)]] += 1
    return more
