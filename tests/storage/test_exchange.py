"""One exchange over a socket: the compiled function and its twin return the same, for any response in any pieces."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.http.exchange import Limits, exchange_compiled, exchange_in_python, is_compiled, plain_fields

FUNCTIONS = [exchange_in_python, *([exchange_compiled] if is_compiled else [])]
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
each_function = pytest.mark.parametrize("exchange", FUNCTIONS, ids=["python", "compiled"][: len(FUNCTIONS)])


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: of the client, and of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far = listener.accept()[0]
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near.settimeout(20)
        with far:
            yield near, far


def exchanged(exchange: Any, near: socket.socket, buffer: bytearray, *, is_kept: bool = False, **limits: float) -> Any:
    """The head and the number of bytes of an exchange with a buffer."""
    within = Limits(limits.get("silence_seconds", 20), time.monotonic() + limits.get("seconds", 20))
    result = exchange(near, REQUEST, memoryview(buffer), len(buffer), within, is_kept=is_kept)
    return None if result is None else result[:2]


def answered(exchange: Any, pieces: Sequence[bytes], num_bytes: int) -> tuple[Any, bytes]:
    """The result, and the buffer, after a server has sent these pieces and closed the connection."""
    with connected() as (near, far):

        def serve() -> None:
            far.recv(1 << 16)
            with contextlib.suppress(OSError):
                for piece in pieces:
                    far.sendall(piece)
                far.shutdown(socket.SHUT_WR)

        server = threading.Thread(target=serve)
        server.start()
        buffer = bytearray(num_bytes)
        result = exchanged(exchange, near, buffer)
        near.close()
        server.join(20)
        return result, bytes(buffer)


def head_of(num_bytes: int, status: bytes = b"206 Partial Content", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nETag: x\r\nContent-Length: %d\r\n%s\r\n" % (status, num_bytes, more)


def body_of(num_bytes: int) -> bytes:
    return (bytes(range(251)) * (num_bytes // 251 + 1))[:num_bytes]


@each_function
@pytest.mark.parametrize("num_bytes", [0, 1, 5000, 8192, 300_000, 3_000_000])
@pytest.mark.parametrize("status", [b"206 Partial Content", b"206", b"200 OK", b"200 "])
def test_a_plain_body_is_received_in_the_buffer(exchange: Any, num_bytes: int, status: bytes) -> None:
    result, buffer = answered(exchange, [head_of(num_bytes, status), body_of(num_bytes)], num_bytes)
    assert result == (head_of(num_bytes, status), num_bytes)
    assert buffer == body_of(num_bytes)


@each_function
@given(data=st.data(), num_bytes=st.integers(0, 20_000))
def test_pieces_do_not_matter(exchange: Any, data: st.DataObject, num_bytes: int) -> None:
    whole = head_of(num_bytes) + body_of(num_bytes)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert answered(exchange, pieces, num_bytes) == ((head_of(num_bytes), num_bytes), body_of(num_bytes))


UNUSUAL = {
    "an error": head_of(9, b"404 Not Found"),
    "too long": head_of(10),
    "too short": head_of(8),
    "two lengths": head_of(9, more=b"content-LENGTH: 9\r\n"),
    "no number": head_of(9).replace(b": 9", b": 9x"),
    "a sign": head_of(9).replace(b": 9", b": +9"),
    "many digits": head_of(9).replace(b": 9", b": " + b"0" * 30 + b"9"),
    "no length": head_of(9).replace(b"Content-Length", b"Content-Lengt"),
    "a longer name": head_of(9).replace(b"Content-Length", b"Content-Length2"),
    "frames": head_of(9, more=b"Transfer-Encoding: chunked\r\n"),
    "before the answer": b"HTTP/1.1 103 Early Hints\r\n\r\n" + head_of(9),
    "old": head_of(9).replace(b"1.1", b"1.0"),
    "no answer": b"220 mail.example ESMTP\r\n\r\n",
    "an ended head": head_of(9)[:-1],
    "short lines": head_of(9).replace(b"\r\n", b"\n"),
    "a large head": head_of(9, more=b"X: %s\r\n" % (b"y" * 9000)),
}


@each_function
@pytest.mark.parametrize("head", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_response_is_returned_as_it_came(exchange: Any, head: bytes) -> None:
    (received, num_bytes), buffer = answered(exchange, [head + b"the body!"], 9)
    assert num_bytes == -1
    assert head.startswith(received[: len(head)])
    assert len(received) > min(len(head) - 3, 4000)
    assert buffer == bytes(9)


@each_function
def test_more_bytes_than_announced_are_returned_too(exchange: Any) -> None:
    whole = head_of(9) + b"the body!" + b"HTTP/1.1 206 another"
    assert answered(exchange, [whole], 9) == ((whole, -1), bytes(9))


@each_function
@pytest.mark.parametrize("num_sent", [0, 1, 100_000])
def test_a_body_may_break_off(exchange: Any, num_sent: int) -> None:
    result, buffer = answered(exchange, [head_of(200_000), body_of(num_sent)], 200_000)
    assert result == (head_of(200_000), num_sent)
    assert buffer[:num_sent] == body_of(num_sent)


@pytest.mark.skipif(not is_compiled, reason="there is no compiled module")
@given(
    lines=st.lists(
        st.sampled_from(
            [b"Content-Length: 5", b"content-length:5", b"Content-Length : 5", b"Content-Length: 5 ",
             b"Content-Length:",
             b"Content-Length: 005", b"Transfer-Encoding: identity", b"transfer-encodin: x", b"", b":", b" folded",
             b"a\nContent-Length: 5", b"a\r", b"\xff: \xff", b"Connection: close"]
        ),
        max_size=4,
    ),
    status=st.sampled_from([b"HTTP/1.1 206 P", b"HTTP/1.1 200", b"HTTP/1.1 201 C", b"HTTP/1.1 2060", b""]),
    more=st.binary(max_size=12),
)  # fmt: skip
def test_the_twins_agree(lines: list[bytes], status: bytes, more: bytes) -> None:
    response = b"\r\n".join([status, *lines, b"", b""]) + more
    assert answered(exchange_compiled, [response], 5) == answered(exchange_in_python, [response], 5)


@each_function
@pytest.mark.parametrize("num_sent", [0, 20, 90])
def test_a_silent_server_is_not_waited_for(exchange: Any, num_sent: int) -> None:
    whole = head_of(100) + body_of(100)
    with connected() as (near, far):
        far.sendall(whole[:num_sent])
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            exchanged(exchange, near, bytearray(100), silence_seconds=0.1)
        assert 0.09 < time.monotonic() - began < 10


@each_function
def test_a_trickle_ends_at_the_deadline(exchange: Any) -> None:
    is_over = threading.Event()
    with connected() as (near, far):

        def serve() -> None:
            far.sendall(head_of(100_000))
            with contextlib.suppress(OSError):
                while not is_over.wait(0.02):
                    far.sendall(b"x")

        server = threading.Thread(target=serve)
        server.start()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            exchanged(exchange, near, bytearray(100_000), seconds=0.3)
        assert time.monotonic() - began < 10
        is_over.set()
        server.join(20)


@each_function
@pytest.mark.parametrize("ends", [False, True])
def test_a_kept_connection_with_something_in_it_is_not_used(exchange: Any, ends: bool) -> None:
    with connected() as (near, far):
        if ends:
            far.shutdown(socket.SHUT_WR)
        else:
            far.sendall(head_of(5) + b"other")
        time.sleep(0.05)
        assert exchanged(exchange, near, bytearray(5), is_kept=True) is None
        far.settimeout(0.05)
        with pytest.raises(TimeoutError):
            far.recv(1)


@each_function
def test_a_connection_is_used_again_and_again(exchange: Any) -> None:
    with connected() as (near, far):
        for num_bytes in (5, 300_000, 5):

            def serve(size: int = num_bytes) -> None:
                far.recv(99)
                far.sendall(head_of(size) + body_of(size))

            server = threading.Thread(target=serve)
            server.start()
            buffer = bytearray(num_bytes)
            assert exchanged(exchange, near, buffer, is_kept=True) == (head_of(num_bytes), num_bytes)
            server.join(20)
            assert buffer == body_of(num_bytes)


@each_function
def test_a_reset_is_an_error(exchange: Any) -> None:
    with connected() as (near, far):
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises(ConnectionError):
            exchanged(exchange, near, bytearray(5))


@each_function
def test_a_request_larger_than_what_the_system_takes_at_once(exchange: Any) -> None:
    with connected() as (near, far):
        request = b"GET /%s\r\n\r\n" % (b"a" * 9_000_000)

        def serve() -> None:
            left = len(request)
            while left:
                time.sleep(0.001)
                left -= len(far.recv(1 << 20))
            far.sendall(head_of(5) + b"hello")

        server = threading.Thread(target=serve)
        server.start()
        buffer = bytearray(5)
        limits = Limits(20, time.monotonic() + 20)
        result = exchange(near, request, memoryview(buffer), 5, limits, is_kept=False)
        server.join(20)
        assert (result, bytes(buffer)) == ((head_of(5), 5, b""), b"hello")


@each_function
@pytest.mark.parametrize("num_sent", [0, 3000, 200_000])
def test_without_a_buffer_the_body_is_new(exchange: Any, num_sent: int) -> None:
    with connected() as (near, far):
        far.sendall(head_of(200_000))
        far.sendall(body_of(num_sent))
        far.shutdown(socket.SHUT_WR)
        head, num_bytes, body = exchange(near, REQUEST, None, 200_000, Limits(20, time.monotonic() + 20), is_kept=False)
    assert (head, num_bytes) == (head_of(200_000), num_sent)
    assert body[:num_bytes] == body_of(num_sent)


@pytest.mark.parametrize(
    "line", [b" folded", b"no colon", b": no name", b"a b: c", b"a\xff: b", b"a: b\rc", b"a: b\nc: d", b"a : b"]
)
def test_unusual_lines_are_left_to_the_library(line: bytes) -> None:
    assert plain_fields(b"HTTP/1.1 206 P\r\n" + line + b"\r\nContent-Length: 5\r\n\r\n") is None


def test_fields_of_a_plain_head() -> None:
    head = b"HTTP/1.1 200\r\nA:\r\nb:  c \r\nB: d\r\nB: d\r\nVary: \xfc\r\n\r\n"
    assert plain_fields(head) == (200, {"a": "", "b": "c , d, d", "vary": "ü"})
