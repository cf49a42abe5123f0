"""What is left of a chunk cache that nobody wants to keep, when the last process has closed it: nothing."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.storage.chunk_cache import directory
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import FOLDER, shared_directory
from shoal.storage.chunk_cache.fill_locks import Claims

MIB = 1 << 20


def read(cache: ChunkCache, key: str) -> bytes:
    return cache.read(key, 10_000, lambda: key.encode().ljust(10_000))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_SHARED_MEMORY_DIR", str(tmp_path))
    monkeypatch.setattr(directory, "spare_memory_bytes", lambda: 64 << 30)
    return tmp_path


def test_shared_memory_may_be_elsewhere(shared: Path) -> None:
    assert shared_directory(MIB) == str(shared / f"shoal-{os.geteuid()}")


def test_the_last_one_out_removes_the_folder(shared: Path) -> None:
    caches = [ChunkCache(shared_directory(MIB), budget_bytes=MIB, keep=False) for _ in range(3)]
    for number, cache in enumerate(caches):
        read(cache, str(number))
    for cache in caches:
        assert list(shared.iterdir())
        cache.close()
    assert not list(shared.iterdir())


@pytest.mark.parametrize("moment", ["before it has its space", "while it fetches"])
def test_an_orphan_removes_what_its_threads_are_about_to_fill(
    shared: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An orphan ends in the middle of what its threads do, so it waits for none of them."""
    cache = ChunkCache(shared_directory(MIB), budget_bytes=MIB, keep=False)
    other = ChunkCache(shared_directory(MIB), budget_bytes=MIB, keep=False)
    read(cache, "filled")
    used_bytes = used_by(other)
    reached, goes_on = threading.Event(), threading.Event()
    reserve = Claims.reserve

    def wait() -> None:
        reached.set()
        assert goes_on.wait(20)

    def reserve_later(self: Claims, *args: int, **options: bool) -> bool:
        if moment == "before it has its space":
            wait()
        return reserve(self, *args, **options)

    def fetch() -> bytes:
        if moment == "while it fetches":
            wait()
        return bytes(10_000)

    monkeypatch.setattr(Claims, "reserve", reserve_later)
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(cache.read, "next", 10_000, fetch)
        assert reached.wait(20)
        cache.close_as_orphan()
        goes_on.set()
        assert found.result(20) == bytes(10_000)
    monkeypatch.undo()
    assert not list(Path(other.path, "filling").iterdir())
    assert used_by(other) == used_bytes
    other.close_as_orphan()


def used_by(cache: ChunkCache) -> int:
    book = cache._files.ledger.peek()
    assert book is not None
    return book.used_bytes


def test_a_directory_that_was_given_stays(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    cache = ChunkCache(tmp_path / "given", budget_bytes=MIB, keep=False)
    read(cache, "a")
    cache.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["given"]


def test_files_of_others_stay(shared: Path) -> None:
    cache = ChunkCache(shared_directory(MIB), budget_bytes=MIB, keep=False)
    theirs = {Path(cache.path, "chunks", "theirs"), Path(cache.path, "theirs"), Path(cache.path, "datasets", "theirs")}
    for path in theirs:
        path.touch()
    cache.close()
    assert all(path.exists() for path in theirs)
    again = ChunkCache(shared_directory(MIB), budget_bytes=MIB, keep=False)
    read(again, "a")
    assert read(again, "a")
    assert again.counts.num_hits == 1
    again.close()


def test_a_folder_that_is_to_stay_stays(shared: Path) -> None:
    cache = ChunkCache(shared_directory(MIB), budget_bytes=MIB)
    read(cache, "a")
    cache.close()
    assert len(list((Path(cache.path) / "chunks").iterdir())) == 1


def test_some_open_it_while_the_last_one_leaves(shared: Path) -> None:
    """Whoever comes gets a cache that works, also at the moment when another takes the folder away."""
    failures, start = [], threading.Barrier(4)

    def come_and_go(number: int) -> None:
        start.wait()
        for turn in range(20):
            try:
                cache = ChunkCache(shared_directory(MIB), budget_bytes=MIB, dataset=str(number % 2), keep=False)
                read(cache, f"{number}-{turn}")
                read(cache, f"{number}-{turn}")
                if (cache.counts.num_fills, cache.counts.num_hits) != (1, 1):
                    failures.append(str(cache.counts))
                cache.close()
            except Exception as error:  # noqa: BLE001  # a thread's failure is the test's
                failures.append(repr(error))

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not list(shared.rglob(FOLDER))
    assert not list(shared.iterdir())
