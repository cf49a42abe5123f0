"""Orders of only some samples, and orders of which only some positions are delivered.

`take`, `skip` and `select` choose stored samples before a shuffle, and positions of its order after it.

A gap is a range of positions of one epoch's order that a run leaves out, such as bad batches to resume past. The
positions that are left are renumbered 0, 1, 2, ..., and batches are cut from these numbers; states, certificates and
traces use the original positions. So a state from before a gap was added belongs to the same run as one from after it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.arrays.vectorized import distinct
from shoal.order.protocol import BoundOrder, Changing, Renumbered, Repeating, as_span, chunk_starts, first_between

MOST_GAPS = 12
"""Most gaps of a run; a state lists all of them in less than 1 KB."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Ranges ``(epoch, start, stop)``, ascending, none empty, none adjacent to the next of its epoch."""

    ranges: tuple[tuple[int, int, int], ...] = ()

    @staticmethod
    def of(ranges: Iterable[Any]) -> Gaps:
        """Merge ranges, given in any order and with any overlap, into gaps.

        >>> Gaps.of([(0, 20, 30), (1, 5, 6), (0, 10, 22)]).ranges
        ((0, 10, 30), (1, 5, 6))

        Raises
        ------
        UsageError
            A range is empty or begins before 0, or there are more than a state can list.
        """
        joined: list[tuple[int, int, int]] = []
        for epoch, start, stop in sorted(tuple(map(operator.index, each)) for each in ranges):
            if not (0 <= epoch < 2**64 and 0 <= start < stop < 2**63):
                msg = f"a range of positions [{start}, {stop}) of epoch {epoch} holds nothing that could be left out"
                raise UsageError(msg, hint="ranges are half-open, and positions and epochs count from 0")
            if joined and joined[-1][0] == epoch and start <= joined[-1][2]:
                joined[-1] = (epoch, joined[-1][1], max(stop, joined[-1][2]))
            else:
                joined.append((epoch, start, stop))
        if len(joined) > MOST_GAPS:
            msg = f"{len(joined)} ranges of positions are left out; a state can name {MOST_GAPS}"
            raise UsageError(msg, hint="neighbouring steps are one range; damaged samples are a matter of quarantine")
        return Gaps(tuple(joined))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def plus(self, other: Gaps) -> Gaps:
        """Return the union of both."""
        return Gaps.of([*self.ranges, *other.ranges]) if other.ranges else self

    def left(self, epoch: int, num_samples: int) -> Runs | None:
        """Return the positions of an epoch that are left; None if all are.

        >>> len(Gaps.of([(0, 10, 30)]).left(0, 100)), Gaps.of([(0, 10, 30)]).left(1, 100)
        (80, None)
        """
        here = [(start, stop) for number, start, stop in self.ranges if number == epoch and start < num_samples]
        if not here:
            return None
        edges = [0, *itertools.chain.from_iterable(here), num_samples]
        starts, stops = np.array(edges[::2], dtype=np.int64), np.array(edges[1::2], dtype=np.int64)
        stops, holds = np.minimum(stops, num_samples), starts < np.minimum(stops, num_samples)
        return Runs(starts[holds], stops[holds], chunk_starts(stops[holds] - starts[holds]))

    def position_of(self, number: int, epoch: int, num_samples: int) -> int:
        """Return the position of the remaining sample number ``number``; at the end, the number of samples."""
        return position_in(self.left(epoch, num_samples), number, num_samples)

    def span_of(self, first: int, stop: int, epoch: int, num_samples: int) -> tuple[int, int]:
        """Return the span of positions of the remaining numbers ``[first, stop)``, gaps between them included."""
        return span_in(self.left(epoch, num_samples), first, stop)

    def number_of(self, position: int, epoch: int, num_samples: int) -> int:
        """Count the positions before this one that are left."""
        return number_in(self.left(epoch, num_samples), position)

    def of_epoch(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges ``(start, stop)`` of one epoch."""
        return tuple((start, stop) for number, start, stop in self.ranges if number == epoch)


NO_GAPS = Gaps()


def position_in(left: Runs | None, number: int, num_samples: int) -> int:
    """Return the position of sample ``number`` of those that are left; ``num_samples`` after the last."""
    if left is None:
        return number
    return int(left.members(np.array([number]))[0]) if number < len(left) else num_samples


def number_in(left: Runs | None, position: int) -> int:
    """Count the positions before this one that are left."""
    return position if left is None else int(left.count_between(np.array([0, position]))[0])


def span_in(left: Runs | None, first: int, stop: int) -> tuple[int, int]:
    """Return the span of positions of the numbers ``[first, stop)`` of what is left, with all that lies between."""
    if left is None or first >= stop:
        return first, stop
    begin, last = left.members(np.array([first, stop - 1])).tolist()
    return begin, last + 1


def left_beside(gaps: Iterable[tuple[int, int]], taken: NDArray[np.int64], num_samples: int) -> Runs | None:
    """Return the positions that are neither in the ranges ``gaps`` nor among ``taken``, ascending; None if all are.

    >>> left = left_beside([(2, 4)], np.array([3, 4, 7]), 9)
    >>> left.members(np.arange(len(left))).tolist()
    [0, 1, 5, 6, 8]
    """
    ranges = np.array([each for each in gaps if each[0] < num_samples], dtype=np.int64).reshape(-1, 2)
    starts, stops = np.concatenate([ranges[:, 0], taken]), np.concatenate([ranges[:, 1], taken + 1])
    if not len(starts):
        return None
    by_start = np.argsort(starts, kind="stable")
    starts, stops = starts[by_start], np.maximum.accumulate(np.minimum(stops, num_samples)[by_start])
    begins, ends = np.concatenate([[0], stops]), np.concatenate([starts, [num_samples]])
    holds = begins < ends
    return Runs(begins[holds], ends[holds], chunk_starts(ends[holds] - begins[holds]))


class OverStored(Renumbered):
    """An order over the numbers of the stored samples that take part, which gives their ids."""

    def __init__(self, numbered: BoundOrder, stored: Runs) -> None:
        super().__init__(numbered)
        self._stored = stored

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of the samples at positions ``[start, stop)`` and the chunk of each."""
        numbers, chunks = self.numbered.locate(start, stop)
        return self._stored.members(numbers), chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id, -1 if the sample does not take part."""
        numbers = self._stored.numbers(np.atleast_1d(np.asarray(ids)))
        positions = np.full(len(numbers), -1, dtype=np.int64)
        positions[numbers >= 0] = self.numbered.positions(numbers[numbers >= 0])
        return positions

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first of the positions ``[start, stop)`` that has this sample; -1 if none has."""
        number = int(self._stored.numbers(np.array([sample_id]))[0])
        return first_between(self.numbered, number, start, stop) if number >= 0 else -1


class WithoutGaps:
    """The positions of an order that are left, renumbered from 0; they are dealt as if nothing were missing."""

    def __init__(self, untouched: BoundOrder, left: Runs) -> None:
        self.untouched = untouched
        self._left = left
        self.num_samples = len(left)
        self.span = untouched.span
        self.version = untouched.version
        self.parameters = untouched.parameters
        self.num_canonical_nodes = untouched.num_canonical_nodes

    def untouched_positions(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the order itself."""
        return self._left.members(numbers)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at ``[start, stop)`` of the positions that are left."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at ``[start, stop)`` of the positions that are left, and the chunk of each."""
        first, end = as_span(start, stop, self.num_samples)
        positions = self._left.members(np.arange(first, end))
        if not len(positions) or positions[-1] - positions[0] == end - first - 1:
            return self.untouched.locate(*((positions[0], positions[-1] + 1) if len(positions) else (0, 0)))
        # What lies between near positions is cheaper to ask for as well than to leave out.
        breaks = np.flatnonzero(np.diff(positions) > self.untouched.span) + 1
        ids, chunks = np.empty_like(positions), np.empty_like(positions)
        for low, high in itertools.pairwise([0, *breaks.tolist(), len(positions)]):
            mine, begin = positions[low:high], int(positions[low])
            near_ids, near_chunks = self.untouched.locate(begin, int(mine[-1]) + 1)
            ids[low:high], chunks[low:high] = near_ids[mine - begin], near_chunks[mine - begin]
        return ids, chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the number of each id among those that are left, -1 if it is left out."""
        return _positions_in(self._left, self.untouched, ids)


class ChosenPositions:
    """The positions of an order that lie in some runs, renumbered from 0."""

    def __init__(self, order: BoundOrder, chosen: Runs) -> None:
        self._order, self._chosen = order, chosen
        self.num_samples = len(chosen)
        self.span = order.span
        self.version = order.version
        self.parameters = order.parameters

    @property
    def changes(self) -> list[int]:
        """Positions among the chosen ones at which the order changes; see `Changing`."""
        if not isinstance(self._order, Changing):
            return []
        found = [number_in(self._chosen, position) for position in self._order.changes]
        return sorted({number for number in found if 0 < number < self.num_samples})

    @property
    def num_canonical_nodes(self) -> int:
        """Always 1: positions no longer alternate over the order's nodes, so dealing only keeps chunks together."""
        return 1

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at the chosen positions ``[start, stop)``."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at the chosen positions ``[start, stop)`` and the chunk of each."""
        first, end = as_span(start, stop, self.num_samples)
        positions = self._chosen.members(np.arange(first, end))
        ids, chunks = np.empty_like(positions), np.empty_like(positions)
        # Ask span by span of the order, from the first to the last chosen position in each.
        numbers = positions // self.span
        for number in distinct(numbers):
            mine = np.flatnonzero(numbers == number)
            low, high = int(positions[mine[0]]), int(positions[mine[-1]]) + 1
            span_ids, span_chunks = self._order.locate(low, high)
            ids[mine], chunks[mine] = span_ids[positions[mine] - low], span_chunks[positions[mine] - low]
        return ids, chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first position of each id among the chosen ones, -1 if it is not delivered."""
        return _positions_in(self._chosen, self._order, ids)

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first of the chosen positions ``[start, stop)`` that has this sample; -1 if none has."""
        return _first_in(self._chosen, self._order, sample_id, start, stop)


def _positions_in(runs: Runs, order: BoundOrder, ids: Any) -> NDArray[np.int64]:
    """Return the number, among the positions in ``runs``, of the first that has each sample; -1 if none has."""
    positions = order.positions(ids)
    found = runs.numbers(positions)
    if isinstance(order, Repeating):  # a sample whose first position is not among them may come again
        array = np.atleast_1d(np.asarray(ids))
        for place in np.flatnonzero((found < 0) & (positions >= 0)).tolist():
            found[place] = _first_in(runs, order, int(array[place]), 0, len(runs))
    return found


def _first_in(runs: Runs, order: BoundOrder, sample_id: int, start: int, stop: int) -> int:
    """Return the first of the numbers ``[start, stop)`` of positions in ``runs`` that has this sample; -1 if none."""
    if start >= stop:
        return -1
    position, last = runs.members(np.array([start, stop - 1])).tolist()
    while (position := first_between(order, sample_id, position, last + 1)) >= 0:
        if (number := int(runs.numbers(np.array([position]))[0])) >= 0:
            return number
        position = int(runs.starts[np.searchsorted(runs.starts, position)])  # of the next run
    return -1
