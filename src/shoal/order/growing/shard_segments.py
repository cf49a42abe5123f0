"""Segments of a listing: its shards permuted by the seed, and cut into ranges that grow.

The first segment is small, since nothing can be delivered before all of it is indexed; each next one is twice as large,
so that it can be indexed while the one before is used. Beyond twice the window a larger segment would hardly mix
better, and would take longer until its first sample.

All of it is a function of the listing, the seed and the window alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute
from shoal.order.seeds import check_seed, key

FIRST_BYTES = 64 * 2**20
"""Bytes that end the first segment, unless the window is less than half as large."""

_WINDOWS = 2  # that end a segment of the middle of an epoch


def permuted_shards(num_shards: int, *, seed: int) -> NDArray[np.int64]:
    """Return the shards of a listing, by number, in the order in which they are indexed and numbered.

    >>> permuted_shards(5, seed=0).tolist()
    [2, 1, 0, 4, 3]
    """
    return permute(np.arange(num_shards), num_shards, key(check_seed(seed), 0, "growing shards"))


def segment_seed(seed: int, number: int) -> int:
    """Return the seed of the order inside a segment.

    With one seed for all, segments of equally many chunks would have the same order, one after the other.
    """
    return key(check_seed(seed), 0, "growing segment", number)


def cut_segments(num_bytes: Sequence[int] | NDArray[Any], *, window_bytes: int) -> list[int]:
    """Cut permuted shards into segments; less than 1 us per shard.

    Segment ``i`` ends with the shard that brings it to ``min(FIRST_BYTES * 2**i, 2 * window_bytes)``. A last segment
    of less than half of that is joined to the one before, since the few shards in it would hardly mix. That also holds
    if there are only two: then the first delivery waits for less than twice the bytes.

    Parameters
    ----------
    num_bytes
        Bytes of each shard, in the permuted order.
    window_bytes
        Bytes of the window that orders each segment.

    Returns
    -------
    list[int]
        First shard of each segment, then the number of shards. Every segment has a shard; no shards make no segment.

    Examples
    --------
    >>> cut_segments([2**25] * 41, window_bytes=2**27)  # of 32 MiB, with a window of 128 MiB
    [0, 2, 6, 14, 22, 30, 41]
    """
    if window_bytes < 1:
        raise UsageError(f"window_bytes must be at least 1; got {window_bytes}")
    sizes = np.asarray(num_bytes)
    if sizes.size and int(sizes.min()) < 0:
        raise UsageError(f"shards cannot have less than 0 bytes; shard {int(sizes.argmin())} has {int(sizes.min())}")
    most = _WINDOWS * int(window_bytes)
    limit, filled, firsts = min(FIRST_BYTES, most), 0, [0]
    for number, size in enumerate(sizes.tolist(), start=1):
        filled += size
        if filled >= limit:
            firsts.append(number)
            limit, filled = min(2 * limit, most), 0
    if firsts[-1] < len(sizes):
        if len(firsts) > 1 and 2 * filled < limit:
            firsts.pop()
        firsts.append(len(sizes))
    return firsts
