"""Connections of one process to http servers, reused between requests; and the errors of those that fail or break.

The standard library's client makes them. They belong to the process that made them: sockets shared over a fork gave
wrong bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection, InvalidURL, RemoteDisconnected
from typing import Any, Self, cast
from urllib.parse import urlsplit

from shoal.errors import StorageError, UsageError
from shoal.storage.http.http_options import PROXY_HINT, HttpOptions, proxy_authorization
from shoal.storage.http.responses import Response
from shoal.storage.storage_errors import trimmed
from shoal.storage.urls import redacted, secrets_in, without_secrets

# More than any stream uses at a time: connections beyond this are closed after one use.
_MAX_IDLE_PER_HOST = 256
_MAX_HOSTS = 256
_DRAINED_BYTES = 4096  # reading up to this many unwanted bytes is cheaper than another connection


class NoConnectionError(OSError):
    """A failure to connect, for a ``reason``; ``proxy`` is the host of the proxy used, or empty."""

    def __init__(self, reason: OSError, proxy: str) -> None:
        super().__init__(*reason.args)
        self.reason, self.proxy = reason, proxy


class Connections:
    """Connections to all requested hosts, each used for one answer at a time."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._own = _ProcessState(options)

    def __reduce__(self) -> tuple[object, ...]:
        return Connections, (self._options,)

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Send one GET and return the answer, with its body to be read; redirects and retries are up to the caller.

        Raises `OSError`, `http.client.HTTPException` or `ValueError` as the standard library does; `NoConnectionError`
        if no connection could be made to send it; and `StorageError` if the URL names no host, or the proxy's scheme
        does not work for it.
        """
        begin = url.index("/", url.index("//") + 2)
        route = self._route_to(url[:begin])
        connection = route.connection()
        try:
            connection.request("GET", *route.request_for(url, begin, headers))
            response = connection.getresponse()
            return Answer(connection, cast("Response", response), route)
        except BaseException:
            connection.close()
            raise

    def _route_to(self, origin: str) -> _Route:
        own = self._own
        if own.pid != os.getpid():
            # Never closed here: the parent's sockets must not be touched, not even at the end.
            _inherited.append(own)
            own = self._own = _ProcessState(self._options)
        route = own.routes.get(origin)
        if route is None:
            if len(own.routes) >= _MAX_HOSTS:
                self.close()
            # Two threads may both make one; both use the first that is stored.
            route = own.routes.setdefault(origin, _Route(origin, self._options, own.trust))
        return route

    def secrets(self, url: str) -> list[str]:
        """Return the parts of this URL's proxy setting that must not be shown, also as they are sent to the proxy."""
        proxy = self._options.proxy_for(url)
        words = [*secrets_in(proxy), proxy_authorization(proxy).partition(" ")[2]]
        return [word for word in words if word]

    def close(self) -> None:
        """Close the idle connections of this process."""
        own = self._own
        if own.pid == os.getpid():
            routes, own.routes = own.routes, {}
            for route in routes.values():
                route.close()


_inherited: list[Any] = []


class _ProcessState:
    """State that belongs to the process that made it."""

    def __init__(self, options: HttpOptions) -> None:
        self.pid = os.getpid()
        self.routes: dict[str, _Route] = {}
        # Kept, since certificates are hundreds; threads that ask at once may each read them. Not shared over a fork:
        # OpenSSL keeps locks in it, which another thread may have held.
        self.trust = cache(partial(_trusted_certificates, options.ca_bundle))


def _trusted_certificates(ca_bundle: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Route:
    """The route to one host, direct or by a proxy; and the idle connections to it."""

    def __init__(self, origin: str, options: HttpOptions, trust: Callable[[], ssl.SSLContext]) -> None:
        self._idle: deque[HTTPConnection] = deque()
        self._is_closed = False
        weakref.finalize(self, _close_all, self._idle)
        self._options, self._trust = options, trust
        self._target = _host_and_port(origin)
        proxy = options.proxy_for(origin)
        self._sent_to_proxy = {"Proxy-Authorization": sent} if (sent := proxy_authorization(proxy)) else {}
        self._by_proxy = bool(proxy)
        self._peer = _host_and_port(proxy) if proxy else self._target
        if self._peer[0] not in ("http", "https") or (proxy and self._peer[0] == self._target[0] == "https"):
            msg = f"a proxy by {self._peer[0]} cannot be asked for {self._target[0]}"
            raise StorageError(msg, hint=PROXY_HINT)
        if not self._target[1]:
            msg = f"{origin}/: this URL names no host"
            raise StorageError(msg, hint="http://HOST:PORT/PATH")

    def connection(self) -> HTTPConnection:
        """Return an idle connection that is still open, the last used first; else a new one."""
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if _is_open(connection):
                    return connection
                connection.close()
        scheme, host, port = self._peer
        seconds = self._options.connect_timeout_seconds
        if scheme == "https" or self._target[0] == "https":
            connection = HTTPSConnection(host, port, timeout=seconds, context=self._trust())
        else:
            connection = HTTPConnection(host, port, timeout=seconds)
        if self._by_proxy and self._target[0] == "https":
            connection.set_tunnel(self._target[1], self._target[2], self._sent_to_proxy)
        connection.response_class = Response
        try:
            connection.connect()
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            # A failure of TLS is one of its own, and so is that of the library about a proxy, which has no errno.
            if isinstance(error, ssl.SSLError) or (error.errno is None and not isinstance(error, TimeoutError)):
                raise
            raise NoConnectionError(error, host if self._by_proxy else "") from error
        connection.sock.settimeout(self._options.timeout_seconds)
        return connection

    def keep(self, connection: HTTPConnection) -> None:
        """Keep a connection that is idle now."""
        if len(self._idle) < _MAX_IDLE_PER_HOST:
            self._idle.append(connection)
        else:
            connection.close()
        if self._is_closed:
            _close_all(self._idle)

    def close(self) -> None:
        """Close idle connections, now and later."""
        self._is_closed = True
        _close_all(self._idle)

    def request_for(self, url: str, begin: int, headers: Mapping[str, str]) -> tuple[str, None, Mapping[str, str]]:
        """Return target, body and headers of a request for a URL, whose path begins at ``begin``."""
        if self._by_proxy and self._target[0] == "http":
            return url, None, {**headers, **self._sent_to_proxy}
        return url[begin:], None, headers


class Answer:
    """An answer whose connection is kept if (nearly) all of it was read, and is closed otherwise."""

    def __init__(self, connection: HTTPConnection, response: Response, route: _Route) -> None:
        self._connection, self._response, self._route = connection, response, route
        self.status = response.status
        self.headers = response.fields

    def read(self, most_bytes: int) -> bytes:
        """Return the next bytes of the body, at most ``most_bytes``: a server that never ends costs no memory."""
        return self._response.read(most_bytes)

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes into a buffer; return their number, less than the buffer's size only at the end."""
        return self._response.readinto(buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        response, connection = self._response, self._connection
        left = response.length  # None if unknown
        is_given_up = not response.is_in_step or (kind is not None and not issubclass(kind, Exception))
        if not response.isclosed() and not is_given_up and left is not None and left <= _DRAINED_BYTES:
            with contextlib.suppress(OSError, HTTPException):  # then the connection is unusable
                response.read()
        if response.is_at_end() and connection.sock is not None:
            self._route.keep(connection)
        else:
            response.close()
            connection.close()


def _close_all(idle: deque[HTTPConnection]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            idle.pop().close()


def _is_open(connection: HTTPConnection) -> bool:
    """Return True if nothing arrived since its last answer: it would be the end of the connection, or unrequested."""
    sock = connection.sock
    if sock is None or (isinstance(sock, ssl.SSLSocket) and sock.pending()):
        return False
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    return not ready.poll(0)


def _host_and_port(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port; the library takes part of an IPv6 address for the port, and 443 for a proxy's."""
    parts = urlsplit(url)
    port = parts.port
    return parts.scheme, parts.hostname or "", {"http": 80, "https": 443}.get(parts.scheme) if port is None else port


def connection_failure(error: Exception, path: str, *, verb: str, secrets: Iterable[str] = ()) -> StorageError:
    """Return the error for a failed or broken connection; raise errors of any other kind unchanged."""
    if isinstance(error, StorageError | UsageError):
        return error  # type: ignore[return-value]
    if not isinstance(error, HTTPException | OSError | ValueError):
        raise error
    text = trimmed(redacted(str(error), secrets)) or type(error).__name__
    hint, transient = "is the network up, and the server?", True
    if isinstance(error, ssl.SSLCertVerificationError):
        hint, transient = 'the certificate is not trusted; {"ca_bundle": FILE} in storage_options trusts another', False
    elif isinstance(error, InvalidURL | ValueError):
        hint, transient = "check the URL", False
    elif isinstance(error, NoConnectionError):
        target = f"by the proxy {error.proxy}" if error.proxy else f"to {urlsplit(path).netloc}"
        if isinstance(error.reason, socket.gaierror):
            name = error.proxy or urlsplit(path).hostname
            text, hint = f"the host name {name} is not known", "check the URL, and the network"
        elif isinstance(error.reason, TimeoutError):
            text = f"no connection {target}: the server sent nothing for too long"
            hint = '{"connect_timeout_seconds": ...} in storage_options waits longer'
        else:
            text = f"no connection {target}: {text}"
        hint = PROXY_HINT if error.proxy else hint
    elif isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
        text = f"the answer is not one of http: {text}"
    elif isinstance(error, TimeoutError):
        text, hint = "the server sent nothing for too long", '{"timeout_seconds": ...} in storage_options waits longer'
    elif text.startswith("Tunnel connection failed"):
        hint = PROXY_HINT
    return StorageError(f"could not {verb} {without_secrets(path)}: {text}", hint=hint, transient=transient)
