"""Buffers for responses, allocated by the consumer and filled by a thread.

Memory that a thread allocates in its own heap is not returned to the system while anything lies behind it, and each of
many threads has a heap. In the heap of the consumer small objects settle in the place of each released chunk, so that
the next one does not fit there: streams took up to 16 MiB more than they held, a different amount each time. So large
responses get memory mappings of their own, reused once nothing refers to them: the memory taken from the system is what
is held at a time (`shoal.storage.files.mappings`). They are filled in place, and nothing is copied when they are taken.
"""

from __future__ import annotations

import threading

from shoal.storage.files.memory_pool import MemoryPool

LEAST_ROOM_BYTES = 128 << 10
"""Smaller responses are left in the heap of their thread, and copied by the consumer."""


class Room:
    """Buffer of ``num_bytes``, filled by the first thread that claims it.

    >>> room = Room(5, Memories())
    >>> view = room.claim(); view[:] = b"bytes"; view.release()
    >>> room.claim(), bytes(room.taken())
    (None, b'bytes')
    """

    __slots__ = ("_claimed", "_lock", "_view")

    def __init__(self, num_bytes: int, memories: MemoryPool) -> None:
        self._lock = threading.Lock()
        self._claimed: memoryview | None = None
        self._view = memoryview(memories.take(num_bytes))[:num_bytes]

    def claim(self) -> memoryview | None:
        """Return the view to fill, for the first caller; None for others, which must keep what they read elsewhere.

        So a request that was given up as lost, and is answered at last, never writes over the bytes of another one. The
        caller releases the view once it is filled.
        """
        with self._lock:
            if self._claimed is not None:
                return None
            self._claimed = self._view[:]
            return self._claimed

    def taken(self) -> memoryview:
        """Return the bytes, once they are filled; a copy if a thread may still write to the buffer."""
        filled = self._view.toreadonly()
        return filled if self._claimed is None or _is_released(self._claimed) else memoryview(bytes(filled))


def _is_released(view: memoryview) -> bool:
    try:
        view.nbytes  # noqa: B018  # the only way to ask
    except ValueError:
        return True
    return False
