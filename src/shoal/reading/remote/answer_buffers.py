"""Room for answers, made by who will hold them and filled by a thread.

What a thread takes from its own heap is not given back to the system while anything lies behind it, and there is a
heap for each of many threads. In the heap of the consumer small objects settle in the place of each chunk that is let
go, so that the next one does not fit there: streams took up to 16 MiB more than they held, another number each time.
So large answers get memory of their own, which serves the next ones when nobody refers to it any more: what is taken
from the system is what is held at a time (`shoal.storage.files.mappings`). They are filled in place, and nothing is
copied when they are taken.
"""

from __future__ import annotations

import threading

from shoal.storage.files.mappings import Memories

__all__ = ["LEAST_ROOM_BYTES", "Room"]

LEAST_ROOM_BYTES = 128 << 10
"""Smaller answers are left in the heap of their thread, and copied by the consumer."""


class Room:
    """Room for so many bytes, filled by the first thread that claims it.

    >>> room = Room(5, Memories())
    >>> view = room.claim(); view[:] = b"bytes"; view.release()
    >>> room.claim(), bytes(room.taken())
    (None, b'bytes')
    """

    __slots__ = ("_claimed", "_lock", "_view")

    def __init__(self, num_bytes: int, memories: Memories) -> None:
        self._lock = threading.Lock()
        self._claimed: memoryview | None = None
        self._view = memoryview(memories.take(num_bytes))[:num_bytes]

    def claim(self) -> memoryview | None:
        """Where the bytes are to go, for the first who asks; None for others, who keep what they read to themselves.

        So that a request that was thought lost, and is answered at last, never writes into what another one has put
        there. To be released when it is filled.
        """
        with self._lock:
            if self._claimed is not None:
                return None
            self._claimed = self._view[:]
            return self._claimed

    def taken(self) -> memoryview:
        """The bytes, once they are there; a copy if somebody may still write to the room."""
        filled = self._view.toreadonly()
        return filled if self._claimed is None or _is_released(self._claimed) else memoryview(bytes(filled))


def _is_released(view: memoryview) -> bool:
    try:
        view.nbytes  # noqa: B018  # the only way to ask
    except ValueError:
        return True
    return False
