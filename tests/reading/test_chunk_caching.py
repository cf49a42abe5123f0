"""`shoal.open(cache=)`: the same samples, chunks asked for once on this machine, and never bytes of another state."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.forks import Meeting, results
from tests.samples import write_tar_shards

import shoal
from shoal.errors import StorageError, UsageError
from shoal.reading.cache import cached_ranges
from shoal.reading.checks import checked_reads
from shoal.storage.chunk_cache.directory import FOLDER
from shoal.testing import Fault, RangeServer

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")  # small windows, on purpose


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "shoal"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_tar_shards(tmp_path / "data", samples_per_shard=200)
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[RangeServer]:
    with RangeServer({path.name: path.read_bytes() for path in data.iterdir()}) as running:
        yield running


def url_of(server: RangeServer) -> str:
    return server.url_of("train-000000.tar").replace("000000", "{000000..000003}")


def opened(source: Any, cache: Any, *, batch: int = 5) -> shoal.Dataset:
    ds = shoal.open(source, cache=cache)
    return ds.shuffle(shoal.orders.Window(chunks=8, num_canonical_nodes=1), seed=3, chunk="64KiB").batch(batch)


def keys(ds: shoal.Dataset) -> list[list[str]]:
    return [batch["__key__"] for batch in ds]


@pytest.mark.parametrize("kind", ["files", "http"])
def test_the_second_epoch_and_the_next_run_come_from_the_cache(
    tmp_path: Path, data: Path, server: RangeServer, kind: str
) -> None:
    source = str(data) if kind == "files" else url_of(server)
    expected = keys(opened(str(data), None))
    ds = opened(source, tmp_path / "cache")
    assert keys(ds) == expected
    first = ds.stats()
    assert first["num_cache_fills"] > 4
    assert first["num_cache_hits"] == first["num_cache_bypasses"] == 0
    second_epoch = keys(ds)
    assert sorted(chain(*second_epoch)) == sorted(chain(*expected))
    assert ds.stats()["num_cache_fills"] == first["num_cache_fills"]
    assert ds.stats()["num_cache_hits"] == first["num_cache_fills"]
    again = opened(source, tmp_path / "cache")
    assert keys(again) == expected
    assert again.stats()["num_cache_fills"] == 0
    assert not list((tmp_path / "cache" / FOLDER / "filling").iterdir())


def test_without_a_cache_there_is_none(data: Path) -> None:
    assert shoal.open(data).stream.opened.cache is None
    assert shoal.open(data, cache=False).stream.opened.cache is None
    assert "num_cache_hits" not in shoal.open(data).stats()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_ask_for_each_chunk_once(tmp_path: Path, server: RangeServer) -> None:
    cache = {"directory": str(tmp_path / "cache"), "budget": "64MiB"}
    num_chunks = len(opened(url_of(server), None).resolved.chunks)  # the index is made once
    all_ready = Meeting(tmp_path / "ready", 4)
    server.latency_seconds = 0.02

    def read_all() -> tuple[int, int]:
        ds = opened(url_of(server), cache)
        all_ready.wait()
        return sum(map(len, keys(ds))), ds.stats()["num_cache_fills"]

    counts = results(*[read_all] * 4)
    assert [num_samples for num_samples, _ in counts] == [800] * 4
    assert sum(num_fills for _, num_fills in counts) == num_chunks


def test_another_state_of_a_shard_is_other_bytes(tmp_path: Path, data: Path) -> None:
    cache = tmp_path / "cache"
    path = data / "train-000000.tar"
    before = path.stat()
    assert len(keys(opened(str(data), cache))) == 160
    changed = path.read_bytes().replace(b"sample 0007", b"Sample 0007")
    path.write_bytes(changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    texts = [text for batch in opened(str(data), cache) for text in batch["txt"]]
    assert "Sample 0007" in map(str, texts) or b"Sample 0007" in texts


def test_bytes_that_cannot_be_parsed_are_not_believed(tmp_path: Path, server: RangeServer) -> None:
    """Without checksums, what was damaged on its way into the cache shows when it is parsed."""
    url = url_of(server)
    expected = keys(opened(url, None))
    ds = opened(url, tmp_path / "cache")
    inside = ds.stream.opened
    cache = inside.cache
    assert cache is not None
    for read in ds.resolved.units.reads(np.arange(len(ds.resolved.chunks))):
        inside.check.check(read.shard)
        key = cached_ranges.range_key(inside, (read.shard, read.first_byte, read.end_byte))
        cache.read(key, read.num_bytes, partial(bytes, read.num_bytes))
    assert keys(ds) == expected
    assert ds.stats()["num_corrupt"] > 0
    assert keys(opened(url, tmp_path / "cache")) == expected


def test_waiting_for_another_process_is_a_part_of_the_deadline(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server that is gone for good, sixteen processes know after one deadline, and not one after the other."""
    ds = opened(url_of(server), tmp_path / "cache").reading(deadline=0.1)

    def after_a_while(opened: Any, place: Any, fetch: Callable[[], bytes], **_: Any) -> bytes:
        time.sleep(0.15)  # as where who filled it gave up
        return fetch()

    monkeypatch.setattr(checked_reads, "read_cached", after_a_while)
    server.faults = [Fault("status", status=503, probability=1)]
    with pytest.raises(StorageError, match=r"1 attempt in .* the deadline is 0\.1 s"):
        next(iter(ds))


def test_of_a_server_that_is_down_for_longer_than_the_wait_all_ask_and_one_keeps(
    tmp_path: Path, server: RangeServer
) -> None:
    """Who waits cannot tell a process that tries again from one that was stopped: so it asks, too, and nobody fails."""
    url, cache = url_of(server), {"directory": tmp_path / "cache", "budget": "64MiB"}
    expected = keys(opened(url, None))
    both = [opened(url, cache), opened(url, cache)]
    for ds in both:
        opened_cache = ds.stream.opened.cache
        assert opened_cache is not None
        opened_cache._files._wait_seconds = 0.05
        for shard in range(4):
            ds.stream.opened.check.check(shard)
    server.faults = [Fault("status", status=503, probability=1)]
    found: list[list[list[str]]] = []
    threads = [Thread(target=lambda ds=ds: found.append(keys(ds))) for ds in both]
    for thread in threads:
        thread.start()
    counts = [ds.stream.opened.cache.counts for ds in both if ds.stream.opened.cache]
    while not sum(count.num_bypasses for count in counts):
        time.sleep(0.01)
    server.faults = []
    for thread in threads:
        thread.join()
    assert found == [expected] * 2
    num_chunks = len(both[0].resolved.chunks)
    assert sum(count.num_fills for count in counts) == num_chunks
    assert sum(count.num_bypasses for count in counts) <= num_chunks
    assert keys(opened(url, cache)) == expected


def test_what_cache_may_be(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cache(asked: Any) -> Any:
        return shoal.open(data, cache=asked).stream.opened.cache

    assert cache(str(tmp_path / "a")).path == str(tmp_path / "a" / FOLDER)
    assert cache(tmp_path / "a").path == str(tmp_path / "a" / FOLDER)
    assert cache({"directory": tmp_path / "b", "budget": "200MiB"}).budget_bytes == 200 << 20
    monkeypatch.setattr(cached_ranges, "shared_directory", lambda num_bytes: str(tmp_path / str(num_bytes)))
    shared = cache(True)
    assert shared.path == str(tmp_path / str(1 << 30) / FOLDER)
    assert cache({"budget": "64MiB"}).budget_bytes == 64 << 20
    for wrong in (
        {"dir": "x"},
        {"keep": 1},
        5,
        "",
        {"directory": 3},
        {"budget": "much"},
        "s3://b/c",
        {"directory": "http://h/c"},
    ):
        with pytest.raises(UsageError):
            cache(wrong)


def test_a_cache_in_memory_is_cleared_at_the_end(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_ranges, "shared_directory", lambda _: str(tmp_path / "shared"))
    ds = opened(data, True)
    keys(ds)
    assert list((tmp_path / "shared" / FOLDER / "chunks").iterdir())
    cache = ds.stream.opened.cache
    assert cache is not None
    cache.close()
    assert not list((tmp_path / "shared").iterdir())


def test_a_budget_below_the_windows_of_the_machine(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = {"directory": tmp_path / "cache", "budget": "1MiB"}
    ds = opened(data, cache, batch=2)
    assert len(keys(ds)) == 400
    opened_cache = ds.stream.opened.cache
    assert opened_cache is not None
    seen: list[int] = []
    monkeypatch.setattr(type(opened_cache), "expect", lambda _, window_bytes: seen.append(window_bytes))
    iter(ds)
    parts = ds.partition(rank=0, world_size=4)
    iter(parts)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    iter(parts)
    assert seen[0] == pytest.approx(4 * seen[1], abs=4)
    assert seen[2] == pytest.approx(2 * seen[1], abs=2)
    monkeypatch.undo()
    opened_cache._files.budget_bytes = 1000
    with pytest.raises(UsageError, match="windows of this machine"):
        iter(ds)


def test_a_dataset_with_a_cache_pickles(tmp_path: Path, data: Path) -> None:
    ds = opened(data, tmp_path / "cache")
    expected = keys(ds)
    ds.set_epoch(0)
    copy = pickle.loads(pickle.dumps(ds.stream.opened))
    assert copy.cache.path == str(tmp_path / "cache" / FOLDER)
    assert len(expected) == 160


def test_single_samples_come_from_the_cache(tmp_path: Path, data: Path) -> None:
    ds = shoal.open(data, cache=tmp_path / "cache")
    expected = shoal.open(data)[17]
    assert ds[17] == expected
    assert ds[17] == expected
    assert (ds.stats()["num_cache_fills"], ds.stats()["num_cache_hits"]) == (1, 1)
