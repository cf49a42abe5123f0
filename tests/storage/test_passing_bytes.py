"""Scanned bytes that pass by: what is read is right, comes from files where it can, and keeps within its budget."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import pickle
import random
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.errors import StorageError
from shoal.storage.chunk_cache.chunk_files import write_all
from shoal.storage.chunk_cache.ledger import LEDGER
from shoal.storage.files.local_store import LocalStore
from shoal.storage.http.http_store import HttpStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.passing_bytes import passing_bytes, scanned_files
from shoal.storage.passing_bytes.passing_bytes import SMALLEST_BYTES, PassingBytes
from shoal.storage.passing_bytes.scanned_files import FOLDER, ScannedFiles
from shoal.storage.retry import RetryingStore, RetryRule, unwrap_retries
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.testing.faults import Fault
from shoal.testing.faulty_store import FaultyStore

KIB, MIB = 1 << 10, 1 << 20
PATH = "memory://passing/a.tar"
DATA = random.Random(1).randbytes(300)


def stored(data: bytes = DATA, path: str = PATH) -> FaultyStore:
    """A store that notes what is read from it."""
    store = MemoryStore()
    store.put(path, data)
    return FaultyStore(MemoryStore())


def read(files: ScannedFiles, shard: str, name: str, first_byte: int, end_byte: int) -> bytes | None:
    buffer = bytearray(end_byte - first_byte)
    return bytes(buffer) if files.read_into(memoryview(buffer), shard, name, first_byte) else None


def used_bytes(directory: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing_bytes, "SMALLEST_BYTES", 1)


RANGES = st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA))).map(sorted)
STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["note", "fill", "read", "read in place"]), RANGES))


@settings(max_examples=40)
@example(
    steps=[(0, "note", [0, 100]), (1, "note", [101, 300]), (2, "read", [50, 200]), (2, "read in place", [50, 200])]
)
@given(steps=STEPS)
def test_reads_are_right_and_fetch_only_what_lies_between_noted_bytes(steps: list[tuple[int, str, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(passing_bytes, "SMALLEST_BYTES", 1)
        instances = [PassingBytes(directory, budget_bytes=64 * MIB) for _ in range(3)]
        store = stored()
        noted: set[int] = set()
        for number, step, (first, end) in steps:
            passing = instances[number]
            store.reads.clear()
            way: Any = passing.noting(store) if step in ("note", "fill") else passing.serving(store)
            if step in ("note", "read"):
                assert way.read_range(PATH, first, end) == DATA[first:end]
            else:
                buffer = bytearray(end - first)
                way.fill(PATH, first, memoryview(buffer))
                assert buffer == DATA[first:end]
            if step in ("note", "fill"):
                assert store.reads == [(PATH, first, end)]
                noted.update(range(first, end))
            elif first < end:
                missing = [byte for byte in range(first, end) if byte not in noted]
                assert store.reads == ([(PATH, missing[0], missing[-1] + 1)] if missing else [])
        counters = [passing.counters for passing in instances]
        assert sum(one.noted_bytes for one in counters) >= len(noted)
        assert not sum(one.refused_bytes for one in counters)
        for passing in instances:
            passing.close()
        assert list(Path(directory).iterdir()) == []


def test_what_was_noted_is_counted_and_served_to_others(tmp_path: Path, any_size: None) -> None:
    one, other = (PassingBytes(str(tmp_path), budget_bytes=MIB) for _ in range(2))
    store = stored()
    noting = one.noting(store)
    assert noting.map(PATH) == DATA
    noting.read_range(PATH, 0, 300)
    assert (one.counters.noted_bytes, one.counters.refused_bytes) == (600, 0)
    assert len(list(tmp_path.rglob("*-0-300"))) == 1
    reader = other.serving(store).reader(PATH)
    assert reader(10, 20) == DATA[10:20]
    reader.confirm()
    assert other.counters.served_bytes == 10
    other.serving(store).read_range(PATH, 0, 0)
    one.drop(PATH)
    assert other.serving(store).read_range(PATH, 5, 25) == DATA[5:25]  # it had known of a file that is gone
    assert (other.counters.served_bytes, other.counters.fetched_bytes) == (10, 20)


def test_another_version_is_another_shard(tmp_path: Path, any_size: None) -> None:
    passing = PassingBytes(str(tmp_path), budget_bytes=MIB)
    passing.noting(stored()).read_range(PATH, 0, 300)
    changed = DATA[::-1]
    store = stored(changed)
    assert passing.serving(store).read_range(PATH, 0, 300) == changed
    assert store.reads == [(PATH, 0, 300)]
    longer = stored(changed + b"x")
    assert passing.serving(longer).read_range(PATH, 0, 301) == changed + b"x"
    again = stored()
    assert passing.serving(again).read_range(PATH, 0, 300) == DATA
    assert again.reads == []
    passing.drop(PATH)
    assert passing.serving(again).read_range(PATH, 0, 300) == DATA
    assert again.reads == [(PATH, 0, 300)]


class Versions(Store):
    """A store whose objects are of the versions given, one for each look."""

    def __init__(self, *versions: str) -> None:
        self._versions = iter(versions)
        self._version = ""
        self.reads: list[tuple[int, int]] = []

    def stat(self, path: str) -> ObjectInfo:
        self._version = next(self._versions, self._version)
        return ObjectInfo(path, len(DATA), self._version)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        self.reads.append((first_byte, end_byte))
        return DATA[first_byte:end_byte]


def test_bytes_of_no_version_or_of_two_are_not_kept(tmp_path: Path, any_size: None) -> None:
    passing = PassingBytes(str(tmp_path), budget_bytes=MIB)
    for versions in (("",), ("one", "two")):
        store: Any = Versions(*versions)
        assert passing.noting(store).read_range(PATH, 0, 300) == DATA
    assert passing.counters.noted_bytes == 0
    store = Versions("one")
    passing.noting(store).read_range(PATH, 0, 100)
    # Fetched after the version had changed: then all of it is read from the store.
    store = Versions("one", "two")
    assert passing.serving(store).read_range(PATH, 50, 200) == DATA[50:200]
    assert store.reads == [(100, 200), (50, 200)]
    assert passing.counters.served_bytes == 0


def test_spans_of_headers_are_not_kept(tmp_path: Path) -> None:
    data = bytes(MIB)
    store = stored(data)
    passing = PassingBytes(str(tmp_path), budget_bytes=4 * MIB)
    noting = passing.noting(store)
    for first, end in ((10, 20_000), (0, 20_000), (MIB - 5, MIB), (1, SMALLEST_BYTES), (1, 1 + SMALLEST_BYTES)):
        before = passing.counters.noted_bytes
        noting.read_range(PATH, first, end)
        assert (passing.counters.noted_bytes > before) == ((first, end) not in ((10, 20_000), (1, SMALLEST_BYTES)))


def test_the_budget_is_kept_by_all_together(tmp_path: Path) -> None:
    rng = random.Random(2)
    paths = [f"memory://budget/{number}" for number in range(40)]
    data = {path: rng.randbytes(rng.choice([1, 5000, 100 * KIB, 300 * KIB])) for path in paths}
    for path in paths:
        stored(data[path], path)
    ways = [PassingBytes(str(tmp_path), budget_bytes=2 * MIB) for _ in range(3)]

    def note(way: PassingBytes, path: str) -> None:
        assert way.noting(MemoryStore()).read_range(path, 0, len(data[path])) == data[path]

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(note, itertools.cycle(ways), paths))
    counters = [way.counters for way in ways]
    noted, refused = (sum(getattr(one, name) for one in counters) for name in ("noted_bytes", "refused_bytes"))
    assert noted + refused == sum(map(len, data.values()))
    assert MIB < noted <= 2 * MIB < sum(map(len, data.values()))
    assert used_bytes(tmp_path) <= 2 * MIB
    # What is there stays there, since it is needed first; room is made by those who are done with a shard.
    large = stored(bytes(MIB), "memory://budget/large")
    ways[0].noting(large).read_range("memory://budget/large", 0, MIB)
    assert ways[0].counters.refused_bytes >= MIB
    served = 0
    for path in paths:
        store = stored(data[path], path)
        assert ways[1].serving(store).read_range(path, 0, len(data[path])) == data[path]
        served += not store.reads and len(data[path])
    assert served == noted
    for path in paths:
        ways[1].drop(path)
    before = ways[2].counters.noted_bytes
    ways[2].noting(large).read_range("memory://budget/large", 0, MIB)
    assert ways[2].counters.noted_bytes == before + MIB


def test_what_is_scanned_twice_is_charged_once(tmp_path: Path) -> None:
    files = ScannedFiles(str(tmp_path), budget_bytes=MIB)
    assert all(files.add("shard", "name", bytes([number]) * 400 * KIB) for number in range(10))
    assert read(files, "shard", "name", 5, 7) == b"\x09\x09"  # the latest
    assert files.add("shard", "other", bytes(400 * KIB))
    assert not files.add("shard", "third", bytes(400 * KIB))
    files.leave()


def test_files_that_threads_add_at_once_are_added_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may fail, or find no room: the others are there, and nothing is charged for it."""
    files = ScannedFiles(str(tmp_path), budget_bytes=4 * MIB)
    holds: list[int] = []
    held, is_first_written = files._ledger.held, threading.Event()

    def counted(*arguments: Any) -> Any:
        holds.append(1)
        return held(*arguments)

    def write(descriptor: int, data: Any, position: int) -> None:
        if len(data) == 5:
            assert is_first_written.wait(10)
        if len(data) == 6:
            raise OSError(errno.EIO, "damaged")
        write_all(descriptor, data, position)

    monkeypatch.setattr(files._ledger, "held", counted)
    monkeypatch.setattr(scanned_files, "write_all", write)
    sizes = [6, 100, 5 * MIB, 200, 6, 300]
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(files.add, "shard", "first", bytes(5))
        while len(holds) < 1:
            time.sleep(0.001)
        others = [threads.submit(files.add, "shard", f"{number}", bytes(size)) for number, size in enumerate(sizes)]
        while len(files._new_files) < len(sizes):
            time.sleep(0.001)
        is_first_written.set()
        assert first.result()
        assert [other.exception() is None and other.result() for other in others] == [
            False,
            True,
            False,
            True,
            False,
            True,
        ]
        assert [type(other.exception()) for other in others[::4]] == [OSError, OSError]
    assert len(holds) == 4
    assert sorted(files.names("shard")) == ["1", "3", "5", "first"]
    assert list((tmp_path / FOLDER / "filling").iterdir()) == []
    assert files.add("shard", "rest", bytes(3 * MIB))
    files.leave()


def test_files_being_written_count_when_files_are_counted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (ScannedFiles(str(tmp_path), budget_bytes=MIB) for _ in range(2))
    taken = []

    def write(descriptor: int, data: Any, position: int) -> None:
        monkeypatch.undo()
        os.truncate(tmp_path / FOLDER / LEDGER, 0)  # damaged, as by a kill
        taken.append([other.add("shard", "small", bytes(300 * KIB)), other.add("shard", "large", bytes(500 * KIB))])
        write_all(descriptor, data, position)

    monkeypatch.setattr(scanned_files, "write_all", write)
    assert one.add("shard", "name", bytes(600 * KIB))
    assert taken == [[True, False]]
    assert used_bytes(tmp_path) <= MIB
    other.leave()
    one.leave()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_half_of_a_small_disk_stays_free(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        store = stored(bytes(MIB))
        passing = PassingBytes(str(tmp_path), budget_bytes=64 * MIB)
        for first in range(0, MIB, 64 * KIB):
            stored(bytes(MIB), f"{PATH}{first}")
            passing.noting(store).read_range(f"{PATH}{first}", 0, MIB)
        assert passing.counters.noted_bytes == MIB
        assert passing.counters.refused_bytes == 15 * MIB
        passing.close()
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.fixture
def small_files() -> Iterator[None]:
    """This process cannot write files above 128 KiB, as if the disk was full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * KIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_noting_and_nothing_else(
    tmp_path: Path, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    data = random.Random(3).randbytes(MIB)
    store = stored(data)
    passing = PassingBytes(str(tmp_path), budget_bytes=4 * MIB)
    noting = passing.noting(store)
    assert noting.read_range(PATH, 0, 100 * KIB) == data[: 100 * KIB]
    with caplog.at_level(logging.WARNING):
        for first in (100, 500):
            assert noting.read_range(PATH, first * KIB, (first + 300) * KIB) == data[first * KIB : (first + 300) * KIB]
    assert len(caplog.records) == 1
    assert noting.read_range(PATH, 900 * KIB, 1000 * KIB) == data[900 * KIB : 1000 * KIB]  # too late
    assert (passing.counters.noted_bytes, passing.counters.refused_bytes) == (100 * KIB, 700 * KIB)
    assert passing.serving(store).read_range(PATH, 0, MIB) == data
    assert passing.counters.served_bytes == 100 * KIB
    assert list((tmp_path / FOLDER / "filling").iterdir()) == []
    passing.close()
    assert list(tmp_path.iterdir()) == []


def test_where_no_files_can_be_kept_reading_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    passing = PassingBytes(str(tmp_path / "file" / "x"), budget_bytes=MIB)
    assert "scanned bytes are not kept for the stream" in caplog.text
    assert passing.noting(stored()).read_range(PATH, 0, 300) == DATA
    assert passing.serving(stored()).read_range(PATH, 0, 300) == DATA
    passing.drop(PATH)
    passing.close()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / FOLDER).mkdir(mode=0o777)
    (tmp_path / "open" / FOLDER).chmod(0o777)
    PassingBytes(str(tmp_path / "open"), budget_bytes=MIB)
    assert "open to other users" in caplog.text


def test_files_that_vanish_are_only_missing(tmp_path: Path, any_size: None) -> None:
    passing = PassingBytes(str(tmp_path), budget_bytes=MIB)
    store = stored()
    for first in range(0, 300, 100):
        passing.noting(store).read_range(PATH, first, first + 100)
    assert passing.serving(store).read_range(PATH, 0, 300) == DATA
    files = sorted((tmp_path / FOLDER / "shards").rglob("*-100-*"))
    os.truncate(files[0], 50)
    store.reads.clear()
    assert passing.serving(store).read_range(PATH, 0, 300) == DATA
    assert store.reads == [(PATH, 100, 200)]
    subprocess.run(["rm", "-r", tmp_path / FOLDER], check=True)
    assert passing.serving(store).read_range(PATH, 0, 300) == DATA
    assert passing.noting(store).read_range(PATH, 0, 300) == DATA
    passing.drop(PATH)
    passing.close()


def test_after_closing_it_reads_from_the_store(tmp_path: Path, any_size: None) -> None:
    passing = PassingBytes(str(tmp_path), budget_bytes=MIB)
    store = stored()
    noting, serving = passing.noting(store), passing.serving(store)
    noting.read_range(PATH, 0, 300)
    passing.close()
    passing.close()
    assert list(tmp_path.iterdir()) == []
    store.reads.clear()
    assert [way.read_range(PATH, 0, 300) for way in (noting, serving)] == [DATA, DATA]
    assert len(store.reads) == 2
    assert list(tmp_path.iterdir()) == []


def test_wrapped_stores_keep_their_verbs(tmp_path: Path, any_size: None) -> None:
    passing = PassingBytes(str(tmp_path), budget_bytes=MIB)
    local = LocalStore()
    assert passing.noting(local) is passing.serving(local) is local
    store = MemoryStore()
    for way in (passing.noting(store), passing.serving(store)):
        way.put(f"{PATH}-put", b"x")
        assert way.put_if(f"{PATH}-put", b"y", replaces=way.stat(f"{PATH}-put"))
        assert way.stat_again(f"{PATH}-put") == store.stat(f"{PATH}-put")
        assert [info.num_bytes for info in way.list(f"{PATH}-put"[:-10])]
        way.delete(f"{PATH}-put")
        assert way.find(f"{PATH}-put") is None
        way.advise(PATH, 0, 1)
        way.close()
    with pytest.raises(StorageError, match="cannot compare"):
        passing.serving(HttpStore()).put_if("http://host/a", b"x", replaces=None)
    rule = RetryRule(first_pause_seconds=0.001)
    failing = FaultyStore(MemoryStore(), [Fault("status", requests=[0, 1])])
    stored()
    for wrapped in (passing.noting, passing.serving):
        with_retries = wrapped(RetryingStore(failing, rule))
        once, its_rule = unwrap_retries(with_retries)
        assert its_rule is rule
        assert with_retries.read_range(PATH, 0, 300) == DATA
        once.fill(PATH, 0, memoryview(buffer := bytearray(300)))
        assert buffer == DATA
    assert failing.num_faults() == {"status": 2}
    again = pickle.loads(pickle.dumps(passing.serving(RetryingStore(failing, rule))))
    assert again.read_range(PATH, 0, 300) == DATA
    with pytest.raises(StorageError, match="no such object"):
        passing.serving(store).read_range("memory://passing/none", 0, 1)
