"""The client for http: one exchange over a socket for each usual response, the standard library for all others.

It is also the client for https if libcurl is not installed. Each process reuses its own connections. The library would
mistake bytes before, after or instead of an answer for the answer, so this module checks its reads: until a deadline,
and to the certain end of a body.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import urlsplit

from shoal.errors import StorageError
from shoal.storage.http.connection_pool import ConnectionPool
from shoal.storage.http.exchange import Limits, exchange, is_idle, plain_fields
from shoal.storage.http.http_client import DRAINED_BYTES, Answer, NoConnectionError, check_head, time_for, wanted_bytes
from shoal.storage.http.http_options import PROXY_HINT, HttpOptions, proxy_authorization

_MOMENT_SECONDS = 0.02


class PlainClient:
    """Client by sockets; see `HttpClient`. Requests by https cannot go to a proxy by https."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._pool: ConnectionPool[_Connection] = ConnectionPool()
        self.close = self._pool.close
        self._trust_of: dict[int, ssl.SSLContext] = {}

    def get(self, url: str, headers: Mapping[str, str], num_bytes: int, buffer: memoryview | None = None) -> Answer:
        """Send one GET, and return the answer; see `HttpClient.get`."""
        origin = url[: (begin := url.index("/", url.index("//") + 2))]
        idle = self._pool.of(origin)
        answer = None
        while answer is None:
            connection = self._connection(origin, idle)
            try:
                answer = connection.get(url[begin:], headers, num_bytes, buffer, self._options.timeout_seconds)
            finally:
                if answer is None or not connection.is_kept:
                    connection.close()
        if connection.is_kept:
            self._pool.keep(origin, idle, connection)
        return answer

    def _connection(self, origin: str, idle: deque[_Connection]) -> _Connection:
        """Return the idle connection that was used last, else a new one."""
        with contextlib.suppress(IndexError):
            return idle.pop()
        proxy, is_tls = self._options.proxy_for(origin), origin.startswith("https:")
        scheme, host, port = _host_and_port(proxy or origin)
        if scheme not in ("http", "https") or (proxy and scheme == "https" and is_tls):
            msg = f"a proxy at {scheme}:// cannot be used for {'https' if is_tls else 'http'}:// requests"
            raise StorageError(msg, hint=PROXY_HINT)
        seconds = self._options.connect_timeout_seconds
        opened: Any = HTTPConnection(host, port, timeout=seconds)
        if is_tls or scheme == "https":
            opened = HTTPSConnection(host, port, timeout=seconds, context=self._trusted())
        sent = {"Proxy-Authorization": basic} if (basic := proxy_authorization(proxy)) else {}
        if proxy and is_tls:
            opened.set_tunnel(*_host_and_port(origin)[1:], sent)
        try:
            opened.connect()
        except OSError as error:
            opened.close()
            # Failures of TLS, and failures of the library about a proxy, which have no errno, stay as they are.
            if isinstance(error, ssl.SSLError) or (error.errno is None and not isinstance(error, TimeoutError)):
                raise
            raise NoConnectionError(error, host if proxy else "") from error
        return _Connection(opened, origin, sent if proxy and not is_tls else None)

    def _trusted(self) -> ssl.SSLContext:
        """Return the trusted certificates, read again after a fork: another thread may have held a lock."""
        if (pid := os.getpid()) not in self._trust_of:
            self._trust_of[pid] = ssl.create_default_context(cafile=self._options.ca_bundle)
            self._trust_of[pid].set_alpn_protocols(["http/1.1"])
        return self._trust_of[pid]


class _Connection:
    """A connection to a server, or to a proxy that is asked for whole URLs with the headers ``sent_to_proxy``."""

    __slots__ = ("_host_line", "_is_used", "_opened", "_request_begin", "_request_end", "_sock", "close", "is_kept")

    def __init__(self, opened: HTTPConnection, origin: str, sent_to_proxy: Mapping[str, str] | None) -> None:
        self._opened, self._sock = opened, cast("socket.socket", opened.sock)
        self.close = opened.close
        scheme, _, host = origin.lower().partition("://")
        host = host.removesuffix(":443" if scheme == "https" else ":80").removesuffix(":")
        self._request_begin = f"GET {'' if sent_to_proxy is None else origin}"
        self._request_end = "".join([f"{name}: {text}\r\n" for name, text in (sent_to_proxy or {}).items()])
        self._host_line = f"Host: {host}\r\n"
        self.is_kept = self._is_used = False

    def get(
        self, target: str, headers: Mapping[str, str], num_bytes: int, buffer: memoryview | None, silence_seconds: float
    ) -> Answer | None:
        """Send one GET, and return the answer; None if something came over a used connection before the request.

        ``is_kept`` is then True if the connection can be used again.
        """
        limits = Limits(silence_seconds, time.monotonic() + time_for(silence_seconds, num_bytes))
        is_used, self._is_used, self.is_kept = self._is_used, True, False
        request = self._request(target, headers)
        received = b""
        if type(self._sock) is socket.socket:
            exchanged = exchange(self._sock, request, buffer, num_bytes, limits, is_kept=is_used)
            if exchanged is None:
                return None
            received, num_received, body = exchanged
            if num_received >= 0:
                if (plain := plain_fields(received)) is not None:
                    status, fields = plain
                    self.is_kept = num_received == num_bytes and "close" not in fields.get("connection", "").lower()
                    return Answer(status, fields, body[:num_received], num_received)
                received += bytes((body if buffer is None else buffer)[:num_received])
        else:
            if is_used and (not is_idle(self._sock) or cast("ssl.SSLSocket", self._sock).pending()):
                return None
            self._sock.settimeout(silence_seconds)
            self._sock.sendall(request)
        with contextlib.closing(_Response(received, limits, self._sock)) as response:
            response.begin()
            answer = response.answer(num_bytes, buffer)
            self.is_kept = response.is_at_end() and not response.will_close
        return answer

    def _request(self, target: str, headers: Mapping[str, str]) -> bytes:
        lines = "".join([f"{name}: {text}\r\n" for name, text in headers.items()])
        host_line = "" if any(name.lower() == "host" for name in headers) else self._host_line
        request = f"{self._request_begin}{target} HTTP/1.1\r\n{host_line}{lines}{self._request_end}\r\n"
        return request.encode("latin-1")


class _Timed(io.RawIOBase):
    """Reads of bytes that were received before, then of ``raw``, the file of a socket, until a time.

    A limit for silence alone does not end a trickle.
    """

    def __init__(self, received: bytes, sock: socket.socket, raw: io.RawIOBase, limits: Limits) -> None:
        self._received, self._sock, self._raw = memoryview(received), sock, raw
        self._silence_seconds, self.until = limits
        self.is_ended = self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if num_bytes := min(len(self._received), len(buffer)):
            buffer[:num_bytes], self._received = self._received[:num_bytes], self._received[num_bytes:]
            return num_bytes
        if self.is_over:
            return None
        left_seconds = self.until - time.monotonic()
        if left_seconds <= 0:
            msg = "timed out"  # the socket's own wording
            raise TimeoutError(msg)
        self._sock.settimeout(min(left_seconds, self._silence_seconds))
        num_bytes = self._raw.readinto(buffer)
        self.is_ended = num_bytes == 0
        return num_bytes

    def close(self) -> None:
        super().close()
        self._raw.close()


class _Buffered(io.BufferedReader):
    """A buffer of received bytes; ``has_left`` is True if some were left at its close."""

    has_left = False

    def close(self) -> None:
        if not self.closed:
            cast("_Timed", self.raw).is_over = True
            self.has_left = bool(self.peek(1))
        super().close()


class _Response(HTTPResponse):
    """An answer with a deadline and strict checks."""

    def __init__(self, received: bytes, limits: Limits, sock: socket.socket) -> None:
        super().__init__(sock, method="GET")
        self._timed = _Timed(received, sock, self.fp.detach(), limits)
        self.fp = self._buffered = _Buffered(self._timed)

    def begin(self) -> None:
        """Read the head: of the statuses before the answer, the library skips only 100."""
        super().begin()
        while 100 <= self.status < 200 and self.status != 101:
            self.headers = self.msg = None  # type: ignore[assignment]  # the state before `begin`
            super().begin()
        if self._timed.is_ended:  # the library would accept half a head, and half a number in it
            raise HTTPException("the head of the answer broke off")

    def answer(self, num_bytes: int, buffer: memoryview | None) -> Answer:
        """Read the first `wanted_bytes` of the body."""
        fields: dict[str, str] = {}
        for name, text in self.headers.items():
            if fields.setdefault(key := name.lower(), text) != text:
                fields[key] += f", {text}"
        check_head(self.status, fields)
        num_wanted = wanted_bytes(self.status, fields, num_bytes)
        is_put = buffer is not None and self.status in (200, 206)
        body = b"" if is_put else self.read(num_wanted)
        num_read = self.readinto(cast("memoryview", buffer)[:num_wanted]) if is_put else len(body)
        if 0 < (self.length or 0) <= DRAINED_BYTES:  # None if unknown
            with contextlib.suppress(OSError, HTTPException):  # then the connection is not kept
                self.read()
        return Answer(self.status, fields, body, num_read)

    def is_at_end(self) -> bool:
        """Return True if the body ends here, and the next bytes on its connection are another answer."""
        if self.chunked and not self.isclosed():
            self._timed.until = (
                time.monotonic() + _MOMENT_SECONDS
            )  # the last chunk comes with the others, or not at all
            try:
                self.read(1)
            except (OSError, HTTPException, ValueError):
                return False
        # The library also closes an answer that broke off; the bytes after it are not an answer.
        return self.isclosed() and (self.chunked or self.length == 0) and not self._buffered.has_left


def _host_and_port(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port; the library misreads IPv6 addresses, and assumes port 443 for a proxy."""
    parts = urlsplit(url)
    port = {"http": 80, "https": 443}.get(parts.scheme) if parts.port is None else parts.port
    return parts.scheme, parts.hostname or "", port
