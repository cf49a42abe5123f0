"""Chunks that each rank uses, and when: global batches dealt as in a run, a part at a time.

Positions alternate over the canonical nodes, and a global batch is dealt node by node. So the rank of a sample depends
only on its node and on the number of samples that the nodes before it have in the batch, which is arithmetic: some
nodes can be dealt without the others.
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
_AT_ONCE = 1 << 19  # positions: more take 100 bytes each, and save no time


@dataclass(frozen=True, slots=True)
class ChunkUses:
    """Chunks that ranks use in the first full global batches, of which only some canonical nodes may be dealt.

    ``ranks`` and ``chunks`` are the pairs of a rank and a chunk that it uses, ascending by rank, then chunk; ``first``
    and ``last`` the positions of the first and last sample that it takes. A chunk that a rank reads again is another
    pair, behind the one before. ``samples_of_rank`` has the samples that each
    rank gets, shape (world_size,), ``heat`` the samples by time and by their chunk, in equal parts, shape (50, 64).
    """

    ranks: NDArray[np.int64]
    chunks: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    samples_of_rank: NDArray[np.int64] = field(repr=False)
    heat: NDArray[np.int64] = field(repr=False)
    num_positions: int

    def most_held_at(self, position: int) -> int:
        """Return the most chunks that one rank has in use just before a position; O(num_pairs)."""
        in_use = self.ranks[(self.first < position) & (self.last >= position)]
        return int(np.bincount(in_use).max(initial=0))

    def of_nodes(self, ranks_per_node: int) -> ChunkUses:
        """Return the uses as if the ranks of each node were one, which has its number as rank; O(n log n)."""
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
    """Deal an order that stands for some of ``nodes`` canonical nodes; about 0.2 us per sample.

    With ``span_steps``, a rank plans its reads in spans of so many steps, as a stream does: it releases a chunk that
    the next span does not use, and the next use of the chunk is a pair of its own. Takes the memory of one part, plus
    32 bytes for each pair of a rank and a chunk that it uses.
    """
    dealing = _Dealing(bound, nodes, partition)
    samples_of_rank = np.zeros(partition.world_size, dtype=np.int64)
    heat = np.zeros(TIMES * SOURCES, dtype=np.int64)
    found = []
    for part, (begin, chunks, ranks) in enumerate(dealing.parts(span_steps)):
        samples_of_rank += np.bincount(ranks, minlength=partition.world_size)
        times = np.arange(begin, begin + len(chunks)) * TIMES // dealing.num_positions
        heat += np.bincount(times * SOURCES + chunks * SOURCES // num_chunks, minlength=TIMES * SOURCES)
        keys = ranks * num_chunks + chunks
        by_key = order_by((keys, max(1, (partition.world_size * num_chunks).bit_length())))
        ordered = keys[by_key]
        starts, ends = _groups(ordered)
        spans = np.full(len(starts), 0 if span_steps is None else part)
        found.append((ordered[starts], begin + by_key[starts], begin + by_key[ends], spans))
    keys, first, last, spans = (
        (np.concatenate(column) for column in zip(*found, strict=True)) if found else [np.zeros(0, dtype=np.int64)] * 4
    )
    by_key = np.argsort(keys, kind="stable")  # stable: equal keys stay sorted by part, which keeps first and last valid
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
    """Return the first and the last index of each of some ascending keys, whose spans follow one another if given."""
    is_other = ordered[1:] != ordered[:-1]
    if spans is not None:
        is_other |= np.diff(spans) > 1
    changes = np.flatnonzero(is_other)
    ends = np.append(changes, len(ordered) - 1) if len(ordered) else changes
    return np.append(0, changes + 1)[: len(ends)], ends


class _Dealing:
    """Dealing of full global batches of all canonical nodes, or of the part that some nodes have in them."""

    def __init__(self, bound: BoundOrder, nodes: int, partition: Partition) -> None:
        self._bound, self._nodes, self._partition = bound, nodes, partition
        self._some = bound.num_canonical_nodes
        self._first_node = _first_of(self._some, nodes)
        if self._some == nodes:
            self._num_steps = bound.num_samples // partition.global_batch
        else:  # the last step of these nodes may be incomplete
            last = bound.num_samples // self._some * self._some - 1
            number, node = divmod(last, self._some)
            self._num_steps = (number * nodes + self._first_node + node) // partition.global_batch
        self.num_positions = self._samples_before(self._num_steps)

    def parts(self, num_steps: int | None = None) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the position of the first sample, and the chunk and the rank of each sample, part by part.

        A part has ``num_steps`` steps, or as many as are dealt quickly at once.
        """
        batch = max(1.0, self._partition.global_batch * self._some / self._nodes)
        together = num_steps or max(1, int(_AT_ONCE / batch))
        for step in range(0, self._num_steps, together):
            stop = min(step + together, self._num_steps)
            begin, end = self._samples_before(step), self._samples_before(stop)
            if begin < end:
                yield begin, *self._dealt(step, stop, begin, end)

    def _samples_before(self, step: int) -> int:
        """Count the samples of these nodes in the steps before one."""
        rounds, rest = divmod(step * self._partition.global_batch, self._nodes)
        return rounds * self._some + min(max(rest - self._first_node, 0), self._some)

    def _dealt(self, step: int, stop: int, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        bound, nodes, batch = self._bound, self._nodes, self._partition.global_batch
        if self._some == nodes:
            return self._partition.dealt(bound, step, stop)
        # The i-th sample of the k-th of these nodes has position i * some + k here, and i * nodes + node of all.
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

    The number of samples of a batch before a node varies as f (1 - f), f being the share of nodes before it: not at all
    for the first, most in the middle, and 1/6 on average over all of them. Over a part w of all nodes, centred at the
    share c, it is c - c^2 - w^2 / 12.

    >>> _first_of(10, 31), _first_of(31, 31)
    (2, 0)
    """
    width = some / nodes
    centre = (1.0 - math.sqrt((1.0 - width**2) / 3.0)) / 2.0
    return max(0, round(centre * nodes - some / 2.0))


def _below(positions: NDArray[np.int64], node: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """Count the positions below each given one that belong to nodes before ``node``."""
    rounds, rest = np.divmod(positions, nodes)
    found: NDArray[np.int64] = rounds * node + np.minimum(rest, node)
    return found


def _rank_at(slots: NDArray[np.int64], partition: Partition) -> NDArray[np.int64]:
    """Return the rank whose slice of a sorted global batch holds each slot."""
    each, more = divmod(partition.global_batch, partition.world_size)
    in_long = more * (each + 1)
    return np.where(slots < in_long, slots // (each + 1), more + (slots - in_long) // each)
