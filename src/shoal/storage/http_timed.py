"""Answers that come too slowly are given up: a limit for silence does not end a server that sends a byte now and then.

Each read from the socket is given what is left of the time of the whole head, or of all that was asked for
of a body. So whoever waits gives up by itself, in whatever thread, and nobody has to look after it.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import TYPE_CHECKING, Any

from shoal.storage.http_heads import plain_head

if TYPE_CHECKING:
    import socket

__all__ = ["TimedResponse"]

# A body has the time of a silence, and more if it is large: this many bytes a second are slow for anybody.
_LEAST_BYTES_PER_SECOND = 64 << 10
_MOMENT_SECONDS = 0.02
_TIMED_OUT = ("timed out",)  # as the socket says it


class _TimedReads(io.RawIOBase):
    """What comes from a socket, of which ``raw`` is the file, until a time is over."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._silence_seconds = math.inf if (seconds := sock.gettimeout()) is None else seconds
        self._is_short = False
        self.allow(0)

    def allow(self, num_bytes: int) -> None:
        """So many bytes are wanted from now on: they have the time of a silence, and more if they are many."""
        self._until = time.monotonic() + self._silence_seconds + num_bytes / _LEAST_BYTES_PER_SECOND

    def allow_more(self, num_bytes: int) -> None:
        """So many bytes more are wanted after those: no reason for another silence."""
        self._until += num_bytes / _LEAST_BYTES_PER_SECOND

    def readable(self) -> bool:
        return True

    def hurry(self) -> None:
        """What is not here within a moment is not waited for."""
        self._until = time.monotonic() + _MOMENT_SECONDS

    def close(self) -> None:
        super().close()
        self._raw.close()
        if self._is_short and self._sock.fileno() >= 0:  # the next answer has the time of a whole silence again
            self._sock.settimeout(None if self._silence_seconds == math.inf else self._silence_seconds)

    def readinto(self, buffer: Any, /) -> int | None:
        left_seconds, silence_seconds = self._until - time.monotonic(), self._silence_seconds
        if left_seconds <= 0:
            raise TimeoutError(*_TIMED_OUT)
        # To tell the socket costs something, and only matters towards the end.
        is_short = left_seconds < silence_seconds / 2
        if is_short or self._is_short:
            self._sock.settimeout(left_seconds if is_short else silence_seconds)
            self._is_short = is_short
        return self._raw.readinto(buffer)


class TimedResponse(HTTPResponse):
    """An answer whose head has the time of a silence, and its body that and more if it is large, in all its pieces.

    Pieces are to be read one after the other, without anything else between them.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = _TimedReads(sock, self.fp.detach())
        self.fp = io.BufferedReader(self._timed)
        self._is_begun = False
        self.fields: dict[str, str] = {}
        """The fields of the head by names in small letters; where one comes twice, the first counts."""

    def begin(self) -> None:
        """Read the head: its status, `fields`, and where the body ends."""
        head = plain_head(self.fp.peek(1))
        if head is None:
            super().begin()
            self.fields = {name.lower(): text for name, text in reversed(self.headers.items())}
            return
        self.fp.read(head.num_bytes)
        self.version, self.status, self.fields = 11, head.status, head.fields
        self.chunked, self.length, self.will_close = False, head.length, head.will_close
        self.headers = self.msg = HTTPMessage()  # which nobody asks: making them is what takes so long

    def read(self, amt: int | None = None) -> bytes:
        """Up to so many bytes of the body, or all of it."""
        self._allow((self.length or 0) if amt is None else amt)
        return super().read(amt)

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes of the body to where they belong; how many there were."""
        self._allow(len(buffer))
        return super().readinto(buffer)

    def is_at_end(self) -> bool:
        """Whether the body ends here; to be called when all that is wanted was read, and nothing more after it.

        One that comes in chunks has a last one without bytes, which comes with the others or not at all.
        """
        if not self.isclosed() and self.chunked:
            self._timed.hurry()
            with contextlib.suppress(OSError, HTTPException):
                super().read(1)
        return self.isclosed()

    def _allow(self, num_bytes: int) -> None:
        if self._is_begun:
            self._timed.allow_more(num_bytes)
        else:
            self._timed.allow(num_bytes)
            self._is_begun = True
