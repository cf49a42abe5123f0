"""One request and its response over a socket: one function call, and most bytes go straight to their buffer.

Threads that read from a store compete for the interpreter's lock. The compiled `exchange` takes the lock once for a
response, where libcurl's callbacks take it for each line of the head and each 16 KiB of the body. Without a compiler
`exchange_in_python` does the same, and takes the lock a few times. The functions know only plain responses;
`plain_client.py` reads all others by the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import time
from typing import Any, NamedTuple

try:
    from shoal.storage.http import _exchange

    _module: Any = _exchange
except ImportError:  # no compiler was there, and no wheel for this platform
    _module = None
if os.environ.get("SHOAL_PURE_PYTHON", "0") not in ("", "0"):
    _module = None

_MOST_HEAD_BYTES = 8192
_PIECE_BYTES = 128 << 10
_LEAST_AT_ONCE: int | None = getattr(socket, "SO_RCVLOWAT", None)
_PLAIN_HEAD = re.compile(rb"HTTP/1\.1 20[06](?: [^\r\n]*)?\r\n(?:[!-9;-~]+:[^\r\n]*\r\n)*\r\n")
_PLAIN_LENGTH = re.compile(rb" *([0-9]{1,18})")


class Exchanged(NamedTuple):
    """The head of a response with its empty line, and its body.

    ``num_bytes`` bytes of a plain body are in the buffer, or at the beginning of ``body`` if there was no buffer. If
    ``num_bytes`` is -1, the response is not plain, or its head broke off: ``head`` is all that was received.
    """

    head: bytes
    num_bytes: int
    body: bytes


class Limits(NamedTuple):
    """The longest silence in seconds, and the end of an exchange (`time.monotonic`)."""

    silence_seconds: float
    until_seconds: float


def exchange_in_python(
    sock: socket.socket, request: bytes, buffer: memoryview | None, num_bytes: int, limits: Limits, *, is_kept: bool
) -> Exchanged | None:
    """Send a request, and receive its response; None if something came over a kept connection before the request.

    A response is plain if its head is short, has the status 200 or 206, one Content-Length that is ``num_bytes``, and
    no Transfer-Encoding. The ``buffer`` has ``num_bytes`` bytes.

    Raises `OSError`; `TimeoutError` if a limit is reached.
    """
    if is_kept and not is_idle(sock):
        return None
    _set_timeout(sock, limits)
    sock.sendall(request)
    head, length = b"", 0
    while not length and len(head) < _MOST_HEAD_BYTES:
        _set_timeout(sock, limits)
        more = sock.recv(_MOST_HEAD_BYTES - len(head))
        if not more:
            return Exchanged(head, -1, b"")
        head += more
        length = head.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in head else 0
    num_received = len(head) - length
    if not length or num_received > num_bytes or _plain_length(head[:length]) != num_bytes:
        return Exchanged(head, -1, b"")
    body = memoryview(bytearray(num_bytes)) if buffer is None else buffer
    body[:num_received] = head[length:]
    try:
        while num_received < num_bytes:
            _set_timeout(sock, limits)
            _wake_after(sock, min(num_bytes - num_received, _PIECE_BYTES))
            more_bytes = sock.recv_into(body[num_received:])
            if not more_bytes:
                break
            num_received += more_bytes
    finally:
        _wake_after(sock, 1)
    return Exchanged(head[:length], num_received, bytes(body) if buffer is None else b"")


def exchange_compiled(
    sock: socket.socket, request: bytes, buffer: memoryview | None, num_bytes: int, limits: Limits, *, is_kept: bool
) -> Exchanged | None:
    """Do the same as `exchange_in_python`, in one call without the interpreter's lock."""
    most_seconds = limits.until_seconds - time.monotonic()
    exchanged = _module.exchange(
        sock.fileno(), is_kept, request, buffer, num_bytes, limits.silence_seconds, most_seconds
    )
    return None if exchanged is None else Exchanged(*exchanged)


is_compiled = _module is not None
"""True if the module is used."""

exchange = exchange_compiled if is_compiled else exchange_in_python


def is_idle(sock: socket.socket) -> bool:
    """Return True if nothing has arrived since the last response; new bytes are unrequested, or end the connection."""
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    return not ready.poll(0)


def plain_fields(head: bytes) -> tuple[int, dict[str, str]] | None:
    r"""Return status and fields of a plain head, with unique names in lower case; None if a line is unusual.

    >>> plain_fields(b"HTTP/1.1 206 Partial\r\nETag: 5\r\nVary: a\r\nvary: b\r\n\r\n")
    (206, {'etag': '5', 'vary': 'a, b'})
    >>> plain_fields(b"HTTP/1.1 206 Partial\r\nETag: 5\r\n folded\r\n\r\n") is None
    True
    """
    if _PLAIN_HEAD.fullmatch(head) is None:
        return None
    status_line, *lines = head[:-4].decode("latin-1").split("\r\n")
    fields: dict[str, str] = {}
    for line in lines:
        name, _, text = line.partition(":")
        text = text.lstrip(" \t")
        if fields.setdefault(key := name.lower(), text) != text:
            fields[key] += f", {text}"
    return int(status_line[9:12]), fields


def _plain_length(head: bytes) -> int:
    """Return the Content-Length of a plain head; -1 if the head is not plain."""
    if head[:11] != b"HTTP/1.1 20" or head[11:12] not in (b"0", b"6"):
        return -1
    lengths = [line[14:] for line in head.split(b"\n")[1:] if line[:14].lower() == b"content-length"]
    if len(lengths) != 1 or any(line[:17].lower() == b"transfer-encoding" for line in head.split(b"\n")[1:]):
        return -1
    digits = _PLAIN_LENGTH.fullmatch(lengths[0][1:-1]) if lengths[0][:1] == b":" and lengths[0][-1:] == b"\r" else None
    return int(digits[1]) if digits else -1


def _set_timeout(sock: socket.socket, limits: Limits) -> None:
    left_seconds = limits.until_seconds - time.monotonic()
    if left_seconds <= 0:
        msg = "timed out"  # the socket's own wording
        raise TimeoutError(msg)
    if sock.gettimeout() != (seconds := min(left_seconds, limits.silence_seconds)):
        sock.settimeout(seconds)  # gives up the interpreter's lock


def _wake_after(sock: socket.socket, num_bytes: int) -> None:
    """Wake this thread once so many bytes have come, or the connection has ended: each waking costs much."""
    if _LEAST_AT_ONCE is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _LEAST_AT_ONCE, num_bytes)
