"""Answers that come too slowly are given up: a limit for silence does not end a server that sends a byte now and then.

Each read from the socket is given what is left of the time of the whole head, or of all that was asked for
of a body. So whoever waits gives up by itself, in whatever thread, and nobody has to look after it.
"""

from __future__ import annotations

import io
import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

__all__ = ["TimedReads"]

# A body has the time of a silence, and more if it is large: this many bytes a second are slow for anybody.
_LEAST_BYTES_PER_SECOND = 64 << 10
_MOMENT_SECONDS = 0.02
_TIMED_OUT = ("timed out",)  # as the socket says it


class TimedReads(io.RawIOBase):
    """What comes from a socket, of which ``raw`` is the file, until a time is over."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._silence_seconds = math.inf if (seconds := sock.gettimeout()) is None else seconds
        self._is_short = self._is_over = False
        self.is_ended = False
        """Whether whoever sends has ended, which was seen."""
        self.allow(0)

    def allow(self, num_bytes: int) -> None:
        """So many bytes are wanted from now on: they have the time of a silence, and more if they are many."""
        self._until = time.monotonic() + self._silence_seconds + num_bytes / _LEAST_BYTES_PER_SECOND

    def allow_more(self, num_bytes: int) -> None:
        """So many bytes more are wanted after those: no reason for another silence."""
        self._until += num_bytes / _LEAST_BYTES_PER_SECOND

    def readable(self) -> bool:
        """Yes."""
        return True

    def hurry(self) -> None:
        """What is not here within a moment is not waited for."""
        self._until = time.monotonic() + _MOMENT_SECONDS

    def end(self) -> None:
        """From now on nothing is there to be read, and nothing is waited for."""
        self._is_over = True

    def close(self) -> None:
        """Close the file, not the socket, which has its limit for silence again."""
        super().close()
        self._raw.close()
        if self._is_short and self._sock.fileno() >= 0:
            self._sock.settimeout(None if self._silence_seconds == math.inf else self._silence_seconds)

    def readinto(self, buffer: Any, /) -> int | None:
        """Read what comes next; how many bytes, or None after `end`.

        Raises
        ------
        TimeoutError
            It came too late.
        """
        if self._is_over:
            return None
        left_seconds, silence_seconds = self._until - time.monotonic(), self._silence_seconds
        if left_seconds <= 0:
            raise TimeoutError(*_TIMED_OUT)
        # To tell the socket costs something, and only matters towards the end.
        is_short = left_seconds < silence_seconds / 2
        if is_short or self._is_short:
            self._sock.settimeout(left_seconds if is_short else silence_seconds)
            self._is_short = is_short
        num_bytes = self._raw.readinto(buffer)
        self.is_ended = num_bytes == 0
        return num_bytes
