"""Answers that are not as they should be: what is beforehand or left over is never taken for another answer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tests.storage.test_http import DATA, answering, send_range
from tests.storage.test_http_connections import CERTIFICATE, trusted, tunnelling

from shoal.errors import StorageError
from shoal.storage.http import http_client as http_interface
from shoal.storage.http import plain_client
from shoal.storage.http.http_store import HttpStore
from shoal.storage.http.http_urls import sendable
from shoal.storage.store_of_url import open_store

pytestmark = pytest.mark.usefixtures("http_client")

NUM_BYTES = 20_000


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def right(head: bytes, *, version: bytes = b"HTTP/1.1", fields: bytes = b"", body: bytes | None = None) -> bytes:
    """The right answer to a request for a range; of a body that is given, the length is not said."""
    place = head.partition(b"Range: bytes=")[2].partition(b"\r\n")[0]
    first, last = map(int, place.split(b"-"))
    data = DATA[first : last + 1]
    length = b"Content-Length: %d\r\n" % len(data) if body is None else b""
    said = b"%s 206 Partial\r\nContent-Range: bytes %d-%d/%d\r\n" % (version, first, last, len(DATA))
    return said + length + fields + b"\r\n" + (data if body is None else body)


def chunked(end: bytes) -> Callable[[bytes], bytes]:
    """The right answer in one chunk, and what comes after its bytes."""

    def answer(head: bytes) -> bytes:
        data = right(head).partition(b"\r\n\r\n")[2]
        return right(head, fields=b"Transfer-Encoding: chunked\r\n", body=b"%x\r\n" % len(data) + data + end)

    return answer


@contextmanager
def saying(pieces: Sequence[Any], *, is_tls: bool = False) -> Iterator[tuple[str, list[int]]]:
    """A server that says the next of these to each request, of whose head it may be a function; then right answers.

    Lists are said piece by piece, with a moment between them; after a tuple it breaks off.
    Beside it the connections by which it was asked.
    """
    left, used = list(pieces), []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(near: socket.socket, number: int) -> None:
        try:
            near = trusted().wrap_socket(near, server_side=True) if is_tls else near
        except OSError:
            near.close()
            return
        with near:
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    try:
                        data = near.recv(1 << 16)
                    except OSError:
                        return
                    if not data:
                        return
                    head += data
                used.append(number)
                said = left.pop(0) if left else right
                try:
                    for piece in said if isinstance(said, list) else [said]:
                        data = piece(head) if callable(piece) else piece
                        near.sendall(data[0] if isinstance(data, tuple) else data)
                        if isinstance(data, tuple):
                            return
                        if isinstance(said, list):
                            time.sleep(0.03)
                except OSError:
                    return

    def run() -> None:
        number = 0
        while True:
            try:
                near = listener.accept()[0]
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            threading.Thread(target=serve, args=(near, number), daemon=True).start()
            number += 1

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http{'s' if is_tls else ''}://127.0.0.1:{listener.getsockname()[1]}/a", used
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def store() -> HttpStore:
    return HttpStore({"ca_bundle": str(CERTIFICATE), "timeout_seconds": 2})


def read_all(url: str, *places: int, reader: HttpStore | None = None) -> None:
    """Read right parts, each of another place, or fail."""
    reader = reader or store()
    for place in places:
        assert reader.read_range(url, place, place + NUM_BYTES) == DATA[place : place + NUM_BYTES]
    reader.close()


@pytest.mark.parametrize("beforehand", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_what_is_said_before_the_answer_is_passed_over(beforehand: bytes) -> None:
    said = b"HTTP/1.1 %s\r\nLink: </style.css>\r\n\r\n" % beforehand
    with saying([[said, said, right], lambda head: said + right(head)]) as (url, used):
        read_all(url, 3, 5, 7)
        assert used == [0, 0, 0]


def test_an_answer_is_never_that_to_another_request() -> None:
    """Both objects are as long and have no etag, so that only the order says whose an answer is."""
    late = [b"HTTP/1.1 103 Early Hints\r\n\r\n", lambda head: right(head).replace(DATA[:9], b"other one")]
    with saying([late, right]) as (url, _):
        reader = store()
        assert reader.read_range(f"{url}/other", 0, 9) == b"other one"
        assert reader.read_range(url, 0, 9) == DATA[:9]


def test_another_protocol_is_not_spoken() -> None:
    with saying([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"]) as (url, used):
        reader = store()
        with pytest.raises(StorageError, match="another protocol") as caught:
            reader.read_range(url, 3, 9)
        assert caught.value.transient
        read_all(url, 3, reader=reader)
        assert used == [0, 1]


@pytest.mark.parametrize("encoding", [b"gzip, chunked", b"chunked ", b"gzip"])
def test_frames_of_a_body_are_not_taken_for_it(encoding: bytes) -> None:
    body = b"4e20\r\n" + DATA[:NUM_BYTES] + b"\r\n0\r\n\r\n"
    fields = b"Transfer-Encoding: %s\r\n" % encoding
    with saying([lambda head: right(head, fields=fields, body=body)]) as (url, _):
        with pytest.raises(StorageError, match="Transfer-Encoding") as caught:
            store().read_range(url, 0, NUM_BYTES)
        assert caught.value.transient


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("num_more", [1, 100, 9000])
def test_what_is_left_behind_a_body_is_not_taken_for_the_next_answer(
    num_more: int, is_tls: bool, http_client: str
) -> None:
    if is_tls and http_client == "libcurl":
        pytest.skip("libcurl does not look at what TLS has left: see below")

    def more(head: bytes) -> bytes:
        fake = right(head.replace(b"bytes=3-", b"bytes=5-").replace(b"-20002", b"-20004"))
        return right(head) + fake.replace(DATA[5:99], b"x" * 94)[:num_more]

    with saying([more], is_tls=is_tls) as (url, used):
        read_all(url, 3, 5, 7)
        assert used == [0, 1, 1]


@pytest.mark.parametrize("num_more", [1, 100, 9000])
def test_what_is_left_in_tls_is_not_taken_for_the_next_answer(num_more: int) -> None:
    """Unless it is a right answer to a request that was not made yet, with its very range: no accident."""
    said = [lambda head: right(head) + right(head, fields=b"X: y\r\n" * 9)[:num_more]]
    with saying(said, is_tls=True) as (url, used):
        reader = store()
        assert reader.read_range(url, 3, 9) == DATA[3:9]
        with contextlib.suppress(StorageError):
            assert reader.read_range(url, 5, 11) == DATA[5:11]
        read_all(url, 3, 5, 7, reader=reader)
        assert used[-1] > 0


ENDS = [b"\r\n0\r\n\r\nHTTP/1.1 206 x\r\n", b"\r\nno number\r\n", b"\r\n-5\r\n", b"\r\n5\r\nabcde\r\n0\r\n\r\n"]


@pytest.mark.parametrize(
    ("end", "http_client"),
    [
        *((end, client) for end in ENDS for client in ("libcurl", "plain", "compiled")),
        (b"\r\n", "plain"),
        (b"\r\n", "compiled"),
        pytest.param(b"\r\n", "libcurl", marks=pytest.mark.drill),  # which waits for a second or two
    ],
    indirect=["http_client"],
)
def test_chunks_that_end_otherwise_end_their_connection(end: bytes, http_client: str) -> None:
    with saying([chunked(end)]) as (url, used):
        read_all(url, 3, 5, 7)
        # What libcurl has read behind the last chunk is gone.
        assert used == ([0, 0, 0] if http_client == "libcurl" and b"HTTP" in end else [0, 1, 1])


def test_chunks_that_end_well_keep_their_connection() -> None:
    with saying([chunked(b"\r\n0\r\n\r\n")] * 2) as (url, used):
        read_all(url, 3, 5, 7)
        assert used == [0, 0, 0]


def test_fields_that_contradict_one_another_are_not_believed() -> None:
    said = b"Content-Range: bytes 5-20004/%d\r\n" % len(DATA)
    with saying([lambda head: right(head, fields=said), lambda head: right(head, fields=said)]) as (url, _):
        with pytest.raises(StorageError, match="does not give its byte range"):
            store().read_range(url, 3, 3 + NUM_BYTES)
        read_all(url, 5)  # said twice


def test_heads_cut_anywhere() -> None:
    cuts = (1, 9, 12, 13, 20, 40, 60)
    pieces = [[lambda head, cut=cut: right(head)[:cut], lambda head, cut=cut: right(head)[cut:]] for cut in cuts]
    with saying(pieces) as (url, used):
        read_all(url, *range(len(cuts)))
        assert set(used) == {0}


def test_a_head_that_breaks_off_says_nothing_of_the_object() -> None:
    """Half of the number of its bytes would be remembered, and every right answer be an error from then on."""
    ends = [right(b"Range: bytes=3-9\r\n").index(text) for text in (b"00\r\n", b"\r\nContent-L", b"Length", b"\n\r\n")]
    with saying([lambda head, end=end: (right(head)[:end], None) for end in ends]) as (url, used):
        reader = store()
        for _ in ends:
            with pytest.raises(StorageError, match="broke off") as caught:
                reader.read_range(url, 3, 9)
            assert caught.value.transient
        read_all(url, 3, 5, reader=reader)
        assert used == [0, 1, 2, 3, 4, 4]


def test_large_heads_old_versions_and_no_phrase() -> None:
    large = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 900) for number in range(50))
    said = [
        lambda head: right(head, fields=large),
        lambda head: right(head, version=b"HTTP/1.0", fields=b"Connection: keep-alive\r\n"),
        lambda head: right(head).replace(b" Partial", b"", 1),
        lambda head: right(head).replace(b"206 Partial", b"206 ", 1),
    ]
    with saying(said) as (url, used):
        read_all(url, *range(6))
        assert set(used) == {0}


def test_kept_connections_of_tls() -> None:
    with saying([], is_tls=True) as (url, used):
        read_all(url, *range(6))
        assert set(used) == {0}


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://[::1]/a", ("http", "::1", 80)),
        ("https://[2001:db8::5]/a", ("https", "2001:db8::5", 443)),
        ("http://proxy", ("http", "proxy", 80)),
        ("https://HOST:/a", ("https", "host", 443)),
        ("http://host:0/a", ("http", "host", 0)),
    ],
)
def test_ports_that_are_not_written(url: str, place: tuple[str, str, int]) -> None:
    assert plain_client._host_and_port(url) == place


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("http://h//a/../b/./c", "http://h//b/c"),
        ("http://h//a/.hidden", "http://h//a/.hidden"),
        ("http://h/a/b/..", "http://h/a/"),
        ("http://h/../../a/.", "http://h/a/"),
        ("http://h/a//../b?x=/../y", "http://h/a/b?x=/../y"),
        ("http://h/100%.tar", "http://h/100%25.tar"),
        ("http://h/100%25.tar?x=%2F", "http://h/100%25.tar?x=%2F"),
        ("http://bücher.example:80/a", "http://xn--bcher-kva.example:80/a"),
    ],
)
def test_urls_as_they_are_sent(written: str, sent: str) -> None:
    assert sendable(written) == sent


def test_hosts_in_letters_of_any_kind_by_a_proxy() -> None:
    with answering(send_range) as (proxy, asked):
        reader = HttpStore({"proxy": proxy})
        assert reader.read_range("http://bücher.invalid/a", 3, 9) == DATA[3:9]
        assert asked[0]["host"] == "xn--bcher-kva.invalid"
        assert asked[0]["path"] == "http://xn--bcher-kva.invalid/a"
    with pytest.raises(StorageError, match="no host can have such a name") as caught:
        store().stat(f"http://{'ü' * 80}.invalid/a")
    assert not caught.value.transient


def test_a_certificate_for_another_host_is_refused_in_a_tunnel() -> None:
    with saying([], is_tls=True) as (url, _), tunnelling(goal="127.0.0.1") as (proxy, _):
        reader = HttpStore({"ca_bundle": str(CERTIFICATE), "proxy": proxy})
        with pytest.raises(StorageError, match="certificate") as caught:
            reader.read_range(url.replace("127.0.0.1", "elsewhere.invalid"), 3, 9)
        assert not caught.value.transient
        read_all(url, 3, 5, reader=reader)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_reads_by_its_own_connections_and_certificates() -> None:
    """OpenSSL has locks in what it believes, which other threads of the parent may hold at a fork."""
    with saying([], is_tls=True) as (url, used):
        reader = store()
        assert reader.read_range(url, 3, 9) == DATA[3:9]
        pid = os.fork()
        if not pid:
            is_right = reader.read_range(url, 5, 11) == DATA[5:11]
            trusted_by = getattr(reader._client, "_trust_of", {os.getpid(): None})
            is_right &= os.getpid() in trusted_by
            os._exit(0 if is_right else 1)
        until = time.monotonic() + 20
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.02)
        if not ended[0]:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        assert ended == (pid, 0)
        assert reader.read_range(url, 7, 13) == DATA[7:13]
        assert used == [0, 1, 0]
        reader.close()


FORK = """
import os, sys
from shoal.storage.http.http_store import HttpStore
reader = HttpStore({"ca_bundle": sys.argv[2]})
reader.read_range(sys.argv[1], 3, 9)
if not os.fork():
    if sys.argv[3] == "used":
        reader.read_range(sys.argv[1], 5, 11)
    elif sys.argv[3] == "closed":
        reader.close()
    del reader
    sys.exit()
os.wait()
reader.read_range(sys.argv[1], 7, 13)
"""


@pytest.mark.parametrize("child", ["idle", "used", "closed"])
def test_a_child_that_ends_says_nothing_by_the_connections_of_its_parent(child: str) -> None:
    with saying([], is_tls=True) as (url, used):
        words = [sys.executable, "-W", "ignore", "-c", FORK, url, str(CERTIFICATE), child]
        assert subprocess.run(words, capture_output=True, text=True, check=False).stderr == ""
        assert used == ([0, 1, 0] if child == "used" else [0, 0])


def test_what_is_faster_is_said_once(
    http_client: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_interface, "_said", [])
    for _ in range(2):
        open_store("http://127.0.0.1:9/a.tar")
    assert not caplog.records
    for _ in range(2):
        open_store("https://127.0.0.1:9/a.tar")
    assert [record.getMessage().endswith("pip install pycurl (or 'shoal[remote]')") for record in caplog.records] == [
        True
    ] * (http_client != "libcurl")


@pytest.mark.parametrize(
    "http_client", ["plain", "compiled", pytest.param("libcurl", marks=pytest.mark.drill)], indirect=True
)
def test_a_number_that_is_no_number_of_bytes() -> None:
    many = b"9" * 5000
    said = [
        lambda head: right(head).replace(b"/76800", b"/" + many),
        lambda head: right(head).replace(b"Length: ", b"Length: " + many),
    ]
    with saying(said) as (url, _):
        for _ in said:
            with pytest.raises(StorageError):
                store().read_range(url, 3, 9)


def test_what_is_no_answer_at_all() -> None:
    with saying([b"220 mail.example ESMTP\r\n\r\n"]) as (url, _):
        with pytest.raises(StorageError, match="the answer is not one of http: ") as caught:
            store().read_range(url, 3, 9)
        assert caught.value.transient


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_whoever_cannot_be_reached_is_named(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options: dict[str, Any] = {"connect_timeout_seconds": 0.1, "timeout_seconds": 60}
        with pytest.raises(StorageError, match=f"no connection to 127.0.0.1:{port}: the server sent nothing") as caught:
            HttpStore(options).stat(f"https://127.0.0.1:{port}/a")
        assert "connect_timeout_seconds" in caught.value.hint
        with pytest.raises(StorageError, match=r"no connection by the proxy 127\.0\.0\.1: the server sent nothing"):
            HttpStore(options | {"proxy": f"127.0.0.1:{port}"}).stat("https://far.invalid/a")
    with pytest.raises(StorageError, match=r"no connection by the proxy 127\.0\.0\.1: ") as caught:
        HttpStore({"proxy": f"me:s3cret@127.0.0.1:{port}"}).stat(f"{scheme}://far.invalid/a")
    assert "http_proxy" in caught.value.hint
    assert caught.value.transient
    assert "s3cret" not in str(caught.value)
    with pytest.raises(StorageError, match=r"the host name proxy\.invalid is not known"):
        HttpStore({"proxy": "proxy.invalid"}).stat(f"{scheme}://far.invalid/a")


def test_who_is_interrupted_waits_for_nothing() -> None:
    with saying([lambda head: [right(head)[:-9]][0]]) as (url, _):
        reader = HttpStore({"timeout_seconds": 300})
        began = time.monotonic()
        threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            reader.read_range(url, 0, 100)
        assert time.monotonic() - began < 20
        reader.close()
