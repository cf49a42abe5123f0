"""Some of the integers from 0 to n, as half-open runs: what `take`, `skip` and `select` leave over.

The same numbers serve twice: before the shuffle they are the stored samples that take part, after it the positions
that are delivered. Members are numbered 0, 1, 2, ... in ascending order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import chunk_starts

__all__ = ["Runs"]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Ascending runs ``[starts[i], stops[i])`` of integers, none empty, none touching the next.

    ``before`` has shape (num_runs + 1,): the members before each run, and their number at the end.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    before: NDArray[np.int64]

    @staticmethod
    def span(start: int, stop: int) -> Runs:
        """The integers from ``start`` to before ``stop``."""
        begin, end = (start, stop) if stop > start else (0, 0)
        used = slice(0, 1 if end > begin else 0)
        starts, stops = np.array([begin], dtype=np.int64)[used], np.array([end], dtype=np.int64)[used]
        return Runs(starts, stops, chunk_starts(stops - starts))

    @staticmethod
    def of(members: Any, size: int) -> Runs:
        """The given integers, in any order, or where a boolean mask of shape (size,) is true.

        Raises `UsageError` for one given twice or outside ``[0, size)``.
        """
        array = np.atleast_1d(np.asarray(members))
        if array.dtype == np.bool_:
            if array.shape != (size,):
                msg = f"a mask must have one truth value for each of {size} samples; got shape {array.shape}"
                raise UsageError(msg)
            array = np.flatnonzero(array)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            msg = f"samples are chosen by integers or a mask; got {array.dtype} of shape {array.shape}"
            raise UsageError(msg)
        ordered = np.sort(array.astype(np.int64))
        if ordered.size and not (ordered[0] >= 0 and ordered[-1] < size):
            msg = f"samples are chosen from [0, {size}); got {ordered[0]} to {ordered[-1]}"
            raise UsageError(msg)
        steps = np.diff(ordered)
        if (steps == 0).any():
            twice = int(ordered[1:][steps == 0][0])
            msg = f"each sample can be chosen once; {twice} was given more than once"
            raise UsageError(msg, hint="np.unique() drops repeats; repeating samples is a matter of packing or mixing")
        breaks = np.flatnonzero(steps > 1)
        starts = ordered[np.concatenate([[0], breaks + 1]).astype(np.int64)] if ordered.size else ordered
        stops = ordered[np.concatenate([breaks, [len(ordered) - 1]]).astype(np.int64)] + 1 if ordered.size else ordered
        return Runs(starts, stops, chunk_starts(stops - starts))

    def __len__(self) -> int:
        return int(self.before[-1])

    def members(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The members with these numbers; O(log num_runs) each."""
        at = np.searchsorted(self.before, numbers, side="right") - 1
        found: NDArray[np.int64] = self.starts[at] + numbers - self.before[at]
        return found

    def numbers(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of these integers, -1 where one is not a member; O(log num_runs) each."""
        if not len(self.starts):
            return np.full(len(members), -1, dtype=np.int64)
        at = np.maximum(np.searchsorted(self.starts, members, side="right") - 1, 0)
        inside = (members >= self.starts[at]) & (members < self.stops[at])
        found: NDArray[np.int64] = np.where(inside, self.before[at] + members - self.starts[at], -1)
        return found

    def count_between(self, borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """The members between neighbouring borders (ascending); shape (len(borders) - 1,)."""
        if not len(self.starts):
            return np.zeros(len(borders) - 1, dtype=np.int64)
        at = np.maximum(np.searchsorted(self.starts, borders, side="right") - 1, 0)
        below = self.before[at] + np.clip(borders - self.starts[at], 0, self.stops[at] - self.starts[at])
        counts: NDArray[np.int64] = np.diff(below)
        return counts

    def of_members(self, inner: Runs) -> Runs:
        """The members whose numbers are in ``inner``: a choice of a choice."""
        # Cut each inner run where it passes from one of these runs to the next.
        cuts = self.before[1:-1]
        borders = np.union1d(np.concatenate([inner.starts, inner.stops]), cuts)
        begins, ends = borders[:-1], borders[1:]
        inside = inner.numbers(begins) >= 0
        starts = self.members(begins[inside])
        stops = starts + (ends - begins)[inside]
        return Runs(starts, stops, chunk_starts(stops - starts))  # which do not touch: neither these nor the inner do

    def digest(self) -> str:
        """A short name of this choice, by which a state recognises it."""
        words = np.concatenate([self.starts, self.stops]).astype("<i8").tobytes()
        return hashlib.blake2b(words, digest_size=8).hexdigest()
