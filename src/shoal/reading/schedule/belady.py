"""Which units are let go early, and read again, where not all that an order has in use fit into memory.

The future is known, so the best choice is: the unit whose next use is farthest away goes, and as soon as the use before
that is over. No other choice reads fewer units again where all are of one size.

References
----------
L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.reading.schedule.lifetimes import first_uses, last_uses

__all__ = ["Keeping", "StretchPlan"]


class StretchPlan(NamedTuple):
    """What a stretch of samples needs.

    ``reads`` are the units to read, in this order, one perhaps several times; ``last``, of the shape of the samples,
    says after which of them their unit is let go; ``drops`` are let go before the first.
    """

    reads: NDArray[np.int64]
    last: NDArray[np.bool_]
    drops: list[int]


class Keeping:
    """Plans stretch after stretch, so that the units in use never have more than ``keep_bytes``.

    One that is larger is kept alone. ``bytes_of`` says how large units are. O(samples) in Python where they do not fit,
    a microsecond each; vectorised where they do.
    """

    def __init__(self, keep_bytes: int, bytes_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> None:
        self._keep_bytes, self._bytes_of = keep_bytes, bytes_of
        self._held: dict[int, int] = {}  # units kept from the stretch before, with their bytes

    def plan(self, units: NDArray[np.int64], after: NDArray[np.int64]) -> StretchPlan:
        """Of a stretch of samples whose units are these, before one that uses ``after``, in the order of use."""
        held = np.fromiter(self._held, dtype=np.int64, count=len(self._held))
        if self._peak_bytes(units, held, after) <= self._keep_bytes:
            reads, last = first_uses(units, held), last_uses(units, after)
            kept = np.intersect1d(np.union1d(units, held), after)
            self._held = dict(zip(kept.tolist(), self._bytes_of(kept).tolist(), strict=True))
            drops = held[~np.isin(held, units) & ~np.isin(held, after)].tolist()
            return StretchPlan(reads, last, drops)
        return self._choose(units, after)

    def _peak_bytes(self, units: NDArray[np.int64], held: NDArray[np.int64], after: NDArray[np.int64]) -> int:
        """The most bytes that are in use at a time if nothing is let go early."""
        distinct, first = np.unique(np.concatenate([held, units]), return_index=True)
        begin = np.maximum(first - len(held), 0)
        end = np.full(len(distinct), len(units))
        used, from_end = np.unique(units[::-1], return_index=True)
        end[np.searchsorted(distinct, used)] = len(units) - from_end
        end[np.isin(distinct, after)] = len(units) + 1
        sizes = self._bytes_of(distinct)
        change = np.zeros(len(units) + 2, dtype=np.int64)
        np.add.at(change, begin, sizes)
        np.add.at(change, end, -sizes)
        return int(np.cumsum(change).max(initial=0))

    def _choose(self, units: NDArray[np.int64], after: NDArray[np.int64]) -> StretchPlan:
        num_samples = len(units)
        both = np.concatenate([units, after])
        next_use = _next_uses(both)
        sizes = dict(zip(*(column.tolist() for column in _sizes(self._bytes_of, units)), strict=True))
        held, never = self._held, len(both)
        uses = {int(unit): int(at) for unit, at in zip(*np.unique(both, return_index=True), strict=True)}
        due = {unit: uses.get(unit, never) for unit in held}  # the next use of each that is held
        latest: dict[int, int] = {}  # the sample that used it last
        farthest = [(-at, unit) for unit, at in due.items()]
        heapq.heapify(farthest)
        reads: list[int] = []
        last = np.zeros(num_samples, dtype=bool)
        drops: list[int] = []
        held_bytes = sum(held.values())

        def let_go(unit: int) -> int:
            if (at := latest.get(unit, -1)) >= 0:
                last[at] = True
            else:
                drops.append(unit)
            del due[unit]
            return held.pop(unit)

        for place, unit in enumerate(units.tolist()):
            if unit not in held:
                size = sizes[unit]
                while held and held_bytes + size > self._keep_bytes:
                    at, other = heapq.heappop(farthest)
                    if due.get(other) == -at:
                        held_bytes -= let_go(other)
                reads.append(unit)
                held[unit] = size
                held_bytes += size
            latest[unit] = place
            due[unit] = at = int(next_use[place])
            if at == never:
                held_bytes -= let_go(unit)
            else:
                heapq.heappush(farthest, (-at, unit))
        return StretchPlan(np.array(reads, dtype=np.int64), last, drops)


def _next_uses(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each use of a unit, the place of its next one; the number of all uses where there is none."""
    order = np.argsort(units, kind="stable")
    same = units[order][1:] == units[order][:-1]
    following = np.full(len(units), len(units), dtype=np.int64)
    following[order[:-1][same]] = order[1:][same]
    return following


def _sizes(
    bytes_of: Callable[[NDArray[np.int64]], NDArray[np.int64]], units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    distinct = np.unique(units)
    return distinct, bytes_of(distinct)
