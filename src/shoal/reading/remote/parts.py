"""Large reads in parts, since several connections have more throughput than one.

Parts are written to their places as they arrive, so that a read takes its bytes in memory once and not twice.
"""

from __future__ import annotations

import threading

from shoal.reading.schedule.coalescing import Request
from shoal.storage.files.memory_pool import MemoryPool


class Whole:
    """The bytes of a read, assembled by several threads."""

    def __init__(self, request: Request, memories: MemoryPool) -> None:
        self._first_byte = request.first_byte
        self._lock = threading.Lock()
        self._view: memoryview | None = memoryview(memories.take(request.num_bytes))[: request.num_bytes]

    def put(self, part: Request, data: bytes) -> None:
        """Store a part; one that arrives twice does no harm."""
        with self._lock:
            if self._view is not None:
                at = part.first_byte - self._first_byte
                self._view[at : at + len(data)] = data

    def taken(self) -> memoryview:
        """Return the bytes, once all parts have arrived; to be called once."""
        with self._lock:
            view, self._view = self._view, None
        return memoryview(b"") if view is None else view.toreadonly()
