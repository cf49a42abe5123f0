"""Partitioning of an epoch into global batches, dealt to any number of ranks.

A global batch is the positions ``[p, p + G)`` of the order. A global batch depends only on the start of the run, on G
and on the number of samples. For dealing, the samples are sorted by canonical node, by the lane of their chunk and by
position, and cut into ``world_size`` slices; sizes of slices differ by at most one. The sort decides which rank gets a
sample; within its slice a rank has its samples in the order of positions. So the samples of a global batch never depend
on the number of ranks, and a chunk stays with one rank except near a cut.

Each lane holds one chunk at any time, so a cut stays in place while chunks come and go: 15 ranks over 16 nodes of 16
chunks read each chunk 1.07 times, 64 ranks 1.06 times. With a fixed hash of the chunk as its lane, as in orders without
lanes, ranks read each chunk 1.20 and 1.58 times; sorted by position alone, 1.5 to 4 times.

``remainder`` is the treatment of the last, incomplete global batch of an epoch:

* ``"keep"``: the last global batch holds the remaining samples, dealt evenly. If fewer samples than ranks remain, ranks
  without a sample get a repeat, so that every rank yields the same number of batches.
* ``"pad"``: the last global batch is filled with repeats.
* ``"drop"``: the last global batch is dropped.

Repeats are the samples at the positions just before the last batch, and are marked. Without batches (``batched=False``)
nothing is repeated, and ranks may differ by one sample.

With ``balance=k``, the samples of ``k`` neighbouring ranks are dealt among these ranks by weight (`balanced`) if the
order knows weights. Global batches stay the same.

With ``refills=True`` a rank cuts its batches from the samples of its share that a filter keeps. Then global batches
only decide which rank gets a sample: the last global batch is dealt as it is, and ``remainder`` applies to the last
batch of each rank.

References
----------
R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969 (longest processing time first), for balanced batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice
from shoal.errors import UsageError
from shoal.order.arrays.vectorized import order_by
from shoal.order.position_subsets import WithoutGaps, locate_at
from shoal.order.protocol import (
    AXIS_BITS,
    LANE_BITS,
    MOST_RANKS,
    BoundOrder,
    Dealing,
    Weighing,
    innermost,
    lanes_of,
    locate_in,
)

REMAINDERS = ("keep", "pad", "drop")

_DEALT_AT_ONCE = 1 << 20  # positions
_MOST_OF_BATCH, _MOST_REPEATS = 1 << 40, 1 << 24


@dataclass(frozen=True, slots=True)
class Share:
    """The samples of one rank in some consecutive global batches.

    ``ids``, ``positions`` (of the order itself, even if positions are left out), ``chunks`` (int64) and ``repeated``
    (bool) have shape (num_samples,); batch ``i`` is the slice ``[batch_first[i], batch_first[i + 1])``.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    chunks: NDArray[np.int64]
    repeated: NDArray[np.bool_]
    batch_first: NDArray[np.int64]

    def after(self, number: int) -> Share:
        """Return the share without its first samples."""
        rest = slice(number, None)
        batch_first = np.maximum(self.batch_first - number, 0)
        return Share(self.ids[rest], self.positions[rest], self.chunks[rest], self.repeated[rest], batch_first)


@dataclass(frozen=True, slots=True)
class Partition:
    """The cut of an epoch into global batches, and their dealing to ranks.

    Attributes
    ----------
    global_batch
        G, the samples of a global batch over all ranks.
    world_size
        Ranks that share a global batch.
    remainder
        Treatment of the last, incomplete global batch: "keep", "pad" or "drop".
    batched
        False if ranks get single samples: then G is the world size, and there are no repeats.
    refills
        True if ranks fill their batches from their shares, and global batches only decide which rank gets a sample.
    packing
        Arguments for packing the documents of a rank's share into sequences, as JSON types; None for samples.
    balance
        Number of neighbouring ranks that exchange samples to equalize weights; 0 for none.
    """

    global_batch: int
    world_size: int = 1
    remainder: str = "keep"
    batched: bool = True
    refills: bool = False
    packing: Mapping[str, Any] | None = None
    balance: int = 0

    def __post_init__(self) -> None:
        as_choice("remainder", self.remainder, REMAINDERS)
        check_world_size(self.world_size)
        if self.global_batch > _MOST_OF_BATCH:
            msg = f"a global batch has at most 2**40 samples, over all ranks; got {self.global_batch:,}"
            raise UsageError(msg, hint="remainder='keep' makes one batch of a smaller epoch")
        if self.global_batch < self.world_size:
            msg = f"a global batch of {self.global_batch} has no sample for each of {self.world_size} ranks"
            raise UsageError(msg, hint="a larger global batch, or fewer ranks")

    def num_batches(self, num_samples: int, start: int = 0) -> int:
        """Count the global batches, and the batches of each rank, from position ``start`` to the end of the epoch."""
        left = num_samples - start
        return left // self.global_batch if self._drops else -(-left // self.global_batch)

    def num_samples_of(self, rank: int, num_samples: int) -> int:
        """Count the samples of a rank in an epoch that starts at position 0, repeats included."""
        whole, rest = divmod(num_samples, self.global_batch)
        total = whole * self.size_of(rank)
        if rest and not self._drops:
            total += self._size_of(rank, self._filled(rest))
        return total

    def size_of(self, rank: int) -> int:
        """Return the number of samples of a rank in a whole global batch."""
        return self._size_of(rank, self.global_batch)

    def end_of(self, batch: int, num_samples: int, start: int = 0) -> int:
        """Return the position after global batch ``batch``, counted from ``start``; a state keeps this position."""
        return min(start + (batch + 1) * self.global_batch, num_samples)

    def share(self, order: BoundOrder, rank: int, first: int, stop: int, start: int = 0) -> Share:
        """Return the share of ``rank`` in the global batches ``[first, stop)``, counted from position ``start``.

        Takes the order's time for all positions of these batches, plus about 0.1 us per position for several ranks. If
        G is a multiple of the canonical nodes, an order `ByNode` makes only the positions of the rank's own nodes.
        """
        check_rank(rank, self.world_size)
        begin = min(start + first * self.global_batch, order.num_samples)
        end = min(start + stop * self.global_batch, order.num_samples)
        whole = (end - begin) // self.global_batch
        middle = begin + whole * self.global_batch
        shares = [self._whole_batches(order, rank, begin, middle)]
        if middle < end and not self._drops:
            shares.append(self._last_batch(order, rank, middle, end))
        share = _joined(shares)
        if isinstance(order, WithoutGaps):
            return replace(share, positions=order.untouched_positions(share.positions))
        return share

    def dealt(self, order: BoundOrder, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunk and the rank of each sample of the full global batches ``[first, stop)``.

        Both have the shape ((stop - first) * global_batch,), in the order of positions. Covers all ranks at the cost of
        `share` for one rank. The last batch of an epoch counts only if full.
        """
        stop = min(stop, order.num_samples // self.global_batch)
        begin, end = first * self.global_batch, max(first, stop) * self.global_batch
        chunks = order.locate(begin, end)[1]
        by_rank = self._dealing(order, np.arange(begin, end), chunks, self.global_batch).reshape(-1)
        sizes = self._sizes(self.global_batch)
        ranks = np.empty(len(chunks), dtype=np.int64)
        ranks[by_rank] = np.tile(np.repeat(np.arange(self.world_size), sizes), max(0, stop - first))
        return chunks, ranks

    def taken(self, order: BoundOrder, counts: Sequence[int | None], start: int = 0) -> tuple[int, NDArray[np.int64]]:
        """Return the positions taken if each rank took ``counts`` samples of its share from position ``start`` on.

        A count of None is a whole share. Returns the number of completely taken global batches, and the other taken
        positions, ascending; O(positions from the first incomplete global batch to the last begun global batch).
        """
        num_batches = self.num_batches(order.num_samples, start)
        sizes = self._sizes(self.global_batch)
        limits = [num_batches * size if count is None else count for count, size in zip(counts, sizes, strict=True)]
        ranks = list(zip(limits, sizes, strict=True))
        first = min(num_batches, *(limit // size for limit, size in ranks))
        stop = min(num_batches, max(-(-limit // size) for limit, size in ranks))
        num_whole = (order.num_samples - start) // self.global_batch
        at_once = max(1, _DEALT_AT_ONCE // self.global_batch)
        taken: list[NDArray[np.int64]] = []
        cuts = sorted({*range(first, stop, at_once), *([num_whole] if first < num_whole < stop else [])})
        for low, high in itertools.pairwise([*cuts, stop]):
            begin = start + low * self.global_batch
            size = min(self.global_batch, order.num_samples - begin)
            end = min(start + high * self.global_batch, order.num_samples)
            dealt = self._dealing(order, np.arange(begin, end), order.locate(begin, end)[1], size)
            for rank, limit in enumerate(limits):
                numbers = np.sort(dealt[:, slice(*self._cut(rank, size))], axis=1)
                before = np.arange(low, high)[:, None] * sizes[rank] + np.arange(numbers.shape[1])
                taken.append(begin + numbers[before < limit])
        return first, np.sort(np.concatenate(taken)) if taken else np.zeros(0, dtype=np.int64)

    def _whole_batches(self, order: BoundOrder, rank: int, begin: int, end: int) -> Share:
        num_batches, size = (end - begin) // self.global_batch, self.global_batch
        low, high = self._cut(rank, size)
        nodes = self._nodes_of(low, high, order.num_canonical_nodes)
        located = None if nodes is None else locate_in(order, begin, end, nodes)
        if nodes is None or located is None:
            positions, located = np.arange(begin, end), order.locate(begin, end)
        else:
            of_node = size // order.num_canonical_nodes
            positions = _positions_in(begin, end, nodes, order.num_canonical_nodes)
            low, high, size = low - nodes.start * of_node, high - nodes.start * of_node, len(nodes) * of_node
        ids, chunks = located
        if self.world_size > 1:
            dealt = self._dealing(order, positions, chunks, size)
            numbers = np.sort(dealt[:, low:high], axis=1).reshape(-1)
            ids, chunks, positions = ids[numbers], chunks[numbers], positions[numbers]
        batch_first = np.arange(num_batches + 1) * self.size_of(rank)
        return Share(ids, positions, chunks, np.zeros(len(ids), dtype=bool), batch_first)

    def _last_batch(self, order: BoundOrder, rank: int, begin: int, end: int) -> Share:
        missing = self._filled(end - begin) - (end - begin)
        positions = np.concatenate([(begin - 1 - np.arange(missing)) % order.num_samples, np.arange(begin, end)])
        repeated = np.arange(len(positions)) < missing
        by_position = np.lexsort((repeated, positions))
        positions, repeated = positions[by_position], repeated[by_position]
        ids, chunks = locate_at(order, positions)
        dealt = dealing_order(order, np.zeros_like(positions), 1, positions, chunks)
        dealt = self._balanced(order, dealt[None], positions)[0]
        rows = np.sort(dealt[slice(*self._cut(rank, len(positions)))])
        return Share(ids[rows], positions[rows], chunks[rows], repeated[rows], np.array([0, len(rows)]))

    def _nodes_of(self, low: int, high: int, num_nodes: int) -> range | None:
        """Return the canonical nodes with the samples ``[low, high)`` of each dealt batch; None if batches differ.

        A rank then makes the samples of its own nodes only: with 64 nodes, 64 ranks or more save 63 of 64 samples.
        """
        of_node, rest = divmod(self.global_batch, num_nodes)
        if self.world_size == 1 or num_nodes == 1 or rest or self.balance:
            return None
        return range(low // of_node, -(-high // of_node))

    def _dealing(
        self, order: BoundOrder, positions: NDArray[np.int64], chunks: NDArray[np.int64], size: int
    ) -> NDArray[np.int64]:
        """Return the dealing order of batches of ``size`` positions, as indices; shape (num_batches, size)."""
        num_batches = len(chunks) // size
        batches = np.arange(len(chunks)) // size
        dealt = dealing_order(order, batches, max(1, num_batches.bit_length()), positions, chunks)
        return self._balanced(order, dealt.reshape(num_batches, size), positions)

    def _balanced(self, order: BoundOrder, dealt: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Deal the rows of each batch by weight among neighbouring ranks."""
        if not self.balance or self.world_size == 1 or not dealt.size:
            return dealt
        order, positions = _untouched(order, positions)
        if not isinstance(order, Weighing):
            return dealt
        columns = balanced(order.weights(positions)[dealt], self._sizes(dealt.shape[1]), self.balance)
        return np.take_along_axis(dealt, columns, axis=1)

    @property
    def _drops(self) -> bool:
        """True if the last, incomplete global batch is dropped."""
        return self.remainder == "drop" and not self.refills

    def _filled(self, rest: int) -> int:
        """Return the size of a last global batch of ``rest`` samples, repeats included."""
        if not self.batched or self.refills:
            return rest
        if self.remainder != "pad":
            return max(rest, self.world_size)
        if (repeats := self.global_batch - rest) > _MOST_REPEATS:
            msg = f'remainder="pad" would fill the last global batch of {self.global_batch:,} with {repeats:,} repeats '
            msg += f"for its {rest:,} samples; at most {_MOST_REPEATS:,} are made"
            raise UsageError(msg, hint='a smaller batch, or remainder="keep"')
        return self.global_batch

    def _cut(self, rank: int, size: int) -> tuple[int, int]:
        """Return the range of a rank in a dealt batch of ``size`` samples."""
        share, more = divmod(size, self.world_size)
        low = rank * share + min(rank, more)
        return low, low + share + (rank < more)

    def _sizes(self, size: int) -> list[int]:
        return [self._size_of(rank, size) for rank in range(self.world_size)]

    def _size_of(self, rank: int, size: int) -> int:
        low, high = self._cut(rank, size)
        return high - low


def dealing_order(
    order: BoundOrder,
    batch: NDArray[np.int64],
    batch_bits: int,
    positions: NDArray[np.int64],
    chunks: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the indices that sort samples for dealing: by batch, canonical node, lane of the chunk, position."""
    order, positions = _untouched(order, positions)
    if isinstance(dealing := innermost(order), Dealing):
        return order_by((batch, batch_bits), (dealing.axis(positions, chunks, batch), AXIS_BITS))
    num_nodes = order.num_canonical_nodes
    nodes = (positions % num_nodes, num_nodes.bit_length())
    return order_by((batch, batch_bits), nodes, (lanes_of(order, chunks), LANE_BITS))


def _positions_in(start: int, stop: int, nodes: range, num_nodes: int) -> NDArray[np.int64]:
    """Return the positions ``[start, stop)`` of some consecutive canonical nodes, ascending."""
    rows = np.arange(start // num_nodes, -(-stop // num_nodes))
    positions = (rows[:, None] * num_nodes + np.arange(nodes.start, nodes.stop)).reshape(-1)
    return positions[(positions >= start) & (positions < stop)]


def check_world_size(world_size: int) -> None:
    """Raise `UsageError` unless a run can have this many ranks."""
    if world_size < 1:
        raise UsageError(f"world_size must be at least 1; got {world_size}")
    if world_size > MOST_RANKS:
        number = f"{world_size:,}" if world_size.bit_length() <= 64 else f"a number of {world_size.bit_length()} bits"
        raise UsageError(f"world_size must be from 1 to {MOST_RANKS:,}; got {number}")


def check_rank(rank: int, world_size: int) -> None:
    """Raise `UsageError` unless ``0 <= rank < world_size``, and a run can have this many ranks."""
    check_world_size(world_size)
    if not 0 <= rank < world_size:
        msg = f"rank must be from 0 to world_size - 1 = {world_size - 1}; got rank={rank}"
        raise UsageError(msg, hint="ranks count from 0")


def _untouched(order: BoundOrder, positions: NDArray[np.int64]) -> tuple[BoundOrder, NDArray[np.int64]]:
    """Return the order without gaps, and the positions in this order."""
    if isinstance(order, WithoutGaps):
        return order.untouched, order.untouched_positions(positions)
    return order, positions


def _joined(shares: list[Share]) -> Share:
    if len(shares) == 1:
        return shares[0]
    first, last = shares
    return Share(
        np.concatenate([first.ids, last.ids]),
        np.concatenate([first.positions, last.positions]),
        np.concatenate([first.chunks, last.chunks]),
        np.concatenate([first.repeated, last.repeated]),
        np.concatenate([first.batch_first, first.batch_first[-1] + last.batch_first[1:]]),
    )


def balanced(weights: NDArray[np.int64], sizes: Sequence[int], neighbours: int) -> NDArray[np.int64]:
    """Return an order of the columns of each batch; cut into parts of ``sizes``, all parts weigh about the same.

    The heaviest samples are dealt first, one to each rank in turn. In each turn the heaviest sample left goes to
    the rank that has the least so far: longest processing time first, with as many samples for each rank. Ranks
    exchange samples only within a group of ``neighbours`` ranks, such as the ranks of a machine, since every rank of a
    group reads all chunks of the group. O(samples * log samples), 0.1 us each where there are many batches.

    Parameters
    ----------
    weights
        Weights of the samples of each batch, in the order of dealing; shape (num_batches, batch_size).
    sizes
        Samples that each rank gets of a batch: the first ranks may have one sample more.

    Examples
    --------
    >>> dealt = balanced(np.array([[9, 8, 7, 6, 1, 1]]), [3, 3], neighbours=2)
    >>> dealt.tolist()  # 9 + 6 + 1, and 8 + 7 + 1
    [[0, 3, 4, 1, 2, 5]]
    """
    columns, begin = [], 0
    for first in range(0, len(sizes), neighbours):
        group = sizes[first : first + neighbours]
        end = begin + sum(group)
        columns.append(begin + _in_group(weights[:, begin:end], len(group)))
        begin = end
    return np.concatenate(columns, axis=1)


def _in_group(weights: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
    """Return the columns of one group of ranks, sorted by rank; any two ranks of a group may exchange samples."""
    num_batches = len(weights)
    heaviest = np.argsort(-weights, axis=1, kind="stable")
    sorted_weights = np.take_along_axis(weights, heaviest, axis=1)
    totals = np.zeros((num_batches, num_ranks), dtype=np.int64)
    owner = np.empty_like(heaviest)
    for begin in range(0, weights.shape[1], num_ranks):
        of_turn = sorted_weights[:, begin : begin + num_ranks]
        ranks = np.argsort(totals[:, : of_turn.shape[1]], axis=1, kind="stable")  # in the last turn, the first ranks
        owner[:, begin : begin + num_ranks] = ranks
        totals[np.arange(num_batches)[:, None], ranks] += of_turn
    return np.take_along_axis(heaviest, np.argsort(owner, axis=1, kind="stable"), axis=1)
