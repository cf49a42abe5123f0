"""Accounting of bytes in memory: those held, those of them read ahead, and the room for more.

Bytes are reserved before they are requested. Bytes that the order keeps in use are only counted; those read ahead of
their use are limited. The unit that holds the next sample is always admitted, so the limit cannot deadlock.
"""

from __future__ import annotations


class MemoryBudget:
    """Ledger of the bytes of units that are requested or held; not thread-safe, it belongs to one thread.

    >>> ledger = MemoryBudget(ahead_limit_bytes=10)
    >>> ledger.reserve(8); ledger.has_room(4)
    False
    >>> ledger.use(8); ledger.has_room(4)
    True
    >>> ledger.room_bytes
    10
    """

    def __init__(self, *, ahead_limit_bytes: int) -> None:
        self.ahead_limit_bytes = ahead_limit_bytes
        self.is_kept_free = False  # True stops read-ahead, for a piece that will need all the room
        self.held_bytes = 0
        self.ahead_bytes = 0
        self.peak_bytes = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that may still be read ahead; negative if a unit larger than the limit was admitted."""
        return 0 if self.is_kept_free else self.ahead_limit_bytes - self.ahead_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Return True if ``num_bytes`` more may be read ahead."""
        return num_bytes <= self.room_bytes

    def reserve(self, num_bytes: int) -> None:
        """Count bytes that are about to be requested."""
        self.ahead_bytes += num_bytes
        self.held_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def use(self, num_bytes: int) -> None:
        """Count bytes that were read ahead as used: from now on the order keeps them."""
        self.ahead_bytes -= num_bytes

    def copy(self, num_bytes: int) -> None:
        """Count used bytes that were copied out of a larger response, which is still held."""
        self.held_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def drop(self, num_bytes: int) -> None:
        """Release a response that was read ahead, once everything needed of it has been copied."""
        self.ahead_bytes -= num_bytes
        self.held_bytes -= num_bytes

    def release(self, num_bytes: int) -> None:
        """Release bytes that were used."""
        self.held_bytes -= num_bytes
