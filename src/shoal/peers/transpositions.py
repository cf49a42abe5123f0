"""Shuffles by successive swaps, computed many swaps at a time.

Step ``i`` of a Fisher-Yates shuffle swaps item ``i`` with the item at a place ``partner[i] >= i``, and no later step
uses place ``i``. The item at a place comes from the last earlier step with this place as its partner: from the own
place of that step. So the item of each step comes from at most one earlier step, and chains of steps are followed for
thousands of steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TILE = 1 << 16


def exchanged(size: int, partners: Callable[[int, int], NDArray[np.int64]]) -> NDArray[Any]:
    """Return ``range(size)`` after ``size`` swaps, as int32 or int64, shape (size,).

    Equal to ``for i in range(size): items[i], items[partner[i]] = items[partner[i]], items[i]``. O(size) time, and
    memory for two such arrays.

    Parameters
    ----------
    partners
        Returns the partners of steps ``[start, stop)``; ``i <= partner[i] < size``.

    >>> exchanged(4, lambda start, stop: np.array([2, 3, 2, 3])[start:stop]).tolist()
    [2, 3, 0, 1]
    """
    dtype = np.int32 if size < 2**31 else np.int64
    last = np.full(size, -1, dtype=dtype)  # the last step that moved an item to each place; then the result
    moved = np.empty(size, dtype=dtype)  # the item that each step moved away
    for start in range(0, size, _TILE):
        stop = min(start + _TILE, size)
        steps = np.arange(start, stop)
        places = partners(start, stop)
        at_own = last[start:stop].astype(np.int64)
        near = np.flatnonzero((places < stop) & (places > steps))
        at_own[places[near] - start] = steps[near]  # the last of several values stays
        before = _last_before(last, places, steps)
        _put_away(moved, at_own, start)
        last[start:stop] = np.where(before < 0, places, moved[before])
    return last


def _last_before(last: NDArray[Any], places: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last earlier step with the same place, -1 without such a step, and update ``last``."""
    before = last[places].astype(np.int64)
    last[places] = steps
    winners = last[places].astype(np.int64)
    again = np.flatnonzero(winners != steps)
    if len(again):  # some places have several steps
        several = np.zeros(len(steps), dtype=bool)
        several[again] = several[winners[again] - steps[0]] = True
        rows = np.flatnonzero(several)
        rows = rows[np.argsort(places[rows], kind="stable")]
        same = places[rows[1:]] == places[rows[:-1]]
        before[rows[1:][same]] = steps[rows[:-1][same]]
    return before


def _put_away(moved: NDArray[Any], at_own: NDArray[np.int64], start: int) -> None:
    """Fill in the items moved away by the steps from ``start`` on.

    ``at_own`` has the step that filled the place of each step, or -1.
    """
    steps = np.arange(start, start + len(at_own))
    items = moved[start : start + len(at_own)]
    items[:] = np.where((at_own < 0) | (at_own >= start), steps, moved[np.minimum(at_own, start - 1)] if start else 0)
    late = np.flatnonzero(at_own >= start)
    source = np.arange(len(at_own))
    source[late] = at_own[late] - start
    while True:  # few rounds: each round halves the rest of every chain
        further = source[source[late]]
        if np.array_equal(further, source[late]):
            break
        source[late] = further
    items[late] = items[source[late]]
