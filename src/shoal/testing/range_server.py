"""A local HTTP server of byte ranges, with the latency and the faults of a test."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from shoal.errors import UsageError
from shoal.storage.store_protocol import Buffer
from shoal.testing.answers import Answer, Request, answer, head_bytes, parse_request, resolve_range, served
from shoal.testing.faults import Fault, FaultKind, FaultPlan

_AT_ONCE_BYTES = 1 << 18
_MAX_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its response: ``num_bytes`` of the object, from ``first_byte``, sent with ``status``.

    ``status`` is 0 after a reset before the response; ``fault`` is the injected fault.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> with shoal.testing.RangeServer({"a": b"0123"}) as server, urlopen(server.url_of("a")) as answer:
    ...     data = answer.read()
    >>> server.exchanges
    [Exchange(method='GET', path='a', status=200, first_byte=0, num_bytes=4, fault=None)]
    """

    method: str
    path: str
    status: int
    first_byte: int = 0
    num_bytes: int = 0
    fault: FaultKind | None = None


class RangeServer:
    """A threaded HTTP/1.1 server of ``objects`` on the loopback interface, while its context lasts.

    Ranges, HEAD, If-Match, If-None-Match and If-Range follow the standard, and connections are kept alive. A bucket
    (the first part of a path) can be listed as in S3, so that S3 clients without signed requests can use the server.

    Parameters
    ----------
    objects : mapping from path (without a leading slash) to bytes, or a directory
        A mapping may change while the server runs: a replaced object has another etag.
    faults : sequence of Fault
        Faults to inject; may be reassigned while the server runs.
    seed : int
        Seed of the faults.
    latency_seconds : float
        Delay before each response.
    bytes_per_second : float, optional
        Bandwidth limit of each connection.

    Attributes
    ----------
    exchanges : list of Exchange
        Requests and responses, in the order in which the responses began.
    peak_concurrency : int
        The most requests in flight at a time; a request counts until the last part of its response is sent.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> from urllib.error import HTTPError
    >>> with shoal.testing.RangeServer({"a": b"0123"}, faults=[shoal.testing.Fault("status", requests=[0])]) as server:
    ...     for _ in range(2):
    ...         try:
    ...             with urlopen(server.url_of("a")) as answer:
    ...                 print(answer.read())
    ...         except HTTPError as error:
    ...             print(error.code)
    ...             error.close()
    503
    b'0123'
    """

    def __init__(
        self,
        objects: Mapping[str, Buffer] | str | os.PathLike[str],
        *,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        latency_seconds: float = 0.0,
        bytes_per_second: float | None = None,
    ) -> None:
        if latency_seconds < 0 or (bytes_per_second is not None and bytes_per_second <= 0):
            arguments = f"latency_seconds={latency_seconds}, bytes_per_second={bytes_per_second}"
            raise UsageError(f"{arguments}: latency must not be negative, and bandwidth must be positive")
        self.latency_seconds = latency_seconds
        self.bytes_per_second = bytes_per_second
        self.exchanges: list[Exchange] = []
        self.peak_concurrency = 0
        self._objects = served(objects)
        self._seed = seed
        self._plan = FaultPlan(faults, seed=seed)
        self._lock = threading.Lock()
        self._num_answering = 0
        self._held_port: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._acceptor: threading.Thread | None = None

    def __enter__(self) -> Self:
        # This socket never listens: it keeps other processes from taking the port while the server is down.
        self._held_port = _bound(0)
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        if self._held_port is not None:
            self._held_port.close()
            self._held_port = None

    @property
    def port(self) -> int:
        """Port, fixed while the context lasts."""
        if self._held_port is None:
            msg = "the server is not running"
            raise UsageError(msg, hint="use it as a context manager: with RangeServer(...) as server:")
        return int(self._held_port.getsockname()[1])

    @property
    def url(self) -> str:
        """Base URL, ``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    def url_of(self, path: str) -> str:
        """Return the URL of one object."""
        return f"{self.url}/{quote(path)}"

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults to inject; assignment resets the counts of requests."""
        return self._plan.faults

    @faults.setter
    def faults(self, faults: Sequence[Fault]) -> None:
        self._plan = FaultPlan(faults, seed=self._seed)

    def down(self) -> None:
        """Break all connections and refuse new ones, like a dead server; the port is kept."""
        self._stopping.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                # close() is not enough: a forked child may hold the socket, and accept connections without an answer.
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        if self._acceptor is not None:
            self._acceptor.join()
            self._acceptor = None
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections.values():
            thread.join()

    def up(self) -> None:
        """Accept connections again at the same port."""
        if self._listener is not None:
            return
        listener = _bound(self.port)
        listener.listen(512)
        self._listener = listener
        self._stopping = threading.Event()
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener, self._stopping), name="range-server", daemon=True
        )
        self._acceptor.start()

    def clear(self) -> None:
        """Forget the exchanges so far."""
        with self._lock:
            self.exchanges = []
            self.peak_concurrency = 0

    def num_requests(self, path: str | None = None, *, method: str | None = None) -> int:
        """Count the requests received, for all paths or one, of all methods or one."""
        return sum(path in (None, seen.path) and method in (None, seen.method) for seen in list(self.exchanges))

    def num_bytes(self, path: str | None = None) -> int:
        """Count the body bytes sent, for all paths or one."""
        return sum(seen.num_bytes for seen in list(self.exchanges) if path in (None, seen.path))

    def num_faults(self) -> dict[FaultKind, int]:
        """Count the faults of each kind that happened."""
        return dict(Counter(seen.fault for seen in list(self.exchanges) if seen.fault is not None))

    def _accept(self, listener: socket.socket, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(
                target=self._serve, args=(connection, stopping), name="range-server-connection", daemon=True
            )
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket, stopping: threading.Event) -> None:
        rest = b""
        try:
            with connection, contextlib.suppress(OSError, ValueError):
                while not stopping.is_set():
                    request, rest = receive(connection, rest)
                    if request is None or not self._exchange(request, connection, stopping):
                        return
        finally:
            with self._lock:
                self._connections.pop(connection, None)

    def _exchange(self, request: Request, connection: socket.socket, stopping: threading.Event) -> bool:
        """Answer one request; return True if the connection stays open."""
        with self._lock:
            self._num_answering += 1
            self.peak_concurrency = max(self.peak_concurrency, self._num_answering)
        with contextlib.ExitStack() as under_way:
            under_way.callback(self._count_answered)
            first, end = resolve_range(request.headers.get("range"), 1 << 62) or (0, 0)
            mishap = self._plan.draw(request.path, first, end)
            delivery = Delivery(
                answer(request, self._objects, mishap),
                mishap.fault if mishap else None,
                has_body=request.method != "HEAD",
                bytes_per_second=self.bytes_per_second,
                connection=connection,
                stopping=stopping,
            )
            delivery.wait(self.latency_seconds)
            # Log the request, and end its flight, before the client can have the whole response: a test may check right
            # after a response, and consecutive requests must not count as concurrent.
            self.exchanges.append(delivery.exchange(request))
            delivery.send(before_last=under_way.close)
        return delivery.keeps_alive and request.keeps_alive

    def _count_answered(self) -> None:
        with self._lock:
            self._num_answering -= 1


def _bound(port: int) -> socket.socket:
    """Return a socket bound to a loopback port (0: any) that other sockets of this server may share."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.settimeout(0.5)  # some systems do not wake accept() when a listening socket is shut down
    except BaseException:
        bound.close()
        raise
    return bound


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
    """Return the next request and the bytes after it; None if the client has left. Raises `ValueError`: bad bytes."""
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
