"""What a cluster will read: the dealing of an epoch, or of a part of it, simulated rank by rank; no byte is read.

A rank reads a chunk when it first needs one of its samples, and keeps it until it has needed the last. So the reads of
a rank are the chunks it meets, and what it holds follows from their first and last uses. All that is a matter of the
order and of how global batches are dealt, so it can be known beforehand, and is here by doing what a run would do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.order.block import Block
from shoal.order.partition import Partition, dealing_order
from shoal.order.protocol import BoundOrder
from shoal.order.window import Window

__all__ = ["ClusterReads", "OverTime", "simulate_reads"]

_MOST_POSITIONS = 1 << 21  # that are simulated
_MOST_OF_A_NODE = 2  # times as many of one node before its samples are thinned: 2 seconds, 400 MB
_WINDOWS = 3  # of a longer dataset, so many of its windows; the chunks of the middle ones are counted
_NEARLY = 0.98  # of what the fullest rank has
_TIMES, _SOURCES = 50, 64


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """What was simulated, in 50 parts of equal length.

    Parameters
    ----------
    held_chunks
        The most chunks in use on a rank, shape (50,).
    num_reads
        Chunks that a rank reads for the first time, over all ranks, shape (50,).
    heat
        Samples delivered from each 64th of the chunks, shape (50, 64).
    """

    held_chunks: NDArray[np.int64]
    num_reads: NDArray[np.int64]
    heat: NDArray[np.int64]


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
        The most chunks that a rank holds in use; what is read ahead comes on top.
    first_chunks
        Chunks that a rank needs for its first batch, on average.
    num_positions
        Positions that were simulated.
    is_exact
        Whether the whole epoch was simulated; else three windows of it, and perhaps only some canonical nodes.
    thinned
        1 where all samples of these were, else only every so manieth one of a chunk: readers that a chunk has for a few
        of its samples only may then be missed.
    error
        By what share ``num_reads`` may be wrong, a standard deviation: chance between the chunks that were counted,
        and what thinning twice as much changes. 0 where the whole epoch was simulated.
    over_time
        The same over the stretch that was simulated.
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
    over_time: OverTime = field(repr=False, compare=False)


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
    """The reads of an epoch: exactly where it is short, else from three windows of some canonical nodes of it.

    Positions alternate over the canonical nodes, and a global batch is dealt node by node. So which rank gets a sample
    follows from its node alone and from how many samples the nodes before it have in the batch, which is arithmetic:
    some nodes can be simulated without the others. Only where one node is still too long is every so manieth sample of
    its chunks simulated.

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
    found = _simulated(order, samples, sizes, partition, seed=seed, epoch=epoch, most_positions=most_positions)
    if found.thinned == 1.0:
        return found
    half = _simulated(order, samples, sizes, partition, seed=seed, epoch=epoch, most_positions=most_positions // 2)
    return replace(found, error=math.hypot(found.error, half.num_reads / found.num_reads - 1.0))


def _simulated(
    order: Window | Block,
    samples: NDArray[np.int64],
    sizes: NDArray[np.int64],
    partition: Partition,
    *,
    seed: int,
    epoch: int,
    most_positions: int,
) -> ClusterReads:
    holds = samples > 0  # chunks without samples are never read, but have their places in the order
    model = _model(order, samples, most_positions)
    bound = model.order.bind(model.chunk_samples, seed=seed, epoch=epoch)
    num_chunks, exact = len(model.chunk_samples), model.is_exact
    chunks, ranks = _dealt(bound, model.nodes, partition)
    pairs, first, last = _uses(ranks * num_chunks + chunks)
    readers = np.bincount(pairs % num_chunks, minlength=num_chunks)
    if exact and len(chunks) < bound.num_samples and partition.remainder != "drop":
        num_steps = len(chunks) // partition.global_batch
        readers = readers + _readers_of_rest(bound, partition, num_steps, pairs, num_chunks)
    total = int(np.count_nonzero(holds))
    if exact:
        mean, error = float(readers[holds].mean()), 0.0
    else:
        mean, error = _mean_readers(readers, chunks, total * model.share_of_nodes)
    in_first = max(1, partition.global_batch * bound.num_canonical_nodes // model.nodes)
    first_pairs = len(np.unique((ranks * num_chunks + chunks)[:in_first]))
    held = _held(pairs // num_chunks, first, last, ranks, partition, model.share_of_nodes)
    return ClusterReads(
        num_reads=float(readers.sum()) if exact else mean * total,
        num_bytes=float(readers @ sizes) if exact else mean * float(sizes[holds].sum()),
        amplification=mean,
        held_chunks=int(held.max(initial=0)),
        first_chunks=first_pairs / in_first * partition.global_batch / partition.world_size,
        num_positions=len(chunks),
        is_exact=exact,
        thinned=model.thinned,
        error=error,
        over_time=OverTime(held, _counted(first, len(chunks)), _heat(chunks, num_chunks)),
    )


class _Model(NamedTuple):
    """What is simulated: an order over some chunks, whose nodes are the first of ``nodes``."""

    order: Window | Block
    chunk_samples: NDArray[np.int64]
    nodes: int
    is_exact: bool
    thinned: float

    @property
    def share_of_nodes(self) -> float:
        """What part of the dataset the nodes have that are simulated."""
        return (self.order.resolved_nodes if isinstance(self.order, Window) else 1) / self.nodes


def _model(order: Window | Block, samples: NDArray[np.int64], most_positions: int) -> _Model:
    nodes = order.resolved_nodes if isinstance(order, Window) else 1
    if int(samples.sum()) <= most_positions:
        return _Model(order, samples, nodes, is_exact=True, thinned=1.0)
    each = order.chunks // nodes
    # Chunks. At the end of an epoch lanes are shared as the last, incomplete turn of the window has it: with 64 chunks
    # in the window of 8 ranks each is read 1.43 times if there are 1024, and 1.36 times if there are 1000.
    of_node = min(_WINDOWS * each + len(samples) // nodes % each, len(samples) // nodes)
    some = min(nodes, max(1, int(most_positions / max(1.0, of_node * float(samples.mean())))))
    if isinstance(order, Window):
        order = Window(some * each, some)
    # Nodes of whole chunks are dealt more neatly than nodes that share some, so they share some here if they do there.
    wanted = min(len(samples), of_node * some + (1 if some > 1 and len(samples) % nodes else 0))
    looked = np.maximum(1, samples[np.arange(wanted) * len(samples) // wanted])
    thinned = float(looked.sum()) / (most_positions if some > 1 else _MOST_OF_A_NODE * most_positions)
    if thinned <= 1.0:
        thinned = 1.0
    else:
        looked = np.maximum(2, np.rint(looked / thinned)).astype(np.int64)
    return _Model(order, looked, nodes, is_exact=False, thinned=thinned)


def _dealt(bound: BoundOrder, nodes: int, partition: Partition) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The chunk and the rank of each sample of the first whole global batches, of which only some nodes are there."""
    batch, some = partition.global_batch, bound.num_canonical_nodes
    if some == nodes:
        return partition.dealt(bound, 0, bound.num_samples // batch)
    # The i-th sample of the k-th of these nodes stands at place i * some + k here, and at i * nodes + node among all.
    number, node = np.divmod(np.arange(bound.num_samples // some * some), some)
    node += _first_of(some, nodes)
    step = (number * nodes + node) // batch
    whole = int(np.searchsorted(step, step[-1]))  # steps ascend; the last one may be incomplete
    number, node, step = number[:whole], node[:whole], step[:whole]
    chunks = bound.locate(0, whole)[1]
    by_rank = dealing_order(bound, step, max(1, int(step[-1]).bit_length()), node - node[0], chunks)
    first = np.flatnonzero(np.diff(step[by_rank] * nodes + node[by_rank], prepend=-1))
    sizes = np.diff(first, append=whole)
    in_node = np.arange(whole) - np.repeat(first, sizes)
    begin = step[by_rank] * batch
    before = _below(begin + batch, node[by_rank], nodes) - _below(begin, node[by_rank], nodes)
    ranks = np.empty(whole, dtype=np.int64)
    ranks[by_rank] = _rank_at(before + in_node, partition)
    return chunks, ranks


def _first_of(some: int, nodes: int) -> int:
    """Where to take so many nodes that follow each other, so that they are like all nodes on average.

    How many samples of a batch lie before a node varies as f (1 - f), f being the share of nodes before it: not at all
    for the first, most in the middle, and 1/6 on average over all of them. Over nodes around the share c, which are the
    part w of all, it is c - c^2 - w^2 / 12.

    >>> _first_of(10, 31), _first_of(31, 31)
    (2, 0)
    """
    width = some / nodes
    centre = (1.0 - math.sqrt((1.0 - width**2) / 3.0)) / 2.0
    return max(0, round(centre * nodes - some / 2.0))


def _below(positions: NDArray[np.int64], node: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """Positions below these of nodes before that one."""
    rounds, rest = np.divmod(positions, nodes)
    found: NDArray[np.int64] = rounds * node + np.minimum(rest, node)
    return found


def _rank_at(places: NDArray[np.int64], partition: Partition) -> NDArray[np.int64]:
    """The rank whose slice of a sorted global batch holds each place."""
    each, more = divmod(partition.global_batch, partition.world_size)
    in_long = more * (each + 1)
    return np.where(places < in_long, places // (each + 1), more + (places - in_long) // each)


def _mean_readers(readers: NDArray[np.int64], chunks: NDArray[np.int64], num_chunks: float) -> tuple[float, float]:
    """Of how many ranks a chunk is read, where the nodes have so many chunks and not the few that were simulated.

    And the standard error of that, as a share of it.

    Those that live in the middle third stand for all that are missing; both ends are what they are, since fewer chunks
    are alive there.
    """
    used, first, last = _uses(chunks)
    half = (first + last) / 2
    in_middle = (half > len(chunks) / 3) & (half < len(chunks) * 2 / 3)
    middle, ends = readers[used[in_middle]], readers[used[~in_middle]]
    if num_chunks <= len(used) or not len(middle):
        return float(readers[used].mean()), 0.0
    share = 1.0 - len(ends) / num_chunks
    mean = float(ends.sum() / num_chunks + middle.mean() * share)
    return mean, float(middle.std()) / math.sqrt(len(middle)) * share / mean


def _uses(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Keys that are used, and the first and last place of each."""
    by_key = np.argsort(keys, kind="stable")
    ordered = keys[by_key]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.concatenate([starts[1:], [len(keys)]]) - 1
    return ordered[starts], by_key[starts], by_key[ends]


def _held(
    owners: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    ranks: NDArray[np.int64],
    partition: Partition,
    share_of_nodes: float,
) -> NDArray[np.int64]:
    """The most chunks in use at a time on one rank, in each part of the time.

    Where only some nodes are simulated, a rank may have others too: ranks are taken of which the most is there, and
    what they hold in proportion.
    """
    there = np.bincount(ranks, minlength=partition.world_size)
    known = there[owners] >= _NEARLY * there.max()
    owners, first, last = owners[known], first[known], last[known]
    times = np.concatenate([first, last + 1])
    change = np.concatenate([np.ones_like(first), -np.ones_like(last)])
    by_rank = np.lexsort((times, np.concatenate([owners, owners])))  # which begin and end with nothing in use
    most = np.zeros(_TIMES + 1, dtype=np.int64)
    np.maximum.at(most, times[by_rank] * _TIMES // len(ranks), np.cumsum(change[by_rank]))
    whole = len(ranks) / share_of_nodes / partition.world_size  # samples of a rank
    found: NDArray[np.int64] = np.rint(most[:_TIMES] * max(1.0, _NEARLY * whole / int(there.max()))).astype(np.int64)
    return found


def _counted(places: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return np.bincount(places * _TIMES // length, minlength=_TIMES)


def _heat(chunks: NDArray[np.int64], num_chunks: int) -> NDArray[np.int64]:
    """How many samples come from where, and when."""
    times = np.arange(len(chunks)) * _TIMES // len(chunks)
    cells = times * _SOURCES + chunks * _SOURCES // num_chunks
    return np.bincount(cells, minlength=_TIMES * _SOURCES).reshape(_TIMES, _SOURCES)


def _readers_of_rest(
    bound: BoundOrder, partition: Partition, num_steps: int, pairs: NDArray[np.int64], num_chunks: int
) -> NDArray[np.int64]:
    """Further readers of each chunk in the last, incomplete batch."""
    more = np.zeros(num_chunks, dtype=np.int64)
    for rank in range(partition.world_size):
        chunks = np.unique(partition.share(bound, rank, num_steps, num_steps + 1).chunks)
        more[chunks[~np.isin(rank * num_chunks + chunks, pairs)]] += 1
    return more
