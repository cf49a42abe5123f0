"""Which units are read and let go when, over a stretch of samples, knowing the stretch before and the one after.

A unit is kept from its first use until its last, and over the border of two stretches if both use it. A stretch is
chosen so long that a unit with samples left is nearly always met again within one; if not, it is read again, and that
is counted. So no order has to say when it is done with a chunk, and a rank keeps only what it needs itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_uses", "last_uses", "stretch_positions"]

_LEAST_POSITIONS = 1 << 13  # each takes 350 bytes for a moment: more would be felt beside a small window
_LEAST_OF_RANKS = 1 << 16
_MOST_POSITIONS = 1 << 22
# A window of K chunks meets each of them every K positions, give or take half; smaller chunks more rarely in
# proportion. A buffer keeps one sample in exp(8) for more than 8 times its length.
_REACHES = 8


def stretch_positions(parameters: Mapping[str, int], world_size: int = 1) -> int:
    """How many positions of an order with these parameters make a stretch, where so many ranks share them.

    Reads are planned a stretch ahead, and a rank has only its share of it: with as many positions for 64 ranks as for
    one, it reads less than a chunk of small samples ahead, and waits for each. So there are more for many ranks, up to
    eight times as many: those of other ranks take 66 bytes each.
    """
    reach = max(parameters.get("chunks", 0), parameters.get("samples", 0))
    least = min(_LEAST_POSITIONS * world_size, _LEAST_OF_RANKS)
    return min(max(least, _REACHES * reach), _MOST_POSITIONS)


def first_uses(units: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """The units of a stretch that the stretch before does not use, in the order of their first use.

    >>> first_uses(np.array([4, 2, 4, 7]), before=np.array([2, 9])).tolist()
    [4, 7]
    """
    distinct, first = np.unique(units, return_index=True)
    new = ~np.isin(distinct, before)
    return distinct[new][np.argsort(first[new], kind="stable")]


def last_uses(units: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each sample is the last use of its unit, in this stretch and the one after.

    >>> last_uses(np.array([4, 2, 4, 7]), after=np.array([7])).tolist()
    [False, True, True, False]
    """
    distinct, from_end = np.unique(units[::-1], return_index=True)
    last = np.zeros(len(units), dtype=bool)
    last[len(units) - 1 - from_end[~np.isin(distinct, after)]] = True
    return last
