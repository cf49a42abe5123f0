"""Subsets of the integers from 0 to n, as half-open runs: the result of `take`, `skip` and `select`.

The integers are stored samples if the subset is taken before the shuffle, and positions if the subset is taken after
the shuffle. Members are numbered 0, 1, 2, ... in ascending order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import chunk_starts


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Ascending runs ``[starts[i], stops[i])`` of integers; no run is empty or adjacent to another run.

    ``before`` has shape (num_runs + 1,): the number of members before each run, then the total.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    before: NDArray[np.int64]

    @staticmethod
    def span(start: int, stop: int) -> Runs:
        """Return the integers ``[start, stop)``."""
        begin, end = (start, stop) if stop > start else (0, 0)
        used = slice(0, 1 if end > begin else 0)
        starts, stops = np.array([begin], dtype=np.int64)[used], np.array([end], dtype=np.int64)[used]
        return Runs(starts, stops, chunk_starts(stops - starts))

    @staticmethod
    def of(members: Any, size: int) -> Runs:
        """Return integers given in any order, or the true places of a boolean mask of shape (size,).

        Raises `UsageError` for an integer given twice or outside ``[0, size)``.
        """
        array = np.atleast_1d(np.asarray(members))
        if array.dtype == np.bool_:
            if array.shape != (size,):
                msg = f"a mask must have a boolean for each of {size} samples; got shape {array.shape}"
                raise UsageError(msg)
            edges = np.flatnonzero(np.diff(array, prepend=False, append=False))
            starts, stops = edges[::2].copy(), edges[1::2].copy()
            return Runs(starts, stops, chunk_starts(stops - starts))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            msg = f"samples are chosen by integers or a mask; got {array.dtype} of shape {array.shape}"
            raise UsageError(msg, hint="select(label=...) chooses by a column of the index")
        ordered = np.sort(array.astype(np.int64))
        if ordered.size and not (ordered[0] >= 0 and ordered[-1] < size):
            raise UsageError(f"samples are chosen from [0, {size}); got {ordered[0]} to {ordered[-1]}")
        steps = np.diff(ordered)
        if (steps == 0).any():
            twice = int(ordered[1:][steps == 0][0])
            msg = f"each sample can be chosen once; {twice} was given more than once"
            raise UsageError(msg, hint="np.unique() drops repeats; sample() and mix() repeat samples")
        breaks = np.flatnonzero(steps > 1)
        starts = ordered[np.concatenate([[0], breaks + 1]).astype(np.int64)] if ordered.size else ordered
        stops = ordered[np.concatenate([breaks, [len(ordered) - 1]]).astype(np.int64)] + 1 if ordered.size else ordered
        return Runs(starts, stops, chunk_starts(stops - starts))

    def __len__(self) -> int:
        return int(self.before[-1])

    def members(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the members with these numbers; O(log num_runs) per number."""
        run = np.searchsorted(self.before, numbers, side="right") - 1
        members: NDArray[np.int64] = self.starts[run] + numbers - self.before[run]
        return members

    def numbers(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of these integers, -1 for integers outside of the subset; O(log num_runs) per integer."""
        if not len(self.starts):
            return np.full(len(members), -1, dtype=np.int64)
        run = np.maximum(np.searchsorted(self.starts, members, side="right") - 1, 0)
        inside = (members >= self.starts[run]) & (members < self.stops[run])
        numbers: NDArray[np.int64] = np.where(inside, self.before[run] + members - self.starts[run], -1)
        return numbers

    def count_between(self, borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the members between neighbouring borders (ascending); shape (len(borders) - 1,)."""
        if not len(self.starts):
            return np.zeros(len(borders) - 1, dtype=np.int64)
        run = np.maximum(np.searchsorted(self.starts, borders, side="right") - 1, 0)
        below = self.before[run] + np.clip(borders - self.starts[run], 0, self.stops[run] - self.starts[run])
        counts: NDArray[np.int64] = np.diff(below)
        return counts

    def of_members(self, inner: Runs) -> Runs:
        """Return the members of this subset whose numbers are in ``inner``."""
        # Cut inner runs at the borders of the runs of this subset.
        cuts = self.before[1:-1]
        borders = np.union1d(np.concatenate([inner.starts, inner.stops]), cuts)
        begins, ends = borders[:-1], borders[1:]
        inside = inner.numbers(begins) >= 0
        starts = self.members(begins[inside])
        stops = starts + (ends - begins)[inside]
        return Runs(starts, stops, chunk_starts(stops - starts))  # the runs of both subsets are not adjacent

    def digest(self) -> str:
        """Return a short hash that identifies this subset in a state."""
        words = np.concatenate([self.starts, self.stops]).astype("<i8").tobytes()
        return hashlib.blake2b(words, digest_size=8).hexdigest()
