"""Bodies that come too slowly are given up: a limit for silence does not end a server that sends a byte now and then.

A read that waits cannot look at the clock, so others do: whoever asks next, and the consumer while it waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

__all__ = ["Bodies"]

# A body has the time of a silence, and more if it is large: this many bytes a second are slow for anybody.
_LEAST_BYTES_PER_SECOND = 64 << 10
_LOOKED_EVERY_SECONDS = 0.25


class Bodies:
    """The bodies that some threads of this process are reading, each with the time at which it is given up."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._under_way: dict[int, tuple[float, BaseHTTPResponse]] = {}
        self._looked_seconds = float("-inf")

    def read(self, response: BaseHTTPResponse, num_bytes: int) -> bytes:
        """At most so many bytes of a body; fewer, or an error of urllib3, where they came too slowly."""
        allowed = self._timeout_seconds + num_bytes / _LEAST_BYTES_PER_SECOND
        self._under_way[id(response)] = time.monotonic() + allowed, response
        try:
            return response.read(num_bytes, decode_content=False)
        finally:
            del self._under_way[id(response)]

    def cut_overdue(self) -> None:
        """Break off the bodies whose time is over: their readers, in whatever threads, get what came so far."""
        now = time.monotonic()
        if now < self._looked_seconds + _LOOKED_EVERY_SECONDS:
            return
        self._looked_seconds = now
        for until, response in list(self._under_way.values()):
            if now > until:
                try:
                    response.shutdown()
                except (OSError, RuntimeError, ValueError):
                    continue  # it has just ended
