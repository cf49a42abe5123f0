"""How many bytes may be read ahead of their use, and what remains for those in use where memory is limited."""

from __future__ import annotations

from typing import NamedTuple

from shoal.errors import UsageError

__all__ = ["Division", "ahead_limit_bytes", "divide"]

_LEAST_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
# Where chunks are large, fewer than 16 of them under way leave connections idle that could carry more.
_REQUESTS_OF_FAR_STORES = 16
_MOST_FAR_BYTES = 128 << 20


def ahead_limit_bytes(window_bytes: int, largest_bytes: int, *, is_far: bool) -> int:
    """How much may be read ahead with a window of ``window_bytes`` (0 for none) and units of up to ``largest_bytes``.

    A quarter of the window, so that what is read ahead never outweighs what is mixed, and at most 32 MiB; from a store
    that is remote, 16 units if these are half of the window at most, and 32 MiB without a window; two units in any
    case.

    >>> [ahead_limit_bytes(window << 20, 1 << 20, is_far=True) >> 20 for window in (16, 64, 512)]
    [8, 16, 32]
    """
    limit = min(max(window_bytes // 4, _LEAST_BYTES), _MOST_BYTES)
    if is_far and not window_bytes:
        limit = _MOST_BYTES
    elif is_far:
        limit = max(limit, min(_REQUESTS_OF_FAR_STORES * largest_bytes, window_bytes // 2, _MOST_FAR_BYTES))
    return max(limit, 2 * largest_bytes)


class Division(NamedTuple):
    """``ahead_bytes`` may be read ahead, and ``keep_bytes`` kept for further use."""

    ahead_bytes: int
    keep_bytes: int


def divide(memory_limit_bytes: int, ahead_bytes: int, largest_bytes: int) -> Division:
    """Divide a limit between what is read ahead, which wants ``ahead_bytes``, and what is kept.

    >>> divide(100, 60, 10)
    Division(ahead_bytes=25, keep_bytes=75)

    Raises
    ------
    UsageError
        Not even two units read ahead and one in use fit.
    """
    if memory_limit_bytes < 3 * largest_bytes:
        msg = (
            f"reading(memory_limit={memory_limit_bytes}): what is read at once has up to {largest_bytes} bytes, and "
            f"one in use and two read ahead take {3 * largest_bytes}"
        )
        raise UsageError(msg, hint=f"memory_limit={3 * largest_bytes} or more, or a smaller chunk= in shuffle()")
    ahead_bytes = min(ahead_bytes, max(memory_limit_bytes // 4, 2 * largest_bytes))
    return Division(ahead_bytes, memory_limit_bytes - ahead_bytes)
