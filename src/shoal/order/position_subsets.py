"""Orders of selected samples, and orders that deliver only selected positions.

`take`, `skip` and `select` choose stored samples before a shuffle, and positions of the shuffled order after it.

A gap is a range of positions of one epoch that a run leaves out, for example to resume past bad batches. The remaining
positions are renumbered 0, 1, 2, ..., and batches are cut from these numbers; states, certificates and traces use the
original positions. So states from before and after the addition of a gap belong to the same run.
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
from shoal.order.protocol import BoundOrder, Changing, Renumbered, Repeating, as_span, chunk_starts, first_between

MOST_GAPS = 12
"""Maximum number of gaps of a run; a state lists all gaps in less than 1 KB."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Ranges ``(epoch, start, stop)``, ascending; no range is empty, or adjacent to a range of the same epoch."""

    ranges: tuple[tuple[int, int, int], ...] = ()

    @staticmethod
    def of(ranges: Iterable[Any]) -> Gaps:
        """Merge ranges, given in any order and with any overlap, into gaps.

        >>> Gaps.of([(0, 20, 30), (1, 5, 6), (0, 10, 22)]).ranges
        ((0, 10, 30), (1, 5, 6))

        Raises `UsageError` if a range is empty or begins before 0, or there are more ranges than a state can list.
        """
        joined: list[tuple[int, int, int]] = []
        for epoch, start, stop in sorted(tuple(map(operator.index, each)) for each in ranges):
            if not (0 <= epoch < 2**64 and 0 <= start < stop < 2**63):
                msg = f"a range of positions [{start}, {stop}) of epoch {epoch} is empty or impossible"
                raise UsageError(msg, hint="ranges are half-open, and positions and epochs count from 0")
            if joined and joined[-1][0] == epoch and start <= joined[-1][2]:
                joined[-1] = (epoch, joined[-1][1], max(stop, joined[-1][2]))
            else:
                joined.append((epoch, start, stop))
        if len(joined) > MOST_GAPS:
            msg = f"{len(joined)} ranges of positions are left out; a state can name {MOST_GAPS}"
            raise UsageError(
                msg, hint="leave out neighbouring steps as one range, and damaged samples with quarantine="
            )
        return Gaps(tuple(joined))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def plus(self, other: Gaps) -> Gaps:
        """Return the union with other gaps."""
        return Gaps.of([*self.ranges, *other.ranges]) if other.ranges else self

    def left(self, epoch: int, num_samples: int) -> Runs | None:
        """Return the positions of an epoch outside of gaps; None for all positions.

        >>> len(Gaps.of([(0, 10, 30)]).left(0, 100)), Gaps.of([(0, 10, 30)]).left(1, 100)
        (80, None)
        """
        ranges = [(start, stop) for start, stop in self.of_epoch(epoch) if start < num_samples]
        if not ranges:
            return None
        edges = [0, *itertools.chain.from_iterable(ranges), num_samples]
        starts, stops = np.array(edges[::2], dtype=np.int64), np.array(edges[1::2], dtype=np.int64)
        stops, holds = np.minimum(stops, num_samples), starts < np.minimum(stops, num_samples)
        return Runs(starts[holds], stops[holds], chunk_starts(stops[holds] - starts[holds]))

    def of_epoch(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges ``(start, stop)`` of one epoch."""
        return tuple((start, stop) for number, start, stop in self.ranges if number == epoch)


NO_GAPS = Gaps()


def position_in(left: Runs | None, number: int, num_samples: int) -> int:
    """Return the position of sample ``number`` among the remaining positions; ``num_samples`` after the last sample."""
    if left is None:
        return number
    return int(left.members(np.array([number]))[0]) if number < len(left) else num_samples


def number_in(left: Runs | None, position: int) -> int:
    """Count the remaining positions before a position."""
    return position if left is None else int(left.count_between(np.array([0, position]))[0])


def span_in(left: Runs | None, first: int, stop: int) -> tuple[int, int]:
    """Return the span of positions, gaps included, of the numbers ``[first, stop)`` among the remaining positions."""
    if left is None or first >= stop:
        return first, stop
    begin, last = left.members(np.array([first, stop - 1])).tolist()
    return begin, last + 1


def left_beside(gaps: Iterable[tuple[int, int]], taken: NDArray[np.int64], num_samples: int) -> Runs | None:
    """Return the positions outside of the ranges ``gaps`` and of ``taken`` (ascending); None for all positions.

    >>> left = left_beside([(2, 4)], np.array([3, 4, 7]), 9)
    >>> left.members(np.arange(len(left))).tolist()
    [0, 1, 5, 6, 8]
    """
    ranges = np.array([gap for gap in gaps if gap[0] < num_samples], dtype=np.int64).reshape(-1, 2)
    starts, stops = np.concatenate([ranges[:, 0], taken]), np.concatenate([ranges[:, 1], taken + 1])
    if not len(starts):
        return None
    by_start = np.argsort(starts, kind="stable")
    starts, stops = starts[by_start], np.maximum.accumulate(np.minimum(stops, num_samples)[by_start])
    begins, ends = np.concatenate([[0], stops]), np.concatenate([starts, [num_samples]])
    holds = begins < ends
    return Runs(begins[holds], ends[holds], chunk_starts(ends[holds] - begins[holds]))


def locate_at(order: BoundOrder, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids and chunks at ascending positions, with one call for each span of the order."""
    ids, chunks = np.empty_like(positions), np.empty_like(positions)
    borders = np.flatnonzero(np.diff(positions // order.span)) + 1
    for low, high in itertools.pairwise([0, *borders.tolist(), len(positions)] if len(positions) else ()):
        begin, inside = int(positions[low]), positions[low:high] - positions[low]
        span_ids, span_chunks = order.locate(begin, int(positions[high - 1]) + 1)
        ids[low:high], chunks[low:high] = span_ids[inside], span_chunks[inside]
    return ids, chunks


class OverStored(Renumbered):
    """An order over the numbers of the selected stored samples; yields ids instead of these numbers."""

    def __init__(self, numbered: BoundOrder, stored: Runs) -> None:
        super().__init__(numbered)
        self._stored = stored

    def renumbered(
        self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the stored sample of each number, and its chunk."""
        return self._stored.members(numbers), chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id, -1 if the sample is not selected."""
        numbers = self._stored.numbers(np.atleast_1d(np.asarray(ids)))
        positions = np.full(len(numbers), -1, dtype=np.int64)
        positions[numbers >= 0] = self.numbered.positions(numbers[numbers >= 0])
        return positions

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first position in ``[start, stop)`` with this sample; -1 without such a position."""
        number = int(self._stored.numbers(np.array([sample_id]))[0])
        return first_between(self.numbered, number, start, stop) if number >= 0 else -1


class _SomePositions:
    """The positions of an order inside of runs, renumbered from 0."""

    def __init__(self, untouched: BoundOrder, runs: Runs) -> None:
        self.untouched, self._runs = untouched, runs
        self.num_samples = len(runs)
        self.span = untouched.span
        self.version = untouched.version
        self.parameters = untouched.parameters

    def untouched_positions(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in the order itself."""
        return self._runs.members(numbers)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the renumbered positions ``[start, stop)``."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at the renumbered positions ``[start, stop)`` and the chunk of each."""
        first, end = as_span(start, stop, self.num_samples)
        positions = self._runs.members(np.arange(first, end))
        if len(positions) and positions[-1] - positions[0] == end - first - 1:
            return self.untouched.locate(int(positions[0]), int(positions[-1]) + 1)
        return locate_at(self.untouched, positions)

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first renumbered position of each id, -1 for an id without a position."""
        positions = self.untouched.positions(ids)
        numbers = self._runs.numbers(positions)
        if isinstance(self.untouched, Repeating):  # a later position of the sample may be in the runs
            sample_ids = np.atleast_1d(np.asarray(ids))
            for row in np.flatnonzero((numbers < 0) & (positions >= 0)).tolist():
                numbers[row] = self._first_between(int(sample_ids[row]), 0, len(self._runs))
        return numbers

    def _first_between(self, sample_id: int, start: int, stop: int) -> int:
        if start >= stop:
            return -1
        runs = self._runs
        position, last = runs.members(np.array([start, stop - 1])).tolist()
        while (position := first_between(self.untouched, sample_id, position, last + 1)) >= 0:
            if (number := int(runs.numbers(np.array([position]))[0])) >= 0:
                return number
            position = int(runs.starts[np.searchsorted(runs.starts, position)])  # start of the next run
        return -1


class WithoutGaps(_SomePositions):
    """The positions of an order outside of gaps, renumbered from 0; dealing ignores the gaps."""

    @property
    def num_canonical_nodes(self) -> int:
        """Number of canonical nodes of the order itself."""
        return self.untouched.num_canonical_nodes


class ChosenPositions(_SomePositions):
    """The positions of an order chosen by `take`, `skip` or `select`, renumbered from 0."""

    @property
    def num_canonical_nodes(self) -> int:
        """Always 1: positions no longer alternate over the order's nodes, so dealing only keeps chunks together."""
        return 1

    @property
    def changes(self) -> list[int]:
        """Positions of the changes of the order, counted in chosen positions; see `Changing`."""
        if not isinstance(self.untouched, Changing):
            return []
        numbers = [number_in(self._runs, position) for position in self.untouched.changes]
        return sorted({number for number in numbers if 0 < number < self.num_samples})

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first chosen position in ``[start, stop)`` with this sample; -1 without such a position."""
        return self._first_between(sample_id, start, stop)
