"""Limits on read-ahead, and the division of limited memory between read-ahead and units in use."""

from __future__ import annotations

from typing import NamedTuple

from shoal.errors import UsageError

_LEAST_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
# With large chunks, fewer than 16 of them in flight would leave connections idle.
_REQUESTS_OF_REMOTE_STORES = 16
_MOST_REMOTE_BYTES = 128 << 20


def ahead_limit_bytes(window_bytes: int, largest_bytes: int, *, is_remote: bool) -> int:
    """Return the read-ahead limit for a window of ``window_bytes`` (0 for none) and units of up to ``largest_bytes``.

    A quarter of the window, so that read-ahead never outweighs the window, and at most 32 MiB; from a remote store, 16
    units if these are half of the window at most, and 32 MiB without a window; at least two units in any case.

    >>> [ahead_limit_bytes(window << 20, 1 << 20, is_remote=True) >> 20 for window in (16, 64, 512)]
    [8, 16, 32]
    """
    limit = min(max(window_bytes // 4, _LEAST_BYTES), _MOST_BYTES)
    if is_remote and not window_bytes:
        limit = _MOST_BYTES
    elif is_remote:
        limit = max(limit, min(_REQUESTS_OF_REMOTE_STORES * largest_bytes, window_bytes // 2, _MOST_REMOTE_BYTES))
    return max(limit, 2 * largest_bytes)


class Division(NamedTuple):
    """Bytes that may be read ahead (``ahead_bytes``), and bytes that may be kept for further use (``keep_bytes``)."""

    ahead_bytes: int
    keep_bytes: int


def divide(memory_limit_bytes: int, ahead_bytes: int, largest_bytes: int) -> Division:
    """Divide a memory limit between read-ahead, of ``ahead_bytes`` if possible, and units that are kept.

    >>> divide(100, 60, 10)
    Division(ahead_bytes=25, keep_bytes=75)

    Raises
    ------
    UsageError
        The limit is too small for two units read ahead and one in use.
    """
    if memory_limit_bytes < 3 * largest_bytes:
        msg = (
            f"reading(memory_limit={memory_limit_bytes}): what is read at once has up to {largest_bytes} bytes, and "
            f"one in use and two read ahead take {3 * largest_bytes}"
        )
        raise UsageError(msg, hint=f"memory_limit={3 * largest_bytes} or more, or a smaller chunk= in shuffle()")
    ahead_bytes = min(ahead_bytes, max(memory_limit_bytes // 4, 2 * largest_bytes))
    return Division(ahead_bytes, memory_limit_bytes - ahead_bytes)
