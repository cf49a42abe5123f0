"""The client for http by the standard library, used if libcurl is not installed.

Each process reuses its own connections. The library would mistake bytes before, after or instead of an answer for the
answer, so this module checks its reads: until a deadline, and to the certain end of a body.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import urlsplit

from shoal.errors import StorageError
from shoal.storage.http.connection_pool import ConnectionPool
from shoal.storage.http.http_client import DRAINED_BYTES, Answer, NoConnectionError, check_head, time_for, wanted_bytes
from shoal.storage.http.http_options import PROXY_HINT, HttpOptions, proxy_authorization

_MOMENT_SECONDS = 0.02


class PlainClient:
    """Client by the standard library; see `HttpClient`. Requests by https cannot go to a proxy by https."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._pool: ConnectionPool[HTTPConnection] = ConnectionPool()
        self.close = self._pool.close
        self._trust_of: dict[int, ssl.SSLContext] = {}

    def get(self, url: str, headers: Mapping[str, str], num_bytes: int, buffer: memoryview | None = None) -> Answer:
        """Send one GET, and return the answer; see `HttpClient.get`."""
        origin = url[: (begin := url.index("/", url.index("//") + 2))]
        idle = self._pool.of(origin)
        connection, silence_seconds = self._connection(origin, idle), self._options.timeout_seconds
        until = time.monotonic() + time_for(silence_seconds, num_bytes)
        connection.response_class = partial(_Response, until, silence_seconds)
        is_kept = False
        try:
            target = url[begin:] if connection.sent_to_proxy is None else url
            connection.request("GET", target, headers={**headers, **(connection.sent_to_proxy or {})})
            with contextlib.closing(connection.getresponse()) as response:
                answer = cast("Answer", response.answer(num_bytes, buffer))
                is_kept = response.is_at_end() and connection.sock is not None
        finally:
            if not is_kept:
                connection.close()
        if is_kept:
            self._pool.keep(origin, idle, connection)
        return answer

    def _connection(self, origin: str, idle: deque[HTTPConnection]) -> Any:
        """Return the open idle connection that was used last, else a new one.

        Its ``sent_to_proxy`` has the headers for a proxy whose requests name the whole URL, else it is None.
        """
        with contextlib.suppress(IndexError):
            while True:
                if _is_open(connection := idle.pop()):
                    return connection
                connection.close()
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
        opened.sent_to_proxy = sent if proxy and not is_tls else None
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
        return opened

    def _trusted(self) -> ssl.SSLContext:
        """Return the trusted certificates, read again after a fork: another thread may have held a lock."""
        if (pid := os.getpid()) not in self._trust_of:
            self._trust_of[pid] = ssl.create_default_context(cafile=self._options.ca_bundle)
            self._trust_of[pid].set_alpn_protocols(["http/1.1"])
        return self._trust_of[pid]


class _Timed(io.RawIOBase):
    """Reads of ``raw``, the file of a socket, until a time: a limit for silence alone does not end a trickle."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, until: float, silence_seconds: float) -> None:
        self._sock, self._raw, self.until, self._silence_seconds = sock, raw, until, silence_seconds
        self.is_ended = self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
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

    def __init__(self, until: float, silence_seconds: float, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = _Timed(sock, self.fp.detach(), until, silence_seconds)
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


def _is_open(connection: HTTPConnection) -> bool:
    """Return True if nothing has arrived since the last response; new bytes are unrequested, or end the connection."""
    ready = select.poll()
    ready.register(connection.sock, select.POLLIN)
    return not ready.poll(0) and not (isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending())


def _host_and_port(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port; the library misreads IPv6 addresses, and assumes port 443 for a proxy."""
    parts = urlsplit(url)
    port = {"http": 80, "https": 443}.get(parts.scheme) if parts.port is None else parts.port
    return parts.scheme, parts.hostname or "", port
