"""The server of ranges: what a client of the standard sees, what is counted, and that each fault is what it says."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import obstore.store
import pytest
import urllib3

from shoal.errors import StorageError, UsageError
from shoal.storage.files.local_store import LocalStore
from shoal.testing import FAULT_KINDS, Fault, FaultKind, RangeServer

DATA = bytes(range(256)) * 40
OBJECTS = {"bucket/a.bin": DATA, "bucket/deep er/b.bin": b"0123456789", "bucket/empty": b""}


@pytest.fixture
def pool() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False, timeout=5.0, maxsize=32) as made:
        yield made


def get(pool: urllib3.PoolManager, url: str, value: str = "", **headers: str) -> urllib3.BaseHTTPResponse:
    return pool.request("GET", url, headers={"Range": value, **headers} if value else headers)


def test_whole_objects_ranges_and_heads(pool: urllib3.PoolManager) -> None:
    with RangeServer(OBJECTS) as server:
        url = server.url_of("bucket/a.bin")
        whole = get(pool, url)
        assert (whole.status, whole.data) == (200, DATA)
        part = get(pool, url, "bytes=10-19")
        assert (part.status, part.data, part.headers["Content-Range"]) == (206, DATA[10:20], f"bytes 10-19/{len(DATA)}")
        assert get(pool, url, "bytes=-5").data == DATA[-5:]
        assert get(pool, url, f"bytes={len(DATA) - 3}-{len(DATA) + 99}").data == DATA[-3:]
        beyond = get(pool, url, f"bytes={len(DATA)}-")
        assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{len(DATA)}")
        assert get(pool, url, "bytes=0-1,5-6").status == 200
        head = pool.request("HEAD", url)
        assert (head.status, head.headers["Content-Length"], head.data) == (200, str(len(DATA)), b"")
        assert get(pool, server.url_of("bucket/deep er/b.bin")).data == b"0123456789"
        assert (get(pool, server.url_of("bucket/empty")).status, get(pool, server.url_of("nothing")).status) == (
            200,
            404,
        )
        assert pool.request("PUT", url, body=b"x" * 100_000).status == 405
        assert get(pool, url).data == DATA  # the connection is still in step
        assert (server.num_requests("bucket/a.bin", method="GET"), server.num_requests(method="HEAD")) == (7, 1)


def test_one_connection_serves_them_all(pool: urllib3.PoolManager) -> None:
    with RangeServer(OBJECTS) as server:
        for first in range(0, 1000, 10):
            assert (
                get(pool, server.url_of("bucket/a.bin"), f"bytes={first}-{first + 9}").data == DATA[first : first + 10]
            )
        connections = pool.connection_from_url(server.url).num_connections
        assert (connections, server.peak_concurrency) == (1, 1)
        assert (server.num_requests(), server.num_bytes(), server.num_bytes("else")) == (100, 1000, 0)
        server.clear()
        assert (server.num_requests(), server.num_bytes()) == (0, 0)


def test_conditions(pool: urllib3.PoolManager) -> None:
    objects = {"a": b"first"}
    with RangeServer(objects) as server:
        url = server.url_of("a")
        etag = get(pool, url).headers["ETag"]
        assert get(pool, url, "bytes=0-1", **{"If-Match": etag}).data == b"fi"
        assert get(pool, url, **{"If-None-Match": etag}).status == 304
        objects["a"] = b"other"
        assert get(pool, url, "bytes=0-1", **{"If-Match": etag}).status == 412
        assert get(pool, url, "bytes=0-1", **{"If-Range": etag}).data == b"other"
        assert get(pool, url, **{"If-None-Match": etag}).data == b"other"


def test_a_directory_is_served_as_it_is_at_the_moment(pool: urllib3.PoolManager, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "a.bin"
    path.write_bytes(DATA)
    with RangeServer(tmp_path) as server:
        first = get(pool, server.url_of("sub/a.bin"), "bytes=3-5")
        assert first.data == DATA[3:6]
        path.unlink()
        assert get(pool, server.url_of("sub/a.bin")).status == 404
        path.write_bytes(b"new")
        second = get(pool, server.url_of("sub/a.bin"))
        assert second.data == b"new"
        assert second.headers["ETag"] != first.headers["ETag"]
        for outside in ("../sub/a.bin", "sub", "sub/../sub/a.bin", ""):
            raw = urllib3.connectionpool.HTTPConnectionPool("127.0.0.1", server.port, retries=False)
            with raw:
                raw_answer = raw.urlopen("GET", f"/{outside}")
            assert raw_answer.status == 404, outside


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_each_fault_is_what_it_says(pool: urllib3.PoolManager, kind: FaultKind) -> None:
    fault = Fault(kind, requests=[0], seconds=0.001 if kind.startswith("trickle") else 0.05, retry_after_seconds=2)
    with RangeServer({"a": DATA}, faults=[fault]) as server:
        url = server.url_of("a")
        what, good = seen(pool, url), seen(pool, url)
    assert good == (206, DATA[100:200], f"bytes 100-199/{len(DATA)}")
    if kind == "status":
        assert what[0] == 503
    elif kind in {"reset", "reset_in_body"}:
        assert what == "ProtocolError: Connection reset by peer"
    elif kind == "truncate":
        assert what == "ProtocolError: IncompleteRead"
    elif kind in {"stall", "slow", "trickle", "trickle_head", "changed"}:
        assert what == good
    elif kind == "corrupt":
        assert isinstance(what[1], bytes)
        assert sum((a ^ b).bit_count() for a, b in zip(what[1], DATA[100:200], strict=True)) == 1
    elif kind == "whole":
        assert what == (200, DATA, None)
    elif kind == "wrong_range":
        assert what == (206, DATA[101:201], f"bytes 101-200/{len(DATA)}")
    else:
        assert what == (206, DATA[100:150], f"bytes 100-149/{len(DATA)}")
    assert server.num_faults() == {kind: 1}


def seen(pool: urllib3.PoolManager, url: str) -> tuple[int, bytes, str | None] | str:
    """Status, body and Content-Range, or what the client makes of it."""
    try:
        answer = get(pool, url, "bytes=100-199")
    except urllib3.exceptions.ProtocolError as error:
        text = repr(error)
        return f"ProtocolError: {'IncompleteRead' if 'IncompleteRead' in text else 'Connection reset by peer'}"
    return answer.status, answer.data, answer.headers.get("Content-Range")


def test_a_refusal_can_say_when_to_come_back(pool: urllib3.PoolManager) -> None:
    with RangeServer(OBJECTS, faults=[Fault("status", requests=[0], status=429, retry_after_seconds=0.5)]) as server:
        refused = get(pool, server.url_of("bucket/a.bin"))
        assert (refused.status, refused.headers["Retry-After"]) == (429, "0.5")


def test_a_changed_object_fails_conditions_from_then_on(pool: urllib3.PoolManager) -> None:
    with RangeServer(OBJECTS, faults=[Fault("changed", requests=range(1, 10**9), path="*/a.bin")]) as server:
        url, other = server.url_of("bucket/a.bin"), server.url_of("bucket/deep er/b.bin")
        etag = get(pool, url, "bytes=0-9").headers["ETag"]
        assert get(pool, url, "bytes=0-9", **{"If-Match": etag}).status == 412
        assert get(pool, url, "bytes=0-9").headers["ETag"] != etag
        assert get(pool, other).headers["ETag"] == get(pool, other).headers["ETag"]


def test_faults_depend_on_the_request_and_not_on_who_comes_first(pool: urllib3.PoolManager) -> None:
    def failed(seed: int, order: list[int]) -> set[int]:
        with RangeServer(OBJECTS, faults=[Fault("status", probability=0.3)], seed=seed) as server:
            url = server.url_of("bucket/a.bin")
            return {n for n in order if get(pool, url, f"bytes={n}-{n}").status == 503}

    there, back = list(range(100)), list(range(99, -1, -1))
    assert failed(0, there) == failed(0, back)
    assert failed(0, there) != failed(1, there)
    assert 15 < len(failed(0, there)) < 45


def test_a_request_made_again_is_drawn_again(pool: urllib3.PoolManager) -> None:
    with RangeServer(OBJECTS, faults=[Fault("status", probability=0.5)]) as server:
        statuses = {get(pool, server.url_of("bucket/a.bin"), "bytes=0-9").status for _ in range(30)}
    assert statuses == {206, 503}


def test_many_connections_at_once(pool: urllib3.PoolManager) -> None:
    with RangeServer({"a": DATA}, latency_seconds=0.05) as server, ThreadPoolExecutor(32) as threads:
        url = server.url_of("a")
        parts = list(threads.map(lambda n: get(pool, url, f"bytes={n}-{n + 99}").data, range(320)))
        assert parts == [DATA[n : n + 100] for n in range(320)]
        # No more than the client's threads; and they do not wait for one another.
        assert 1 < server.peak_concurrency <= 32


def test_a_connection_is_as_slow_as_wanted(pool: urllib3.PoolManager) -> None:
    with RangeServer({"a": DATA * 40}, latency_seconds=0.02, bytes_per_second=2_000_000) as server:
        start = time.monotonic()
        assert len(get(pool, server.url_of("a")).data) == len(DATA) * 40
        # A lower bound is no matter of how busy the machine is.
        assert time.monotonic() - start >= 0.02 + len(DATA) * 40 / 2_000_000


def test_a_server_that_is_down_refuses_and_comes_back_at_its_port(pool: urllib3.PoolManager) -> None:
    with RangeServer(OBJECTS) as server:
        url, port = server.url_of("bucket/a.bin"), server.port
        assert get(pool, url).status == 200
        server.down()
        with pytest.raises(urllib3.exceptions.NewConnectionError):
            get(pool, url)
        server.down()
        server.up()
        server.up()
        assert server.port == port
        assert get(pool, url).data == DATA


def test_stopping_does_not_wait_for_stalls_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    waiting = threading.Event()

    def ask(url: str) -> None:
        with urllib3.PoolManager(retries=False) as own, pytest.raises(urllib3.exceptions.HTTPError):
            waiting.set()
            get(own, url)

    with RangeServer(OBJECTS, faults=[Fault("slow", requests=range(9), seconds=3600)]) as server:
        client = threading.Thread(target=ask, args=(server.url_of("bucket/a.bin"),))
        client.start()
        waiting.wait()
        while not server.peak_concurrency:
            time.sleep(0.01)
    client.join()
    assert set(threading.enumerate()) == before


def test_nonsense_ends_the_connection_and_not_the_server(pool: urllib3.PoolManager) -> None:
    import socket

    with RangeServer(OBJECTS) as server:
        for nonsense in (b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 200_000):
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
                try:
                    connection.sendall(nonsense)
                    assert connection.recv(10) == b""
                except ConnectionError:
                    pass  # closed with bytes unread: a reset
        assert get(pool, server.url_of("bucket/a.bin")).status == 200


def test_a_client_of_s3_can_read_and_list_it() -> None:
    objects = {f"bucket/d{n % 3}/{n:05d}": b"x" * n for n in range(2500)} | {"other/y": b"1"}
    with RangeServer(objects) as server:
        store = obstore.store.S3Store(
            "bucket", endpoint=server.url, skip_signature=True, client_options={"allow_http": True}, region="x"
        )
        listed = [entry for page in obstore.list(store, prefix="d1") for entry in page]
        assert {(entry["path"], entry["size"]) for entry in listed} == {
            (f"d1/{n:05d}", n) for n in range(2500) if n % 3 == 1
        }
        assert sum(len(page) for page in obstore.list(store)) == 2500
        below = obstore.list_with_delimiter(store)
        assert (below["common_prefixes"], below["objects"]) == (["d0", "d1", "d2"], [])
        assert bytes(obstore.get_range(store, "d1/00100", start=5, end=15)) == b"x" * 10
        assert obstore.head(store, "d1/00100")["size"] == 100


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="no fault 'fire'"):
        Fault("fire")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"probability=1\.5"):
        Fault("reset", probability=1.5)
    with pytest.raises(UsageError, match="bytes_per_second=0"):
        RangeServer({}, bytes_per_second=0)
    with pytest.raises(UsageError, match="not running"):
        _ = RangeServer({}).url


def test_it_needs_no_test_framework_and_is_not_loaded_by_the_face() -> None:
    script = (
        "import sys, shoal; assert 'shoal.testing' not in sys.modules; import shoal.testing\n"
        "print({'pytest', 'hypothesis', 'urllib3', 'obstore'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


FEW_FILES = """
import resource, sys
from urllib.request import urlopen
from shoal.testing import RangeServer

resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
with RangeServer(sys.argv[1]) as server:
    for number in range(600):
        with urlopen(server.url_of(f"{number}.bin")) as answer:
            assert answer.read() == b"%d" % number, number
"""


def test_more_files_are_served_than_may_be_open(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
    subprocess.run([sys.executable, "-c", FEW_FILES, str(tmp_path)], check=True)


def test_a_file_that_cannot_be_opened_is_an_error_of_the_server(
    tmp_path: Path, pool: urllib3.PoolManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalStore, path: str) -> memoryview:
        msg = f"{path}: Too many open files"
        raise StorageError(msg)

    (tmp_path / "a.bin").write_bytes(b"abc")
    monkeypatch.setattr(LocalStore, "map", refuse)
    with RangeServer(tmp_path) as server:
        assert get(pool, server.url_of("a.bin")).status == 500
        assert get(pool, server.url_of("b.bin")).status == 404
