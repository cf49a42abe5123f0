"""The part of HTTP/1.1 that a range server needs: parsing of requests and ranges, heads of responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit


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
        """Number of bytes that follow the head."""
        return int(self.headers.get("content-length", "0"))


def parse_request(head: bytes) -> Request:
    """Parse the head of a request, without the empty line at its end; raise ValueError if it is none."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request(method, unquote(url.path).lstrip("/"), query, headers)


def resolve_range(header: str | None, num_bytes: int) -> tuple[int, int] | None:
    """Return the bytes ``[first, end)`` that a Range header requests, or None if it requests the whole.

    A header with several ranges, or an invalid one, is ignored, as the standard says. A range that starts beyond the
    end gives ``first >= end``.

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
