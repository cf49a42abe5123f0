"""Responses of a range server: a pure function of the request, the served objects, and the injected fault.

The module also parses requests and ranges of HTTP/1.1, and formats heads of responses.
"""

# Paths are text in this module, as in the stores.
# ruff: noqa: PTH100, PTH118

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from html import escape
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

from shoal.errors import StorageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.store_protocol import Buffer
from shoal.testing.faults import Mishap


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body; ``first_byte`` is the offset of the body in the object.

    The head announces the length of ``body``, even if the body is not sent (HEAD).
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: memoryview = field(default_factory=lambda: memoryview(b""))
    first_byte: int = 0


def answer(request: Request, objects: Served, mishap: Mishap | None) -> Answer:
    """Return the response to ``request``; `Delivery` handles faults of connections (reset, truncate, stall, slow)."""
    kind = mishap.fault.kind if mishap else None
    if mishap and kind == "status":
        wait = mishap.fault.retry_after_seconds
        headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
        return _text(mishap.fault.status, "the test wants it so", headers)
    if request.method not in {"GET", "HEAD"}:
        return _text(405, "this server is read-only", {"Allow": "GET, HEAD"})
    if request.method == "GET" and "list-type" in request.query:
        return _listing(request, objects)
    try:
        stored = objects.get(request.path)
    except StorageError as error:
        return _text(500, error.message)
    if stored is None:
        return _text(404, f"there is no {request.path}")
    data, etag, modified_ns = stored
    etag = f'"{etag}-{mishap.bits:x}"' if mishap and kind == "changed" else f'"{etag}"'
    refusal = _unmet_condition(request, etag)
    if refusal is not None:
        return refusal
    headers = {"ETag": etag, "Last-Modified": formatdate(modified_ns // 10**9, usegmt=True), "Accept-Ranges": "bytes"}
    headers["Content-Type"] = "application/octet-stream"
    # Only GET has ranges; with If-Range, the range applies if the object is unchanged.
    applies = kind != "whole" and request.method == "GET" and request.headers.get("if-range", etag) == etag
    byte_range = resolve_range(request.headers.get("range"), len(data)) if applies else None
    if byte_range is None:
        return Answer(200, headers, _body(data, mishap))
    first, end = byte_range
    if first >= end:
        return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    if kind == "wrong_range":
        shift = 1 if end < len(data) else -min(1, first)
        first, end = first + shift, end + shift
    elif kind == "short_range":
        end = first + max(1, (end - first) // 2)
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
    return Answer(206, headers, _body(data[first:end], mishap), first)


def _unmet_condition(request: Request, etag: str) -> Answer | None:
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if match is not None and not _names(match, etag):
        return _text(412, f"the etag is {etag}")
    if none_match is not None and _names(none_match, etag):
        return Answer(304, {"ETag": etag})
    return None


def _names(condition: str, etag: str) -> bool:
    tags = [tag.strip() for tag in condition.split(",")]
    # Some S3 clients omit the quotes, and S3 accepts that.
    return "*" in tags or etag in tags or etag.strip('"') in tags


def _body(data: memoryview, mishap: Mishap | None) -> memoryview:
    if mishap is None or mishap.fault.kind != "corrupt" or not len(data):
        return data
    wrong = bytearray(data)
    wrong[mishap.bits % len(wrong)] ^= 1 << (mishap.bits >> 60) % 8
    return memoryview(wrong)


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, {"Content-Type": "text/plain", **(headers or {})}, memoryview(text.encode()))


def _listing(request: Request, objects: Served) -> Answer:
    """List the keys of a bucket (the first part of a path) as S3 does: ListObjectsV2, in pages, with a delimiter."""
    bucket = request.path.strip("/")
    prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
    after = request.query.get("continuation-token") or request.query.get("start-after", "")
    limit = min(1000, int(request.query.get("max-keys", "1000")))
    entries: dict[str, str] = {}
    last = ""
    for path in objects.paths():
        key = path.removeprefix(f"{bucket}/")
        if path == key or not key.startswith(prefix) or key <= after:
            continue
        inner, is_prefix, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        name = prefix + inner + delimiter if is_prefix else key
        if name not in entries and len(entries) == limit:
            entries[""] = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
            break
        common = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        entries.setdefault(name, common if is_prefix else _key_xml(key, objects, path))
        last = key
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>"
        f"<KeyCount>{len(entries) - ('' in entries)}</KeyCount>"
        f"<IsTruncated>{str('' in entries).lower()}</IsTruncated>{''.join(entries.values())}</ListBucketResult>"
    )
    return Answer(200, {"Content-Type": "application/xml"}, memoryview(xml.encode()))


def _key_xml(key: str, objects: Served, path: str) -> str:
    data, etag, _ = objects.get(path) or (memoryview(b""), "", 0)
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``path`` is decoded and has no leading slash, names of ``headers`` are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def keeps_alive(self) -> bool:
        """True if the client wants to reuse the connection."""
        return self.headers.get("connection", "").lower() != "close"

    @property
    def num_body_bytes(self) -> int:
        """Number of bytes after the head."""
        return int(self.headers.get("content-length", "0"))


def parse_request(head: bytes) -> Request:
    """Parse the head of a request, without the empty line at its end; raises ValueError for other bytes."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    pairs = (line.partition(":")[::2] for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    return Request(method, unquote(url.path).lstrip("/"), query, headers)


def resolve_range(header: str | None, num_bytes: int) -> tuple[int, int] | None:
    """Return the bytes ``[first, end)`` that a Range header requests, or None for the whole object.

    As in the standard, several ranges or an invalid header request the whole object. A range that starts beyond the end
    gives ``first >= end``.

    >>> resolve_range("bytes=2-4", 10), resolve_range("bytes=-3", 10), resolve_range("bytes=8-99", 10)
    ((2, 5), (7, 10), (8, 10))
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, num_bytes - int(last)), num_bytes
    end = min(num_bytes, int(last) + 1) if last else num_bytes
    return int(first), end


def head_bytes(status: int, headers: Mapping[str, str]) -> bytes:
    """Format the head of a response, with the empty line at its end."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


_MOST_MAPPED = 256

_SOME_TIME_NS = 1767225600 * 10**9  # for objects that are not files


class InMemory:
    """Objects of a mapping from path to bytes; a change of the mapping changes the served bytes and the etag."""

    def __init__(self, objects: Mapping[str, Buffer]) -> None:
        self._objects = objects
        self._etags: dict[str, tuple[Buffer, str]] = {}

    def get(self, path: str) -> tuple[memoryview, str, int] | None:
        """Return the bytes, the etag and the time in nanoseconds of an object, or None."""
        data = self._objects.get(path)
        if data is None:
            return None
        known = self._etags.get(path)
        if known is None or known[0] is not data:
            known = self._etags[path] = data, f"{len(data):x}-{zlib.crc32(data):08x}"
        return memoryview(data).cast("B"), known[1], _SOME_TIME_NS

    def paths(self) -> Iterator[str]:
        """Yield all paths, sorted."""
        return iter(sorted(self._objects))


class Directory:
    """The files below a directory, mapped into memory; a replaced file gets another etag."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._known: dict[str, tuple[str, memoryview]] = {}  # each entry takes a file descriptor

    def get(self, path: str) -> tuple[memoryview, str, int] | None:
        """Return the bytes, the etag and the time in nanoseconds of a file, or None.

        Raises `StorageError` if the file exists and cannot be opened.
        """
        if not path or posixpath.normpath(path) != path or path.startswith(("/", "..")):
            return None
        full = os.path.join(self._root, path)
        try:
            info = LocalStore().stat(full)
        except StorageError:
            return None
        etag = f"{info.num_bytes:x}-{info.version}"
        known = self._known.get(path)
        if known is None or known[0] != etag:
            known = self._known[path] = etag, LocalStore().map(full)
        while len(self._known) > _MOST_MAPPED:
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread did it
                del self._known[next(iter(self._known))]
        return known[1], etag, info.modified_ns or _SOME_TIME_NS

    def paths(self) -> Iterator[str]:
        """Yield all paths, sorted."""
        return (os.path.relpath(info.path, self._root) for info in LocalStore().list(self._root))


Served = InMemory | Directory


def served(objects: Mapping[str, Buffer] | str | os.PathLike[str]) -> Served:
    """Wrap a mapping, or the directory of that name, for serving."""
    return InMemory(objects) if isinstance(objects, Mapping) else Directory(os.fspath(objects))
