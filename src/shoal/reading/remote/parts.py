"""Large reads in parts: one connection carries so much, and several carry more.

Parts are put where they belong as they come, so that a read takes its bytes once and not twice.
"""

from __future__ import annotations

import threading

from shoal.reading.schedule.coalescing import Request
from shoal.storage.files.mappings import Memories

__all__ = ["Whole"]


class Whole:
    """The bytes of a read, put together by several threads."""

    def __init__(self, request: Request, memories: Memories) -> None:
        self._first_byte = request.first_byte
        self._lock = threading.Lock()
        self._view: memoryview | None = memoryview(memories.take(request.num_bytes))[: request.num_bytes]

    def put(self, part: Request, data: bytes) -> None:
        """Take a part; one that comes again is as good as the first."""
        with self._lock:
            if self._view is not None:
                at = part.first_byte - self._first_byte
                self._view[at : at + len(data)] = data

    def taken(self) -> memoryview:
        """The bytes, once all parts are there; to be called once."""
        with self._lock:
            view, self._view = self._view, None
        return memoryview(b"") if view is None else view.toreadonly()
