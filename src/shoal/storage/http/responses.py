"""Http answers, read until their end is certain: the next bytes on the connection must be another answer.

The standard library's client reads them, and would mistake bytes before, behind or instead of an answer for one.
"""

from __future__ import annotations

import io
from http.client import SWITCHING_PROTOCOLS, HTTPException, HTTPMessage, HTTPResponse
from typing import TYPE_CHECKING, Any

from shoal.storage.http.answer_heads import plain_head
from shoal.storage.http.slow_answers import TimedReads

if TYPE_CHECKING:
    import socket


_BUFFER_BYTES = 8192  # for heads, and for the end of a body


class _Buffered(io.BufferedReader):
    """Bytes that were read from a socket and not yet consumed."""

    has_left = False
    """True if bytes were left in it when it was closed."""

    def __init__(self, timed: TimedReads) -> None:
        super().__init__(timed, _BUFFER_BYTES)
        self._timed = timed

    def close(self) -> None:
        if not self.closed:
            self._timed.end()
            self.has_left = bool(self.peek(1))
        super().close()


class Response(HTTPResponse):
    """An answer with deadlines: the silence limit for its head, and that and more if it is large for its whole body.

    Pieces of the body must be read one after the other, without anything else between them.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = TimedReads(sock, self.fp.detach())
        self.fp = self._buffered = _Buffered(self._timed)
        self._is_begun = False
        self.is_in_step = True
        """True if all requested bytes of the body came, so the connection's position in it is known."""
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
        self.headers = self.msg = HTTPMessage()  # left empty and unused: filling it is what takes so long

    def _begin_unusual(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != SWITCHING_PROTOCOLS:
            # The library skips status 100 only, and takes other 1xx for the answer, which comes later.
            self.headers = self.msg = None  # type: ignore[assignment]  # the state before `begin`
            super().begin()
        if self._timed.is_ended:  # the library would take this for the end of the head, and half a number for a number
            msg = "the head of the answer broke off"
            raise HTTPException(msg)
        if self.status == SWITCHING_PROTOCOLS:
            msg = "the server switched to another protocol, which nobody asked for"
            raise HTTPException(msg)
        self.fields = _joined(self.headers)
        encoding = self.fields.get("transfer-encoding", "identity")
        if not self.chunked and encoding.strip().lower() != "identity":
            msg = f"the server sent an answer with Transfer-Encoding: {encoding}, which is not understood"
            raise HTTPException(msg)  # the library would take the chunk framing for the body

    def read(self, amt: int | None = None) -> bytes:
        """Return up to ``amt`` bytes of the body, or all of it."""
        self._allow((self.length or 0) if amt is None else amt)
        data = super().read(amt)
        self.is_in_step = True
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes of the body into a buffer; return their number."""
        self._allow(len(buffer))
        num_bytes = super().readinto(buffer)
        self.is_in_step = True
        return num_bytes

    def is_at_end(self) -> bool:
        """Return True if the body ends here, and the next bytes on its connection are another answer.

        To be called when all wanted bytes were read, with no read after it. A chunked body has a last chunk without
        bytes, which comes with the others or not at all.
        """
        if self.is_in_step and self.chunked and not self.isclosed():
            self._timed.hurry()
            try:
                super().read(1)
            except (OSError, HTTPException, ValueError):
                return False
        # The library also closes an answer that broke off, and the bytes after that are no answer.
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
    """Return fields by names in lower case; different values of a repeated field are joined by commas."""
    found: dict[str, str] = {}
    for name, text in headers.items():
        key = name.lower()
        if found.setdefault(key, text) != text:
            found[key] += f", {text}"
    return found
