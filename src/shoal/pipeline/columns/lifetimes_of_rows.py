"""Lifetimes of the units of a span of samples, and the rows of the samples in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

_MOST_NUMBERED = 1 << 18  # units; in a larger dataset the units of the span are renumbered


class RowLifetimes:
    """Consecutive samples of one rank, counted from 0.

    ``ids``, ``units`` and ``last``, of shape (num_samples,), are the id and the unit of each sample, and a flag for the
    last use of the unit. ``num_units`` counts the units of the dataset. ``held`` has the number of rows of each unit
    that is already in memory. ``rows_of`` estimates the rows of some units, same shape.
    """

    def __init__(
        self,
        ids: NDArray[np.int64],
        units: NDArray[np.int64],
        last: NDArray[np.bool_],
        *,
        num_units: int,
        held: Mapping[int, int],
        rows_of: Callable[[NDArray[np.int64]], NDArray[np.float64]],
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
        self._table: int | None = None  # of all units so far, if they share one; -2 if they do not
        departed = np.flatnonzero(last)
        self._departures = iter(zip(departed.tolist(), units[departed].tolist(), strict=True))
        self._next_departure = next(self._departures, None)
        arrived = self._first_uses(codes, num_codes, held)
        self._first_use: list[int] = arrived.tolist()
        self._arriving: list[int] = units[arrived].tolist()
        self._num_arrived = 0
        rows = (rows_of(units[arrived]), rows_of(units[departed]))
        self.most_rows = sum(held.values()) + _most_at_once(arrived, departed, *rows)

    def _first_uses(self, codes: NDArray[np.int64], num_codes: int, held: Iterable[int]) -> NDArray[np.int64]:
        """Return the samples that first use a unit that is not in memory, sorted."""
        num_samples = len(codes)
        first = np.full(num_codes, num_samples)
        first[codes[::-1]] = np.arange(num_samples)[::-1]  # for duplicates the last write wins
        for unit in held:
            if (code := self._code(unit)) is not None:
                first[code] = num_samples
        return np.sort(first[first < num_samples])

    def _code(self, unit: int) -> int | None:
        if self._distinct is None:
            return unit
        code = int(np.searchsorted(self._distinct, unit))
        return code if code < len(self._distinct) and self._distinct[code] == unit else None

    def arrivals(self, stop: int) -> list[int]:
        """Return the distinct units that samples before ``stop`` use first, in order, without units that `arrived`."""
        return self._arriving[self._num_arrived : bisect_left(self._first_use, stop, lo=self._num_arrived)]

    @property
    def next_arrival(self) -> int:
        """The sample that uses the first of `arrivals` first."""
        return self._first_use[self._num_arrived]

    def arrived(self, num_units: int) -> None:
        """Drop the first of `arrivals`."""
        self._num_arrived += num_units

    def departures(self, stop: int) -> Iterator[int]:
        """Yield the distinct units with a last use before ``stop``."""
        while self._next_departure is not None and self._next_departure[0] < stop:
            unit = self._next_departure[1]
            self._next_departure = next(self._departures, None)
            yield unit

    def lies(self, unit: int, table: int, first: int, first_sample: int) -> None:
        """Record the first row of a unit in memory, and its table (-1: none)."""
        code = unit if self._distinct is None else self._code(unit)
        if code is not None:
            self._tables[code], self._firsts[code], self._from_id[code] = table, first, first - first_sample
            if table != self._table:
                self._table = table if self._table is None else -2

    def table(self, begin: int, stop: int) -> int:
        """Return the table that holds all samples of ``[begin, stop)``; -1 if there is none."""
        if self._table is not None and self._table >= 0:
            return self._table
        tables = self._tables[self._codes[begin:stop]]
        return int(tables[0]) if (tables == tables[0]).all() else -1

    def rows(self, begin: int, stop: int) -> NDArray[np.int64]:
        """Return the row of each of the samples ``[begin, stop)``."""
        return self._from_id[self._codes[begin:stop]] + self._ids[begin:stop]

    def firsts(self, begin: int, stop: int) -> NDArray[np.int64]:
        """Return the first row of the unit of each of the samples ``[begin, stop)``."""
        return self._firsts[self._codes[begin:stop]]

    def units_and_ids(self, begin: int, stop: int) -> tuple[list[int], list[int]]:
        """Return the unit and the id of each of the samples ``[begin, stop)``."""
        return self._units[begin:stop].tolist(), self._ids[begin:stop].tolist()


def _most_at_once(
    arrivals: NDArray[np.int64],
    departures: NDArray[np.int64],
    arriving: NDArray[np.float64],
    departing: NDArray[np.float64],
) -> float:
    """Return the largest growth of memory in rows, from the samples and rows of units that arrive and depart."""
    gone = np.concatenate([[0.0], np.cumsum(departing)])[np.searchsorted(departures, arrivals)]
    return float((np.cumsum(arriving) - gone).max(initial=0))
