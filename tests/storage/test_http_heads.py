"""Heads that are read in one step are read as the standard library reads them."""

from __future__ import annotations

import io
from http.client import HTTPException, HTTPResponse
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.storage.http.responses import plain_head

USUAL = b'HTTP/1.1 206 Partial Content\r\nContent-Length: 9\r\nETag: "a: b"\r\nContent-Range: bytes 0-8/20\r\n\r\n'


class _Socket:
    """What an answer is read from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._data))


def as_the_library_reads(data: bytes) -> tuple[HTTPResponse, Any] | None:
    """The answer, and the file behind its head; None where it is an error."""
    sock: Any = _Socket(data)
    response = HTTPResponse(sock, method="GET")
    try:
        response.begin()
    except (HTTPException, ConnectionError, ValueError):
        return None
    return response, response.fp


_names = st.sampled_from(
    ["Content-Length", "content-length", "Connection", "ETag", "Transfer-Encoding", "Keep-Alive", "X", "x-é", "", "a b"]
)
_texts = st.one_of(
    st.sampled_from(["5", "0", "-1", "+5", " 7", "1_0", "٣", "close", "keep-alive, Close", "chunked", '"x"', "a\0b"]),
    st.text(st.characters(max_codepoint=255), max_size=8),
)
_lines = st.tuples(_names, st.sampled_from([":", ": ", ":\t ", " :", ""]), _texts).map("".join)
_ends = st.sampled_from(["\r\n"] * 9 + ["\n", "\r", "\r\n "])
_firsts = st.one_of(
    st.sampled_from(["HTTP/1.1 206 Partial Content", "HTTP/1.1 200", "HTTP/1.1 204 No", "HTTP/1.1 100 Continue"]),
    st.sampled_from(
        ["HTTP/1.0 206 x", "HTTP/1.1  206 x", "HTTP/1.1 99 x", "HTTP/2 206", "HTTP/1.1 206 \tx", "ICY 200"]
    ),
)


@st.composite
def _heads(draw: st.DrawFn) -> bytes:
    lines = [draw(_firsts), *draw(st.lists(_lines, max_size=5))]
    text = "".join(line + draw(_ends) for line in lines) + draw(_ends)
    return text.encode("latin-1", "replace") + draw(st.binary(max_size=9))


@given(_heads())
@example(USUAL + b"123456789")
@example(b"HTTP/1.1 206 x\r\nContent-Length: 3\r\nA: b\r\n c\r\n\r\nabc")
@example(b"HTTP/1.1 206 x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc")
def test_what_is_plain_is_what_the_library_makes_of_it(data: bytes) -> None:
    head = plain_head(data)
    if head is None:
        return
    read = as_the_library_reads(data)
    assert read is not None
    response, file = read
    assert (head.status, head.length, head.will_close) == (response.status, response.length, response.will_close)
    assert not response.chunked
    assert head.fields == {name.lower(): text for name, text in response.getheaders()}
    assert data[head.num_bytes :] == file.read()


def test_usual_heads_are_plain_and_parts_of_them_are_not() -> None:
    head = plain_head(USUAL + b"123456789")
    assert head is not None
    assert head.fields == {"content-length": "9", "etag": '"a: b"', "content-range": "bytes 0-8/20"}
    assert (head.num_bytes, head.status, head.length, head.will_close) == (len(USUAL), 206, 9, False)
    assert [plain_head(USUAL[:end]) for end in range(len(USUAL))] == [None] * len(USUAL)


@pytest.mark.parametrize(
    "line", ["Transfer-Encoding: chunked", "ETag: again", " folded", "no colon", "a b: c", ": x", "Trailer: x"]
)
def test_what_is_unusual_is_left_to_the_library(line: str) -> None:
    assert plain_head(USUAL[:-2] + line.encode() + b"\r\n\r\n") is None


def test_more_fields_than_the_library_takes_are_left_to_it() -> None:
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(99))
    assert plain_head(USUAL[:-2] + lines + b"\r\n") is None
    assert as_the_library_reads(USUAL[:-2] + lines + b"\r\n") is None
