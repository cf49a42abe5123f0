"""Answers that come too slowly are given up: a limit for silence does not end a server that sends a byte now and then.

Each read from the socket is given what is left of the time of the whole head, or of all that was asked for
of a body. So whoever waits gives up by itself, in whatever thread, and nobody has to look after it.

A body can also be read into memory that is there already (`read_into`), which urllib3 has no way of doing.
"""

from __future__ import annotations

import io
import math
import time
from contextvars import ContextVar
from functools import lru_cache
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

__all__ = ["TimedResponse", "read_into", "timed_pools"]

# A body has the time of a silence, and more if it is large: this many bytes a second are slow for anybody.
_LEAST_BYTES_PER_SECOND = 64 << 10
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

    def close(self) -> None:
        super().close()
        self._raw.close()

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

    def read(self, amt: int | None = None) -> bytes:
        """Up to so many bytes of the body, or all of it; a view of where they are, where `read_into` asks."""
        num_bytes = (self.length or 0) if amt is None else amt
        if self._is_begun:
            self._timed.allow_more(num_bytes)
        else:
            self._timed.allow(num_bytes)
            self._is_begun = True
        place = _place.get()
        if place is None:
            return super().read(amt)
        _place.set(None)
        return place[: self.readinto(place)]  # type: ignore[return-value]  # urllib3 counts it, and hands it on


def read_into(response: Any, buffer: memoryview) -> int:
    """Read the next bytes of a body into a buffer, by way of urllib3; how many there were, fewer only at its end.

    From the socket to where they belong: a piece of its own for each, copied then, took a third more processor time.
    """
    token = _place.set(buffer)
    try:
        data = response.read(len(buffer), decode_content=False)
        if _place.get() is not None:  # an answer of another kind
            buffer[: len(data)] = data
    finally:
        _place.reset(token)
    return len(data)


# Where the next read of this thread is to go.
_place: ContextVar[memoryview | None] = ContextVar("shoal.place", default=None)


@lru_cache(maxsize=1)
def timed_pools() -> dict[str, Any]:
    """The classes of urllib3's pools of connections, with such answers; by scheme."""
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool  # noqa: PLC0415  # optional

    found = {}
    for scheme, pool in (("http", HTTPConnectionPool), ("https", HTTPSConnectionPool)):
        connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": TimedResponse})
        found[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": connection})
    return found
