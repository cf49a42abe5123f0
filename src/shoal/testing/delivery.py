"""Receives requests and sends responses on a connection, at its speed and with injected faults."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.testing.answers import Answer, Request, head_bytes, parse_request
from shoal.testing.faults import Fault, FaultKind

_AT_ONCE_BYTES = 1 << 18
_MAX_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its response: ``num_bytes`` of the object, from ``first_byte``, sent with ``status``.

    ``status`` is 0 after a reset before the response; ``fault`` is the injected fault.
    """

    method: str
    path: str
    status: int
    first_byte: int = 0
    num_bytes: int = 0
    fault: FaultKind | None = None


class Delivery:
    """One response on its way; ``keeps_alive`` is true if the connection can be used afterwards."""

    def __init__(
        self,
        answer: Answer,
        fault: Fault | None,
        *,
        has_body: bool,
        bytes_per_second: float | None,
        connection: socket.socket,
        stopping: threading.Event,
    ) -> None:
        self._answer, self._fault = answer, fault
        self._kind = fault.kind if fault else None
        self._body = answer.body if has_body and answer.status != 304 else answer.body[:0]
        self._bytes_per_second, self._connection, self._stopping = bytes_per_second, connection, stopping
        shares = {"reset": 0.0, "reset_in_body": 0.5, "truncate": 0.5}
        self._num_bytes = int(len(self._body) * shares.get(self._kind or "", 1.0))
        self.keeps_alive = self._kind not in shares

    def exchange(self, request: Request) -> Exchange:
        """Return the log entry of this response."""
        status = 0 if self._kind == "reset" else self._answer.status
        return Exchange(request.method, request.path, status, self._answer.first_byte, self._num_bytes, self._kind)

    def wait(self, seconds: float) -> None:
        """Sleep; raises ConnectionAbortedError if the server stops meanwhile."""
        if seconds > 0 and self._stopping.wait(seconds):
            raise ConnectionAbortedError("the server stops")

    def send(self, *, before_last: Callable[[], object]) -> None:
        """Send the response as the fault allows; call ``before_last`` before its last part."""
        pause_seconds = self._fault.seconds if self._fault else 0.0
        if self._kind == "slow":
            self.wait(pause_seconds)
        if self._kind != "reset":
            length = {} if self._answer.status == 304 else {"Content-Length": str(len(self._answer.body))}
            head = head_bytes(self._answer.status, {**self._answer.headers, **length})
            sent = self._body[: self._num_bytes]
            if self._kind == "stall":
                half = len(sent) // 2
                self._send_at_rate(head, sent[:half])
                self.wait(pause_seconds)
                head, sent = b"", sent[half:]
            if self._kind == "trickle":
                head, sent = self._trickle(head, sent, pause_seconds)
            if self._kind == "trickle_head":
                _, rest = self._trickle(b"", memoryview(head), pause_seconds)
                head = bytes(rest)
            self._send_at_rate(head, sent, before_last)
        if self._kind in {"reset", "reset_in_body"}:  # close without lingering
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._connection.close()

    def _trickle(self, head: bytes, body: memoryview, pause_seconds: float) -> tuple[bytes, memoryview]:
        """Send all but the last byte, one at a time; return the rest."""
        for first in range(len(body) - 1):
            self._connection.sendall(head + body[first : first + 1])
            head = b""
            self.wait(pause_seconds)
        return head, body[-1:]

    def _send_at_rate(self, head: bytes, body: memoryview, before_last: Callable[[], object] | None = None) -> None:
        """Send the head at once, and the body at the speed of the connection."""
        rate = self._bytes_per_second
        size = _AT_ONCE_BYTES if rate is not None else max(1, len(body))
        start = time.monotonic()
        if before_last and not len(body):
            before_last()
        self._connection.sendall(head)
        for first in range(0, len(body), size):
            part = body[first : first + size]
            if rate is not None:
                self.wait(start + (first + len(part)) / rate - time.monotonic())
            if before_last and first + size >= len(body):
                before_last()
            self._connection.sendall(part)


def receive(connection: socket.socket, rest: bytes) -> tuple[Request | None, bytes]:
    """Return the next request, and the bytes after it; None if the client has left. `ValueError` for other bytes."""
    while b"\r\n\r\n" not in rest:
        more = connection.recv(1 << 16)
        if not more or len(rest) > _MAX_HEAD_BYTES:
            return None, b""
        rest += more
    head, _, rest = rest.partition(b"\r\n\r\n")
    request = parse_request(head)
    while len(rest) < request.num_body_bytes:
        more = connection.recv(1 << 16)
        if not more:
            return None, b""
        rest += more
    return request, rest[request.num_body_bytes :]
