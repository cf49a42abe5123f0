"""Lifetimes of units: when to read and release each unit of a span of samples.

A unit is kept from its first use until its last, and across the border of two spans if both spans use the unit. Spans
are so long that a unit with remaining samples is nearly always used again within a span; otherwise the unit is read
again, and a counter records the repeat. So no order has to report that a chunk is finished, and a rank keeps only the
chunks that it needs.

If the units in use do not fit into memory, evict the unit whose next use is farthest away, as soon as its latest use is
over. If all units have the same size, no other choice reads fewer units again.

References
----------
L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import order_by

_LEAST_POSITIONS = 1 << 13  # a position takes 350 bytes for a moment: more is noticeable beside a small window
_LEAST_OF_RANKS = 1 << 16
_SOURCE_POSITIONS = 1 << 9  # each source of a mixture is asked for its samples of a span, which takes 50 us
_MOST_OF_SOURCES = 1 << 15
_MOST_POSITIONS = 1 << 22
# A window of K chunks uses each chunk every K positions, give or take half; smaller chunks proportionally less often. A
# shuffle buffer keeps one sample in exp(8) for more than 8 times its length.
_REACHES = 8


def span_positions(parameters: Mapping[str, int], world_size: int = 1) -> int:
    """Return the number of positions in a span of an order with these parameters, shared by ``world_size`` ranks.

    Reads are planned a span ahead, and a rank has only its share of a span. A share of less than a chunk would make the
    rank wait for each chunk. So a span is up to eight times longer for many ranks (a position of another rank takes 66
    bytes), and up to four times for a mixture of many sources. An order can set a limit.

    >>> span_positions({"chunks": 4}), span_positions({"chunks": 4, "sources": 64})
    (8192, 32768)
    """
    reach = max(parameters.get("chunks", 0), parameters.get("samples", 0))
    of_ranks = min(_LEAST_POSITIONS * world_size, _LEAST_OF_RANKS)
    of_sources = min(_SOURCE_POSITIONS * parameters.get("sources", 1), _MOST_OF_SOURCES)
    most = min(parameters.get("most_positions", _MOST_POSITIONS), _MOST_POSITIONS)
    return min(max(of_ranks, of_sources, _REACHES * reach), most)


def first_uses(units: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the units that a span uses and the span before does not, in the order of first use; O(n log n).

    >>> first_uses(np.array([4, 2, 4, 7]), before=np.array([2, 9])).tolist()
    [4, 7]
    """
    return handed_on(before, units)[0]


def last_uses(units: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each sample that is the last use of its unit, in this span and the next; O(n log n).

    >>> last_uses(np.array([4, 2, 4, 7]), after=np.array([7])).tolist()
    [False, True, True, False]
    """
    return handed_on(units, after)[1]


def handed_on(units: NDArray[np.int64], after: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return `first_uses` of the span after this one, and `last_uses` of this one; one sort for both, O(n log n).

    >>> reads, last = handed_on(np.array([4, 2, 4, 7]), after=np.array([7, 9]))
    >>> reads.tolist(), last.tolist()
    ([9], [False, True, True, False])
    """
    both = np.concatenate([units, after])
    by_unit = order_by((both, int(both.max(initial=0)).bit_length()))
    ordered = both[by_unit]
    border = np.ones(len(both) + 1, dtype=bool)  # one before each unit's first use, and one at the end
    border[1:-1] = ordered[1:] != ordered[:-1]
    begins = np.flatnonzero(border)
    first, last = by_unit[begins[:-1]], by_unit[begins[1:] - 1]
    is_last = np.zeros(len(units), dtype=bool)
    is_last[last[last < len(units)]] = True
    return both[np.sort(first[first >= len(units)])], is_last


class SpanPlan(NamedTuple):
    """The reads and releases of a span of samples.

    ``reads`` are the units to read, in order; a unit may occur several times. ``last`` has the shape of the samples,
    and is True where the unit is released after the sample. ``drops`` are released before the first sample.
    """

    reads: NDArray[np.int64]
    last: NDArray[np.bool_]
    drops: list[int]


class Keeping:
    """Planner of consecutive spans, so that the units in use take at most ``keep_bytes``; a larger unit is kept alone.

    ``bytes_of`` returns the sizes of units. If the units do not fit, planning takes a microsecond for each sample.
    """

    def __init__(self, keep_bytes: int, bytes_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> None:
        self._keep_bytes, self._bytes_of = keep_bytes, bytes_of
        self._held: dict[int, int] = {}  # units kept from the span before, with their bytes

    def plan(self, units: NDArray[np.int64], after: NDArray[np.int64]) -> SpanPlan:
        """Plan a span that uses ``units``, before a span that uses ``after``; both in the order of use."""
        held = np.fromiter(self._held, dtype=np.int64, count=len(self._held))
        if self._peak_bytes(units, held, after) <= self._keep_bytes:
            reads, last = first_uses(units, held), last_uses(units, after)
            kept = np.intersect1d(np.union1d(units, held), after)
            self._held = dict(zip(kept.tolist(), self._bytes_of(kept).tolist(), strict=True))
            drops = held[~np.isin(held, units) & ~np.isin(held, after)].tolist()
            return SpanPlan(reads, last, drops)
        return self._choose(units, after)

    def _peak_bytes(self, units: NDArray[np.int64], held: NDArray[np.int64], after: NDArray[np.int64]) -> int:
        """Return the most bytes in use at a time if nothing is evicted early."""
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

    def _choose(self, units: NDArray[np.int64], after: NDArray[np.int64]) -> SpanPlan:
        num_samples = len(units)
        both = np.concatenate([units, after])
        next_use = _next_uses(both)
        distinct = np.unique(units)
        sizes = dict(zip(distinct.tolist(), self._bytes_of(distinct).tolist(), strict=True))
        held, never = self._held, len(both)
        uses = {int(unit): int(at) for unit, at in zip(*np.unique(both, return_index=True), strict=True)}
        due = {unit: uses.get(unit, never) for unit in held}  # the next use of each held unit
        latest: dict[int, int] = {}  # the sample that last used each unit
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

        for position, unit in enumerate(units.tolist()):
            if unit not in held:
                size = sizes[unit]
                while held and held_bytes + size > self._keep_bytes:
                    at, other = heapq.heappop(farthest)
                    if due.get(other) == -at:
                        held_bytes -= let_go(other)
                reads.append(unit)
                held[unit] = size
                held_bytes += size
            latest[unit] = position
            due[unit] = at = int(next_use[position])
            if at == never:
                held_bytes -= let_go(unit)
            else:
                heapq.heappush(farthest, (-at, unit))
        return SpanPlan(np.array(reads, dtype=np.int64), last, drops)


def _next_uses(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of the next use of the same unit, for each use; the number of uses after the last."""
    order = np.argsort(units, kind="stable")
    same = units[order][1:] == units[order][:-1]
    following = np.full(len(units), len(units), dtype=np.int64)
    following[order[:-1][same]] = order[1:][same]
    return following
