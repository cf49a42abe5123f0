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
from typing import Any

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


def exchange_in_python(
    sock: socket.socket, request: bytes, buffer: memoryview, *, is_kept: bool, silence_seconds: float, until: float
) -> tuple[bytes, int] | None:
    """Send a request, and receive its response; None if something came over a kept connection before the request.

    Return the head of the response with its empty line, and the number of bytes of the body, which are in the buffer.
    A response is plain if its head is short, has the status 200 or 206, one Content-Length that is the size of the
    buffer, and no Transfer-Encoding. Otherwise, or if a head breaks off, return all that was received and -1.

    Raises `OSError`; `TimeoutError` after a silence of ``silence_seconds``, or at the time ``until``
    (`time.monotonic`).
    """
    if is_kept and not is_idle(sock):
        return None
    _set_timeout(sock, silence_seconds, until)
    sock.sendall(request)
    head, length = b"", 0
    while not length and len(head) < _MOST_HEAD_BYTES:
        _set_timeout(sock, silence_seconds, until)
        more = sock.recv(_MOST_HEAD_BYTES - len(head))
        if not more:
            return head, -1
        head += more
        length = head.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in head else 0
    num_bytes = len(head) - length
    if not length or num_bytes > len(buffer) or _plain_length(head[:length]) != len(buffer):
        return head, -1
    buffer[:num_bytes] = head[length:]
    try:
        while num_bytes < len(buffer):
            _set_timeout(sock, silence_seconds, until)
            _wake_after(sock, min(len(buffer) - num_bytes, _PIECE_BYTES))
            received = sock.recv_into(buffer[num_bytes:])
            if not received:
                break
            num_bytes += received
    finally:
        _wake_after(sock, 1)
    return head[:length], num_bytes


def exchange_compiled(
    sock: socket.socket, request: bytes, buffer: memoryview, *, is_kept: bool, silence_seconds: float, until: float
) -> tuple[bytes, int] | None:
    """Do the same as `exchange_in_python`, in one call without the interpreter's lock."""
    received: tuple[bytes, int] | None = _module.exchange(
        sock.fileno(), is_kept, request, buffer, silence_seconds, until
    )
    return received


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


def _set_timeout(sock: socket.socket, silence_seconds: float, until: float) -> None:
    left_seconds = until - time.monotonic()
    if left_seconds <= 0:
        msg = "timed out"  # the socket's own wording
        raise TimeoutError(msg)
    if sock.gettimeout() != (seconds := min(left_seconds, silence_seconds)):
        sock.settimeout(seconds)  # gives up the interpreter's lock


def _wake_after(sock: socket.socket, num_bytes: int) -> None:
    """Wake this thread once so many bytes have come, or the connection has ended: each waking costs much."""
    if _LEAST_AT_ONCE is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _LEAST_AT_ONCE, num_bytes)
