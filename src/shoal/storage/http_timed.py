"""Answers that come too slowly are given up: a limit for silence does not end a server that sends a byte now and then.

Each read from the socket is given what is left of the time of the whole head, or of all that was asked for
of a body. So whoever waits gives up by itself, in whatever thread, and nobody has to look after it.
"""

from __future__ import annotations

import io
import math
import socket
import struct
import sys
import time
from collections.abc import Callable
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, TypeVar

__all__ = ["Allowance", "TimedResponse"]

_Result = TypeVar("_Result")

# A body has the time of a silence, and more if it is large: this many bytes a second are slow for anybody.
_LEAST_BYTES_PER_SECOND = 64 << 10
_MOST_SECONDS = 1e6  # what the system can be told
_WHOLE = socket.MSG_WAITALL if sys.platform == "linux" else 0
_TIMED_OUT = ("timed out",)  # as the socket says it


class Allowance:
    """How long may still be waited for bytes of a socket, where nothing may be silent for ``silence_seconds``.

    A socket of the system's own (no TLS) that blocks is waited for by the system, which fills a whole buffer at one
    call: each call that Python makes lets other threads have the interpreter, and may wait for milliseconds until it
    has it back. One with a timeout of Python's makes two calls for each piece that comes.
    """

    __slots__ = ("_flags", "_is_short", "_silence_seconds", "_sock", "_until")

    def __init__(self, sock: socket.socket, silence_seconds: float | None) -> None:
        self._sock = sock
        self._silence_seconds = math.inf if silence_seconds is None else silence_seconds
        self._is_short = False
        self._flags = _WHOLE if sock.gettimeout() is None else 0
        self.allow(0)

    def allow(self, num_bytes: int) -> None:
        """So many bytes are wanted from now on: they have the time of a silence, and more if they are many."""
        self._until = time.monotonic() + self._silence_seconds + num_bytes / _LEAST_BYTES_PER_SECOND

    def allow_more(self, num_bytes: int) -> None:
        """So many bytes more are wanted after those: no reason for another silence."""
        self._until += num_bytes / _LEAST_BYTES_PER_SECOND

    def check(self) -> None:
        """To be called before each read: it ends in time, or TimeoutError."""
        left_seconds, silence_seconds = self._until - time.monotonic(), self._silence_seconds
        if left_seconds <= 0:
            raise TimeoutError(*_TIMED_OUT)
        # To tell the socket costs something, and only matters towards the end.
        is_short = left_seconds < silence_seconds / 2
        if is_short or self._is_short:
            self._sock.settimeout(left_seconds if is_short else silence_seconds)
            self._is_short = is_short

    def receive(self, num_bytes: int) -> bytes:
        """What has come, at least one byte and at most so many; none where nothing will."""
        return self._in_time(self._sock.recv, num_bytes)

    def read(self, num_bytes: int, came: bytes) -> bytes:
        """So many bytes, of which some came before; fewer where the other side ended."""
        if not self._flags:
            whole = BytesIO()
            whole.seek(num_bytes - 1)
            whole.write(b"\0")  # all of it at once: growing would copy
            with whole.getbuffer() as buffer:
                num_bytes = self.fill(buffer, came)
            whole.truncate(num_bytes)
            return whole.getvalue()  # which is no copy
        pieces, left = [came] if came else [], num_bytes - len(came)
        while left > 0 and (piece := self._in_time(self._sock.recv, left, self._flags)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)  # nor is this, of a single one

    def fill(self, buffer: memoryview, came: bytes) -> int:
        """The same, into a buffer; how many bytes it was."""
        buffer[: len(came)] = came
        num_bytes = len(came)
        while num_bytes < len(buffer) and (
            got := self._in_time(self._sock.recv_into, buffer[num_bytes:], 0, self._flags)
        ):
            num_bytes += got
        return num_bytes

    def _in_time(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        """What a call of the socket gives that ends in time, or TimeoutError."""
        if not self._flags:
            self.check()
            return call(*arguments)
        left_seconds = self._until - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError(*_TIMED_OUT)
        # A call that fills may bring some bytes and then none: only the next one notices that there is silence.
        seconds = min(left_seconds, self._silence_seconds, _MOST_SECONDS)
        whole, part = divmod(max(1, int(seconds * 1_000_000)), 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", whole, part))
        try:
            return call(*arguments)
        except BlockingIOError:
            raise TimeoutError(*_TIMED_OUT) from None

    @staticmethod
    def wait_by_system(sock: socket.socket) -> bool:
        """Have the system wait for this socket from now on; whether it can."""
        if sys.platform != "linux" or type(sock).__module__ != "socket":
            return False
        if sock.gettimeout() is not None:
            sock.settimeout(None)
        return True


class _TimedReads(io.RawIOBase):
    """What comes from a socket, of which ``raw`` is the file, within the time that it has; first what came before."""

    def __init__(self, raw: io.RawIOBase, allowance: Allowance, before: bytes) -> None:
        self._raw, self._allowance, self._before = raw, allowance, before

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self._raw.close()

    def readinto(self, buffer: Any, /) -> int | None:
        if self._before:
            num_bytes = min(len(buffer), len(self._before))
            buffer[:num_bytes], self._before = self._before[:num_bytes], self._before[num_bytes:]
            return num_bytes
        self._allowance.check()
        return self._raw.readinto(buffer)


class TimedResponse(HTTPResponse):
    """An answer whose head has the time of a silence, and its body that and more if it is large, in all its pieces.

    Pieces are to be read one after the other, without anything else between them. ``before`` was read of it already,
    in a part of the time that ``allowance`` gave.
    """

    def __init__(
        self, sock: socket.socket, *args: Any, before: bytes = b"", allowance: Allowance | None = None, **kwargs: Any
    ) -> None:
        super().__init__(sock, *args, **kwargs)
        self._allowance = allowance or Allowance(sock, sock.gettimeout())
        self.fp = io.BufferedReader(_TimedReads(self.fp.detach(), self._allowance, before))
        self._is_begun = False

    def read(self, amt: int | None = None) -> bytes:
        """Up to so many bytes of the body, or all of it."""
        num_bytes = (self.length or 0) if amt is None else amt
        if self._is_begun:
            self._allowance.allow_more(num_bytes)
        else:
            self._allowance.allow(num_bytes)
            self._is_begun = True
        return super().read(amt)
