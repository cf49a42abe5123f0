"""The page of a run: who may read it, what it says, and that nothing of it is left."""

from __future__ import annotations

import gc
import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.stream.dataset import Dataset
from shoal.watch.page_reporter import address_of


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
