"""Which part of a rank's share one of its worker processes makes: whole batches, in turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Share

__all__ = ["some_batches"]


def some_batches(share: Share, batches: NDArray[np.int64]) -> Share:
    """Only these batches of a share, by number; O(samples of those batches).

    >>> share = Share(*(np.arange(6) for _ in range(3)), np.zeros(6, dtype=bool), np.array([0, 3, 5, 6]))
    >>> part = some_batches(share, np.array([0, 2]))
    >>> part.ids.tolist(), part.batch_first.tolist()
    ([0, 1, 2, 5], [0, 3, 4])
    """
    sizes = np.diff(share.batch_first)[batches]
    batch_first = np.concatenate([[0], np.cumsum(sizes)])
    kept = np.repeat(share.batch_first[batches] - batch_first[:-1], sizes) + np.arange(batch_first[-1])
    return Share(share.ids[kept], share.positions[kept], share.chunks[kept], share.repeated[kept], batch_first)
