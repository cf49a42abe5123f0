"""Processes of one machine that open the same shards at the same time look at each shard once."""

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shoal
from shoal.errors import StorageError
from shoal.storage.memory_store import MemoryStore
from shoal.storage.stat_together import stat_together
from shoal.storage.store_protocol import ObjectInfo, Store

PATHS = [f"memory://bucket/{number}.tar" for number in range(40)]
NUM_PROCESSES = 4


class SlowStore(MemoryStore):
    """A store that counts looks; the first look at an object waits until others may have asked."""

    reads_ahead = False

    def __init__(self, endpoint: str = "", *, waits_for: threading.Event | None = None) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.looks: Counter[str] = Counter()
        self._waits_for = waits_for

    def __reduce__(self) -> tuple[object, ...]:
        return SlowStore, (self.endpoint,)

    def find(self, path: str) -> ObjectInfo | None:
        self.looks[path] += 1
        if self._waits_for is not None:
            assert self._waits_for.wait(60)
        return super().find(path)


def filled(store: SlowStore, *, num_bytes: int = 7) -> SlowStore:
    for number, path in enumerate(PATHS):
        store.put(path, bytes(num_bytes + number))
    return store


def ask(store: Store, cache: Path, num_processes: int = NUM_PROCESSES) -> list[ObjectInfo]:
    return stat_together(PATHS, store, cache_dir=str(cache), num_processes=num_processes)


def test_those_who_ask_during_a_look_share_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal")
    all_ask = threading.Event()
    store = filled(SlowStore(waits_for=all_ask))
    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        asking = [pool.submit(ask, store, tmp_path) for _ in range(NUM_PROCESSES)]
        while caplog.text.count("waiting for process") < NUM_PROCESSES - 1:
            all_ask.wait(0.01)
        all_ask.set()
        answers = [each.result(60) for each in asking]
    assert store.looks == Counter(PATHS)
    own = [store.stat(path) for path in PATHS]
    assert all(answer == own for answer in answers)
    assert [info.modified_ns for info in answers[-1]] == [info.modified_ns for info in own]


def test_a_look_that_ended_before_is_not_taken(tmp_path: Path) -> None:
    store = filled(SlowStore())
    before = ask(store, tmp_path)
    filled(store, num_bytes=100)
    assert [info.num_bytes for info in before] == list(range(7, 47))
    assert [info.num_bytes for info in ask(store, tmp_path)] == list(range(100, 140))


def test_a_look_at_another_endpoint_is_not_taken(tmp_path: Path) -> None:
    """The same paths are other objects there; neither process waits for the other."""
    both_look = threading.Event()
    stores = [filled(SlowStore(endpoint, waits_for=both_look)) for endpoint in ("here", "there")]
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask, store, tmp_path) for store in stores]
        while not all(store.looks for store in stores):
            both_look.wait(0.01)
        both_look.set()
        for each in asking:
            each.result(60)
    assert [store.looks for store in stores] == [Counter(PATHS)] * 2


def test_a_store_that_cannot_be_described_is_looked_at_by_each(tmp_path: Path) -> None:
    store = filled(SlowStore())
    store.endpoint = threading.Lock()  # type: ignore[assignment]
    assert len(ask(store, tmp_path)) == len(PATHS)
    assert not list(tmp_path.iterdir())


def test_a_missing_object_is_an_error_for_each_process(tmp_path: Path) -> None:
    store = filled(SlowStore())
    store.delete(PATHS[3])
    for _ in range(2):
        with pytest.raises(StorageError, match=r"3\.tar"):
            ask(store, tmp_path)


@pytest.mark.parametrize("left", [b"", b"[", b'[9e99, [1], ["a"], [null]]', b'{"a": 1}', b'["soon"]'])
def test_a_damaged_file_of_a_look_is_not_taken(tmp_path: Path, left: bytes) -> None:
    store = filled(SlowStore())
    expected = ask(store, tmp_path)
    (look,) = (tmp_path / "looks").glob("*.look")
    look.write_bytes(left)
    assert ask(store, tmp_path) == expected


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "looks").write_bytes(b"a file")
    store = filled(SlowStore())
    assert len(ask(store, tmp_path)) == len(PATHS)
    assert "each process of this machine looks at all shards itself" in caplog.text


def test_a_process_without_others_keeps_nothing(tmp_path: Path) -> None:
    assert len(ask(filled(SlowStore()), tmp_path, num_processes=1)) == len(PATHS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("index", ["beside the shards", "made while opening"])
def test_ranks_of_a_job_open_together(tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening asks for the sizes through `stat_together`, with the number of ranks on this machine."""
    shoal.pack.pack(({"x": number} for number in range(20)), tmp_path / "data", format="jsonl")
    if index != "beside the shards":
        (tmp_path / "data" / "shoal.index").unlink()
    asked: list[int] = []

    def noting(paths: list[str], store: Store, *, cache_dir: str, num_processes: int) -> list[ObjectInfo]:
        asked.append(num_processes)
        return stat_together(paths, store, cache_dir=cache_dir, num_processes=num_processes)

    for module in ("open_source", "index_making"):
        monkeypatch.setattr(f"shoal.indexing.{module}.stat_together", noting)
    for name, number in {"RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, number)
    assert shoal.open(tmp_path / "data")[19]["x"] == 19
    assert asked == [3]
