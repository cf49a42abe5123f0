"""Changes of the weights of a mixture at given sequences: the order of every epoch, and the changes in a state.

Sequences before a change stay as they are. These sequences hold documents from all over a block. So each source goes on
with the documents that the block has not used, at the new weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.order.mixture.endless_source import AS_IT_IS
from shoal.order.mixture.mixed_order import MixedEpoch
from shoal.order.mixture.source_schedule import Change, SequenceChange
from shoal.order.sequences.groupings import Grouping
from shoal.order.sequences.packed_order import MAX_SEQUENCES, OpenBlock, PackedOrder
from shoal.reading.mixture.mixture_state import digest_of
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder

_MOST_CHARACTERS = 1000


def weights_behind(documents: ResolvedMixture, epoch: int, opened: OpenBlock) -> Mapping[str, int]:
    """Return the weights in force where a block is cut."""
    request = documents.request
    return request.schedule.weights_at(request.begin(epoch) + opened.stop)


def documents_behind(
    documents: ResolvedMixture, epoch: int, opened: OpenBlock, weights: Mapping[str, int]
) -> ResolvedMixture:
    """Return the mixture of the documents that were not used before, at other weights.

    Raises `UsageError`: the weights of the documents change later, or only some of their positions are delivered.
    """
    request, order = documents.request, documents.untouched(epoch)
    if not isinstance(order, MixedEpoch):
        msg = "reweight() was called after pack_sequences(), and take(), skip() or select() after shuffle()"
        raise UsageError(msg, hint="select() on the sources, or reweight() before pack_sequences()")
    begin, at = (request.begin(epoch) + position for position in (opened.start, opened.stop))
    if later := [change.at for change in request.changes if change.at > at]:
        msg = f"the weights change at document {later[0]}, and at a sequence whose documents come before"
        raise UsageError(msg, hint="call reweight() either before pack_sequences() or after it, for all changes")
    chosen, numbers = order.numbers(opened.start, opened.start + len(opened.is_used))
    counts, before, sources = request.counts(begin), {}, []
    for number, source in enumerate(request.sources):
        is_chosen = chosen == number
        first = int(counts[number]) + int(opened.is_used[is_chosen].sum())
        left = numbers[is_chosen & ~opened.is_used]
        before[source.name] = first
        renumbering = (source.renumbering or AS_IT_IS).followed_by(first, left)
        sources.append(replace(source, renumbering=renumbering if len(renumbering.numbers) else None))
    changes = (
        *(change for change in request.changes if change.at < at or not change.at),
        Change(at, weights, 0, before),
    )
    return replace(documents, request=replace(request, sources=tuple(sources), changes=changes))


def changes_in_state(changes: tuple[SequenceChange, ...]) -> list[Any]:
    """Return changes for a state: up to a kilobyte of rows, else the place of the last change, a digest and a count."""
    rows = [_row(change) for change in changes]
    if len(json.dumps(rows)) <= _MOST_CHARACTERS:
        return rows
    return [[*changes[-1].place, digest_of(rows), len(rows)]]


def changes_adopted(ours: tuple[SequenceChange, ...], saved: Any, place: tuple[int, int]) -> tuple[SequenceChange, ...]:
    """Return our changes, or the changes of a state if the state has more; ``place`` is the state's epoch and position.

    Raises `StateError` if the changes differ before ``place``.
    """
    if not isinstance(saved, list) or not all(map(_is_change, saved)):
        msg = f"the state's changes of weights are not a list of [epoch, position, ramp, weights]: {saved!r:.80}"
        raise StateError(msg, hint="the state was changed after it was saved")
    rows = [_row(change) for change in ours]
    if all(isinstance(change[3], Mapping) for change in saved):
        if saved[: len(rows)] == rows:
            more = (SequenceChange(epoch, at, dict(weights), ramp) for epoch, at, ramp, weights in saved[len(rows) :])
            return (*ours, *more)
        is_same = _before(rows, place) == _before(saved, place)
    else:
        num_saved = saved[0][3]
        is_same = len(rows) >= num_saved and digest_of(rows[:num_saved]) == saved[0][2]
        is_same = is_same and len(_before(rows, place)) <= num_saved
    if is_same:
        return ours
    msg = f"the weights before sequence {place[1]} of epoch {place[0]} differ: the state has {saved!r:.200}; this "
    msg += f"mixture has {changes_in_state(ours)!r:.200} (each is [epoch, sequence, ramp, weights])"
    hint = f"repeat the earlier calls of reweight(), and change weights from sequence {place[1]} of epoch {place[0]} on"
    raise StateError(msg, hint=hint)


def _is_change(saved: Any) -> bool:
    """Return True for a change in a state, or a digest of several changes."""
    if not isinstance(saved, list) or len(saved) != 4:
        return False
    epoch, at, ramp, weights = saved
    if not (_is_count(epoch) and _is_count(at)):
        return False
    if not isinstance(weights, Mapping):
        return isinstance(ramp, str) and _is_count(weights)
    return _is_count(ramp) and bool(weights) and all(map(_is_count, weights.values())) and any(weights.values())


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _row(change: SequenceChange) -> list[Any]:
    weights = {name: weight for name, weight in change.weights.items() if weight}
    return [change.epoch, change.at, change.ramp, weights]


def _before(changes: list[list[Any]], place: tuple[int, int]) -> list[list[Any]]:
    return [change for change in changes if (change[0], change[1]) < place]


@dataclass(frozen=True)
class _Begin:
    """The begin of an epoch: its documents, the steps of a ramp, and the changes, at positions of this epoch."""

    documents: ResolvedOrder | ResolvedMixture
    ramp: tuple[tuple[int, Mapping[str, int]], ...]
    changes: tuple[SequenceChange, ...]

    def next(self, epoch: int) -> tuple[int, bool]:
        """Return the position of the next change in this epoch, and True if it is a step of a ramp."""
        change = self.changes[0].at if self.changes and self.changes[0].epoch == epoch else MAX_SEQUENCES
        step = self.ramp[0][0] if self.ramp else MAX_SEQUENCES
        return min(change, step), step < change

    def behind(self, epoch: int, num_sequences: int) -> _Begin:
        """Return the begin of the next epoch; changes are renumbered from the end of this epoch."""
        ramp = tuple((at - num_sequences, weights) for at, weights in self.ramp)
        moved = [replace(change, epoch=epoch + 1, at=change.at - num_sequences) if change.epoch == epoch else change
                 for change in self.changes]  # fmt: skip
        return _Begin(self.documents, ramp, tuple(sorted(moved, key=lambda change: change.place)))


class SequenceEpochs:
    """Orders of the sequences of every epoch, from the same documents and lengths; ``changes`` ascend."""

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
        """Return the order of an epoch, and the rest: the documents at the end, and the remaining changes."""
        documents, ramp, changes = begin.documents, begin.ramp, begin.changes
        bound = documents.epoch(epoch)
        order = PackedOrder(bound, self._lengths, self._packing, seed=documents.seed, epoch=epoch)
        while True:
            at, is_step = _Begin(documents, ramp, changes).next(epoch)
            if at == MAX_SEQUENCES or not order.has(at):
                break
            if not isinstance(documents, ResolvedMixture):
                raise UsageError(f"the weights change at sequence {at}, but only mixtures have weights")
            opened = order.opened(at)
            if not is_step:
                ramp = tuple(changes[0].steps(weights_behind(documents, epoch, opened)))
                changes = changes[1:]
            documents = documents_behind(documents, epoch, opened, ramp[0][1])
            ramp = ramp[1:]
            order = order.changed(at, opened, documents.epoch(epoch))
        return order, _Begin(documents, ramp, changes)
