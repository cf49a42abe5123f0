"""The page of a run: who may read it, what it says, and that nothing of it is left."""

from __future__ import annotations

import gc
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.stream.made import write_tars

import shoal
from shoal.stream.dataset import Dataset
from shoal.testing import RangeServer
from shoal.torch import DataLoader
from shoal.watch import address, page_reporter, page_server
from shoal.watch.page_reporter import address_of
from shoal.watch.run_page import run_page

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def get(url: str, *, host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], str]:
    """Status, headers and body of a request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=10)
    connection.putrequest(method, parts.path, skip_host=True)
    connection.putheader("Host", parts.netloc if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


@pytest.fixture
def run(tars: Dataset) -> Iterator[tuple[Dataset, Any, str]]:
    ds = tars.shuffle(seed=1).batch(10).reading(progress="page")
    with iter(ds) as batches:
        next(batches)
        url = address_of(ds.stream.counters)
        assert url is not None
        yield ds, batches, url


def test_the_page_says_first_whether_training_waits(run: tuple[Dataset, Any, str]) -> None:
    _, _, url = run
    status, headers, page = get(url)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert re.search(r'<header><h1><span class="word \w+">[A-Z ]+</span> <span class="said">\w', page)
    assert "Rank 0 of 1; 8 shards (tar); global batch 10; order window, seed 1" in page
    assert "10 of 197 (5.0%)" in page
    for heading in ("Progress", "Who waits for whom", "Storage", "Mixing", "Memory for chunks", "All counts"):
        assert f">{heading}</h2>" in page


def test_numbers_and_metrics_are_those_of_stats(run: tuple[Dataset, Any, str]) -> None:
    ds, batches, url = run
    next(batches)
    numbers = json.loads(get(f"{url}stats.json")[2])
    assert numbers["stats"]["num_samples"] == ds.stats()["num_samples"] == 20
    assert numbers["progress"] | {"eta_seconds": None} == {
        "epoch": 0, "position": 20, "rank": 0, "world_size": 1, "is_over": False, "num_samples": 197,
        "share": 2 / 20, "eta_seconds": None,
    }  # fmt: skip
    status, headers, metrics = get(f"{url}metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'shoal_samples_total{rank="0"} 20' in metrics


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"])
def test_a_foreign_host_is_refused(run: tuple[Dataset, Any, str], host: str) -> None:
    status, headers, body = get(run[2], host=host)
    assert status == 403
    assert "shoal" not in body
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:9000", "[::1]:9000"])
def test_a_tunnel_may_use_another_port(run: tuple[Dataset, Any, str], host: str) -> None:
    assert get(run[2], host=host)[0] == 200


def test_the_token_is_needed_and_only_get_is_answered(run: tuple[Dataset, Any, str]) -> None:
    url = run[2]
    root = url[: url.index("/", 8)]
    for path in ("/", "/stats.json", "/metrics", "/x/stats.json", "/../etc/passwd"):
        assert get(f"{root}{path}")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert get(url, method=method)[0] == 405
    assert get(f"{url}other")[0] == 404


def test_a_page_loads_nothing_from_elsewhere(run: tuple[Dataset, Any, str]) -> None:
    _, headers, page = get(run[2])
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert not re.search(r'(src|href)="', page)
    assert "http" not in page.partition("<style>")[0].replace("http-equiv", "")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_one_address_for_all_epochs_and_nothing_is_left(tars: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    gc.collect()
    before = set(threading.enumerate())
    ds = tars.batch(50).reading(progress="page")
    list(ds)
    list(ds)
    url = address_of(ds.stream.counters)
    assert url is not None
    written = capfd.readouterr().err.splitlines()
    assert [line for line in written if line.startswith("shoal: the page of this run: ")] == [
        f"shoal: the page of this run: {url}"
    ]
    assert "EPOCH OVER" in get(url)[2]
    assert "Epoch 1 is over" in get(url)[2]
    hanging = socket.create_connection(("127.0.0.1", urlsplit(url).port))  # a browser connects ahead of need
    del ds
    gc.collect()
    with pytest.raises(OSError, match="refused"):
        get(url)
    hanging.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_keep_the_port(tars: Dataset) -> None:
    ds = tars.batch(50).reading(progress="page")
    list(ds)
    url = address_of(ds.stream.counters)
    assert url is not None
    ours, childs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(childs)
        os.read(ours, 1)  # live until the parent is done
        os._exit(0)
    try:
        assert get(url)[0] == 200
        del ds
        gc.collect()
        with pytest.raises(OSError, match="refused"):
            get(url)
    finally:
        os.close(childs)
        os.waitpid(pid, 0)


def test_training_goes_on_without_a_page(
    tars: Dataset, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no loopback interface")

    monkeypatch.setattr(page_reporter, "PageServer", refuse)
    assert len(list(tars.batch(50).reading(progress="page"))) == 4
    assert "the page of this run cannot be served: no loopback interface" in capfd.readouterr().err


def test_a_page_sums_the_workers_of_a_loader_and_names_slow_stages(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).map(_slow).batch(5).reading(progress="page")
    loader = DataLoader(ds, num_workers=2)
    batches = iter(loader)
    for _ in range(30):
        next(batches)
    numbers = json.loads(get(f"{address(loader)}stats.json")[2])
    assert numbers["stats"]["num_samples"] == 150
    assert numbers["progress"]["position"] == 150
    assert numbers["verdict"]["word"] == "WAITING FOR STAGES"
    assert "num_workers=" in numbers["verdict"]["remedy"]
    assert numbers["now"]["stages_share"] > 0.5


def _slow(sample: Any) -> Any:
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass
    return {"n": len(sample)}


def test_a_mixture_has_its_shares(tars: Dataset) -> None:
    mixture = shoal.mix({"a": tars.take(100), "b": tars.skip(100)}, weights={"a": 3, "b": 1})
    ds = mixture.shuffle(seed=1).batch(8).reading(progress="page")
    batches = iter(ds)
    for _ in range(5):
        next(batches)
    numbers = json.loads(get(f"{address(ds)}stats.json")[2])
    num_a, num_b = np.bincount(ds.source_of(np.arange(40))).tolist()
    assert num_a in (29, 30, 31)
    assert numbers["sources"] == [
        {"name": "a", "wanted": 0.75, "delivered": num_a / 40, "num_samples": num_a},
        {"name": "b", "wanted": 0.25, "delivered": num_b / 40, "num_samples": num_b},
    ]
    assert ">Mixture</h2>" in get(address(ds) or "")[2]


def test_an_index_that_grows_shows_what_is_indexed(tmp_path: Any) -> None:
    paths = write_tars(tmp_path / "data", [40, 40, 40]).iterdir()
    with RangeServer(tmp_path / "data", latency_seconds=0.01) as server:
        urls = [server.url_of(path.name) for path in sorted(paths)]
        ds = shoal.open(urls, index="grow").shuffle(seed=1, window="64KiB").batch(4).reading(progress="page")
        next(iter(ds))
        numbers = json.loads(get(f"{address(ds)}stats.json")[2])
    page = run_page(numbers)
    assert numbers["dataset"]["num_shards"] == 3
    assert numbers["dataset"]["order"] == "growing"
    assert "3 shards (tar)" in page
    is_indexed = numbers["dataset"]["num_indexed_shards"] == 3
    assert is_indexed != ("Indexed so far" in page)


def test_no_key_and_no_path_is_shown(tmp_path: Any) -> None:
    write_tars(tmp_path / "zebra-folder", [40])
    with RangeServer(tmp_path / "zebra-folder") as server:
        options = {"headers": {"Authorization": "Bearer zebra-key"}}
        shard = next((tmp_path / "zebra-folder").iterdir()).name
        source = f"{server.url_of(shard)}?signature=zebra-signature"
        ds = shoal.open([source], storage_options=options).shuffle(seed=1).batch(4)
        ds = ds.reading(progress="page", trace=tmp_path / "trace.json")
        with iter(ds) as batches:
            next(batches)
            shown = "".join(get(f"{address(ds)}{name}")[2] for name in ("", "stats.json", "metrics"))
        place = server.url.partition("://")[2]
    shown += (tmp_path / "trace.json").read_text()
    assert "zebra" not in shown
    assert shard not in shown
    assert place not in shown


def test_the_garbage_collector_may_close_a_server_in_its_own_thread() -> None:
    closed_in: list[str] = []

    class Run:
        def tick(self) -> None:
            closed_in.append(threading.current_thread().name)
            server.close()

    server = page_server.PageServer(Run())  # type: ignore[arg-type]
    until = time.monotonic() + 5
    while any(thread.name == "shoal-page" for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
        gc.collect()
    assert closed_in == ["shoal-page"]
    assert server.is_closed
    with pytest.raises(OSError, match="refused"):
        get(server.url)


def test_the_use_of_a_chunk_cache_is_shown(tmp_path: Any) -> None:
    shard = next(write_tars(tmp_path / "data", [40]).iterdir())
    with RangeServer(tmp_path / "data") as server:
        ds = shoal.open([server.url_of(shard.name)], cache=tmp_path / "cache").shuffle(seed=1).batch(4)
        ds = ds.reading(progress="page")
        list(ds)
        list(ds)
        page = get(address(ds) or "")[2]
        stats = ds.stats()
    share = stats["num_cache_hits"] / (stats["num_cache_hits"] + stats["num_cache_fills"])
    assert share >= 0.5
    assert f"From the chunk cache</dt><dd>{share:.0%} of" in page
