"""When the units of a stretch of samples come and go, and where in memory each of its samples lies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowLifetimes"]

_MOST_NUMBERED = 1 << 18  # units; where a dataset has more, those of the stretch are numbered anew


class RowLifetimes:
    """Consecutive samples of one rank by place, from 0.

    Parameters
    ----------
    ids, units, last
        For each sample its id, the unit that holds it, and whether it is the unit's last use; shape (num_samples,).
    num_units
        Units of the dataset.
    held
        Units that are in memory already.
    """

    def __init__(
        self,
        ids: NDArray[np.int64],
        units: NDArray[np.int64],
        last: NDArray[np.bool_],
        *,
        num_units: int,
        held: Sequence[int],
    ) -> None:
        self._ids, self._units = ids, units
        self._distinct: NDArray[np.int64] | None = None
        codes, num_codes = units, num_units
        if num_units > _MOST_NUMBERED:
            self._distinct, codes = np.unique(units, return_inverse=True)
            num_codes = len(self._distinct)
        self._codes = codes
        self._tables = np.full(num_codes, -1, dtype=np.int32)
        self._firsts = np.zeros(num_codes, dtype=np.int64)
        self._from_id = np.zeros(num_codes, dtype=np.int64)
        self._table: int | None = None  # the only one there is, if so
        departed = np.flatnonzero(last)
        self._departures = iter(zip(departed.tolist(), units[departed].tolist(), strict=True))
        self._next_departure = next(self._departures, None)
        arrived = self._first_uses(codes, num_codes, held)
        self._arrivals = iter(zip(arrived.tolist(), units[arrived].tolist(), strict=True))
        self._next = next(self._arrivals, None)
        self.num_live = _most_at_once(arrived, departed, len(held))

    def _first_uses(self, codes: NDArray[np.int64], num_codes: int, held: Sequence[int]) -> NDArray[np.int64]:
        """The places at which a unit that is not in memory is used first."""
        num_samples = len(codes)
        first = np.full(num_codes, num_samples)
        first[codes[::-1]] = np.arange(num_samples)[::-1]  # of equal ones the last that is written stays
        for unit in held:
            if (code := self._code(unit)) is not None:
                first[code] = num_samples
        return np.sort(first[first < num_samples])

    def _code(self, unit: int) -> int | None:
        if self._distinct is None:
            return unit
        code = int(np.searchsorted(self._distinct, unit))
        return code if code < len(self._distinct) and self._distinct[code] == unit else None

    def arrivals(self, stop: int) -> Iterator[int]:
        """The units that samples before ``stop`` use first, in turn, each once."""
        while self._next is not None and self._next[0] < stop:
            unit = self._next[1]
            self._next = next(self._arrivals, None)
            yield unit

    def departures(self, stop: int) -> Iterator[int]:
        """The units whose last use lies before ``stop``, each once."""
        while self._next_departure is not None and self._next_departure[0] < stop:
            unit = self._next_departure[1]
            self._next_departure = next(self._departures, None)
            yield unit

    def lies(self, unit: int, table: int, first: int, first_sample: int) -> None:
        """A unit is in memory, its rows from ``first`` on in a table (-1: in none)."""
        code = unit if self._distinct is None else self._code(unit)
        if code is not None:
            self._tables[code], self._firsts[code], self._from_id[code] = table, first, first - first_sample
            if table != self._table:
                self._table = table if self._table is None else -2

    def table(self, begin: int, stop: int) -> int:
        """The table that has all samples of ``[begin, stop)``; -1 where there is none."""
        if self._table is not None and self._table >= 0:
            return self._table
        tables = self._tables[self._codes[begin:stop]]
        return int(tables[0]) if (tables == tables[0]).all() else -1

    def rows(self, begin: int, stop: int) -> NDArray[np.int64]:
        """The row of each of the samples ``[begin, stop)``."""
        return self._from_id[self._codes[begin:stop]] + self._ids[begin:stop]

    def firsts(self, begin: int, stop: int) -> NDArray[np.int64]:
        """The first row of the unit of each of the samples ``[begin, stop)``."""
        return self._firsts[self._codes[begin:stop]]

    def pairs(self, begin: int, stop: int) -> Iterator[tuple[int, int]]:
        """For each of the samples ``[begin, stop)`` its unit and its id."""
        return zip(self._units[begin:stop].tolist(), self._ids[begin:stop].tolist(), strict=True)


def _most_at_once(arrivals: NDArray[np.int64], departures: NDArray[np.int64], num_held: int) -> int:
    """The most units in memory at a time, where they come and go at these places."""
    gone = np.searchsorted(departures, arrivals)
    return num_held + int((np.arange(1, len(arrivals) + 1) - gone).max(initial=0))
