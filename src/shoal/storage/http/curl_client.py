"""The HTTP client by libcurl: a handle for each connection, used by one thread at a time.

A handle runs in the requesting thread, and takes the interpreter's lock only to hand over a piece of an answer. One
thread that drives all handles (libcurl's multi interface) takes a quarter less processor time, but starves beside a
consumer that holds the interpreter's lock (bench/LOG.md).
"""

from __future__ import annotations

import math
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from http.client import BadStatusLine, HTTPException
from typing import Any
from urllib.parse import urlsplit

from shoal.storage.http.connection_pool import ConnectionPool
from shoal.storage.http.http_client import DRAINED_BYTES, Answer, NoConnectionError, check_head, time_for, wanted_bytes
from shoal.storage.http.http_options import HttpOptions

_BUFFER_BYTES = 64 << 10  # of one read by libcurl; larger buffers gain nothing, and each connection has one
_SLICE_SECONDS = 0.2  # Ctrl-C is noticed after at most this
# Error numbers of libcurl.
_NOT_HTTP, _NO_URL, _NO_PROXY, _NO_HOST, _NO_CONNECTION, _ODD_ANSWER, _BROKE_OFF, _TIMED_OUT = 1, 3, 5, 6, 7, 8, 18, 28
_NOT_TRUSTED = 60
_ERRORS: dict[int, Callable[[str], Exception]] = {
    _NOT_HTTP: BadStatusLine,
    _ODD_ANSWER: BadStatusLine,
    _NO_URL: ValueError,
    _NOT_TRUSTED: ssl.SSLCertVerificationError,
}


class CurlClient:
    """Client by libcurl; see `HttpClient`."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._pool: ConnectionPool[_Handle] = ConnectionPool()
        self.close = self._pool.close

    def get(self, url: str, headers: Mapping[str, str], num_bytes: int, buffer: memoryview | None = None) -> Answer:
        """Send one GET, and return the answer; see `HttpClient.get`."""
        # The main thread has its own handles: they keep their connections elsewhere (`_Handle._perform`).
        is_main = threading.current_thread() is threading.main_thread()
        key = origin, _ = url[: url.index("/", url.index("//") + 2)], is_main
        idle = self._pool.of(key)
        try:
            handle = idle.pop()
        except IndexError:
            handle = _Handle(self._options, origin, in_slices=is_main)
        try:
            answer = handle.get(url, headers, time_for(self._options.timeout_seconds, num_bytes), num_bytes, buffer)
        except BaseException:
            handle.close()
            raise
        self._pool.keep(key, idle, handle)
        return answer


class _Receiver:
    """Receiver of an answer from libcurl, without a reference to its handle: no cycle keeps a socket open."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.expect(0, None)

    def expect(self, num_bytes: int, buffer: memoryview | None) -> None:
        """Drop the last answer, and expect the next."""
        self._num_asked, self._buffer = num_bytes, buffer
        self.lines.clear()
        self.chunks: list[bytes] = []
        self.status = self.num_read = self.num_wanted = self._most_bytes = 0
        self.fields: dict[str, str] = {}

    def write(self, data: bytes) -> int:
        """Take the next piece of the body; any result but its size ends the transfer."""
        if not self.status:
            self.read_head()
        num_bytes, begin = len(data), self.num_read
        self.num_read = end = begin + num_bytes
        if end > self.num_wanted:
            end = max(begin, self.num_wanted)
            data = data[: end - begin]
        if self._buffer is None:
            self.chunks.append(data)
        else:
            self._buffer[begin:end] = data
        return num_bytes if self.num_read <= self._most_bytes else -1

    def read_head(self) -> None:
        """Parse the last head in the lines: other heads may precede the answer."""
        heads = [number for number, line in enumerate(self.lines) if line.startswith(b"HTTP/")]
        if not heads or not any(line in (b"\r\n", b"\n") for line in self.lines[heads[-1] :]):
            return
        self.status = int(self.lines[heads[-1]].split(maxsplit=2)[1])
        for line in self.lines[heads[-1] + 1 :]:
            name, colon, text = line.decode("latin-1").rstrip("\r\n").partition(":")
            if not colon:
                break
            text = text.lstrip(" \t")
            if self.fields.setdefault(key := name.lower(), text) != text:
                self.fields[key] += f", {text}"
        self.num_wanted = self._most_bytes = wanted_bytes(self.status, self.fields, self._num_asked)
        if self.status not in (200, 206):
            self._buffer, self._most_bytes = None, max(self.num_wanted, DRAINED_BYTES)

    def has_enough(self, code: int) -> bool:
        """Return True if the answer is usable in spite of this error: complete, or visibly too short."""
        is_right = self.status in (200, 206)
        return self.status > 0 and (not is_right or self.num_read >= self.num_wanted or code == _BROKE_OFF)


class _Handle:
    """A handle of libcurl and its connection."""

    __slots__ = ("_curl", "_multi", "_proxy", "_pycurl", "_receiver", "_target_begin")

    def __init__(self, options: HttpOptions, origin: str, *, in_slices: bool) -> None:
        import pycurl  # noqa: PLC0415  # optional

        self._pycurl = pycurl
        self._curl, self._receiver = pycurl.Curl(), _Receiver()
        self._multi = pycurl.CurlMulti() if in_slices else None
        proxy = options.proxy_for(f"{origin}/")
        self._proxy = urlsplit(proxy).hostname or ""
        is_asked_whole = proxy.startswith("http") and origin.startswith("http:")
        self._target_begin = 0 if is_asked_whole else len(origin)
        for option, value in (
            (pycurl.WRITEFUNCTION, self._receiver.write),
            (pycurl.HEADERFUNCTION, self._receiver.lines.append),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            # One answer at a time by each connection: several would share its window.
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.PROXY, proxy),  # "" for none; `proxy_for` has read the environment
            (pycurl.NOPROXY, ""),
            (pycurl.URL, f"{origin}/"),
            (pycurl.NOSIGNAL, 1),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.BUFFERSIZE, _BUFFER_BYTES),
            (pycurl.CONNECTTIMEOUT_MS, math.ceil(options.connect_timeout_seconds * 1000)),
            (pycurl.LOW_SPEED_LIMIT, 1),
            (pycurl.LOW_SPEED_TIME, math.ceil(options.timeout_seconds)),  # of silence
            *_trusted(pycurl, options.ca_bundle),
        ):
            self._curl.setopt(option, value)
        if options.ca_bundle:
            self._curl.unsetopt(pycurl.CAPATH)  # builds of libcurl may have a default

    def get(
        self, url: str, headers: Mapping[str, str], seconds: float, num_bytes: int, buffer: memoryview | None
    ) -> Answer:
        """Send one GET, and return the answer."""
        curl, receiver = self._curl, self._receiver
        receiver.expect(num_bytes, buffer)
        curl.setopt(self._pycurl.REQUEST_TARGET, url[self._target_begin :])  # unchanged: libcurl would write %2f as %2F
        curl.setopt(self._pycurl.TIMEOUT_MS, math.ceil(seconds * 1000))
        # libcurl sends a name with a semicolon without a value.
        lines = [f"{name}: {text}" if text else f"{name};" for name, text in headers.items()]
        curl.setopt(self._pycurl.HTTPHEADER, [line.encode("latin-1") for line in lines])
        failed: tuple[int, str] = (0, "")
        try:
            try:
                self._perform()
            except self._pycurl.error as error:
                failed = error.args
            if not receiver.status:
                receiver.read_head()
            check_head(receiver.status, receiver.fields)
            is_answered = curl.getinfo(self._pycurl.RESPONSE_CODE) > 0  # not only by a proxy that refuses a tunnel
            if failed[0] and not (is_answered and receiver.has_enough(failed[0])):
                raise self._failure(*failed)
            if not receiver.status:
                raise HTTPException("the head of the answer broke off")
            num_read = min(receiver.num_read, receiver.num_wanted)
            return Answer(receiver.status, receiver.fields, b"".join(receiver.chunks), num_read)
        finally:
            receiver.expect(0, None)  # an idle connection keeps no bytes alive

    def close(self) -> None:
        """Close the connection."""
        self._curl.close()
        if self._multi is not None:
            self._multi.close()

    def _perform(self) -> None:
        """Run the transfer; in the main thread in slices: interrupts are handled between two slices."""
        curl, multi = self._curl, self._multi
        if multi is None:
            curl.perform()
            return
        multi.add_handle(curl)
        try:
            while multi.perform()[1]:
                multi.select(_SLICE_SECONDS)
            for _, code, text in multi.info_read()[2]:
                raise self._pycurl.error(code, text)
        finally:
            multi.remove_handle(curl)

    def _failure(self, code: int, text: str) -> Exception:
        """Return the error of the standard library for an error of libcurl."""
        is_connected = self._curl.getinfo(self._pycurl.REQUEST_SIZE) > 0
        if code in (_NO_HOST, _NO_PROXY):
            return NoConnectionError(socket.gaierror(text), self._proxy)
        if code == _TIMED_OUT:
            return TimeoutError(text) if is_connected else NoConnectionError(TimeoutError(text), self._proxy)
        if code == _NO_CONNECTION:
            number = self._curl.getinfo(self._pycurl.OS_ERRNO)
            return NoConnectionError(OSError(number, os.strerror(number)) if number else OSError(text), self._proxy)
        return _ERRORS.get(code, OSError)(text)


def _trusted(pycurl: Any, ca_bundle: str | None) -> list[tuple[int, str]]:
    """Return the options for trusted certificates: Python's, since a wheel of pycurl may know none."""
    paths = ssl.get_default_verify_paths()
    file, directory = (ca_bundle, None) if ca_bundle else (paths.cafile, paths.capath)
    of_server = [(pycurl.CAINFO, file), (pycurl.CAPATH, directory)]
    of_proxy = [(pycurl.PROXY_CAINFO, file), (pycurl.PROXY_CAPATH, directory)]
    return [(option, path) for option, path in of_server + of_proxy if path]
