"""The ledger of bytes in memory: what is held, what of it was read ahead, and how much more may be.

Bytes are reserved before they are asked for. What the order keeps alive is its own doing and is only counted; what is
read ahead of its use has a limit. The unit that holds the next sample is always admitted, so the rule cannot deadlock.
"""

from __future__ import annotations

__all__ = ["MemoryBudget"]


class MemoryBudget:
    """Counts the bytes of units that are asked for or held; not safe for threads, one of them keeps it.

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
        self.is_kept_free = False  # for what will need all the room there is
        self.held_bytes = 0
        self.ahead_bytes = 0
        self.peak_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How many bytes more may be read ahead; less than 0 if a unit was admitted that is larger than the limit."""
        return 0 if self.is_kept_free else self.ahead_limit_bytes - self.ahead_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes more may be read ahead."""
        return num_bytes <= self.room_bytes

    def reserve(self, num_bytes: int) -> None:
        """Count bytes that are about to be asked for."""
        self.ahead_bytes += num_bytes
        self.held_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def use(self, num_bytes: int) -> None:
        """Bytes that were read ahead are used for the first time: now the order keeps them."""
        self.ahead_bytes -= num_bytes

    def copy(self, num_bytes: int) -> None:
        """Bytes are used that were copied out of a larger answer, which is still there."""
        self.held_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def drop(self, num_bytes: int) -> None:
        """An answer that was read ahead is let go, since all that was wanted of it was copied."""
        self.ahead_bytes -= num_bytes
        self.held_bytes -= num_bytes

    def release(self, num_bytes: int) -> None:
        """Bytes that were used are let go."""
        self.held_bytes -= num_bytes
