"""Memory for reading: the limits on bytes read ahead and kept, the bytes held now, and the reads that have room.

Bytes are reserved before they are requested, and held once they have arrived; both count as claimed. Bytes in use are
only counted; bytes read ahead of their use are limited. The unit of the next sample is always admitted, so the limit
cannot deadlock. Plans use the same ledger, so that a plan predicts the actual requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.reading.schedule.units import UnitRead


class MemoryBudget:
    """Ledger of the bytes of units that are requested or held; it belongs to one thread.

    Other threads call only `arrive` and `leave`, one at a time, for responses that nobody has taken yet.

    >>> ledger = MemoryBudget(ahead_limit_bytes=10)
    >>> ledger.reserve(8); ledger.has_room(4)
    False
    >>> ledger.use(8); ledger.has_room(4)
    True
    >>> ledger.room_bytes
    10
    """

    def __init__(self, *, ahead_limit_bytes: int, total: MemoryBudget | None = None) -> None:
        self.ahead_limit_bytes = ahead_limit_bytes
        self._total = total
        self.is_kept_free = False  # True stops read-ahead, for a chunk that will need all the room
        self.held_bytes = 0  # of units in use
        self.arrived_bytes = 0  # of responses that wait for their use
        self.ahead_bytes = 0
        self.claimed_bytes = 0  # in use, or reserved
        self._peak_bytes = self._peak_claimed_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that may still be read ahead; negative if a unit larger than the limit was admitted."""
        return 0 if self.is_kept_free else self.ahead_limit_bytes - self.ahead_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Return True if ``num_bytes`` more may be read ahead."""
        return num_bytes <= self.room_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at a time, by all sources that share a total."""
        return self._peak_bytes if self._total is None else self._total.peak_bytes

    @property
    def peak_claimed_bytes(self) -> int:
        """Most bytes claimed at a time, by all sources that share a total."""
        return self._peak_claimed_bytes if self._total is None else self._total.peak_claimed_bytes

    def reserve(self, num_bytes: int) -> None:
        """Count bytes that are about to be requested."""
        self.ahead_bytes += num_bytes
        self._claim(num_bytes)

    def arrive(self, num_bytes: int) -> None:
        """Count a response that has arrived."""
        self.arrived_bytes += num_bytes
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + self.arrived_bytes)

    def leave(self, num_bytes: int) -> None:
        """Count a response that all readers have taken."""
        self.arrived_bytes -= num_bytes

    def use(self, num_bytes: int) -> None:
        """Count bytes that were read ahead as in use."""
        self.ahead_bytes -= num_bytes
        self._hold(num_bytes)

    def hold(self, num_bytes: int) -> None:
        """Count bytes in use that were not read ahead: copied from a larger response, or decoded."""
        self._hold(num_bytes)
        self._claim(num_bytes)

    def drop(self, num_bytes: int) -> None:
        """Give back the room of a response whose bytes were copied."""
        self.ahead_bytes -= num_bytes
        self._claim(-num_bytes)

    def release(self, num_bytes: int) -> None:
        """Release bytes in use."""
        self._hold(-num_bytes)
        self._claim(-num_bytes)

    def _hold(self, num_bytes: int) -> None:
        self.held_bytes += num_bytes
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + self.arrived_bytes)
        if self._total is not None:
            self._total._hold(num_bytes)  # noqa: SLF001  # of this class

    def _claim(self, num_bytes: int) -> None:
        self.claimed_bytes += num_bytes
        self._peak_claimed_bytes = max(self._peak_claimed_bytes, self.claimed_bytes)
        if self._total is not None:
            self._total._claim(num_bytes)  # noqa: SLF001  # of this class


def groups_with_room(
    ledger: MemoryBudget, group_bytes: int, *, pending: deque[UnitRead], is_due: Callable[[], bool]
) -> Iterator[list[UnitRead]]:
    """Yield groups of reads while there is room; the caller reserves each group before the next one is formed.

    ``is_due`` returns True if the first read in ``pending`` exists and need not wait. A group ends once it has
    ``group_bytes``, or before a read without room.
    """
    while ledger.has_room(group_bytes):
        group: list[UnitRead] = []
        num_bytes, room_bytes = 0, ledger.room_bytes
        while num_bytes < group_bytes and is_due() and num_bytes + pending[0].num_bytes <= room_bytes:
            group.append(pending.popleft())
            num_bytes += group[-1].num_bytes
        if not group:
            return
        yield group


_LEAST_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
# Fewer than 16 large chunks in flight would leave connections idle.
_REQUESTS_OF_REMOTE_STORES = 16
_LEAST_REMOTE_BYTES = 8 << 20
_MOST_REMOTE_BYTES = 128 << 20


def ahead_limit_bytes(window_bytes: int, largest_bytes: int, *, is_remote: bool, num_sources: int = 1) -> int:
    """Return the read-ahead limit for a window of ``window_bytes`` (0 for none) and units of up to ``largest_bytes``.

    A quarter of the window, at most 32 MiB, at least two units. From a remote store at least 8 MiB, since the bytes in
    flight are the rate times the latency; 16 units if they fit into half of the window; and 32 MiB without a window.
    The ``num_sources`` of a mixture share the least.

    >>> [ahead_limit_bytes(window << 20, 1 << 20, is_remote=True) >> 20 for window in (4, 64, 512)]
    [8, 16, 32]
    """
    limit = min(max(window_bytes // 4, _LEAST_BYTES // num_sources), _MOST_BYTES)
    if is_remote and not window_bytes:
        limit = _MOST_BYTES
    elif is_remote:
        large = min(_REQUESTS_OF_REMOTE_STORES * largest_bytes, window_bytes // 2, _MOST_REMOTE_BYTES)
        limit = max(limit, _LEAST_REMOTE_BYTES // num_sources, large)
    return max(limit, 2 * largest_bytes)


class Division(NamedTuple):
    """Bytes that may be read ahead (``ahead_bytes``), and bytes that may be kept for further use (``keep_bytes``)."""

    ahead_bytes: int
    keep_bytes: int


def divide(memory_limit_bytes: int, ahead_bytes: int, largest_bytes: int) -> Division:
    """Split a memory limit into read-ahead (``ahead_bytes`` if possible) and kept units.

    Raises `UsageError`: the limit is too small for two units read ahead and one in use.

    >>> divide(100, 60, 10)
    Division(ahead_bytes=25, keep_bytes=75)
    """
    if memory_limit_bytes < 3 * largest_bytes:
        msg = (
            f"reading(memory_limit={memory_limit_bytes}): one read has up to {largest_bytes} bytes, and one in use and "
            f"two read ahead take {3 * largest_bytes}"
        )
        raise UsageError(msg, hint=f"memory_limit={3 * largest_bytes} or more, or a smaller chunk= in shuffle()")
    ahead_bytes = min(ahead_bytes, max(memory_limit_bytes // 4, 2 * largest_bytes))
    return Division(ahead_bytes, memory_limit_bytes - ahead_bytes)
