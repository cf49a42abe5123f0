"""Large reads in parts: one connection carries so much, and several carry more.

Parts are put where they belong as they come, so that a read takes its bytes once and not twice.
"""

from __future__ import annotations

import threading
from io import BytesIO

from shoal.plan.coalescing import Request

__all__ = ["Whole", "in_parts"]

_LARGE_BYTES = 8 << 20  # from here on
_PART_BYTES = 4 << 20


def in_parts(request: Request) -> list[Request]:
    """The requests that one becomes: itself, or parts of equal size but for the last, if it is for one large read."""
    if len(request.places) > 1 or request.num_bytes <= _LARGE_BYTES:
        return [request]
    num_parts = -(-request.num_bytes // _PART_BYTES)
    step = -(-request.num_bytes // num_parts)
    starts = range(request.first_byte, request.end_byte, step)
    return [request._replace(first_byte=start, end_byte=min(start + step, request.end_byte)) for start in starts]


class Whole:
    """The bytes of a read, put together by several threads."""

    def __init__(self, request: Request) -> None:
        self._first_byte, self._num_bytes = request.first_byte, request.num_bytes
        self._lock = threading.Lock()
        self._buffer: BytesIO | None = BytesIO()

    def put(self, part: Request, data: bytes) -> None:
        """Take a part; one that comes again is as good as the first."""
        with self._lock:
            if self._buffer is None:
                return
            if not self._buffer.tell():  # all of it at once: growing would copy what is there
                self._buffer.seek(self._num_bytes - 1)
                self._buffer.write(b"\0")
            self._buffer.seek(part.first_byte - self._first_byte)
            self._buffer.write(data)

    def taken(self) -> bytes:
        """The bytes, once all parts are there; to be called once."""
        with self._lock:
            buffer, self._buffer = self._buffer, None
        return b"" if buffer is None else buffer.getvalue()
