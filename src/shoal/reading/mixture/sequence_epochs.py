"""The order of sequences of every epoch, where weights of a mixture change at given sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.mixture.source_schedule import SequenceChange
from shoal.order.sequences.groupings import Grouping
from shoal.order.sequences.packed_order import MAX_SEQUENCES, PackedOrder
from shoal.reading.mixture.changes_of_sequences import documents_behind, weights_behind
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder


@dataclass(frozen=True)
class _Begin:
    """The begin of an epoch: its documents, and what is still to change, at positions of this epoch."""

    documents: ResolvedOrder | ResolvedMixture
    ramp: tuple[tuple[int, Mapping[str, int]], ...]
    changes: tuple[SequenceChange, ...]

    def next(self, epoch: int) -> tuple[int, bool]:
        """Return the position of the next change in this epoch, if it has one, and whether it is a step of a ramp."""
        change = self.changes[0].at if self.changes and self.changes[0].epoch == epoch else MAX_SEQUENCES
        step = self.ramp[0][0] if self.ramp else MAX_SEQUENCES
        return min(change, step), step < change

    def behind(self, epoch: int, num_sequences: int) -> _Begin:
        """Return the begin of the next epoch: what this one is too short for comes there."""
        ramp = tuple((at - num_sequences, weights) for at, weights in self.ramp)
        moved = [replace(change, epoch=epoch + 1, at=change.at - num_sequences) if change.epoch == epoch else change
                 for change in self.changes]  # fmt: skip
        return _Begin(self.documents, ramp, tuple(sorted(moved, key=lambda change: change.place)))


class SequenceEpochs:
    """Orders of sequences by epoch, of the same documents and lengths; weights change by ``changes``, which ascend."""

    def __init__(
        self,
        documents: ResolvedOrder | ResolvedMixture,
        lengths: NDArray[np.integer[Any]],
        packing: Grouping,
        changes: tuple[SequenceChange, ...],
    ) -> None:
        self._lengths, self._packing = lengths, packing
        self._begins = {0: _Begin(documents, (), changes)}

    def order(self, epoch: int) -> PackedOrder:
        """Return the order of an epoch; O(documents), and another block of documents for each change."""
        return self._changed(epoch, self._begin(epoch))[0]

    def _begin(self, epoch: int) -> _Begin:
        known = max(number for number in self._begins if number <= epoch)
        while known < epoch:
            begin = self._begins[known]
            if begin.next(known)[0] < MAX_SEQUENCES:
                order, begin = self._changed(known, begin)
                behind = begin.behind(known, order.num_samples)
                following = known + 1
            else:  # nothing changes until the epoch of the next change
                behind, following = begin, min([epoch, *(max(known + 1, change.epoch) for change in begin.changes[:1])])
            self._begins[following] = behind
            known = following
        return self._begins[epoch]

    def _changed(self, epoch: int, begin: _Begin) -> tuple[PackedOrder, _Begin]:
        """Return the order of an epoch, and its documents with all changes in it, and what is left to change."""
        documents, ramp, changes = begin.documents, begin.ramp, begin.changes
        bound = documents.epoch(epoch)
        order = PackedOrder(bound, self._lengths, self._packing, seed=documents.seed, epoch=epoch)
        while True:
            at, is_step = _Begin(documents, ramp, changes).next(epoch)
            if at == MAX_SEQUENCES or not order.has(at):
                break
            if not isinstance(documents, ResolvedMixture):
                raise UsageError(f"the weights change at sequence {at}, and only mixtures have weights")
            opened = order.opened(at)
            if not is_step:
                ramp = tuple(changes[0].steps(weights_behind(documents, epoch, opened)))
                changes = changes[1:]
            documents = documents_behind(documents, epoch, opened, ramp[0][1])
            ramp = ramp[1:]
            order = order.changed(at, opened, documents.epoch(epoch))
        return order, _Begin(documents, ramp, changes)
