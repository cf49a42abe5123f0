"""Answers on a connection that is open already, of which the usual ones are read without urllib3."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import StorageError
from shoal.storage import http_quick
from shoal.storage.http import HttpStore
from shoal.storage.http_timed import TimedResponse

DATA = bytes(range(256)) * 400
SIZE = len(DATA)
CERTIFICATE = Path(__file__).parent / "data" / "localhost.pem"

Piece = bytes | float
"""What is sent, or for how long nothing is."""


def head(first: int, end: int, *lines: str, length: int | None = None) -> bytes:
    said = [
        "HTTP/1.1 206 Partial Content",
        f"Content-Range: bytes {first}-{end - 1}/{SIZE}",
        "ETag: a",
        f"Content-Length: {end - first if length is None else length}",
        *lines,
    ]
    return ("\r\n".join(said) + "\r\n\r\n").encode()


def answer(first: int, end: int, *lines: str) -> list[Piece]:
    return [head(first, end, *lines), DATA[first:end]]


@dataclass
class Served:
    """What a scripted server was asked: the number of the connection, and the head of the request."""

    url: str = ""
    asked: list[tuple[int, str]] = field(default_factory=list)

    @property
    def connections(self) -> list[int]:
        return [number for number, _ in self.asked]


@contextmanager
def scripted(*script: Sequence[Piece], context: ssl.SSLContext | None = None) -> Iterator[Served]:
    """A server that gives these answers one after the other, whatever it is asked; an empty one closes."""
    left = list(script)
    served = Served()
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def serve(plain: socket.socket, number: int) -> None:
        connections.append(plain)
        connection = plain if context is None else context.wrap_socket(plain, server_side=True)
        connections.append(connection)
        with plain, connection:
            while True:
                came = b""
                while b"\r\n\r\n" not in came:
                    more = connection.recv(4096)
                    if not more:
                        return
                    came += more
                served.asked.append((number, came.decode("latin-1")))
                pieces = left.pop(0)
                if not pieces:
                    return
                for piece in pieces:
                    if isinstance(piece, bytes):
                        connection.sendall(piece)
                    elif stopped.wait(piece):
                        return

    def accept() -> None:
        number = 0
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=quietly, args=(connection, number), daemon=True)
            thread.start()
            threads.append(thread)
            number += 1

    def quietly(connection: socket.socket, number: int) -> None:
        with suppress(OSError):
            serve(connection, number)

    connections: list[socket.socket] = []
    threads = [threading.Thread(target=accept, daemon=True)]
    threads[0].start()
    served.url = f"http{'s' if context else ''}://127.0.0.1:{listener.getsockname()[1]}/a"
    try:
        yield served
    finally:
        stopped.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The answers that were read the short way."""
    seen: list[object] = []

    class Seen(http_quick.QuickAnswer):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            seen.append(self)

    monkeypatch.setattr(http_quick, "QuickAnswer", Seen)
    monkeypatch.setattr("shoal.storage.http.QuickAnswer", Seen)
    return seen


def read_two(store: HttpStore, url: str, *, into: bool = False) -> bytes:
    """The first ten bytes, which makes the connection, and then 1000 others."""
    assert store.read_range(url, 0, 10) == DATA[:10]
    if not into:
        return store.read_range(url, 50, 1050)
    buffer = memoryview(bytearray(1000))
    store.fill(url, 50, buffer)
    return bytes(buffer)


USUAL: dict[str, list[Piece]] = {
    "at once": [b"".join(bytes(piece) for piece in answer(50, 1050) if isinstance(piece, bytes))],
    "head and body": answer(50, 1050),
    "with a pause": [head(50, 1050), 0.02, DATA[50:300], 0.02, DATA[300:1050]],
    "a head in two": [head(50, 1050)[:40], 0.02, head(50, 1050)[40:] + DATA[50:1050]],
    "kept alive": answer(50, 1050, "Connection: Keep-Alive", "Keep-Alive: timeout=5"),
    "other headers": answer(50, 1050, "X-Empty:", "Date:  Sun, 06 Nov 1994 08:49:37 GMT ", "x-y:z:a"),
    "a large head": answer(50, 1050, *(f"X-{number}: {'x' * 500}" for number in range(20))),
}


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("name", USUAL)
def test_a_usual_answer_is_read_the_short_way(name: str, into: bool, quick: list[object]) -> None:
    with scripted(answer(0, 10), USUAL[name], answer(3, 5)) as served:
        store = HttpStore()
        assert read_two(store, served.url, into=into) == DATA[50:1050]
        assert len(quick) == 1
        assert store.read_range(served.url, 3, 5) == DATA[3:5]
        assert served.connections == [0, 0, 0]


UNUSUAL: dict[str, list[Piece]] = {
    "chunked": [
        head(50, 1050).replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked"),
        b"3e8\r\n" + DATA[50:1050] + b"\r\n0\r\n\r\n",
    ],
    "two dates": answer(50, 1050, "Date: a", "Date: a"),
    "continue": [b"HTTP/1.1 100 Continue\r\n\r\n", *answer(50, 1050)],
    "folded": answer(50, 1050, "X-Long: a\r\n b"),
    "other letters": answer(50, 1050, "X-Name: \u00e9"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_answer_is_left_to_urllib3(name: str, quick: list[object]) -> None:
    with scripted(answer(0, 10), UNUSUAL[name], answer(3, 5)) as served:
        store = HttpStore({"timeout_seconds": 2})
        assert read_two(store, served.url) == DATA[50:1050]
        assert not quick
        assert store.read_range(served.url, 3, 5) == DATA[3:5]


@pytest.mark.parametrize("how", ["said", "old", "no length", "too long"])
def test_a_connection_that_cannot_be_kept_is_not(how: str) -> None:
    second: dict[str, list[Piece]] = {
        "said": answer(50, 1050, "Connection: close"),
        "old": [head(50, 1050).replace(b"HTTP/1.1", b"HTTP/1.0"), DATA[50:1050]],
        "no length": [head(50, 1050).replace(b"Content-Length: 1000\r\n", b""), DATA[50:1050]],
        "too long": [head(50, 1050) + DATA[50:1050] + b"HTTP/1.1 206 of another question"],
    }
    with scripted(answer(0, 10), second[how], answer(3, 5)) as served:
        store = HttpStore()
        assert read_two(store, served.url) == DATA[50:1050]
        assert store.read_range(served.url, 3, 5) == DATA[3:5]
        assert served.connections == [0, 0, 1]


@pytest.mark.parametrize("wait", [0.0, 2 * http_quick._IDLE_SECONDS])
def test_a_server_that_closed_is_connected_to_again(wait: float) -> None:
    with scripted(answer(0, 10), answer(50, 1050), [], answer(3, 5)) as served:
        store = HttpStore()
        read_two(store, served.url)
        with pytest.raises(StorageError) as caught:  # it closed when it was asked
            store.read_range(served.url, 3, 5)
        assert caught.value.transient
        time.sleep(wait)
        assert store.read_range(served.url, 3, 5) == DATA[3:5]
        assert served.connections == [0, 0, 0, 1]


def test_what_comes_after_an_answer_is_no_answer_to_the_next_request() -> None:
    """Late, so that it is on the connection when the next request is made."""
    late = [*answer(50, 1050), 0.02, head(3, 5) + b"??"]
    with scripted(answer(0, 10), late, answer(3, 5)) as served:
        store = HttpStore()
        read_two(store, served.url)
        time.sleep(2 * http_quick._IDLE_SECONDS)
        assert store.read_range(served.url, 3, 5) == DATA[3:5]
        assert served.connections == [0, 0, 1]


FAILURES: dict[str, tuple[list[Piece], str]] = {
    "another range": ([head(51, 1051), DATA[51:1051]], r"sent bytes \[51, 1051\) instead"),
    "another length": ([head(50, 1050, length=900), DATA[50:950]], "announced 900 bytes"),
    "another object": ([head(50, 1050).replace(b"ETag: a", b"ETag: b"), DATA[50:1050]], "changed while"),
    "encoded": (answer(50, 1050, "Content-Encoding: gzip"), "encodes its answers"),
    "no range": ([head(50, 1050).replace(b"Content-Range", b"X-Range"), DATA[50:1050]], "does not say which part"),
    "the whole": ([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", DATA[:1000]], "sent the whole object"),
    "an error": ([b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"], "503.*busy"),
    "an end": ([head(50, 1050), DATA[50:500], b"", -1.0], "550 bytes before the end"),
    "an end in the head": ([b"HTTP/1.1 206 Par", -1.0], "does not say which part"),
    "nonsense": ([b"nonsense\r\n\r\n"], "could not read"),
    "silence": ([1.5], "nothing came for too long"),
    "silence in the head": ([b"HTTP/1.1 206 Par", 1.5], "nothing came for too long"),
    "silence in the body": ([head(50, 1050), DATA[50:500], 1.5], "nothing came for too long"),
}


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_what_goes_wrong_is_told_and_the_next_request_is_right(name: str, into: bool) -> None:
    pieces, words = FAILURES[name]
    with scripted(answer(0, 10), closing(pieces), answer(3, 5)) as served:
        store = HttpStore({"timeout_seconds": 0.3})
        with pytest.raises(StorageError, match=words) as caught:
            read_two(store, served.url, into=into)
        assert caught.value.transient == (name not in ("another object", "encoded"))
        assert store.read_range(served.url, 3, 5) == DATA[3:5]


def closing(pieces: list[Piece]) -> Sequence[Piece]:
    """The pieces, where a negative pause stands for closing."""

    class Closing(list[Piece]):
        def __iter__(self) -> Iterator[Piece]:
            for piece in pieces:
                if piece == -1.0:
                    raise OSError
                yield piece

    return Closing(pieces)


@pytest.mark.parametrize("of_system", [True, False])
def test_an_answer_that_trickles_is_given_up_in_time(of_system: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head or body, though no silence is as long as the limit."""
    monkeypatch.setattr("shoal.storage.http_timed._LEAST_BYTES_PER_SECOND", 1 << 40)
    if not of_system:
        monkeypatch.setattr("shoal.storage.http_timed.sys.platform", "other")
    whole = head(50, 1050)
    in_head = [piece for byte in whole for piece in (bytes([byte]), 0.1)]
    in_body: list[Piece] = [whole, *(piece for byte in DATA[50:1050] for piece in (bytes([byte]), 0.1))]
    for pieces in (in_head, in_body):
        with scripted(answer(0, 10), pieces, answer(3, 5)) as served:
            store = HttpStore({"timeout_seconds": 0.4})
            began = time.monotonic()
            with pytest.raises(StorageError, match="nothing came for too long"):
                read_two(store, served.url)
            assert time.monotonic() - began < 2.0
            assert store.read_range(served.url, 3, 5) == DATA[3:5]


@pytest.mark.parametrize("into", [False, True])
def test_over_tls(into: bool, quick: list[object]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    silent: list[Piece] = [head(0, SIZE), DATA[:1000], 1.5]
    with scripted(answer(0, 10), answer(50, 1050), answer(0, SIZE), silent, answer(3, 5), context=context) as served:
        store = HttpStore({"ca_bundle": str(CERTIFICATE), "timeout_seconds": 0.3})
        assert read_two(store, served.url, into=into) == DATA[50:1050]
        assert store.read_range(served.url, 0, SIZE) == DATA
        assert len(quick) == 2
        assert served.connections == [0, 0, 0]
        with pytest.raises(StorageError, match="nothing came for too long"):
            store.read_range(served.url, 0, SIZE)
        assert store.read_range(served.url, 3, 5) == DATA[3:5]


@pytest.mark.parametrize("headers", [{}, {"X-Mine": "1"}, {"user-agent": "me", "HOST": "there"}])
def test_both_ways_ask_the_same(headers: dict[str, str], quick: list[object]) -> None:
    with scripted(answer(0, 10), answer(0, 10)) as served:
        store = HttpStore({"headers": headers})
        url = f"{served.url}/b%20c?d=e&f=/?"
        assert [store.read_range(url, 0, 10) for _ in range(2)] == [DATA[:10]] * 2
        assert len(quick) == 1
    (_, by_urllib3), (_, by_us) = served.asked
    assert by_us.split("\r\n")[0] == by_urllib3.split("\r\n")[0]
    assert sorted(by_us.split("\r\n")) == sorted(by_urllib3.split("\r\n"))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="az/%0F {}é~?#&'\"", max_size=8))
def test_what_urllib3_would_encode_is_left_to_it(text: str) -> None:
    target = f"/{text}"
    if http_quick._SENDABLE.fullmatch(target):
        seen: list[str] = []

        def make(_: object, __: str, url: str, **___: Any) -> None:
            seen.append(url)
            raise KeyError

        pool = urllib3.HTTPConnectionPool("127.0.0.1", 1)
        pool._make_request = make  # type: ignore[method-assign,assignment]
        with pytest.raises(KeyError):
            pool.urlopen("GET", target, retries=False)
        assert seen == [target]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 200), st.binary(max_size=4), st.booleans())
def test_a_damaged_head_is_usual_only_if_it_says_so(place: int, put: bytes, instead: bool) -> None:
    """What counts as usual is taken by urllib3 to have the same length and range."""
    usual = head(50, 1050)[:-4]
    damaged = usual[:place] + put + usual[place + (len(put) if instead else 0) :]
    headers = http_quick._usual(damaged)
    if headers is None:
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(damaged + b"\r\n\r\n")
        theirs.shutdown(socket.SHUT_WR)
        parsed = TimedResponse(ours, method="GET")
        parsed.begin()
        assert parsed.status == 206
        assert parsed.length == int(headers["content-length"])
        assert not parsed.will_close
        assert not parsed.chunked
        for name in ("Content-Range", "ETag"):
            assert parsed.headers.get(name) == headers.get(name)
        parsed.close()
