"""Simulate the reads of a cluster over an epoch, or over a part of it, without reading a byte.

A rank reads a chunk at its first use, and keeps it until its last use. So the order and the dealing of global batches
determine the reads of a rank and the chunks that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.order.orders_without_window import Block
from shoal.order.partition import Partition
from shoal.order.protocol import BoundOrder
from shoal.order.window.order import Window
from shoal.tools.planning.chunk_uses import TIMES, ChunkUses, chunk_uses

_MOST_POSITIONS = 1 << 21  # simulated
_MOST_OF_A_NODE = 8  # times as many for one node before its samples are thinned: 3 seconds
_WINDOWS = 4  # simulated of a longer dataset; the middle windows stand for the rest
_NEARLY = 0.98  # share of the samples of the fullest rank


@dataclass(frozen=True, slots=True)
class NodeReads:
    """The reads of an epoch over all nodes if the ranks of a node share them.

    ``amplification`` is the mean number of nodes that read a chunk, ``first_chunks`` the mean number of chunks for the
    first batch of a node, per rank. ``reads_over_time`` and ``uses`` are as in `ClusterReads`, with nodes as ranks;
    ``uses`` always covers the simulated part. ``shared`` is the share of uses with several ranks.
    """

    num_reads: float
    num_bytes: float
    amplification: float
    first_chunks: float
    shared: float
    reads_over_time: NDArray[np.int64] = field(repr=False, compare=False)
    uses: ChunkUses = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ClusterReads:
    """The reads of an epoch over all ranks.

    ``amplification`` is the mean number of ranks that read a chunk, ``held_chunks`` the most chunks in use on a rank,
    without read-ahead, ``first_chunks`` the mean number of chunks for the first batch of a rank.

    ``num_positions`` were simulated: the whole epoch if ``is_exact``, otherwise three windows, perhaps of some
    canonical nodes. If ``thinned`` is above 1, one of ``thinned`` samples of a chunk was simulated, and ranks that use
    few samples of a chunk may be missed. ``error`` is the relative standard error of ``num_reads`` by chance and by
    thinning, ``held_error`` the error of ``held_chunks`` by thinning.

    ``held_over_time``, ``reads_over_time`` and ``heat`` divide the simulated span into 50 equal parts: the most chunks
    in use on a rank, the first reads of chunks, both of shape (50,), and the samples from each 64th of the chunks,
    shape (50, 64). ``uses`` is None unless the whole epoch was simulated. ``by_node`` are the reads if the ranks of a
    node share them.
    """

    num_reads: float
    num_bytes: float
    amplification: float
    held_chunks: int
    first_chunks: float
    num_positions: int
    is_exact: bool
    thinned: float
    error: float
    held_error: float
    held_over_time: NDArray[np.int64] = field(repr=False, compare=False)
    reads_over_time: NDArray[np.int64] = field(repr=False, compare=False)
    heat: NDArray[np.int64] = field(repr=False, compare=False)
    uses: ChunkUses | None = field(repr=False, compare=False)
    by_node: NodeReads = field(repr=False)


def simulate_reads(
    order: Window | Block,
    chunk_samples: ArrayLike,
    chunk_bytes: ArrayLike,
    partition: Partition,
    *,
    ranks_per_node: int = 1,
    seed: int = 0,
    epoch: int = 0,
    most_positions: int = _MOST_POSITIONS,
) -> ClusterReads:
    """Compute the reads of an epoch, exactly for a short epoch, otherwise from three windows of some canonical nodes.

    At most ``most_positions`` are simulated, 0.2 us each, or eight times as many of a single canonical node; a longer
    node is thinned to fewer samples per chunk.

    Examples
    --------
    >>> reads = simulate_reads(Window(chunks=32), [50] * 200, [6000] * 200, Partition(64, world_size=2))
    >>> reads.thinned, reads.amplification
    (1.0, 1.0)
    >>> reads = simulate_reads(Window(32, 1), [50] * 200, [6000] * 200, Partition(64, world_size=8), ranks_per_node=4)
    >>> round(reads.amplification, 1), round(reads.by_node.amplification, 1)
    (1.5, 1.1)
    """
    samples, sizes = np.asarray(chunk_samples, dtype=np.int64), np.asarray(chunk_bytes, dtype=np.int64)
    simulated = partial(
        _simulated, order, samples, sizes, partition, ranks_per_node=ranks_per_node, seed=seed, epoch=epoch
    )
    reads = simulated(most_positions=most_positions)
    if reads.thinned == 1.0:
        return reads
    runs = [reads, *(simulated(most_positions=most_positions // part) for part in (2, 4))]
    reads_error = _thinning_error([run.num_reads for run in runs], reads.thinned)
    held_error = _thinning_error([run.held_chunks for run in runs], reads.thinned)
    return replace(reads, error=math.hypot(reads.error, reads_error), held_error=held_error)


def _thinning_error(values: Sequence[float], thinned: float) -> float:
    """Estimate the relative error of a number by thinning, from its values at 1, 2 and 4 times the thinning.

    Thinning misses rare uses, in the tails of a distribution. The tails move with the logarithm of the number of
    samples, so each doubling has about the same effect. Whole numbers hide effects below one.
    """
    once, twice = abs(values[1] / values[0] - 1.0), abs(values[2] / values[0] - 1.0)
    return max(1.0 / values[0], max(once, twice / 2.0) * max(1.0, math.log2(thinned)))


def _simulated(
    order: Window | Block,
    samples: NDArray[np.int64],
    sizes: NDArray[np.int64],
    partition: Partition,
    *,
    ranks_per_node: int,
    seed: int,
    epoch: int,
    most_positions: int,
) -> ClusterReads:
    model = _model(order, samples, most_positions)
    bound = model.order.bind(model.chunk_samples, seed=seed, epoch=epoch)
    uses = chunk_uses(bound, model.nodes, partition, len(model.chunk_samples))
    rest = np.zeros(0, dtype=np.int64)
    if model.is_exact and uses.num_positions < bound.num_samples and partition.remainder != "drop":
        rest = uses_of_rest(bound, partition, uses.num_positions // partition.global_batch, len(model.chunk_samples))
    of_nodes = uses if ranks_per_node == 1 else uses.of_nodes(ranks_per_node)
    count = partial(_counted, model=model, samples=samples, sizes=sizes, rest=rest)
    num_reads, num_bytes, amplification, error = count(uses, ranks=1)
    held = most_held(uses, partition, model.share_of_nodes)
    in_first = max(1, partition.global_batch * bound.num_canonical_nodes // model.nodes)

    def first_chunks(uses: ChunkUses) -> float:
        return np.count_nonzero(uses.first < in_first) / in_first * partition.global_batch / partition.world_size

    def over_time(uses: ChunkUses) -> NDArray[np.int64]:
        return np.bincount(uses.first * TIMES // uses.num_positions, minlength=TIMES)

    return ClusterReads(
        num_reads=num_reads,
        num_bytes=num_bytes,
        amplification=amplification,
        held_chunks=int(held.max(initial=0)),
        first_chunks=first_chunks(uses),
        num_positions=uses.num_positions,
        is_exact=model.is_exact,
        thinned=model.thinned,
        error=error,
        held_error=0.0,
        held_over_time=held,
        reads_over_time=over_time(uses),
        heat=uses.heat,
        uses=uses if model.is_exact else None,
        by_node=NodeReads(
            *count(of_nodes, ranks=ranks_per_node)[:3],
            first_chunks=first_chunks(of_nodes),
            shared=_shared(uses, of_nodes, ranks_per_node),
            reads_over_time=over_time(of_nodes),
            uses=of_nodes,
        ),
    )


def _counted(
    uses: ChunkUses,
    *,
    ranks: int,
    model: _Model,
    samples: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rest: NDArray[np.int64],
) -> tuple[float, float, float, float]:
    """Return the number and bytes of reads of an epoch, the mean number of readers of a chunk, and its error.

    ``ranks`` consecutive ranks read as one; ``rest`` are the uses of the last, incomplete batch.
    """
    holds = samples > 0  # empty chunks are never read, and have numbers in the order
    num_chunks, total = len(model.chunk_samples), int(np.count_nonzero(holds))
    readers = np.bincount(uses.chunks, minlength=num_chunks)
    if not model.is_exact:
        mean, error = _mean_readers(readers, uses, total * model.share_of_nodes)
        return mean * total, mean * float(sizes[holds].sum()), mean, error
    late = np.unique(rest // num_chunks // ranks * num_chunks + rest % num_chunks)
    late = late[~np.isin(late, uses.ranks * num_chunks + uses.chunks, assume_unique=True)]
    readers = readers + np.bincount(late % num_chunks, minlength=num_chunks)
    return float(readers.sum()), float(readers @ sizes), float(readers[holds].mean()), 0.0


def _shared(uses: ChunkUses, of_nodes: ChunkUses, ranks_per_node: int) -> float:
    """Return the share of the uses of nodes with several ranks."""
    if ranks_per_node == 1:
        return 0.0
    num_chunks = int(uses.chunks.max(initial=0)) + 1
    _, ranks = np.unique(uses.ranks // ranks_per_node * num_chunks + uses.chunks, return_counts=True)
    return np.count_nonzero(ranks > 1) / max(1, len(of_nodes.ranks))


class _Model(NamedTuple):
    """The simulated order over some chunks; its nodes stand for some of ``nodes`` canonical nodes."""

    order: Window | Block
    chunk_samples: NDArray[np.int64]
    nodes: int
    is_exact: bool
    thinned: float

    @property
    def share_of_nodes(self) -> float:
        """Share of the dataset in the simulated nodes."""
        return (self.order.resolved_nodes if isinstance(self.order, Window) else 1) / self.nodes


def _model(order: Window | Block, samples: NDArray[np.int64], most_positions: int) -> _Model:
    nodes = order.resolved_nodes if isinstance(order, Window) else 1
    if int(samples.sum()) <= most_positions:
        return _Model(order, samples, nodes, is_exact=True, thinned=1.0)
    alive = order.chunks // nodes
    # In chunks, with the remainder of the window: the last, incomplete turn of the window decides the sharing of lanes.
    # With 64 chunks in the window of 8 ranks, each of 1024 chunks is read 1.43 times, each of 1000 chunks 1.36 times.
    of_node = min(_WINDOWS * alive + len(samples) // nodes % alive, len(samples) // nodes)
    some = min(nodes, max(1, int(most_positions / max(1.0, of_node * float(samples.mean())))))
    if isinstance(order, Window):
        order = Window(some * alive, some)
    # Nodes that share chunks are dealt differently, so simulated nodes share a chunk if real nodes do.
    num_chunks = min(len(samples), of_node * some + (1 if some > 1 and len(samples) % nodes else 0))
    chosen = np.maximum(1, samples[np.arange(num_chunks) * len(samples) // num_chunks])
    thinned = max(1.0, float(chosen.sum()) / (most_positions if some > 1 else _MOST_OF_A_NODE * most_positions))
    if thinned > 1.0:
        chosen = np.maximum(2, np.rint(chosen / thinned)).astype(np.int64)
    return _Model(order, chosen, nodes, is_exact=False, thinned=thinned)


def _mean_readers(readers: NDArray[np.int64], uses: ChunkUses, num_chunks: float) -> tuple[float, float]:
    """Return the mean number of ranks that read each of ``num_chunks`` chunks, and its relative standard error.

    Chunks in the middle third stand for all chunks that are not simulated. Both ends count once, because chunks live
    shorter or longer there.
    """
    used = np.flatnonzero(readers)
    first, last = np.full(len(readers), uses.num_positions), np.zeros(len(readers), dtype=np.int64)
    np.minimum.at(first, uses.chunks, uses.first)
    np.maximum.at(last, uses.chunks, uses.last)
    half = (first[used] + last[used]) / 2
    in_middle = (half > uses.num_positions / 3) & (half < uses.num_positions * 2 / 3)
    middle, ends = readers[used[in_middle]], readers[used[~in_middle]]
    if num_chunks <= len(used) or not len(middle):
        return float(readers[used].mean()), 0.0
    share = 1.0 - len(ends) / num_chunks
    mean = float(ends.sum() / num_chunks + middle.mean() * share)
    # Chunks in use at the same time share readers, so there are fewer independent draws than chunks.
    early = half[in_middle] < np.median(half[in_middle])
    apart = abs(float(middle[early].mean() - middle[~early].mean())) / 2.0 if early.any() else 0.0
    return mean, max(float(middle.std()) / math.sqrt(len(middle)), apart) * share / mean


def most_held(
    uses: ChunkUses, partition: Partition, share_of_nodes: float, weights: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """Return the most chunks in use on one rank in each part of the time, each chunk counted with its weight.

    If some nodes are simulated, the ranks with the most simulated samples are used, and their chunks are scaled up.
    """
    num_samples = uses.samples_of_rank
    known = num_samples[uses.ranks] >= _NEARLY * num_samples.max()
    owners, first, last = uses.ranks[known], uses.first[known], uses.last[known]
    # A chunk is released before the next is taken. Nothing changes where a part of the time begins, but is counted
    # there: chunks are also held in parts without a change.
    some, begins = np.unique(owners), -(-np.arange(TIMES) * uses.num_positions // TIMES)
    times = np.concatenate([last + 1, first, np.tile(begins, len(some))])
    amounts = np.ones(len(first)) if weights is None else weights[uses.chunks[known]]
    change = np.concatenate([-amounts, amounts, np.zeros(TIMES * len(some))])
    # A rank begins and ends with nothing in use.
    by_rank = np.lexsort((times, np.concatenate([owners, owners, np.repeat(some, TIMES)])))
    most = np.zeros(TIMES + 1)
    np.maximum.at(most, times[by_rank] * TIMES // uses.num_positions, np.cumsum(change[by_rank]))
    whole = uses.num_positions / share_of_nodes / partition.world_size  # samples of a rank
    scale = max(1.0, _NEARLY * whole / int(num_samples.max()))
    held: NDArray[np.int64] = np.rint(most[:TIMES] * scale).astype(np.int64)
    return held


def uses_of_rest(bound: BoundOrder, partition: Partition, num_steps: int, num_chunks: int) -> NDArray[np.int64]:
    """Return the uses in the last, incomplete batch, as rank * num_chunks + chunk."""
    shares = [partition.share(bound, rank, num_steps, num_steps + 1).chunks for rank in range(partition.world_size)]
    pairs: NDArray[np.int64] = np.unique(
        np.concatenate([rank * num_chunks + chunks for rank, chunks in enumerate(shares)])
    )
    return pairs
