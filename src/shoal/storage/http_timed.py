"""Answers that come too slowly are given up: a limit for silence does not end a server that sends a byte now and then.

Each read from the socket is given what is left of the time of the whole head, or of all that was asked for
of a body. So whoever waits gives up by itself, in whatever thread, and nobody has to look after it.
"""

from __future__ import annotations

import io
import math
import time
from http.client import SWITCHING_PROTOCOLS, HTTPException, HTTPMessage, HTTPResponse
from typing import TYPE_CHECKING, Any

from shoal.storage.http_heads import plain_head

if TYPE_CHECKING:
    import socket

__all__ = ["TimedResponse"]

# A body has the time of a silence, and more if it is large: this many bytes a second are slow for anybody.
_LEAST_BYTES_PER_SECOND = 64 << 10
_MOMENT_SECONDS = 0.02
_TIMED_OUT = ("timed out",)  # as the socket says it
_BUFFER_BYTES = 8192  # of heads, and of the last of a body


class _TimedReads(io.RawIOBase):
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
        return True

    def hurry(self) -> None:
        """What is not here within a moment is not waited for."""
        self._until = time.monotonic() + _MOMENT_SECONDS

    def end(self) -> None:
        """From now on nothing is there to be read, and nothing is waited for."""
        self._is_over = True

    def close(self) -> None:
        super().close()
        self._raw.close()
        if self._is_short and self._sock.fileno() >= 0:  # the next answer has the time of a whole silence again
            self._sock.settimeout(None if self._silence_seconds == math.inf else self._silence_seconds)

    def readinto(self, buffer: Any, /) -> int | None:
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


class _Buffered(io.BufferedReader):
    """What was read from a socket and nobody took yet."""

    has_left = False
    """Once it is closed: whether something was left in it."""

    def __init__(self, timed: _TimedReads) -> None:
        super().__init__(timed, _BUFFER_BYTES)
        self._timed = timed

    def close(self) -> None:
        if not self.closed:
            self._timed.end()
            self.has_left = bool(self.peek(1))
        super().close()


class TimedResponse(HTTPResponse):
    """An answer whose head has the time of a silence, and its body that and more if it is large, in all its pieces.

    Pieces are to be read one after the other, without anything else between them.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = _TimedReads(sock, self.fp.detach())
        self.fp = self._buffered = _Buffered(self._timed)
        self._is_begun = False
        self.is_in_step = True
        """Whether all that was asked for of the body came, so that it is known where in it the connection is."""
        self.fields: dict[str, str] = {}
        """The fields of the head by names in small letters; of one that comes several times, all that it says."""

    def begin(self) -> None:
        """Read the head: its status, `fields`, and where the body ends."""
        head = plain_head(self.fp.peek(1))
        if head is None:
            self._begin_unusual()
            return
        self.fp.read(head.num_bytes)
        self.version, self.status, self.fields = 11, head.status, head.fields
        self.chunked, self.length, self.will_close = False, head.length, head.will_close
        self.headers = self.msg = HTTPMessage()  # which nobody asks: making them is what takes so long

    def _begin_unusual(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != SWITCHING_PROTOCOLS:
            # Of what is said beforehand the library only knows 100, and takes others for the answer, which comes later.
            self.headers = self.msg = None  # type: ignore[assignment]  # as it was before it began
            super().begin()
        if self._timed.is_ended:  # which the library takes for the end of the head, and half a number for a number
            msg = "the head of the answer broke off"
            raise HTTPException(msg)
        if self.status == SWITCHING_PROTOCOLS:
            msg = "the server switched to another protocol, which nobody asked for"
            raise HTTPException(msg)
        self.fields = _joined(self.headers)
        encoding = self.fields.get("transfer-encoding", "identity")
        if not self.chunked and encoding.strip().lower() != "identity":
            msg = f"the server sent an answer with Transfer-Encoding: {encoding}, which is not understood"
            raise HTTPException(msg)  # the library would take the frames of chunks for the body

    def read(self, amt: int | None = None) -> bytes:
        """Up to so many bytes of the body, or all of it."""
        self._allow((self.length or 0) if amt is None else amt)
        data = super().read(amt)
        self.is_in_step = True
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes of the body to where they belong; how many there were."""
        self._allow(len(buffer))
        num_bytes = super().readinto(buffer)
        self.is_in_step = True
        return num_bytes

    def is_at_end(self) -> bool:
        """Whether the body ends here, and what comes next on its connection is another answer.

        To be called when all that is wanted was read, and nothing more after it.
        One that comes in chunks has a last one without bytes, which comes with the others or not at all.
        """
        if self.is_in_step and self.chunked and not self.isclosed():
            self._timed.hurry()
            try:
                super().read(1)
            except (OSError, HTTPException, ValueError):
                return False
        # The library also closes what broke off, and what follows that is no answer.
        is_whole = self.is_in_step and self.isclosed() and (self.chunked or self.length == 0)
        return is_whole and not self._buffered.has_left

    def _allow(self, num_bytes: int) -> None:
        self.is_in_step = False
        if self._is_begun:
            self._timed.allow_more(num_bytes)
        else:
            self._timed.allow(num_bytes)
            self._is_begun = True


def _joined(headers: HTTPMessage) -> dict[str, str]:
    """Fields by names in small letters; what says twice the same says it once."""
    found: dict[str, str] = {}
    for name, text in headers.items():
        key = name.lower()
        if found.setdefault(key, text) != text:
            found[key] += f", {text}"
    return found
