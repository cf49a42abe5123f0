"""Answers of http, read until their end is known: what comes on the same connection next must be another answer.

The standard library's client reads them, and would take what comes before, behind or instead of an answer for one.
"""

from __future__ import annotations

import io
from http.client import SWITCHING_PROTOCOLS, HTTPException, HTTPMessage, HTTPResponse
from typing import TYPE_CHECKING, Any

from shoal.storage.http.answer_heads import plain_head
from shoal.storage.http.slow_answers import TimedReads

if TYPE_CHECKING:
    import socket

__all__ = ["Response"]

_BUFFER_BYTES = 8192  # of heads, and of the last of a body


class _Buffered(io.BufferedReader):
    """What was read from a socket and nobody took yet."""

    has_left = False
    """Once it is closed: whether something was left in it."""

    def __init__(self, timed: TimedReads) -> None:
        super().__init__(timed, _BUFFER_BYTES)
        self._timed = timed

    def close(self) -> None:
        if not self.closed:
            self._timed.end()
            self.has_left = bool(self.peek(1))
        super().close()


class Response(HTTPResponse):
    """An answer whose head has the time of a silence, and its body that and more if it is large, in all its pieces.

    Pieces are to be read one after the other, without anything else between them.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = TimedReads(sock, self.fp.detach())
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
