"""Many bytes of remote shards are scanned by several processes, with what one process finds, counts and refuses."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.indexing.test_indexing import processes_with, wait_until_gone
from tests.stream.made import write_lines, write_tars

from shoal.errors import ShardError, ShoalError, StorageError
from shoal.formats.format_registry import format_named
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.scan import processes
from shoal.indexing.scan.processes import num_remote_processes, num_requests_in_all, store_for_processes
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.retry import RetryingStore, RetryRule
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store
from shoal.testing import Fault, RangeServer

SIZES = [30, 1, 0, 47, 5, 12, 3, 8]


@pytest.fixture(autouse=True)
def no_shards_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MUCH_BYTES", 1)
    monkeypatch.setattr(processes, "SHARDS_EACH", 1)


def objects_of(directory: Path) -> dict[str, bytes]:
    return {f"d/{path.name}": path.read_bytes() for path in sorted(directory.iterdir())}


@contextmanager
def served(directory: Path, **options: Any) -> Iterator[RangeServer]:
    with RangeServer(objects_of(directory), **options) as server:
        yield server


def index_of(server: RangeServer, tmp_path: Path, *, workers: int, suffix: str = "tar", **options: Any) -> Index:
    source = f"{server.url}/d/s-{{000..007}}.{suffix}"
    store = RetryingStore(open_store(source), RetryRule(first_pause_seconds=0.001))
    found = expand(source, suffixes=(f".{suffix}",), store=store)
    cache = tmp_path / f"cache-{uuid.uuid4().hex}"
    return build_index(found, store=store, format=format_named(suffix), workers=workers, cache_dir=cache, **options)


@pytest.mark.parametrize("suffix", ["tar", pytest.param("jsonl", marks=pytest.mark.drill)])
def test_the_index_is_that_of_one_process(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_tars(tmp_path / "data", SIZES) if suffix == "tar" else write_lines(tmp_path / "data", [9] * 8)
    said: list[tuple[int, int, int]] = []
    took = [ScanTraffic(), ScanTraffic()]
    monkeypatch.setattr(processes, "SHARDS_EACH", 4)
    with served(directory) as server, caplog.at_level(logging.INFO, logger="shoal"):
        alone = index_of(server, tmp_path, workers=1, suffix=suffix, traffic=took[0])
        assert "processes" not in caplog.text
        together = index_of(
            server, tmp_path, workers=9, suffix=suffix, traffic=took[1], progress=lambda *done: said.append(done)
        )
    assert "2 processes scan 8 remote shards" in caplog.text
    assert together.fingerprint == alone.fingerprint
    np.testing.assert_array_equal(together.extent_layout_crc, alone.extent_layout_crc)
    assert took[1] == took[0]
    assert took[1].shard_bytes == alone.num_bytes
    assert said[-1] == (alone.num_bytes, alone.num_bytes, alone.num_samples)
    assert said == sorted(said)


def test_few_bytes_or_few_shards_need_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_tars(tmp_path / "data", SIZES)
    monkeypatch.setattr(processes, "start_python", pytest.fail)
    with served(directory) as server:
        monkeypatch.setattr(processes, "MUCH_BYTES", 1 << 30)
        assert index_of(server, tmp_path, workers=4).num_samples == sum(SIZES)
        monkeypatch.setattr(processes, "MUCH_BYTES", 1)
        monkeypatch.setattr(processes, "SHARDS_EACH", 5)
        assert index_of(server, tmp_path, workers=4).num_samples == sum(SIZES)


def test_retries_of_all_processes_are_counted(tmp_path: Path) -> None:
    directory = write_tars(tmp_path / "data", SIZES)
    with served(directory) as server:
        traffic = ScanTraffic()
        whole = index_of(server, tmp_path, workers=0)
        server.clear()
        # Each shard is looked at before, and the first one for an index of another tool: scans come after these.
        server.faults = [Fault("status", requests=list(range(12, 15)))]
        assert index_of(server, tmp_path, workers=2, traffic=traffic).fingerprint == whole.fingerprint
        assert traffic.num_retries == 3


def test_an_error_of_a_shard_is_the_same_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_tars(tmp_path / "data", SIZES)
    os.truncate(directory / "s-003.tar", 20_000)
    mark = uuid.uuid4().hex
    monkeypatch.setenv("SHOAL_TEST_MARK", mark)
    caught = []
    with served(directory) as server:
        for workers in (0, 2):
            with pytest.raises(ShardError) as error:
                index_of(server, tmp_path, workers=workers)
            caught.append(error.value)
    assert (str(caught[0]), caught[0].shard, caught[0].byte) == (str(caught[1]), caught[1].shard, caught[1].byte)
    assert caught[1].shard == "s-003.tar"
    assert not processes_with(mark)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shoal-index")]


def test_a_shard_that_vanished_is_an_error(tmp_path: Path) -> None:
    directory = write_tars(tmp_path / "data", SIZES)
    with served(directory) as server:
        server.faults = [Fault("status", requests=list(range(12, 10_000)), status=404)]
        with pytest.raises(StorageError, match="404"):
            index_of(server, tmp_path, workers=2)


def test_a_killed_process_is_reported_with_its_signal_and_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_tars(tmp_path / "data", SIZES)
    code = "import os, sys; sys.stdin.buffer.read(16); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(
        processes,
        "start_python",
        lambda *_, **__: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE),
    )
    with served(directory) as server, pytest.raises(ShoalError, match=r"s-00\d\.tar.* was killed by SIGKILL"):
        index_of(server, tmp_path, workers=2)


BUILD = """
import sys
from shoal.formats.format_registry import format_named
from shoal.indexing import build
from shoal.indexing.scan import processes
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store

processes.MUCH_BYTES = processes.SHARDS_EACH = 1
store = open_store(sys.argv[1])
found = expand(sys.argv[1], suffixes=(".tar",), store=store)
print("begins", flush=True)
build.build_index(found, store=store, format=format_named("tar"), workers=2)
"""


@pytest.mark.drill
def test_processes_end_with_a_build_that_is_killed(tmp_path: Path) -> None:
    directory = write_tars(tmp_path / "data", SIZES)
    mark = uuid.uuid4().hex
    # The scans last longer than this test.
    with served(directory, bytes_per_second=100) as server:
        source = f"{server.url}/d/s-{{000..007}}.tar"
        environment = os.environ | {"SHOAL_TEST_MARK": mark, "SHOAL_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, "-c", BUILD, source]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as made:
            assert made.stdout is not None
            assert made.stdout.readline() == "begins\n"
            while len(processes_with(mark)) < 3:
                assert made.poll() is None
            made.kill()
        wait_until_gone(mark)


def test_processes_share_a_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    much, many = 1 << 30, 1000
    found = [num_remote_processes(most, num_shards=many, num_bytes=much) for most in (0, 1, 2, 4, 16, 100)]
    assert found == [0, 0, 2, 4, 16, 16]
    assert [num_requests_in_all(number) for number in found] == [32, 32, 64, 128, 128, 128]
    assert num_remote_processes(4, num_shards=many, num_bytes=much - 1) == 0
    assert num_remote_processes(4, num_shards=8192, num_bytes=0) == 4
    assert num_remote_processes(4, num_shards=17, num_bytes=much) == 2
    assert num_remote_processes(4, num_shards=15, num_bytes=much) == 0


def test_only_stores_that_read_the_same_elsewhere_go_there() -> None:
    for url in ("http://localhost/a.tar", "s3://bucket/a.tar"):
        for store in (open_store(url), RetryingStore(open_store(url))):
            assert store_for_processes(store) is not None
    fsspec = pytest.importorskip("fsspec")
    in_memory = open_store("memory://a", {"filesystem": fsspec.filesystem("memory")})
    for other in (MemoryStore(), LocalStore(), RetryingStore(MemoryStore()), in_memory):
        assert store_for_processes(other) is None
    assert store_for_processes(open_store("s3://bucket/a.tar", {"credential_provider": credentials})) is None
    assert store_for_processes(open_store("s3://bucket/a.tar", {"credential_provider": lambda: None})) is None


def credentials() -> dict[str, str]:
    return {}
