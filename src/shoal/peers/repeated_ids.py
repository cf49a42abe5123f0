"""First positions of samples that come several times, where nothing but a look at all positions tells."""

from __future__ import annotations

import numpy as np

from shoal.order.protocol import BoundOrder


def first_found(order: BoundOrder, sample_id: int, start: int, stop: int, *, repeats: bool = True) -> int:
    """Return the first of the positions ``[start, stop)`` that has a sample, -1 if none has; O(stop - start) at most.

    What `BoundOrder.positions` says, the first position of all, is asked before, and is enough without ``repeats``.
    """
    first = int(order.positions(np.array([sample_id]))[0])
    if first < 0 or first >= start or not repeats:
        return first if start <= first < stop else -1
    for begin in range(start, stop, order.span):
        found = np.flatnonzero(order.ids(begin, min(begin + order.span, stop)) == sample_id)
        if len(found):
            return begin + int(found[0])
    return -1
