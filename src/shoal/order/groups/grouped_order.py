"""The order of an epoch of batches by column: the samples in their order, batch by batch of one group or P classes.

A position of this order is a batch. The samples come in the same order as without groups, and each waits for the other
samples of its batch (`waiting_samples`). ``alike`` consecutive batches come from the same groups, and begin at
multiples of ``alike``. The samples of these batches are dealt among them as a global batch is dealt among ranks: by
canonical node, and by the lane of the chunk. So ranks that take these batches in one step read different chunks.

The samples that wait at the end of the epoch make the last batches: full batches, then a short batch of each group.
Batches of several classes have no short form, so the samples that wait are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.permutation import permute
from shoal.order.groups.group_batches import GroupBatches
from shoal.order.groups.waiting_samples import Waiting, complete_sets, oldest_left_out, short_sets
from shoal.order.partition import dealing_order
from shoal.order.protocol import BoundOrder
from shoal.order.seeds import key
from shoal.order.sequences.numbered_groups import NumberedGroups
from shoal.order.sequences.packed_order import Pieces

_KEPT_BLOCKS = 4
_LEAST_BLOCK = 1 << 16  # positions that are grouped at a time; at least as many as wait, for O(log n) copies of each


class _Block(NamedTuple):
    """The samples at positions ``[start, stop)``, the samples that wait before, and the number of earlier batches.

    The last block of an epoch has no positions: its batches are made of the samples that wait.
    """

    start: int
    stop: int
    waiting: Waiting
    first_batch: int


class _Batches(NamedTuple):
    """The samples of the batches of a block, batch by batch, and the place of each batch in its run."""

    samples: Waiting
    first: NDArray[np.int64]
    places: NDArray[np.int64]


class GroupedOrder(NumberedGroups):
    """The order of batches by column of one epoch.

    Parameters
    ----------
    documents
        The order of the samples of the epoch.
    groups
        Number of the group of each sample, by its id; shape (number of ids,).
    grouping
        Arguments of the batches.
    seed, epoch
        Seed and epoch of the order.
    """

    def __init__(
        self, documents: BoundOrder, groups: NDArray[np.integer[Any]], grouping: GroupBatches, *, seed: int, epoch: int
    ) -> None:
        self.documents, self.grouping = documents, grouping
        self._groups, self._seed, self._epoch = groups, seed, epoch
        self._kept: dict[int, _Batches] = {}

    @cached_property
    def _blocks(self) -> tuple[list[_Block], int, int]:
        """The blocks, the number of batches, and the number of samples in them; 0.2 us per sample of the epoch."""
        blocks, grouping = list[_Block](), self.grouping
        waiting, start, num_batches, num_samples = Waiting(), 0, 0, 0
        while start < self.documents.num_samples:
            stop = min(start + max(_LEAST_BLOCK, len(waiting.groups)), self.documents.num_samples)
            blocks.append(_Block(start, stop, waiting, num_batches))
            sets, waiting = complete_sets(self._with(waiting, start, stop), grouping)
            if grouping.classes > 1:
                waiting = oldest_left_out(waiting, grouping)
            num_batches += sets.num_runs * grouping.alike
            num_samples += int(sets.first[-1])
            start = stop
        if grouping.classes == 1 and len(waiting.groups):
            blocks.append(_Block(start, start, waiting, num_batches))
            last = self._last(waiting)
            num_batches += len(last.places)
            num_samples += len(last.samples.ids)
        return blocks, num_batches, num_samples

    @cached_property
    def _starts(self) -> list[int]:
        """The first batch of each block."""
        return [block.first_batch for block in self._blocks[0]]

    @property
    def num_samples(self) -> int:
        """Number of batches in the epoch."""
        return self._blocks[1]

    @property
    def num_left_out(self) -> int:
        """Number of samples of the epoch in no batch."""
        return self.documents.num_samples - self._blocks[2]

    @property
    def span(self) -> int:
        """Approximate number of batches of a block."""
        return max(1, self.num_samples // max(1, len(self._blocks[0])))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the order of the samples, and of the batches."""
        return {**self.documents.parameters, **self.grouping.to_dict()}

    def documents_before(self, number: int) -> int:
        """Return the number of positions of samples that determine the first ``number`` batches."""
        if not number or number > self.num_samples:
            return self.documents.num_samples if number else 0
        return self._blocks[0][self._block_of(number - 1)].stop

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of the batches at positions ``[start, stop)``, and the place of each in its run."""
        ids = self.ids(start, stop)
        return ids, ids % self.grouping.alike

    def pieces(self, ids: NDArray[np.int64]) -> Pieces:
        """Return the samples of these batches; O(samples of the epoch) on first use, then O(samples of the batches)."""
        numbers, rows = np.unique(ids, return_inverse=True)
        blocks = np.searchsorted(self._starts, numbers, side="right") - 1
        parts, counts = [Waiting()], [np.zeros(1, dtype=np.int64)]
        for number in np.unique(blocks).tolist():
            batches, inside = self._batches(number), numbers[blocks == number] - self._starts[number]
            sizes = np.diff(batches.first)[inside]
            ends = np.cumsum(sizes)
            parts.append(
                batches.samples.chosen(
                    np.repeat(batches.first[inside] - (ends - sizes), sizes) + np.arange(sizes.sum())
                )
            )
            counts.append(sizes)
        _, positions, sample_ids, chunks = (np.concatenate(column) for column in zip(*parts, strict=True))
        starts = np.zeros(len(sample_ids), dtype=np.int64)
        first = np.cumsum(np.concatenate(counts))
        return Pieces(first, sample_ids, positions, chunks, starts, starts + 1).chosen(rows)

    def sequences_with(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ascending numbers of the batches with a sample at one of these positions."""
        batches = [np.zeros(0, np.int64)]
        for number, start in enumerate(self._starts):
            held = self._batches(number)
            rows = np.flatnonzero(np.isin(held.samples.positions, positions))
            batches.append(start + np.unique(np.searchsorted(held.first, rows, side="right") - 1))
        return np.concatenate(batches)

    def _block_of(self, batch: int) -> int:
        return bisect_right(self._starts, batch) - 1

    def _with(self, waiting: Waiting, start: int, stop: int) -> Waiting:
        """Return the samples that wait, and the samples at positions ``[start, stop)``."""
        ids, chunks = self.documents.locate(start, stop)
        groups = self._groups[ids].astype(np.int64, copy=False)
        return waiting.joined(groups, np.arange(start, stop), ids, chunks)

    def _batches(self, number: int) -> _Batches:
        batches = self._kept.get(number)
        if batches is None:
            block = self._blocks[0][number]
            batches = self._made(block) if block.start < block.stop else self._last(block.waiting)
            while len(self._kept) >= _KEPT_BLOCKS:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[number] = batches
        return batches

    def _made(self, block: _Block) -> _Batches:
        """Make the batches of a block, ``alike`` of each run of sets."""
        alike = self.grouping.alike
        sets, _ = complete_sets(self._with(block.waiting, block.start, block.stop), self.grouping)
        sizes = np.diff(sets.first)
        number = np.repeat(np.arange(len(sizes)), sizes)
        rows, places = np.arange(len(number)), np.zeros(len(number), dtype=np.int64)
        if alike > 1:
            rows = self._dealt(number, sets.samples)
            places = (np.arange(len(rows)) - sets.first[number]) * alike // sizes[number]
        batch = sets.run[number] * alike + places
        by_batch = np.lexsort((sets.samples.positions[rows], number, batch))
        num_batches = sets.num_runs * alike
        counts = np.bincount(batch, minlength=num_batches)
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return _Batches(sets.samples.chosen(rows[by_batch]), first, np.arange(num_batches) % alike)

    def _dealt(self, sets: NDArray[np.int64], samples: Waiting) -> NDArray[np.int64]:
        """Return the rows of each set, sorted by canonical node and by the lane of the chunk."""
        rows = np.argsort(samples.positions, kind="stable")
        columns = (sets[rows], max(1, int(sets.max(initial=0)).bit_length()), samples.positions[rows])
        return rows[dealing_order(self.documents, *columns, samples.chunks[rows])]

    def _last(self, waiting: Waiting) -> _Batches:
        """Make the batches of the samples that wait at the end of the epoch."""
        groups = waiting.groups[waiting.first_of_groups[:-1]]
        turns = permute(np.arange(len(groups)), len(groups), key(self._seed, self._epoch, "last batches of groups"))
        by_node = waiting.chosen(self._dealt(waiting.groups, waiting))
        samples, first = short_sets(by_node, self.grouping, turns)
        batch = np.repeat(np.arange(len(first) - 1), np.diff(first))
        ordered = samples.chosen(np.lexsort((samples.positions, batch)))
        return _Batches(ordered, first, np.arange(len(first) - 1) % self.grouping.alike)
