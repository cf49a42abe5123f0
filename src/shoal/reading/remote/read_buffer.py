"""The memory of a large read: the consumer allocates it, and the threads that run its requests fill it in place.

Each thread has a heap, which returns nothing to the system while anything lies behind it. In the heap of the consumer
small objects settle in the space of a released chunk, and the next chunk does not fit there: streams took up to 16 MiB
more than they held. So large responses have mappings of their own, which are reused once nothing refers to them
(`shoal.storage.files.memory_pool`). Threads fill the mappings in place, and the consumer takes them without a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from shoal.reading.schedule.read_requests import Request
from shoal.storage.files.memory_pool import MemoryPool

LEAST_BUFFER_BYTES = 128 << 10
"""Smaller responses are left in the heap of their thread, and copied by the consumer."""


class ReadBuffer:
    """The bytes of one read, whole or in parts; the first thread that claims a part writes it.

    >>> read = Request(0, 100, 105, (0,))
    >>> buffer = ReadBuffer(read, MemoryPool())
    >>> view = buffer.claim(read); view[:] = b"bytes"; view.release()
    >>> buffer.claim(read), bytes(buffer.take({100: b""}))
    (None, b'bytes')
    """

    def __init__(self, read: Request, memories: MemoryPool) -> None:
        self._first_byte = read.first_byte
        self._lock = threading.Lock()
        self._claims: dict[int, memoryview] = {}  # by first byte of the part
        self._view: memoryview | None = memoryview(memories.take(read.num_bytes))[: read.num_bytes]

    @property
    def is_released(self) -> bool:
        """True once the bytes were taken, or given up."""
        return self._view is None

    def claim(self, part: Request) -> memoryview | None:
        """Return the memory of a part to the first caller, who fills and then releases the view; None to other callers.

        Other callers store their bytes elsewhere. So a late response never overwrites the bytes of another response.
        """
        with self._lock:
            if self._view is None or part.first_byte in self._claims:
                return None
            begin = part.first_byte - self._first_byte
            view = self._claims[part.first_byte] = self._view[begin : begin + part.num_bytes]
            return view

    def put(self, part: Request, data: bytes) -> bytes:
        """Copy the bytes of a part here and return b""; return the bytes if another thread has claimed the part."""
        view = self.claim(part)
        if view is None:
            return data
        with view:
            view[:] = data
        return b""

    def take(self, responses: Mapping[int, bytes]) -> memoryview | bytes:
        """Return the bytes once all parts have arrived; from then on nobody can claim a part.

        ``responses`` maps the first byte of each part to its bytes; b"" means that they are in this buffer. Copies only
        if some are elsewhere, or if a thread may still write to the buffer.
        """
        with self._lock:
            view, self._view = self._view, None
        if view is None:
            return b""
        if not any(responses.values()) and all(map(_is_released, self._claims.values())):
            return view.toreadonly()
        whole = bytearray(view)
        for first_byte, data in responses.items():
            begin = first_byte - self._first_byte
            whole[begin : begin + len(data)] = data
        return memoryview(whole).toreadonly()

    def release(self) -> None:
        """Give up the memory, unless a thread is filling it."""
        with self._lock:
            self._view = None


def _is_released(view: memoryview) -> bool:
    try:
        view.nbytes  # noqa: B018  # the only way to ask
    except ValueError:
        return True
    return False
