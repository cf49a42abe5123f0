"""Lifetimes of units: when to read and release each in a span of samples, given the spans before and after.

A unit is kept from its first use until its last, and across the border of two spans if both use it. A span is
so long that a unit with samples left is nearly always used again within one; if not, it is read again, and that is
counted. So no order has to say when it is done with a chunk, and a rank keeps only what it needs itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import order_by

_LEAST_POSITIONS = 1 << 13  # each takes 350 bytes for a moment: more would be noticeable beside a small window
_LEAST_OF_RANKS = 1 << 16
_MOST_POSITIONS = 1 << 22
# A window of K chunks uses each of them every K positions, give or take half; smaller chunks proportionally less often.
# A shuffle buffer keeps one sample in exp(8) for more than 8 times its length.
_REACHES = 8


def span_positions(parameters: Mapping[str, int], world_size: int = 1) -> int:
    """Return the number of positions in a span of an order with these parameters, shared by ``world_size`` ranks.

    Reads are planned a span ahead, and a rank has only its share of it: with as many positions for 64 ranks as for
    one, it would read less than a chunk of small samples ahead, and wait for each. So a span is longer for many
    ranks, up to eight times: positions of other ranks take 66 bytes each.
    """
    reach = max(parameters.get("chunks", 0), parameters.get("samples", 0))
    least = min(_LEAST_POSITIONS * world_size, _LEAST_OF_RANKS)
    return min(max(least, _REACHES * reach), _MOST_POSITIONS)


def first_uses(units: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the units of a span that the one before does not use, in the order of their first use; O(n log n).

    >>> first_uses(np.array([4, 2, 4, 7]), before=np.array([2, 9])).tolist()
    [4, 7]
    """
    used, first, _ = _uses(units)
    return units[np.sort(first[~_among(used, before)])]


def last_uses(units: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each sample that is the last use of its unit, in this span and the next; O(n log n).

    >>> last_uses(np.array([4, 2, 4, 7]), after=np.array([7])).tolist()
    [False, True, True, False]
    """
    used, _, last = _uses(units)
    is_last = np.zeros(len(units), dtype=bool)
    is_last[last[~_among(used, after)]] = True
    return is_last


def _uses(units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct units, sorted, and the places of the first and the last use of each."""
    by_unit = order_by((units, int(units.max(initial=0)).bit_length()))
    ordered = units[by_unit]
    border = np.ones(len(units) + 1, dtype=bool)  # one before each unit's first use, and one at the end
    border[1:-1] = ordered[1:] != ordered[:-1]
    begins = np.flatnonzero(border)
    return ordered[begins[:-1]], by_unit[begins[:-1]], by_unit[begins[1:] - 1]


def _among(units: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each unit that is among the others."""
    others = np.sort(others)
    found: NDArray[np.bool_] = np.searchsorted(others, units, side="right") > np.searchsorted(others, units)
    return found
