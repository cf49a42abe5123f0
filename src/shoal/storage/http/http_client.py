"""Interface of an HTTP client, and the errors of requests without a response.

A client makes one GET: no redirects, no retries, no knowledge of objects. The client is libcurl for https if pycurl is
installed, else sockets and the standard library.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from http.client import BadStatusLine, HTTPException, InvalidURL, RemoteDisconnected
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from shoal.errors import StorageError, UsageError
from shoal.hints import pip_install
from shoal.storage.http.http_options import PROXY_HINT
from shoal.storage.storage_errors import trimmed
from shoal.storage.urls import redacted, without_secrets

DRAINED_BYTES = 4096  # reading up to this many unwanted bytes is cheaper than another connection
_QUOTED_BYTES = 2000
# The limit for an answer is the silence limit, plus its size at this rate, which is slow for any server.
_LEAST_BYTES_PER_SECOND = 64 << 10
_FRAMINGS = ("", "identity", "chunked")
_SWITCHED = 101
_log = logging.getLogger("shoal")
_said: list[bool] = []


class Answer(NamedTuple):
    """A response that has been read, so its connection is free again.

    Names of ``headers`` are unique and in lower case. ``body`` is empty if the body was read into a buffer;
    ``num_bytes`` bytes of the body were read.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    num_bytes: int


class HttpClient(Protocol):
    """A client with its own connections in each process; threads may share it, and forked children use it."""

    def get(self, url: str, headers: Mapping[str, str], num_bytes: int, buffer: memoryview | None = None) -> Answer:
        """Send one GET, and return the response with the first `wanted_bytes` of its body.

        The requested bytes go into ``buffer``, if given; after an error the contents of ``buffer`` are undefined.
        Raises `OSError`, `http.client.HTTPException` or `ValueError` as the standard library does; `NoConnectionError`
        if no connection could be made; `StorageError` if the proxy cannot be used.
        """

    def close(self) -> None:
        """Close the connections of this process; connections in use close at the end of their response."""


class NoConnectionError(OSError):
    """A failure to connect, for a ``reason``; ``proxy`` is the host of the proxy, or empty."""

    def __init__(self, reason: OSError, proxy: str) -> None:
        super().__init__(*reason.args)
        self.reason, self.proxy = reason, proxy


def has_libcurl() -> bool:
    """Return True if the faster client for https is installed."""
    try:
        import pycurl  # noqa: F401, PLC0415  # optional
    except ImportError:
        return False
    return True


def say_what_is_faster() -> None:
    """If libcurl is missing, log once that libcurl is faster."""
    if not _said and not has_libcurl():
        _said.append(True)
        _log.warning(
            "https is read by the standard library's client; libcurl takes less CPU: %s", pip_install("pycurl")
        )


def time_for(silence_seconds: float, num_bytes: int) -> float:
    """Return the timeout for a response of this size: a slower server counts as failed."""
    return silence_seconds + num_bytes / _LEAST_BYTES_PER_SECOND


def wanted_bytes(status: int, headers: Mapping[str, str], num_bytes: int) -> int:
    """Return how much of a body to read: a range, an object of the same length, or the beginning of an error."""
    if status == 206 or (status == 200 and headers.get("content-length", "").strip() == str(num_bytes)):
        return num_bytes
    return _QUOTED_BYTES if status >= 400 else 0


def check_head(status: int, headers: Mapping[str, str]) -> None:
    """Raise `HTTPException` if the bytes after this head are not the body."""
    if status == _SWITCHED:
        raise HTTPException("the server switched to another protocol without a request")
    if (framing := headers.get("transfer-encoding", "")).strip().lower() not in _FRAMINGS or framing.endswith(" "):
        msg = f"the server sent an answer with Transfer-Encoding: {framing}, which is not understood"
        raise HTTPException(msg)  # its frames would look like the body


def _words_of(error: Exception) -> str:
    """Return the message of an error, without the source file and line that OpenSSL adds."""
    # An error of TLS with a text alone prints as the tuple of its arguments.
    text = str(error.args[-1]) if isinstance(error, ssl.SSLError) and error.args else str(error)
    return re.sub(r"^\[SSL[^\]]*\] | \(_ssl\.c:\d+\)$", "", text)


def connection_failure(
    error: Exception, path: str, *, verb: str, secrets: Iterable[str] = (), origin: str = ""
) -> StorageError:
    """Return the error for a failed or broken connection; raise other errors unchanged.

    ``origin`` is the URL of the server if it is not that of ``path``.
    """
    if isinstance(error, StorageError | UsageError):
        return error  # type: ignore[return-value]
    if not isinstance(error, HTTPException | OSError | ValueError):
        raise error
    text = trimmed(redacted(_words_of(error), secrets)) or type(error).__name__
    hint, transient = "is the network up, and the server?", True
    if isinstance(error, ssl.SSLCertVerificationError):
        hint, transient = 'the certificate is not trusted; {"ca_bundle": FILE} in storage_options trusts another', False
    elif isinstance(error, InvalidURL | ValueError):
        hint, transient = "check the URL", False
    elif isinstance(error, NoConnectionError):
        server = urlsplit(origin or path)
        target = f"by the proxy {error.proxy}" if error.proxy else f"to {server.netloc}"
        if isinstance(error.reason, socket.gaierror):
            name = error.proxy or server.hostname
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
    elif "unnel " in text:  # "Tunnel connection failed", "CONNECT tunnel failed"
        hint = PROXY_HINT
    return StorageError(f"could not {verb} {without_secrets(path)}: {text}", hint=hint, transient=transient)
