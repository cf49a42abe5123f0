"""Find the chunks that each rank uses, by dealing global batches as a run does.

Positions alternate over the canonical nodes, and a global batch is dealt node by node. So the rank of a sample follows
from its node and from the number of samples of earlier nodes in the batch. Some nodes can be dealt without the other
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import order_by
from shoal.order.partition import Partition, dealing_order
from shoal.order.protocol import BoundOrder

TIMES, SOURCES = 50, 64
_AT_ONCE = 1 << 19  # positions; more take 100 bytes each and save no time


@dataclass(frozen=True, slots=True)
class ChunkUses:
    """Chunks that ranks use in the first full global batches of all or some canonical nodes.

    ``ranks`` and ``chunks`` are pairs of a rank and a chunk, ascending by rank, then chunk; ``first`` and ``last`` are
    the positions of the first and last sample that the rank takes. A second read of a chunk is another pair after the
    first. ``samples_of_rank`` counts the samples of each rank, shape (world_size,); ``heat`` counts samples by time and
    by chunk, in equal parts, shape (50, 64).
    """

    ranks: NDArray[np.int64]
    chunks: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    samples_of_rank: NDArray[np.int64] = field(repr=False)
    heat: NDArray[np.int64] = field(repr=False)
    num_positions: int

    def most_held_at(self, position: int) -> int:
        """Return the most chunks that a rank has in use before a position; O(num_pairs)."""
        in_use = self.ranks[(self.first < position) & (self.last >= position)]
        return int(np.bincount(in_use).max(initial=0))

    def of_nodes(self, ranks_per_node: int) -> ChunkUses:
        """Return the uses with each node as one rank, numbered by node; O(n log n)."""
        num_chunks = int(self.chunks.max(initial=0)) + 1
        keys = self.ranks // ranks_per_node * num_chunks + self.chunks
        by_key = np.argsort(keys, kind="stable")
        starts, _ = _groups(keys[by_key])
        pairs = keys[by_key[starts]]
        nodes = np.arange(len(self.samples_of_rank)) // ranks_per_node
        return ChunkUses(
            pairs // num_chunks,
            pairs % num_chunks,
            np.minimum.reduceat(self.first[by_key], starts) if len(starts) else self.first,
            np.maximum.reduceat(self.last[by_key], starts) if len(starts) else self.last,
            np.bincount(nodes, weights=self.samples_of_rank).astype(np.int64),
            self.heat,
            self.num_positions,
        )


def chunk_uses(
    bound: BoundOrder, nodes: int, partition: Partition, num_chunks: int, *, span_steps: int | None = None
) -> ChunkUses:
    """Deal an order of some of ``nodes`` canonical nodes; about 0.2 us per sample.

    With ``span_steps``, a rank plans its reads in spans of this many steps, as a stream does. It releases a chunk that
    the next span does not use; a later use of the chunk is another pair. Takes the memory of one part, plus 32 bytes
    for each pair of rank and chunk.
    """
    dealing = _Dealing(bound, nodes, partition)
    samples_of_rank = np.zeros(partition.world_size, dtype=np.int64)
    heat = np.zeros(TIMES * SOURCES, dtype=np.int64)
    columns = []
    for part, (begin, chunks, ranks) in enumerate(dealing.parts(span_steps)):
        samples_of_rank += np.bincount(ranks, minlength=partition.world_size)
        times = np.arange(begin, begin + len(chunks)) * TIMES // dealing.num_positions
        heat += np.bincount(times * SOURCES + chunks * SOURCES // num_chunks, minlength=TIMES * SOURCES)
        keys = ranks * num_chunks + chunks
        by_key = order_by((keys, max(1, (partition.world_size * num_chunks).bit_length())))
        ordered = keys[by_key]
        starts, ends = _groups(ordered)
        spans = np.full(len(starts), 0 if span_steps is None else part)
        columns.append((ordered[starts], begin + by_key[starts], begin + by_key[ends], spans))
    keys, first, last, spans = (
        (np.concatenate(column) for column in zip(*columns, strict=True))
        if columns
        else [np.zeros(0, dtype=np.int64)] * 4
    )
    by_key = np.argsort(keys, kind="stable")  # stable: first and last need equal keys in the order of parts
    starts, ends = _groups(keys[by_key], spans[by_key])
    pairs = keys[by_key[starts]]
    return ChunkUses(
        pairs // num_chunks,
        pairs % num_chunks,
        first[by_key[starts]],
        last[by_key[ends]],
        samples_of_rank,
        heat.reshape(TIMES, SOURCES),
        dealing.num_positions,
    )


def _groups(
    ordered: NDArray[np.int64], spans: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last index of each ascending key; with ``spans``, of each run of consecutive spans."""
    is_other = ordered[1:] != ordered[:-1]
    if spans is not None:
        is_other |= np.diff(spans) > 1
    changes = np.flatnonzero(is_other)
    ends = np.append(changes, len(ordered) - 1) if len(ordered) else changes
    return np.append(0, changes + 1)[: len(ends)], ends


class _Dealing:
    """Dealing of full global batches of all canonical nodes, or of the part of some nodes."""

    def __init__(self, bound: BoundOrder, nodes: int, partition: Partition) -> None:
        self._bound, self._nodes, self._partition = bound, nodes, partition
        self._some = bound.num_canonical_nodes
        self._first_node = _first_of(self._some, nodes)
        if self._some == nodes:
            self._num_steps = bound.num_samples // partition.global_batch
        else:  # the last step of some nodes may be incomplete
            last = bound.num_samples // self._some * self._some - 1
            number, node = divmod(last, self._some)
            self._num_steps = (number * nodes + self._first_node + node) // partition.global_batch
        self.num_positions = self._samples_before(self._num_steps)

    def parts(self, num_steps: int | None = None) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the first position, and the chunk and rank of each sample, in parts of ``num_steps`` steps.

        By default, a part has about 500,000 samples.
        """
        batch = max(1.0, self._partition.global_batch * self._some / self._nodes)
        together = num_steps or max(1, int(_AT_ONCE / batch))
        for step in range(0, self._num_steps, together):
            stop = min(step + together, self._num_steps)
            begin, end = self._samples_before(step), self._samples_before(stop)
            if begin < end:
                yield begin, *self._dealt(step, stop, begin, end)

    def _samples_before(self, step: int) -> int:
        """Count the samples of the dealt nodes before a step."""
        rounds, rest = divmod(step * self._partition.global_batch, self._nodes)
        return rounds * self._some + min(max(rest - self._first_node, 0), self._some)

    def _dealt(self, step: int, stop: int, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        bound, nodes, batch = self._bound, self._nodes, self._partition.global_batch
        if self._some == nodes:
            return self._partition.dealt(bound, step, stop)
        # The i-th sample of the k-th dealt node has position i * some + k here, and i * nodes + node in the order.
        positions = np.arange(begin, end)
        number, node = np.divmod(positions, self._some)
        node += self._first_node
        steps = (number * nodes + node) // batch
        chunks = bound.locate(begin, end)[1]
        by_rank = dealing_order(bound, steps - step, max(1, (stop - step).bit_length()), positions, chunks)
        first = np.flatnonzero(np.diff(steps[by_rank] * nodes + node[by_rank], prepend=-1))
        sizes = np.diff(first, append=end - begin)
        in_node = np.arange(end - begin) - np.repeat(first, sizes)
        start = steps[by_rank] * batch
        before = _below(start + batch, node[by_rank], nodes) - _below(start, node[by_rank], nodes)
        ranks = np.empty(end - begin, dtype=np.int64)
        ranks[by_rank] = _rank_at(before + in_node, self._partition)
        return chunks, ranks


def _first_of(some: int, nodes: int) -> int:
    """Return the first of ``some`` consecutive nodes that are on average like all ``nodes``.

    Let f be the share of nodes before a node. The number of samples of a batch before the node varies as f (1 - f): 0
    for the first node, most in the middle, 1/6 on average. Over a part w of all nodes around the share c, it is
    c - c^2 - w^2 / 12.

    >>> _first_of(10, 31), _first_of(31, 31)
    (2, 0)
    """
    width = some / nodes
    centre = (1.0 - math.sqrt((1.0 - width**2) / 3.0)) / 2.0
    return max(0, round(centre * nodes - some / 2.0))


def _below(positions: NDArray[np.int64], node: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """Count the lower positions that belong to nodes before ``node``, for each position."""
    rounds, rest = np.divmod(positions, nodes)
    counts: NDArray[np.int64] = rounds * node + np.minimum(rest, node)
    return counts


def _rank_at(slots: NDArray[np.int64], partition: Partition) -> NDArray[np.int64]:
    """Return the rank whose slice of a sorted global batch holds each slot."""
    least, num_larger = divmod(partition.global_batch, partition.world_size)
    in_larger = num_larger * (least + 1)
    return np.where(slots < in_larger, slots // (least + 1), num_larger + (slots - in_larger) // least)
