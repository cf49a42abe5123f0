from __future__ import annotations

import errno
import os
import pickle
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import StorageError, UsageError
from shoal.storage.http import http_client
from shoal.storage.http.http_store import HttpStore
from shoal.storage.retry import RetryingStore, RetryRule
from shoal.storage.storage_errors import retry_after_seconds, status_failure, trimmed
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import ObjectInfo
from shoal.storage.urls import object_path
from shoal.testing import Fault, RangeServer

pytestmark = pytest.mark.usefixtures("http_client")

DATA = bytes(range(256)) * 300

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer, *, context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers as it is told, and keeps the headers of what it was asked."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            asked[-1]["port"] = str(self.client_address[1])
            answer(self)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    if "Transfer_Encoding" not in headers and "Content_Length" not in headers:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def send_range(handler: BaseHTTPRequestHandler, **headers: str) -> None:
    first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    body = DATA[first : last + 1]
    send(handler, 206, body, **{"Content_Range": f"bytes {first}-{first + len(body) - 1}/{len(DATA)}"} | headers)


def refused(url: str, first: int = 10, end: int = 20, **options: Any) -> StorageError:
    with pytest.raises(StorageError) as caught:
        HttpStore(options).read_range(url, first, end)
    return caught.value


def test_connections_are_kept() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/missing":
            send(handler, 404, b"not here")
        elif handler.path == "/moved":
            send(handler, 302, Location="/a")
        else:
            send_range(handler)

    with answering(answer) as (url, asked):
        store = HttpStore()
        for first in range(20):
            assert store.read_range(f"{url}/a", first, first + 1000) == DATA[first : first + 1000]
        assert store.find(f"{url}/missing") is None
        assert store.read_range(f"{url}/moved", 0, 1) == DATA[:1]
        assert store.read_range(f"{url}/a", 5, 5) == b""
        assert len(asked) == 23
        assert len({one["port"] for one in asked}) == 1


TRANSIENT = [
    Fault("status", requests=[0]),
    Fault("status", status=429, retry_after_seconds=7, requests=[0]),
    Fault("status", status=500, requests=[0]),
    Fault("reset", requests=[0]),
    Fault("reset_in_body", requests=[0]),
    Fault("truncate", requests=[0]),
    Fault("wrong_range", requests=[0]),
    Fault("short_range", requests=[0]),
    Fault("whole", requests=[0]),
    Fault("stall", requests=[0], seconds=2),
    Fault("slow", requests=[0], seconds=2),
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: f"{fault.kind}-{fault.status}")
def test_what_may_pass_is_transient_and_the_next_request_is_right(fault: Fault, http_client: str) -> None:
    if fault.kind == "reset" and http_client == "libcurl":
        pytest.skip("libcurl itself asks again if a kept connection ends before it answers")
    with RangeServer({"d/a.tar": DATA}) as server:
        url = server.url_of("d/a.tar")
        store = HttpStore({"timeout_seconds": 0.3})
        store.stat(url)
        server.faults = [fault]
        with pytest.raises(StorageError) as caught:
            store.read_range(url, 1000, 70_000)
        assert caught.value.transient
        assert caught.value.retry_after_seconds == fault.retry_after_seconds
        assert url in str(caught.value)
        assert "[1000, 70000)" in str(caught.value)
        assert caught.value.hint
        assert store.read_range(url, 1000, 70_000) == DATA[1000:70_000]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.drill] if fault.kind in ("stall", "slow") else []) for fault in TRANSIENT],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_buffer_is_filled_or_refused_as_a_range_is_read(fault: Fault, http_client: str) -> None:
    if fault.kind == "reset" and http_client == "libcurl":
        pytest.skip("libcurl itself asks again if a kept connection ends before it answers")
    with RangeServer({"a": DATA}) as server:
        url = server.url_of("a")
        store = HttpStore({"timeout_seconds": 0.3})
        store.stat(url)
        server.faults = [fault]
        buffer = bytearray(b"x" * 70_000)
        with pytest.raises(StorageError) as caught:
            store.fill(url, 1000, memoryview(buffer)[:69_000])
        assert caught.value.transient
        assert "[1000, 70000)" in str(caught.value)
        store.fill(url, 1000, memoryview(buffer)[:69_000])
        assert buffer == DATA[1000:70_000] + b"x" * 1000


def test_connections_are_kept_where_buffers_are_filled() -> None:
    """Also with answers in pieces of the server's choosing, and bodies smaller than what is read with a head."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/plain":
            send_range(handler)
            return
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for at in range(first, last + 1, 5000):
            piece = DATA[at : min(at + 5000, last + 1)]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.write(b"0\r\n\r\n")

    with answering(answer) as (url, asked):
        store = HttpStore()
        for name in ("plain", "chunked"):
            for num_bytes in (0, 1, 7, 511, 8191, 8192, 8193, 60_000):
                buffer = bytearray(num_bytes)
                store.fill(f"{url}/{name}", 3, memoryview(buffer))
                assert buffer == DATA[3 : 3 + num_bytes]
        assert len(asked) == 14
        assert len({one["port"] for one in asked if one["path"] == "/plain"}) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 451, 501])
def test_what_will_not_pass_is_not_transient(status: int) -> None:
    with RangeServer({"a": DATA}, faults=[Fault("status", status=status, requests=[0])]) as server:
        error = refused(server.url_of("a"))
        assert not error.transient
        assert str(status) in error.message
        assert error.errno == {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}.get(status)


def test_a_changed_etag_is_an_error_that_trying_again_does_not_mend() -> None:
    with RangeServer({"a": DATA}, faults=[Fault("changed", requests=[1])]) as server:
        store = HttpStore()
        store.read_range(server.url_of("a"), 0, 5)
        with pytest.raises(StorageError, match="changed while it was being read") as caught:
            store.read_range(server.url_of("a"), 0, 5)
        assert not caught.value.transient


def test_a_server_without_ranges_is_named_as_such() -> None:
    with answering(lambda handler: send(handler, 200, DATA)) as (url, _):
        for ask in (lambda store: store.read_range(f"{url}/a", 10, 20), lambda store: store.stat(f"{url}/a")):
            with pytest.raises(StorageError) as caught:
                ask(HttpStore())
            error = caught.value
            assert "(200)" in error.message
            assert "nginx" in error.hint
            assert not error.transient


NO_RANGE: dict[str, Answer] = {
    "whole": lambda handler: send(handler, 200, DATA, ETag='"a"'),
    "encoded": lambda handler: send_range(handler, Content_Encoding="gzip", ETag='"a"'),
    "several": lambda handler: send(handler, 206, DATA, Content_Type="multipart/byteranges; boundary=x"),
    "unknown": lambda handler: send(handler, 206, DATA[:1], Content_Range="bytes 0-0/*"),
}


@pytest.mark.parametrize("no_range", NO_RANGE.values(), ids=NO_RANGE)
def test_a_cache_on_the_way_may_answer_no_range_at_first_and_now_and_then(no_range: Answer) -> None:
    """As those do that have not all of an object yet; who never answers one is soon believed."""
    asked_for = 0

    def now_and_then(handler: BaseHTTPRequestHandler) -> None:
        nonlocal asked_for
        asked_for += 1
        (no_range if asked_for in (1, 2, 4) else send_range)(handler)

    rule = RetryRule(first_pause_seconds=0.001, deadline_seconds=10)
    with answering(now_and_then) as (url, _):
        store = RetryingStore(HttpStore(), rule)
        assert store.stat(f"{url}/a").num_bytes == len(DATA)
        assert store.read_range(f"{url}/a", 10, 20) == DATA[10:20]
    with answering(no_range) as (url, asked):
        with pytest.raises(StorageError):
            RetryingStore(HttpStore(), rule).stat(f"{url}/a")
        assert len(asked) == 6


def test_an_empty_object_may_come_as_a_whole() -> None:
    """As some servers do, since it has no range; not without a word of which object that is, nor if it had bytes."""
    with answering(lambda handler: send(handler, 200, Last_Modified="Sat, 01 Aug 2026 10:00:00 GMT")) as (url, _):
        store = HttpStore()
        assert store.stat(f"{url}/a").num_bytes == 0
        assert store.read_range(f"{url}/a", 0, 0) == b""
        with pytest.raises(StorageError, match="416"):
            store.read_range(f"{url}/a", 0, 1)
    with answering(lambda handler: send(handler, 200)) as (url, _):
        assert "(200)" in refused(f"{url}/a").message

    def at_first(handler: BaseHTTPRequestHandler) -> None:
        (send_range if len(asked) == 1 else lambda handler: send(handler, 200, ETag='"a"'))(handler)

    with answering(at_first) as (url, asked):
        store = HttpStore()
        assert store.stat(f"{url}/a").num_bytes == len(DATA)
        with pytest.raises(StorageError, match=r"\(200\)") as caught:
            store.read_range(f"{url}/a", 0, 1)
        assert caught.value.transient


def test_a_range_that_is_all_of_an_object_may_come_as_the_object() -> None:
    """As Tornado answers; and never where it is not just that, nor without a word of which object it is."""
    size, told = len(DATA), {"ETag": '"a"'}

    def whole_or_part(handler: BaseHTTPRequestHandler) -> None:
        is_all = handler.headers["Range"] == f"bytes=0-{size - 1}"
        send(handler, 200, DATA, **told) if is_all else send_range(handler, **told)

    with answering(whole_or_part) as (url, _):
        store = HttpStore()
        assert store.read_range(f"{url}/a", 0, size) == DATA  # also if nothing was asked before
        assert store.stat(f"{url}/a").num_bytes == size
        assert store.read_range(f"{url}/a", 3, size) == DATA[3:]
        store.fill(f"{url}/a", 0, memoryview(filled := bytearray(size)))
        assert filled == DATA
        told["ETag"] = '"b"'
        with pytest.raises(StorageError, match="changed"):
            store.read_range(f"{url}/a", 0, size)
        told.clear()
        with pytest.raises(StorageError, match=r"\(200\)"):
            HttpStore().read_range(f"{url}/a", 0, size)
    with answering(lambda handler: send(handler, 200, DATA, ETag='"a"')) as (url, _):
        for first, end in ((0, 5), (1, size), (5, size + 5)):
            with pytest.raises(StorageError, match=r"\(200\)"):
                HttpStore().read_range(f"{url}/a", first, end)
    told = {"ETag": '"a"', "Content_Encoding": "gzip"}
    with (
        answering(lambda handler: send(handler, 200, DATA, **told)) as (url, _),
        pytest.raises(StorageError, match="encodes its answers"),
    ):
        HttpStore().read_range(f"{url}/a", 0, size)


def test_a_server_that_never_ends_costs_no_memory() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 10-19/1000")
        handler.end_headers()
        try:
            for _ in range(10_000):
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            return
        finally:
            handler.close_connection = True

    with answering(answer) as (url, _):
        assert HttpStore().read_range(f"{url}/a", 10, 20) == bytes(10)


@pytest.mark.parametrize(
    ("headers", "words", "transient"),
    [
        ({"Content_Encoding": "gzip"}, "encodes its answers", False),
        ({"Content_Range": "bytes 10-19/*"}, "does not give its byte range", False),
        ({"Content_Range": "bytes 0-9/76800"}, r"sent bytes \[0, 10\) instead", True),
        ({"Content_Range": "bytes 10-29/76800"}, r"sent bytes \[10, 30\) instead", True),
        ({"Content_Range": "bytes 10-14/15"}, "ends at byte 15", False),
        ({"Content_Range": "bytes 10-14/76800"}, "but 5 came", True),
        ({"Content_Range": "nonsense"}, "nonsense", False),
        ({"Content_Length": "11"}, "announced 11 bytes", True),
    ],
)
def test_answers_that_are_not_what_was_asked_for(headers: dict[str, str], words: str, transient: bool) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send_range(handler, **headers)
        handler.close_connection = True

    with answering(answer) as (url, asked):
        error = refused(f"{url}/a")
        assert re.search(words, error.message)
        assert error.transient == transient
        assert asked[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.tar", "aws-chunked"), ("a.tar.gz", "gzip"), ("a.tgz", "x-gzip"), ("a.jsonl.ZST?x=a.b", "aws-chunked,zstd")],
)
def test_what_is_stored_compressed_may_be_called_encoded(name: str, said: str) -> None:
    """As stores do that repeat what they were told of an object."""
    with answering(lambda handler: send_range(handler, Content_Encoding=said)) as (url, _):
        store = HttpStore()
        store.learn(f"{url}/{name}")
        assert store.read_range(f"{url}/{name}".partition("?")[0], 10, 20) == DATA[10:20]


def test_chunked_answers_are_read() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(
            handler,
            206,
            b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n",
            Content_Range="bytes 10-19/99",
            Transfer_Encoding="chunked",
        )

    with answering(answer) as (url, asked):
        store = HttpStore()
        for _ in range(3):
            assert store.read_range(f"{url}/a", 10, 20) == b"0123456789"
        assert len({one["port"] for one in asked}) == 1, "the connection is kept, though its end has to be found"

    def go_on(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 206, b"5\r\n01234\r\n", Content_Range="bytes 0-4/99", Transfer_Encoding="chunked")
        if len(asked) % 2:
            handler.wfile.write(b"2\r\n56\r\n0\r\n\r\n")

    with answering(go_on) as (url, asked):
        store = HttpStore({"timeout_seconds": 0.3})  # an end that does not come is waited for; the bytes are there
        for _ in range(4):
            assert store.read_range(f"{url}/a", 0, 5) == b"01234"
        assert len({one["port"] for one in asked}) == 4, "more came than was announced, or no end"


def test_the_version_is_the_etag_else_the_date() -> None:
    with answering(lambda handler: send_range(handler, ETag='W/"x1"', Last_Modified="then")) as (url, _):
        assert HttpStore().stat(f"{url}/a").version == "x1"
    with answering(lambda handler: send_range(handler, Last_Modified="then")) as (url, _):
        assert HttpStore().stat(f"{url}/a").version == "then"


def test_what_lies_beside_is_asked_for_with_the_same_credentials() -> None:
    with answering(send_range) as (url, asked):
        secret = url.replace("://", "://me:word@") + "/c/{0..1}.tar?sig=s3cret"
        store = pickle.loads(pickle.dumps(open_store(secret)))
        for name in ("c/0.tar", "c/shoal.index", "other/2.tar"):
            store.read_range(f"{url}/{name}", 0, 5)
        assert [one["path"] for one in asked] == [
            f"/{name}?sig=s3cret" for name in ("c/0.tar", "c/shoal.index", "other/2.tar")
        ]
        assert {one["authorization"] for one in asked} == {"Basic bWU6d29yZA=="}
    with answering(send_range) as (other, asked):
        assert store.read_range(f"{other}/a", 0, 5) == DATA[:5]
        assert (asked[0]["path"], asked[0].get("authorization")) == ("/a", None)


def test_redirects_are_followed_and_credentials_stay_behind() -> None:
    with answering(lambda handler: send_range(handler, ETag="1")) as (far, asked_far):

        def answer(handler: BaseHTTPRequestHandler) -> None:
            path = handler.path.partition("?")[0]
            if path == "/a":
                send(handler, 302, b"moved", Location="/b?x=1")
            elif path == "/b":
                send(handler, 307, Location=f"{far.replace('127.0.0.1', 'localhost')}/c?signature=s3cret")
            else:
                send(handler, 302, Location="/circle?token=s3cret")

        with answering(answer) as (near, asked_near):
            url = near.replace("http://", "http://me:pass%20word@") + "/a?token=s3cret"
            store: Any = open_store(url, {"headers": {"X-Key": "s3cret"}})
            assert store.read_range(f"{near}/a", 3, 9) == DATA[3:9]
            assert [asked["path"] for asked in asked_near] == ["/a?token=s3cret", "/b?x=1"]
            assert [asked["x-key"] for asked in asked_near] == ["s3cret"] * 2
            assert asked_near[0]["authorization"] == "Basic bWU6cGFzcyB3b3Jk"
            assert asked_far[0]["path"] == "/c?signature=s3cret"
            assert not {"x-key", "authorization"} & set(asked_far[0])
            circle = refused(f"{near}/circle")
            assert "redirected more than" in circle.message
            assert "s3cret" not in str(circle)


def test_where_a_redirect_led_is_remembered_until_it_is_refused() -> None:
    valid = ["1"]

    def far_answer(handler: BaseHTTPRequestHandler) -> None:
        send_range(handler) if handler.path.endswith(valid[0]) else send(handler, 403, b"expired")

    with (
        answering(far_answer) as (far, asked_far),
        answering(lambda handler: send(handler, 302, Location=f"{far}/a?sig={valid[0]}")) as (near, asked_near),
    ):
        store = HttpStore()
        for _ in range(3):
            assert store.read_range(f"{near}/a", 3, 9) == DATA[3:9]
        assert (len(asked_near), len(asked_far)) == (1, 3)
        valid[0] = "2"
        for _ in range(2):
            assert store.read_range(f"{near}/a", 3, 9) == DATA[3:9]
        assert (len(asked_near), len(asked_far)) == (2, 6)
        valid[0] = "never"
        store._redirects[f"{near}/a"] = store._redirects[f"{near}/a"]._replace(until_seconds=0.0)
        assert store.read_range(f"{near}/a", 3, 9) == DATA[3:9]
        assert (len(asked_near), len(asked_far)) == (3, 7)


@pytest.mark.parametrize("goal", ["http://[bad/x?s3cret", "http://me:s3cret@h:port/"])
def test_redirects_that_are_no_urls(goal: str) -> None:
    with answering(lambda handler: send(handler, 302, Location=goal)) as (url, _):
        error = refused(f"{url}/a")
    assert "not a URL" in error.message
    assert not error.transient
    assert "s3cret" not in f"{error!r}{error.__cause__!r}{error.__context__!r}"


def test_redirects_to_letters_that_are_not_encoded() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/a":
            send(handler, 302, Location="/\u20ac/\xe9".encode().decode("latin-1"))
        else:
            send_range(handler)

    with answering(answer) as (url, asked):
        assert HttpStore().read_range(f"{url}/a", 3, 9) == DATA[3:9]
        assert asked[-1]["path"] == "/%E2%82%AC/%C3%A9"


@pytest.mark.parametrize("url", ["http://[bad/a", "http://me:s3cret@h:port/a", "http://me:s3cret@exa\u2100mple/a"])
def test_what_is_no_url(url: str) -> None:
    store = HttpStore()
    store.learn(url)
    with pytest.raises(StorageError, match="not a URL") as caught:
        store.stat(object_path(url))
    assert "s3cret" not in f"{caught.value!r}{caught.value.__context__!r}"


@pytest.mark.parametrize("goal", ["ftp://h/x?s3cret", "file:///etc/passwd"])
def test_redirects_lead_to_http_only(goal: str) -> None:
    with answering(lambda handler: send(handler, 302, Location=goal)) as (url, _):
        error = refused(f"{url}/a")
        assert "redirected from http://" in error.message
        assert "s3cret" not in str(error)
        assert not error.transient


def test_who_is_not_there_is_transient() -> None:
    with RangeServer({}) as server:
        server.down()
        error = refused(server.url_of("a"))
        assert error.transient
        assert "Connection refused" in error.message
        assert f"127.0.0.1:{server.port}" in error.message
    error = refused("http://nosuch.invalid/a?s3cret")
    assert error.transient
    assert "nosuch.invalid" in error.message
    for url in ("http://", "http://h:port/a", "http:///a"):
        assert not refused(url).transient


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    certificate = Path(__file__).parent / "data" / "localhost.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with answering(send_range, context=context) as (url, _):
        error = refused(f"{url}/a")
        assert not error.transient
        assert "ca_bundle" in error.hint
        assert not re.search(r"\('|_ssl\.c|\[SSL", error.message), error.message
        assert HttpStore({"ca_bundle": str(certificate)}).read_range(f"{url}/a", 3, 9) == DATA[3:9]


@pytest.mark.parametrize("given", ["option", "environment"])
def test_what_a_proxy_repeats_is_struck_out(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 407, f"not {handler.headers['Proxy-Authorization']}, nor s3cret%21".encode())

    with answering(answer) as (url, _):
        proxy = url.replace("//", "//me:s3cret%21@")
        if given == "environment":
            monkeypatch.setenv("http_proxy", proxy)
        options: dict[str, Any] = {"proxy": proxy} if given == "option" else {}
        message = refused("http://far.invalid/a", **options).message
    assert "(not Basic ***, nor ***)" in message


def test_a_proxy_is_asked_where_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(send_range) as (url, asked):
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", url.replace("//", "//me:word@"))
        assert HttpStore().read_range("http://far.invalid/a?b=1", 3, 9) == DATA[3:9]
        assert asked[0]["path"] == "http://far.invalid/a?b=1"
        assert asked[0]["proxy-authorization"] == "Basic bWU6d29yZA=="
        monkeypatch.setenv("http_proxy", url.replace("http://", "me:w%40rd@"))  # without a scheme it is http
        assert HttpStore().read_range("http://far.invalid/a", 3, 9) == DATA[3:9]
        assert asked[-1]["proxy-authorization"] == "Basic bWU6d0ByZA=="
        monkeypatch.setenv("no_proxy", "::1")
        assert "[::1]:9" in refused("http://[::1]:9/a").message
        monkeypatch.setenv("http_proxy", "socks5://me:word@h:1")
        error = refused("http://far.invalid/a")
        assert "http_proxy" in error.hint
        assert "word" not in error.message
        monkeypatch.setenv("no_proxy", "far.invalid")
        assert "far.invalid" in refused("http://far.invalid/a").message
        monkeypatch.delenv("http_proxy")
        assert HttpStore({"proxy": url}).read_range("http://far.invalid/a", 3, 9) == DATA[3:9]


@pytest.mark.parametrize(
    "options",
    [
        {"header": {"a": "s3cret"}},
        {"headers": "s3cret"},
        {"headers": {"a": 3}},
        {"headers": {"a": "s3cret\r\nX: y"}},
        {"headers": {"a": "s3cret\u20ac"}},
        {"timeout_seconds": 0},
        {"timeout_seconds": "s3cret"},
        {"ca_bundle": "/nowhere/at/all"},
    ],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="storage_options") as caught:
        HttpStore(options)
    assert "s3cret" not in str(caught.value)


def test_pickles_carry_what_the_child_needs() -> None:
    with answering(send_range) as (url, asked):
        store = open_store(f"{url}/a?token=t", {"headers": {"X-Key": "k"}})
        copy = pickle.loads(pickle.dumps(store))
        assert copy.read_range(f"{url}/a", 0, 3) == DATA[:3]
        assert (asked[0]["path"], asked[0]["x-key"]) == ("/a?token=t", "k")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own_connections() -> None:
    with RangeServer({"a": DATA, "b": DATA[::-1]}) as server:
        store = HttpStore()
        store.read_range(server.url_of("a"), 0, 100)
        children = []
        for number in range(6):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for first in range(number, 4000, 37):
                        assert (
                            store.read_range(server.url_of("b"), first, first + 500) == DATA[::-1][first : first + 500]
                        )
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        for first in range(0, 4000, 37):
            assert store.read_range(server.url_of("a"), first, first + 500) == DATA[first : first + 500]
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 6


def test_what_a_server_asks_to_wait() -> None:
    assert retry_after_seconds("120") == 120
    assert retry_after_seconds(" 3 ") == 3
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert (retry_after_seconds("Wed, 21 Oct 2149 07:28:00 GMT") or 0) > 1e9
    for text in (None, "soon", "-3", "", "1e400"):
        assert retry_after_seconds(text) is None
    # By the clock of the server, where it shows it: that of this machine may be years away.
    dates = {"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert status_failure(503, "x", verb="read", headers=dates).retry_after_seconds == 30
    assert status_failure(503, "x", verb="read", headers=dates | {"date": "soon"}).retry_after_seconds == 0
    assert status_failure(404, "x", verb="read", headers={"retry-after": "3"}).retry_after_seconds is None


def test_what_a_server_says_is_kept_short_and_without_secrets() -> None:
    xml = "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please\n reduce</Message><Key>k</Key></Error>"
    assert trimmed(xml) == "SlowDown: Please reduce"
    assert trimmed("<html><h1>Not here</h1></html>") == "Not here"
    assert trimmed("see https://u:p@h/x?sig=1#f and go") == "see https://h/x and go"
    assert len(trimmed("word " * 1000)) == 200


def test_a_body_that_trickles_into_a_buffer_has_the_time_of_one_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes before a silence is over, and all of them take much longer."""
    monkeypatch.setattr(http_client, "_LEAST_BYTES_PER_SECOND", 1 << 40)
    stopped = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 0-49999/50000")
        handler.send_header("Content-Length", "50000")
        handler.end_headers()
        for _ in range(50):
            if stopped.wait(0.1):
                return
            handler.wfile.write(bytes(1000))

    with answering(trickle) as (url, _):
        store = HttpStore({"timeout_seconds": 0.4})
        began = time.monotonic()
        with pytest.raises(StorageError, match="the server sent nothing for too long") as caught:
            store.fill(f"{url}/a.bin", 0, memoryview(bytearray(50_000)))
        assert caught.value.transient
        assert time.monotonic() - began < 3.0  # and not 5
        stopped.set()
        store.close()


@pytest.mark.parametrize("num_bytes", [10**18, 1 << 45])
def test_memory_is_not_taken_for_what_a_server_announces(num_bytes: int) -> None:
    class Announcing(HttpStore):
        def stat(self, path: str) -> ObjectInfo:
            return ObjectInfo(path, num_bytes)

    with pytest.raises(StorageError, match=r"not enough memory for all of them"):
        Announcing().map("http://127.0.0.1:1/shoal.index")


def test_memory_that_is_not_there_is_an_error_of_shoal() -> None:
    class Full(HttpStore):
        def stat(self, path: str) -> ObjectInfo:
            return ObjectInfo(path, 1 << 39)

        def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
            if first_byte:
                raise MemoryError
            return bytes(end_byte)

    with pytest.raises(StorageError, match=r"549,755,813,888 bytes"):
        Full().map("http://127.0.0.1:1/shoal.index")
