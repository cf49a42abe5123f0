"""Connections that make short work of requests and answers of the usual kind.

urllib3 connects, keeps connections, and knows all that servers and proxies may do. What it does for a GET whose answer
is a plain 206 takes eight times as long as the system takes to move 100 KB, most of it for headers that are put from
one form into another. On a connection that is open such a request is sent, and such an answer read, without it, from
the socket to where its bytes are to lie. Everything else is left to urllib3: connecting, proxies, and any answer that
is not quite usual, with all that was read of it.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from functools import lru_cache
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from shoal.storage.http_timed import Allowance, TimedResponse

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

__all__ = ["Headers", "QuickAnswer", "quick_pools"]

_HEAD_BYTES = 4096  # read at a time of a head: more of a body that comes with it would be copied once more
_MOST_HEAD_BYTES = 1 << 16
_END = b"\r\n\r\n"
# A line, and headers whose names are names, each in a line of its own without anything that could be read as its end.
_PLAIN = re.compile(rb"HTTP/1\.1 206(?: [\t -~]*)?(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*)*")
_IDLE_SECONDS = 0.05  # so long after an answer a connection is taken to be open still
_SENDABLE = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*")  # which urllib3 would not encode


class Headers(dict[str, str]):
    """Headers of which no two have the same name: by names in lower case, and asked for as they are written."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default."""
        return super().get(name.lower(), default)


class QuickAnswer:
    """A 206 of which the head was read, and so many bytes are to come; to its users a response of urllib3."""

    status = 206

    def __init__(self, connection: Any, allowance: Allowance, headers: Headers, came: bytes) -> None:
        self.headers = headers
        self.length_remaining = int(headers["content-length"])
        self._allowance, self._came = allowance, came
        self._connection = connection
        self._pool: Any = None
        if len(came) > self.length_remaining:
            connection.close()  # it is out of step

    def read(self, num_bytes: int) -> bytes:
        """So many bytes from the begin of the body; raises what urllib3 would. To be called once, or `fill`."""
        self._allowance.allow(num_bytes)
        try:
            whole = self._allowance.read(num_bytes, self._came[:num_bytes])
        except OSError as error:
            raise self._failure(error) from error
        self._count(len(whole), num_bytes)
        return whole

    def fill(self, buffer: memoryview) -> None:
        """The same, into a buffer."""
        self._allowance.allow(len(buffer))
        try:
            num_bytes = self._allowance.fill(buffer, self._came[: len(buffer)])
        except OSError as error:
            raise self._failure(error) from error
        self._count(num_bytes, len(buffer))

    def _count(self, num_bytes: int, num_asked: int) -> None:
        self.length_remaining -= num_bytes
        if num_bytes < num_asked:
            raise self._failure(EOFError(f"it ended {num_asked - num_bytes} bytes before the end of the answer"))

    def _failure(self, error: Exception) -> Exception:
        return _failure(error, self._pool)

    def drain_conn(self) -> None:
        """Close the connection: who wants no answer reads none of it."""
        self.close()

    def release_conn(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.take_back(connection)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _failure(error: Exception, pool: Any) -> Exception:
    """The error that urllib3 would raise for one of a socket."""
    import urllib3.exceptions as kinds  # noqa: PLC0415  # optional, and there

    if isinstance(error, TimeoutError):
        return kinds.ReadTimeoutError(pool, "", "Read timed out.")
    if isinstance(error, ssl.SSLError):
        return kinds.SSLError(error)
    return kinds.ProtocolError(f"Connection broken: {error!r}", error)


@lru_cache(maxsize=1)
def _user_agent() -> str:
    from urllib3._version import __version__  # noqa: PLC0415  # optional, and there

    return f"python-urllib3/{__version__}"


def _usual(head: bytes) -> Headers | None:
    """The headers of a plain 206 of known length whose connection stays; None for everything else."""
    if _PLAIN.fullmatch(head) is None:
        return None
    _, *lines = head.decode("latin-1").split("\r\n")
    headers = Headers()
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    length = headers.get("content-length", "")
    is_usual = (
        len(headers) == len(lines)
        and length.isdecimal()
        and "transfer-encoding" not in headers
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
    )
    return headers if is_usual else None


class _QuickConnection:
    """What a connection of urllib3 can do besides."""

    # Of the connection.
    sock: Any
    host: str
    port: int
    default_port: int
    proxy: Any

    _idle_since_seconds = float("-inf")

    @property
    def is_connected(self) -> bool:
        """Whether it is open, and nothing came that nobody asked for; right after an answer nobody looks."""
        if self.sock is not None and time.monotonic() < self._idle_since_seconds + _IDLE_SECONDS:
            return True
        return bool(super().is_connected)  # type: ignore[misc]

    @property
    def is_quick(self) -> bool:
        """Whether `ask` may be called."""
        return self.sock is not None and self.proxy is None and self.host.isascii() and ":" not in self.host

    def rests(self) -> None:
        """It is given back."""
        self._idle_since_seconds = time.monotonic()

    def ask(
        self, target: str, headers: Mapping[str, str], silence_seconds: float | None
    ) -> BaseHTTPResponse | QuickAnswer:
        """GET, and the head of the answer."""
        sock = self.sock
        if not Allowance.wait_by_system(sock):
            sock.settimeout(silence_seconds)
        sock.sendall(self._request(target, headers))
        allowance, came, end = Allowance(sock, silence_seconds), b"", -1
        while end < 0 and len(came) < _MOST_HEAD_BYTES and (more := allowance.receive(_HEAD_BYTES)):
            came += more
            end = came.find(_END)
        if end >= 0 and (quick := _usual(came[:end])) is not None:
            return QuickAnswer(self, allowance, quick, came[end + len(_END) :])
        sock.settimeout(silence_seconds)
        return self._unusual(TimedResponse(sock, method="GET", before=came, allowance=allowance))

    def _request(self, target: str, headers: Mapping[str, str]) -> bytes:
        """What urllib3 would send; that the headers can be sent, it has seen at the first request."""
        names = {name.lower() for name in headers}
        lines = [f"GET {target} HTTP/1.1"]
        if "host" not in names:
            lines.append(f"Host: {self.host}" + ("" if self.port == self.default_port else f":{self.port}"))
        if "user-agent" not in names:
            lines.append(f"User-Agent: {_user_agent()}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")

    def _unusual(self, answer: TimedResponse) -> BaseHTTPResponse:
        from urllib3 import HTTPHeaderDict, HTTPResponse  # noqa: PLC0415  # optional, and there

        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
        if answer.will_close:
            self.close()  # type: ignore[attr-defined]  # of which the answer keeps what it needs
        return HTTPResponse(
            body=answer,
            headers=HTTPHeaderDict(answer.msg.items()),
            status=answer.status,
            version=answer.version,
            reason=answer.reason,
            preload_content=False,
            decode_content=False,
            original_response=answer,
            request_method="GET",
        )


class _QuickPool:
    """What a pool of urllib3 can do besides."""

    # Of the pool.
    timeout: Any
    _get_conn: Any
    _put_conn: Any
    urlopen: Any

    def get(self, target: str, headers: Mapping[str, str], **options: Any) -> BaseHTTPResponse | QuickAnswer:
        """The head of the answer to one GET, its body to be read; as `urlopen` with these options."""
        connection = self._get_conn()
        if not connection.is_quick or _SENDABLE.fullmatch(target) is None:
            self._put_conn(connection)
            return self.urlopen("GET", target, headers=headers, **options)  # type: ignore[no-any-return]
        try:
            answer = connection.ask(target, headers, self.timeout.read_timeout)
        except BaseException as error:
            connection.close()
            self._put_conn(connection)
            if isinstance(error, OSError | HTTPException):
                raise _failure(error, self) from error
            raise
        answer._connection, answer._pool = connection, self  # noqa: SLF001  # as urllib3 does
        return answer  # type: ignore[no-any-return]

    def take_back(self, connection: Any) -> None:
        """Keep it for the next request, be it open or not."""
        connection.rests()
        self._put_conn(connection)


@lru_cache(maxsize=1)
def quick_pools() -> dict[str, Any]:
    """The classes of urllib3's pools of connections, with such connections; by scheme."""
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool  # noqa: PLC0415  # optional

    found = {}
    for scheme, pool in (("http", HTTPConnectionPool), ("https", HTTPSConnectionPool)):
        usual = pool.ConnectionCls
        connection = type(usual.__name__, (_QuickConnection, usual), {"response_class": TimedResponse})
        found[scheme] = type(pool.__name__, (_QuickPool, pool), {"ConnectionCls": connection})
    return found
