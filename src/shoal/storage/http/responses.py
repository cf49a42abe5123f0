"""Http answers, read until a deadline and until their end is certain: then the next bytes must be another answer.

The standard library's client reads them, and would mistake bytes before, behind or instead of an answer for one. It
parses the fields of a head as those of an e-mail, in full generality, for a third of the CPU time of a GET: so ordinary
heads are parsed here in one step, and anything unusual is left to it.
"""

from __future__ import annotations

import io
import math
import re
import time
from http.client import SWITCHING_PROTOCOLS, HTTPException, HTTPMessage, HTTPResponse
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import socket


_BUFFER_BYTES = 8192  # for heads, and for the end of a body
# A body has the silence limit, and more if it is large: this many bytes a second are slow for any server.
_LEAST_BYTES_PER_SECOND = 64 << 10
_MOMENT_SECONDS = 0.02
_MOST_FIELDS = 100  # the limit of the standard library
_HEAD = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\r\n\0]*)?\r\n((?:[!-9;-~]+:[^\r\n\0]*\r\n)+)\r\n").match
_FIELD = re.compile(r"([^:]+):[ \t]*([^\r]*)\r\n").findall
_LENGTH = re.compile(r"[0-9]{1,19}").fullmatch
_CHANGE_THE_END = ("transfer-encoding", "trailer", "upgrade")
_WITHOUT_BODY = (204, 304)


class PlainHead(NamedTuple):
    """The head of an answer whose body has a stated length."""

    num_bytes: int  # of the head itself
    status: int
    fields: dict[str, str]  # by names in lower case, each of which came once
    length: int  # of the body
    will_close: bool


def plain_head(data: bytes) -> PlainHead | None:
    """Parse the head at the start of ``data``; None if it is incomplete, unusual, or wrong in any way.

    Plain are answers of HTTP/1.1 with a body of a known length, whose fields take one line each and come once.
    """
    found = _HEAD(data)
    if found is None:
        return None
    status, lines = int(found[1]), _FIELD(found[2].decode("latin-1"))
    fields = {name.lower(): text for name, text in lines}
    length = fields.get("content-length", "")
    if len(fields) != len(lines) or len(lines) > _MOST_FIELDS or not _LENGTH(length):
        return None
    if status in _WITHOUT_BODY or any(name in fields for name in _CHANGE_THE_END):
        return None
    will_close = "close" in fields.get("connection", "").lower()
    return PlainHead(found.end(), status, fields, int(length), will_close)


class TimedReads(io.RawIOBase):
    """Reads from a socket, whose file is ``raw``, until a deadline for a head, or for the requested bytes of a body.

    A limit for silence alone does not end a server that sends a byte now and then. So each read is limited to the time
    left: any waiting thread gives up by itself, and no watchdog is needed. ``is_ended``: a read has met the end.
    """

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._silence_seconds = math.inf if (seconds := sock.gettimeout()) is None else seconds
        self._is_short = self._is_over = self.is_ended = False
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
        """Read the next bytes; return their number, or None after `end`; raise `TimeoutError` if they are late."""
        if self._is_over:
            return None
        left_seconds, silence_seconds = self._until - time.monotonic(), self._silence_seconds
        if left_seconds <= 0:
            msg = "timed out"  # the socket's own wording
            raise TimeoutError(msg)
        # Setting the socket's timeout costs something, and only matters towards the end.
        is_short = left_seconds < silence_seconds / 2
        if is_short or self._is_short:
            self._sock.settimeout(left_seconds if is_short else silence_seconds)
            self._is_short = is_short
        num_bytes = self._raw.readinto(buffer)
        self.is_ended = num_bytes == 0
        return num_bytes


class _Buffered(io.BufferedReader):
    """Bytes that were read from a socket and not yet consumed; ``has_left``: some were left when it was closed."""

    has_left = False

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

    Parts of the body must be read one after the other, without anything else between them. ``is_in_step``: all
    requested bytes of the body came, so the connection's position in it is known. ``fields`` are those of the head by
    names in lower case; different values of a repeated one are joined by commas.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = TimedReads(sock, self.fp.detach())
        self.fp = self._buffered = _Buffered(self._timed)
        self._is_begun = False
        self.is_in_step = True
        self.fields: dict[str, str] = {}

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
        for name, text in self.headers.items():
            if self.fields.setdefault(key := name.lower(), text) != text:
                self.fields[key] += f", {text}"
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
