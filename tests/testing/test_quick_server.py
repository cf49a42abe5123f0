"""The server of the benchmarks, which answers as the one of the tests does."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import urllib3

from shoal.testing import RangeServer

SCRIPT = Path(__file__).parents[2] / "bench" / "servers" / "quick.py"
DATA = bytes(range(256)) * 4000

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="bench/ is not in the packed source")


def quick(directory: Path, *, latency_ms: float = 0, connection_mb: float = 1e6) -> Any:
    spec = importlib.util.spec_from_file_location("quick_server", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Quick(directory, latency_ms, connection_mb)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a b.tar").write_bytes(DATA)
    (tmp_path / "bucket" / "empty").write_bytes(b"")
    return tmp_path


def test_it_answers_as_the_server_of_the_tests(directory: Path) -> None:
    a = "/bucket/a%20b.tar"
    asked: list[tuple[str, str, dict[str, str]]] = [
        ("GET", a, {}),
        *(("GET", a, {"Range": f"bytes={asked}"}) for asked in ("0-0", "3-99999", "-5", "1023990-2000000", "0-1,5-6")),
        ("GET", a, {"Range": f"bytes={len(DATA)}-"}),
        ("HEAD", a, {}),
        ("GET", "/bucket/empty", {}),
        ("GET", "/nothing", {}),
        ("GET", "/../secret", {}),
        ("PUT", a, {"Content-Length": "0"}),
        ("GET", a, {"If-None-Match": "*"}),
        ("GET", a, {"Range": "bytes=0-1", "If-Match": '"another"'}),
        ("GET", a, {"Connection": "close", "Range": "bytes=5-6"}),
        ("GET", "/bucket?list-type=2", {}),
        ("GET", a, {"Range": "bytes=7-8"}),
    ]
    with quick(directory) as server, RangeServer(directory) as other, urllib3.PoolManager(retries=False) as pool:
        for method, target, headers in asked:
            ours, theirs = (pool.request(method, url + target, headers=headers) for url in (server.url, other.url))
            assert (ours.status, ours.data) == (theirs.status, theirs.data), (method, target, headers)
            assert dict(ours.headers) == dict(theirs.headers)
        assert server.seen()["ranges"] == [[seen.path, seen.first_byte, seen.num_bytes] for seen in other.exchanges]
        assert server.seen()["ranges"] == []


def test_connections_carry_so_much_and_answers_take_so_long(directory: Path) -> None:
    """At least; and all at the same time."""
    with quick(directory, latency_ms=50, connection_mb=10) as server, urllib3.PoolManager(maxsize=32) as pool:

        def get(first: int) -> bytes:
            headers = {"Range": f"bytes={first}-{first + 500_000 - 1}"}
            return pool.request("GET", f"{server.url}/bucket/a%20b.tar", headers=headers).data

        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(get, range(32))) == [DATA[first : first + 500_000] for first in range(32)]
        seen = server.seen()
        assert 8 <= seen["concurrency"] <= 16
        assert len(seen["ranges"]) == 32


def test_what_is_no_request_ends_the_connection(directory: Path) -> None:
    with quick(directory) as server, urllib3.PoolManager(retries=False) as pool:
        with pytest.raises(urllib3.exceptions.ProtocolError):
            pool.request("GET", server.url, headers={"Content-Length": "three"})
        with pytest.raises(urllib3.exceptions.ProtocolError):
            pool.request("GET", server.url, headers={"X": "y" * (1 << 16)})
        assert pool.request("GET", f"{server.url}/bucket/empty").status == 200
