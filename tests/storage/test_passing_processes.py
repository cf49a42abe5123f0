"""Scanned bytes that pass between processes: forked, started anew, killed; and from a real scan to a real stream."""

from __future__ import annotations

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.storage.test_passing_bytes import read, used_bytes

from shoal.formats.format_registry import format_named
from shoal.indexing.build import build_index
from shoal.storage.memory_store import MemoryStore
from shoal.storage.passing_bytes.passing_bytes import PassingBytes
from shoal.storage.passing_bytes.scanned_files import FOLDER, ScannedFiles
from shoal.storage.retry import with_retries
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.testing import Fault, RangeServer
from shoal.testing.faulty_store import FaultyStore

KIB, MIB = 1 << 10, 1 << 20
PATH = "memory://passing/shared.tar"
SOURCE = str(Path(__file__).parents[2] / "src")

# Threads note ranges of the same shards until they are killed; bytes follow from their position.
NOTER = """
import random, sys, threading, time
sys.path[:0] = [{source!r}]
from shoal.storage.memory_store import MemoryStore
from shoal.storage.passing_bytes import passing_bytes
from shoal.storage.passing_bytes.passing_bytes import PassingBytes

passing_bytes.SMALLEST_BYTES = 1
data = random.Random(0).randbytes({num_bytes!r})
paths = ["memory://passing/%d.tar" % number for number in range(4)]
for path in paths:
    MemoryStore().put(path, data)
passing = PassingBytes({directory!r}, budget_bytes={budget!r})

def note(seed):
    rng, noting = random.Random(seed), passing.noting(MemoryStore())
    while True:
        first = rng.randrange({num_bytes!r})
        noting.read_range(rng.choice(paths), first, min({num_bytes!r}, first + rng.choice([100, 10000, 200000])))

for number in range(8):
    threading.Thread(target=note, args=({seed!r} + number,), daemon=True).start()
while not passing.counters.noted_bytes + passing.counters.refused_bytes:
    time.sleep(0.001)
print("noting", flush=True)
threading.Event().wait()
"""


def start_noter(directory: Path, *, seed: int, budget: int, num_bytes: int = 2 * MIB) -> subprocess.Popen[bytes]:
    script = NOTER.format(source=SOURCE, directory=str(directory), seed=seed, budget=budget, num_bytes=num_bytes)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)


def killed_while_noting(directory: Path, *, seed: int, budget: int, seconds: float) -> None:
    with start_noter(directory, seed=seed, budget=budget) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"noting\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("num_kills", [2, pytest.param(8, marks=pytest.mark.drill)])
def test_a_process_killed_while_it_notes_leaves_no_wrong_byte(tmp_path: Path, num_kills: int) -> None:
    budget = 5 * MIB
    data = random.Random(0).randbytes(2 * MIB)
    paths = [f"memory://passing/{number}.tar" for number in range(4)]
    for path in paths:
        MemoryStore().put(path, data)
    rng = random.Random(7)
    passing = PassingBytes(str(tmp_path), budget_bytes=budget)
    for attempt in range(num_kills):
        killed_while_noting(tmp_path, seed=attempt * 100, budget=budget, seconds=0.05 * rng.random())
        assert used_bytes(tmp_path) <= budget
        serving = passing.serving(MemoryStore())
        for path in paths:
            first = 0
            while first < len(data):
                end = min(len(data), first + rng.choice([500, 30_000, 400_000]))
                assert serving.read_range(path, first, end) == data[first:end]
                first = end
        assert passing.counters.served_bytes > 0
        for path in rng.sample(paths, 2):
            passing.drop(path)
        assert used_bytes(tmp_path) <= budget
    for path in paths:
        passing.drop(path)
    assert [path for path in (tmp_path / FOLDER).rglob("*") if path.parent.name in ("shards", "filling")] == []
    # Nothing is charged for what is gone: all of the budget can be used again.
    large = bytes(4 * MIB)
    MemoryStore().put(PATH, large)
    passing.noting(MemoryStore()).read_range(PATH, 0, len(large))
    assert passing.counters.noted_bytes == len(large)
    passing.close()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_leave_is_removed_by_the_next(tmp_path: Path) -> None:
    killed_while_noting(tmp_path, seed=1, budget=64 * MIB, seconds=0.2)
    left = set((tmp_path / FOLDER / "shards").rglob("*"))
    assert left
    passing = PassingBytes(str(tmp_path), budget_bytes=64 * MIB)
    assert not left & set((tmp_path / FOLDER).rglob("*"))
    passing.close()
    assert list(tmp_path.iterdir()) == []


def test_what_one_process_notes_another_reads_at_once(tmp_path: Path) -> None:
    script = f"""
import random, sys
sys.path[:0] = [{SOURCE!r}]
from shoal.storage.memory_store import MemoryStore
from shoal.storage.passing_bytes.passing_bytes import PassingBytes
MemoryStore().put({PATH!r}, random.Random(0).randbytes({MIB!r}))
noting = PassingBytes({str(tmp_path)!r}, budget_bytes={4 * MIB!r}).noting(MemoryStore())
for line in sys.stdin:
    first, end = map(int, line.split())
    noting.read_range({PATH!r}, first, end)
    print("noted", flush=True)
"""
    data = random.Random(0).randbytes(MIB)
    MemoryStore().put(PATH, data)
    store = FaultyStore(MemoryStore())
    passing = PassingBytes(str(tmp_path), budget_bytes=4 * MIB)
    serving = passing.serving(store)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for first in range(0, MIB, 128 * KIB):
            process.stdin.write(b"%d %d\n" % (first, first + 128 * KIB))
            process.stdin.flush()
            assert process.stdout.readline() == b"noted\n"
            begin = max(0, first - 1000)
            assert serving.read_range(PATH, begin, first + 128 * KIB) == data[begin : first + 128 * KIB]
        assert store.reads == []
        process.stdin.close()
        process.wait()
    assert serving.read_range(PATH, 0, MIB) == data  # whoever leaves first leaves the files to the others
    assert store.reads == []
    passing.close()
    assert list(tmp_path.iterdir()) == []


def in_a_fork(work: Callable[[], bool]) -> bool:
    """Whether ``work`` returns True in a forked child."""
    child = os.fork()
    if not child:
        result = 1
        try:
            result = 0 if work() else 2
        finally:
            os._exit(result)
    return os.waitpid(child, 0)[1] == 0


def test_over_a_fork(tmp_path: Path) -> None:
    data = random.Random(4).randbytes(MIB)
    MemoryStore().put(PATH, data)
    store = FaultyStore(MemoryStore())
    passing = PassingBytes(str(tmp_path), budget_bytes=4 * MIB)
    noting, serving = passing.noting(store), passing.serving(store)
    noting.read_range(PATH, 0, MIB // 2)

    def in_child() -> bool:
        noting.read_range(PATH, MIB // 2, MIB)
        store.reads.clear()
        return serving.read_range(PATH, 100, MIB - 100) == data[100 : MIB - 100] and store.reads == []

    def in_threads_of_a_child() -> bool:
        """All of them find at the same time that the files are to be opened anew."""
        barrier = threading.Barrier(8)

        def read(_: int) -> bytes:
            barrier.wait()
            return serving.read_range(PATH, 0, MIB)

        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(read, range(8))) == [data] * 8 and store.reads == []

    assert in_a_fork(in_child)
    store.reads.clear()
    assert serving.read_range(PATH, 0, MIB) == data
    assert store.reads == []
    assert in_a_fork(in_threads_of_a_child)

    def outlives_its_parent() -> bool:
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.read(reading, 1)
            passing.close()  # of this process alone
            return os.waitpid(child, 0)[1] == 0
        is_served = serving.read_range(PATH, 0, MIB) == data
        os.write(writing, b"x")
        time.sleep(0.1)
        os._exit(0 if is_served and serving.read_range(PATH, 5, MIB) == data[5:] and not store.reads else 1)

    assert in_a_fork(outlives_its_parent)
    # Children that never used it are no users, and do not keep the last one from removing the files.
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    passing.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []


def test_opening_while_the_last_one_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ScannedFiles(str(tmp_path), budget_bytes=MIB)
    joined: list[str] = []
    join = ScannedFiles._join

    def leaving(self: ScannedFiles) -> None:
        if not joined:
            joined.append(self.path)
            first.leave()
        join(self)

    monkeypatch.setattr(ScannedFiles, "_join", leaving)
    second = ScannedFiles(str(tmp_path), budget_bytes=MIB)
    assert second.add("shard", "name", b"bytes")
    assert read(second, "shard", "name", 1, 3) == b"yt"
    second.leave()
    assert list(tmp_path.iterdir()) == []


def tar_of(num_members: int, seed: int) -> bytes:
    """A tar of small members."""
    rng, file = random.Random(seed), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(num_members):
            info = tarfile.TarInfo(f"{seed:02d}{number:05d}.bin")
            info.size = rng.randrange(500, 3000)
            tar.addfile(info, io.BytesIO(rng.randbytes(info.size)))
    return file.getvalue()


@pytest.mark.parametrize("is_started_anew", [False, True])
def test_the_bytes_of_scanned_shards_are_fetched_once(tmp_path: Path, http_client: str, is_started_anew: bool) -> None:
    shards = {f"data/{number:02d}.tar": tar_of(800, number) for number in range(6)}
    with RangeServer(shards, faults=[Fault("status", probability=0.1)]) as server:
        source = [server.url_of(path) for path in shards]
        once = open_store(source)
        store = with_retries(once)
        passing = PassingBytes(str(tmp_path), budget_bytes=256 * MIB)
        found = expand(source, suffixes=(".tar",), store=once)
        index = build_index(found, store=passing.noting(store), format=format_named("tar"))
        assert index.num_samples == 6 * 800
        scanned_bytes = server.num_bytes()
        assert scanned_bytes < 1.05 * sum(map(len, shards.values()))
        server.clear()
        serving: Any = passing.serving(store)
        if is_started_anew:
            serving = pickle.loads(pickle.dumps(serving))
        read_all(serving, dict(zip(source, shards.values(), strict=True)))
        # A store that is started anew looks at each object, which takes one byte.
        assert server.num_bytes() <= sum(map(len, shards.values())) // 20
        passing.close()


def read_all(store: Store, shards: dict[str, bytes]) -> None:
    rng = random.Random(5)
    for url, data in shards.items():
        first = 0
        while first < len(data):
            end = min(len(data), first + rng.choice([KIB, 64 * KIB, 3 * MIB]))
            assert store.read_range(url, first, end) == data[first:end]
            first = end
