"""Responses to requests, as a pure function of the request, the served objects, and the injected fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from html import escape

from shoal.testing.faults import Mishap
from shoal.testing.messages import Request, resolve_range
from shoal.testing.served import Served


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body; ``first_byte`` is the offset of the body in the object.

    The length that the head announces is that of ``body``, even if none is sent (HEAD).
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: memoryview = field(default_factory=lambda: memoryview(b""))
    first_byte: int = 0


def answer(request: Request, objects: Served, mishap: Mishap | None) -> Answer:
    """Return the response to ``request``; connection faults (reset, truncate, stall, slow) are handled elsewhere."""
    kind = mishap.fault.kind if mishap else None
    if mishap and kind == "status":
        return _failure(mishap)
    if request.method not in {"GET", "HEAD"}:
        return _said(405, "this server is read-only", Allow="GET, HEAD")
    if request.method == "GET" and "list-type" in request.query:
        return _listing(request, objects)
    found = objects.get(request.path)
    if found is None:
        return _said(404, f"there is no {request.path}")
    data, etag, modified_ns = found
    etag = f'"{etag}-{mishap.bits:x}"' if mishap and kind == "changed" else f'"{etag}"'
    refusal = _unmet_condition(request, etag)
    if refusal is not None:
        return refusal
    headers = {"ETag": etag, "Last-Modified": formatdate(modified_ns // 10**9, usegmt=True), "Accept-Ranges": "bytes"}
    headers["Content-Type"] = "application/octet-stream"
    asked = None if kind == "whole" or not _range_holds(request, etag) else _range_of(request, len(data))
    if asked is None:
        return Answer(200, headers, _body(data, mishap))
    first, end = asked
    if first >= end:
        return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    if kind == "wrong_range":
        shift = 1 if end < len(data) else -min(1, first)
        first, end = first + shift, end + shift
    elif kind == "short_range":
        end = first + max(1, (end - first) // 2)
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
    return Answer(206, headers, _body(data[first:end], mishap), first)


def _range_of(request: Request, num_bytes: int) -> tuple[int, int] | None:
    # HEAD has no ranges: they are defined for GET only.
    return resolve_range(request.headers.get("range"), num_bytes) if request.method == "GET" else None


def _range_holds(request: Request, etag: str) -> bool:
    """Return True if the range applies: under If-Range only if the object is unchanged."""
    return request.headers.get("if-range", etag) == etag


def _unmet_condition(request: Request, etag: str) -> Answer | None:
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if wanted is not None and not _names(wanted, etag):
        return _said(412, f"the etag is {etag}")
    if unwanted is not None and _names(unwanted, etag):
        return Answer(304, {"ETag": etag})
    return None


def _names(condition: str, etag: str) -> bool:
    tags = [tag.strip() for tag in condition.split(",")]
    # Some clients of S3 omit the quotes, and S3 accepts that.
    return "*" in tags or etag in tags or etag.strip('"') in tags


def _body(data: memoryview, mishap: Mishap | None) -> memoryview:
    if mishap is None or mishap.fault.kind != "corrupt" or not len(data):
        return data
    wrong = bytearray(data)
    wrong[mishap.bits % len(wrong)] ^= 1 << (mishap.bits >> 60) % 8
    return memoryview(wrong)


def _failure(mishap: Mishap) -> Answer:
    headers = {}
    if mishap.fault.retry_after_seconds is not None:
        headers["Retry-After"] = f"{mishap.fault.retry_after_seconds:g}"
    return _said(mishap.fault.status, "the test wants it so", headers)


def _said(status: int, text: str, headers: Mapping[str, str] | None = None, **more: str) -> Answer:
    return Answer(status, {"Content-Type": "text/plain", **(headers or {}), **more}, memoryview(text.encode()))


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
        inner, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        name = prefix + inner + delimiter if found else key
        if name not in entries and len(entries) == limit:
            entries[""] = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
            break
        entries.setdefault(name, _prefix_xml(name) if found else _key_xml(key, objects, path))
        last = key
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>"
        f"<KeyCount>{len(entries) - ('' in entries)}</KeyCount>"
        f"<IsTruncated>{str('' in entries).lower()}</IsTruncated>{''.join(entries.values())}</ListBucketResult>"
    )
    return Answer(200, {"Content-Type": "application/xml"}, memoryview(xml.encode()))


def _prefix_xml(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _key_xml(key: str, objects: Served, path: str) -> str:
    data, etag, _ = objects.get(path) or (memoryview(b""), "", 0)
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )
