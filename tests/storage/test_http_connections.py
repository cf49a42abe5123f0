"""Connections to http servers and by proxies: when they are kept, made anew and closed, and what is sent by them."""

from __future__ import annotations

import gc
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.storage.test_http import DATA, answering, refused, send_range

from shoal.errors import StorageError
from shoal.storage.http.http_store import HttpStore
from shoal.storage.urls import object_path

pytestmark = pytest.mark.usefixtures("http_client")

CERTIFICATE = Path(__file__).parent / "data" / "localhost.pem"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def trusted() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@contextmanager
def tunnelling(*, word: str = "", goal: str = "") -> Iterator[tuple[str, list[str]]]:
    """A proxy that makes tunnels, for who knows a word, to another host than is named; and what it was asked."""
    asked: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, goal: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                goal.sendall(data)
            goal.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve(near: socket.socket) -> None:
        with near:
            head = b""
            while b"\r\n\r\n" not in head and (data := near.recv(1 << 16)):
                head += data
            asked.append(head.decode())
            if word not in asked[-1]:
                near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = asked[-1].split()[1].rpartition(":")
            with socket.create_connection((goal or host, int(port))) as far:
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=pump, args=(far, near), daemon=True)
                back.start()
                pump(near, far)
                back.join(5)

    def run() -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(near,), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_https_goes_through_a_tunnel_which_is_kept() -> None:
    with answering(send_range, context=trusted()) as (url, _), tunnelling(word="Basic bWU6d29yZA==") as (proxy, asked):
        options: dict[str, Any] = {"ca_bundle": str(CERTIFICATE), "proxy": proxy.replace("//", "//me:word@")}
        store = HttpStore(options)
        assert [store.read_range(f"{url}/a", place, place + 9) for place in (3, 30)] == [DATA[3:12], DATA[30:39]]
        assert [line.split()[:2] for line in asked] == [["CONNECT", url.removeprefix("https://")]]
        store.close()
        error = refused(f"{url}/a", **options | {"proxy": proxy.replace("//", "//me:s3cret@")})
        assert "407" in error.message
        assert "http_proxy" in error.hint
        assert "s3cret" not in str(error)


def test_a_proxy_behind_https_is_asked_for_http_and_not_for_https(http_client: str) -> None:
    """By libcurl for https too: but this one makes no tunnels."""
    with answering(send_range, context=trusted()) as (proxy, asked):
        options: dict[str, Any] = {"ca_bundle": str(CERTIFICATE), "proxy": proxy}
        assert HttpStore(options).read_range("http://far.invalid/a", 3, 9) == DATA[3:9]
        assert asked[0]["path"] == "http://far.invalid/a"
        assert asked[0]["host"] == "far.invalid"
        error = refused("https://far.invalid/a", **options)
        plain = "a proxy at https:// cannot be used for https:// requests"
        assert (plain if http_client != "libcurl" else "tunnel failed, response 501") in error.message
        assert "http_proxy" in error.hint


def test_what_a_server_closed_meanwhile_is_made_anew() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send_range(handler)
        handler.close_connection = True  # without saying so

    with answering(answer) as (url, asked):
        store = HttpStore()
        for _ in range(5):
            assert store.read_range(f"{url}/a", 3, 9) == DATA[3:9]
            time.sleep(0.05)  # its end arrives
        assert len({line["port"] for line in asked}) == 5


def test_servers_that_close_each_connection() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.0"
        send_range(handler, Connection="close")
        handler.close_connection = True

    with answering(answer) as (url, asked):
        store = HttpStore()
        assert [store.read_range(f"{url}/a", place, place + 9) for place in range(4)] == [
            DATA[place : place + 9] for place in range(4)
        ]
        assert len({line["port"] for line in asked}) == 4


def test_sockets_are_closed_with_their_store() -> None:
    """A socket that is left to the collector would raise a warning, which fails this test."""
    with answering(send_range) as (url, _):
        store = HttpStore()
        store.read_range(f"{url}/a", 3, 9)
        store.close()
        store.read_range(f"{url}/a", 3, 9)
        del store
        gc.collect()


def test_a_connection_that_is_in_use_when_its_store_is_closed_is_closed_later() -> None:
    is_asked, is_closed = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        is_asked.set()
        assert is_closed.wait(20)
        send_range(handler)

    with answering(answer) as (url, asked):
        store = HttpStore()
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(store.read_range(f"{url}/a", 0, 9)))
        reader.start()
        assert is_asked.wait(20)
        store.close()
        is_closed.set()
        reader.join(20)
        reader = threading.Thread(target=lambda: read.append(store.read_range(f"{url}/a", 3, 9)))
        reader.start()
        reader.join(20)
        assert read == [DATA[:9], DATA[3:9]]
        assert len({line["port"] for line in asked}) == 2
        store.close()
        gc.collect()


def test_addresses_of_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    heads: list[bytes] = []

    def serve() -> None:
        near = listener.accept()[0]
        with near:
            heads.append(near.recv(1 << 16))
            near.sendall(b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-4/9\r\nContent-Length: 5\r\n\r\nabcde")

    with listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        store = HttpStore()
        assert store.read_range(f"http://[::1]:{port}/a", 0, 5) == b"abcde"
        store.close()
        thread.join(5)
    assert f"Host: [::1]:{port}\r\n".encode() in heads[0]


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("/a b/€.tar", "/a%20b/%E2%82%AC.tar"),
        ("/a%20b%2f?x=%7e&y=a+b", "/a%20b%2f?x=%7e&y=a+b"),
        ("/x/../y/./z", "/y/z"),
        ("?x=1", "/?x=1"),
        ("", "/"),
        ('/a|b"<>^`{}\\c', "/a%7Cb%22%3C%3E%5E%60%7B%7D%5Cc"),
        ("/;!$&'()*,:=@~[-]._", "/;!$&'()*,:=@~[-]._"),
    ],
)
def test_urls_are_sent_in_plain_letters(written: str, sent: str) -> None:
    with answering(send_range) as (url, asked):
        store = HttpStore()
        store.learn(f"{url}{written}#fragment")
        assert store.read_range(object_path(f"{url}{written}"), 3, 9) == DATA[3:9]
        assert asked[-1]["path"] == sent


@pytest.mark.parametrize(("headers", "agent"), [({}, "shoal"), ({"user-agent": "mine"}, "mine")])
def test_who_asks_is_said_once(headers: dict[str, str], agent: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert handler.headers.get_all("User-Agent") == [agent]
        assert handler.headers.get_all("Accept-Encoding") == ["identity"]
        send_range(handler)

    with answering(answer) as (url, _):
        assert HttpStore({"headers": headers}).read_range(f"{url}/a", 3, 9) == DATA[3:9]


def test_a_host_that_is_no_name() -> None:
    for url in ("http://", "http:///a", "http://?x"):
        with pytest.raises(StorageError, match="names no host"):
            HttpStore().stat(url)
