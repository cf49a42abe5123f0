"""Deadlines for slow answers: a limit for silence alone does not end a server that sends a byte now and then.

Each read from the socket is limited to the time left for the whole head, or for all requested bytes of a body. So any
waiting thread gives up by itself, and no watchdog is needed.
"""

from __future__ import annotations

import io
import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


# A body has the silence limit, and more if it is large: this many bytes a second are slow for any server.
_LEAST_BYTES_PER_SECOND = 64 << 10
_MOMENT_SECONDS = 0.02
_TIMED_OUT = ("timed out",)  # the socket's own wording


class TimedReads(io.RawIOBase):
    """Reads from a socket, whose file is ``raw``, until a deadline."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._silence_seconds = math.inf if (seconds := sock.gettimeout()) is None else seconds
        self._is_short = self._is_over = False
        self.is_ended = False
        """True if a read has met the end of the stream."""
        self.allow(0)

    def allow(self, num_bytes: int) -> None:
        """Allow ``num_bytes`` from now on: the silence limit, and more if they are many."""
        self._until = time.monotonic() + self._silence_seconds + num_bytes / _LEAST_BYTES_PER_SECOND

    def allow_more(self, num_bytes: int) -> None:
        """Allow ``num_bytes`` after those before: without another silence limit."""
        self._until += num_bytes / _LEAST_BYTES_PER_SECOND

    def readable(self) -> bool:
        """Return True."""
        return True

    def hurry(self) -> None:
        """Stop waiting for bytes that do not arrive within 20 ms."""
        self._until = time.monotonic() + _MOMENT_SECONDS

    def end(self) -> None:
        """End the stream: from now on nothing is read, and nothing is waited for."""
        self._is_over = True

    def close(self) -> None:
        """Close the file, not the socket, whose silence limit is restored."""
        super().close()
        self._raw.close()
        if self._is_short and self._sock.fileno() >= 0:
            self._sock.settimeout(None if self._silence_seconds == math.inf else self._silence_seconds)

    def readinto(self, buffer: Any, /) -> int | None:
        """Read the next bytes; return their number, or None after `end`.

        Raises
        ------
        TimeoutError
            They came too late.
        """
        if self._is_over:
            return None
        left_seconds, silence_seconds = self._until - time.monotonic(), self._silence_seconds
        if left_seconds <= 0:
            raise TimeoutError(*_TIMED_OUT)
        # Setting the socket's timeout costs something, and only matters towards the end.
        is_short = left_seconds < silence_seconds / 2
        if is_short or self._is_short:
            self._sock.settimeout(left_seconds if is_short else silence_seconds)
            self._is_short = is_short
        num_bytes = self._raw.readinto(buffer)
        self.is_ended = num_bytes == 0
        return num_bytes
