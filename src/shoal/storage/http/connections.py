"""Connections of one process to http servers, made by the standard library's client and reused between requests.

They belong to the process that made them: sockets shared over a fork gave wrong bytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Self, cast
from urllib.parse import urlsplit

from shoal.errors import StorageError
from shoal.storage.http.http_options import HttpOptions
from shoal.storage.http.proxies import PROXY_HINT, authorization_for, proxy_for
from shoal.storage.http.responses import Response
from shoal.storage.urls import secrets_in

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
        self._own = _OfProcess(options)

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Send one GET and return the answer, with its body to be read; redirects and retries are up to the caller.

        Raises
        ------
        OSError, http.client.HTTPException, ValueError
            As the standard library raises them; `NoConnectionError` if no connection could be made to send it.
        StorageError
            The URL names no host, or the proxy's scheme does not work for it.
        """
        begin = url.index("/", url.index("//") + 2)
        route = self._route_to(url[:begin])
        connection = route.connection()
        try:
            connection.request("GET", *route.asked(url, begin, headers))
            response = connection.getresponse()
            return Answer(connection, cast("Response", response), route)
        except BaseException:
            connection.close()
            raise

    def _route_to(self, origin: str) -> _Route:
        own = self._own
        if own.pid != os.getpid():
            # Never closed here: the parent's sockets must not be touched, not even at the end.
            _left_alone.append(own)
            own = self._own = _OfProcess(self._options)
        route = own.routes.get(origin)
        if route is None:
            if len(own.routes) >= _MAX_HOSTS:
                self.close()
            # Two threads may both make one; both use the first that is stored.
            route = own.routes.setdefault(origin, _Route(origin, self._options, own.trust))
        return route

    def secrets(self, url: str) -> list[str]:
        """Return the parts of this URL's proxy setting that must not be shown, also as they are sent to the proxy."""
        proxy = proxy_for(url, self._options)
        words = [*secrets_in(proxy), authorization_for(proxy).partition(" ")[2]]
        return [word for word in words if word]

    def close(self) -> None:
        """Close the idle connections of this process."""
        own = self._own
        if own.pid == os.getpid():
            routes, own.routes = own.routes, {}
            for route in routes.values():
                route.close()


_left_alone: list[Any] = []


class _OfProcess:
    """State that belongs to the process that made it."""

    def __init__(self, options: HttpOptions) -> None:
        self.pid = os.getpid()
        self.routes: dict[str, _Route] = {}
        self.trust = _Trust(options)


class _Trust:
    """Trusted certificates; kept, since they are hundreds. Threads that ask at once may each read them.

    Not shared over a fork: OpenSSL keeps locks in it, which another thread may have held.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            context = ssl.create_default_context(cafile=self._options.ca_bundle)
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        return self._context


class _Route:
    """The route to one host, direct or by a proxy; and the idle connections to it."""

    def __init__(self, origin: str, options: HttpOptions, trust: _Trust) -> None:
        self._idle: deque[HTTPConnection] = deque()
        self._is_closed = False
        weakref.finalize(self, _close_all, self._idle)
        self._options, self._trust = options, trust
        self._goal = _place_of(origin)
        proxy = proxy_for(origin, options)
        self._sent_to_proxy = {"Proxy-Authorization": sent} if (sent := authorization_for(proxy)) else {}
        self._by_proxy = bool(proxy)
        self._place = _place_of(proxy) if proxy else self._goal
        if self._place[0] not in ("http", "https") or (proxy and self._place[0] == self._goal[0] == "https"):
            msg = f"a proxy by {self._place[0]} cannot be asked for {self._goal[0]}"
            raise StorageError(msg, hint=PROXY_HINT)
        if not self._goal[1]:
            msg = f"{origin}/: this is no URL, since it names no host"
            raise StorageError(msg, hint="http://HOST:PORT/PATH")

    def connection(self) -> HTTPConnection:
        """Return an idle connection that is still open, the last used first; else a new one."""
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if _is_open(connection):
                    return connection
                connection.close()
        return self._made()

    def _made(self) -> HTTPConnection:
        scheme, host, port = self._place
        seconds = self._options.connect_timeout_seconds
        if scheme == "https" or self._goal[0] == "https":
            made: HTTPConnection = HTTPSConnection(host, port, timeout=seconds, context=self._trust.context())
        else:
            made = HTTPConnection(host, port, timeout=seconds)
        if self._by_proxy and self._goal[0] == "https":
            made.set_tunnel(self._goal[1], self._goal[2], self._sent_to_proxy)
        made.response_class = Response
        try:
            with _connecting(host if self._by_proxy else ""):
                made.connect()
        except BaseException:
            made.close()
            raise
        made.sock.settimeout(self._options.timeout_seconds)
        return made

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

    def asked(self, url: str, begin: int, headers: Mapping[str, str]) -> tuple[str, None, Mapping[str, str]]:
        """Return target, body and headers of a request for a URL, whose path begins at ``begin``."""
        if self._by_proxy and self._goal[0] == "http":
            return url, None, {**headers, **self._sent_to_proxy}
        return url[begin:], None, headers


@contextlib.contextmanager
def _connecting(proxy: str) -> Iterator[None]:
    """Tell errors of making a connection from those of one that breaks later."""
    try:
        yield
    except TimeoutError as error:
        raise NoConnectionError(error, proxy) from error
    except OSError as error:
        if isinstance(error, ssl.SSLError) or error.errno is None:  # the library's own error, about a proxy
            raise
        raise NoConnectionError(error, proxy) from error


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


def _place_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port; the library takes part of an IPv6 address for the port, and 443 for a proxy's."""
    parts = urlsplit(url)
    port = parts.port
    return parts.scheme, parts.hostname or "", {"http": 80, "https": 443}.get(parts.scheme) if port is None else port
