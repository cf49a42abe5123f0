from __future__ import annotations

import errno
import gc
import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from shoal.errors import StorageError, UsageError
from shoal.storage.files.local_store import LocalStore

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def store() -> LocalStore:
    return LocalStore()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a shard, naïve.bin"
    path.write_bytes(CONTENT)
    return path


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def count_descriptors() -> int:
    gc.collect()  # what other tests left open is closed now, and not in the middle of a count
    return len(names_in(Path("/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd")))


def run_in_children(count: int, work: object) -> list[int]:
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)  # type: ignore[operator]
            except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_reads_exactly_the_range(store: LocalStore, shard: Path) -> None:
    assert store.read_range(str(shard), 3, 300) == CONTENT[3:300]
    assert store.read_range(str(shard), 0, len(CONTENT)) == CONTENT
    assert store.read_range(str(shard), 7, 7) == b""


def test_short_file_is_an_error_that_says_what_was_there(store: LocalStore, shard: Path) -> None:
    with pytest.raises(StorageError, match=r"bytes \[16000, 20000\), but the file ends at byte 16384") as caught:
        store.read_range(str(shard), 16_000, 20_000)
    assert str(shard) in caught.value.message
    assert caught.value.hint
    with pytest.raises(StorageError, match="ends at byte 16384"):
        store.read_range(str(shard), 1 << 60, 1 << 61)


@pytest.mark.parametrize(("first", "end"), [(-1, 5), (5, 4)])
def test_impossible_range(store: LocalStore, shard: Path, first: int, end: int) -> None:
    with pytest.raises(UsageError, match="not a range"):
        store.read_range(str(shard), first, end)


def test_missing_directory_and_pipe(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file") as caught:
        store.read_range(str(tmp_path / "none"), 0, 1)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(StorageError, match="is a directory"):
        store.read_range(str(tmp_path), 0, 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        store.read_range(str(tmp_path / "pipe"), 0, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden(store: LocalStore, shard: Path) -> None:
    shard.chmod(0)
    with pytest.raises(StorageError, match="Permission denied"):
        store.read_range(str(shard), 0, 1)


def test_truncated_while_reading(store: LocalStore, shard: Path) -> None:
    store.read_range(str(shard), 0, 10)
    os.truncate(shard, 100)
    with pytest.raises(StorageError, match="changed while it was being read: size in bytes was 16384, is 100"):
        store.read_range(str(shard), 0, 10)


def test_a_reader_fills_buffers(store: LocalStore, shard: Path) -> None:
    buffer = bytearray(100)
    reader = store.reader(str(shard))
    reader.fill(300, memoryview(buffer))
    assert buffer == CONTENT[300:400]
    with pytest.raises(StorageError, match=r"bytes \[16300, 16400\), but the file ends at byte 16384"):
        reader.fill(16_300, memoryview(buffer))
    os.truncate(shard, 1000)
    with pytest.raises(StorageError, match="changed while it was being read: size in bytes was 16384, is 1000"):
        reader.fill(300, memoryview(buffer))
    shard.unlink()
    with pytest.raises(StorageError, match="changed while it was being read"):
        reader.fill(300, memoryview(buffer))


def test_rewritten_in_place_with_the_same_size(store: LocalStore, shard: Path) -> None:
    store.read_range(str(shard), 0, 10)
    time.sleep(0.02)
    with shard.open("r+b") as file:
        file.write(b"other")
    with pytest.raises(StorageError, match="changed while it was being read: modification time"):
        store.read_range(str(shard), 0, 10)


def test_replaced_by_a_file_of_the_same_size(store: LocalStore, shard: Path) -> None:
    store.read_range(str(shard), 0, 10)
    other = shard.with_name("other")
    other.write_bytes(CONTENT[::-1])
    other.replace(shard)
    with pytest.raises(StorageError, match="deleted or replaced while it was being read"):
        store.read_range(str(shard), 0, 10)


def test_replaced_after_its_descriptor_was_given_back(shard: Path) -> None:
    store = LocalStore(max_open=1)
    store.read_range(str(shard), 0, 10)
    other = shard.with_name("other")
    other.write_bytes(CONTENT[::-1])
    store.read_range(str(other), 0, 10)
    other.replace(shard)
    with pytest.raises(StorageError, match="changed while it was being read"):
        store.read_range(str(shard), 0, 10)


def test_deleted_while_reading(shard: Path) -> None:
    store = LocalStore(max_open=1)
    store.read_range(str(shard), 0, 10)
    shard.unlink()
    with pytest.raises(StorageError, match="deleted or replaced"):
        store.read_range(str(shard), 0, 10)
    other = shard.with_name("other")
    other.write_bytes(b"x")
    store.read_range(str(other), 0, 1)
    with pytest.raises(StorageError, match="deleted or replaced"):
        store.read_range(str(shard), 0, 10)


def test_keeps_few_descriptors_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]))
    before = count_descriptors()
    store = LocalStore(max_open=8)
    for _ in range(3):
        assert [store.read_range(str(path), 0, 1)[0] for path in paths] == list(range(40))
    assert 4 <= count_descriptors() - before <= 8
    store.close()
    assert count_descriptors() == before
    assert store.read_range(str(paths[3]), 0, 1) == b"\x03"


def test_threads_that_evict_each_other_read_right_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(12)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 4096)
    store = LocalStore(max_open=2)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(300):
            number = (seed * 7 + turn * 5) % 12
            if store.read_range(str(paths[number]), 100, 200) != bytes([number]) * 100:
                wrong.append(str(paths[number]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Forking beside threads is what this test is about.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children_read_right_bytes_beside_the_parents_threads(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 65536)
    store = LocalStore(max_open=3)
    stop = threading.Event()

    def read_all(seed: int) -> None:
        for turn in range(200):
            number = (seed + turn) % 6
            if store.read_range(str(paths[number]), turn, turn + 5000) != bytes([number]) * 5000:
                msg = "wrong bytes"
                raise AssertionError(msg)

    def keep_busy() -> None:
        while not stop.is_set():
            read_all(1)

    def in_child(seed: int) -> None:
        threads = [threading.Thread(target=read_all, args=(seed + extra,)) for extra in range(2)]
        for thread in threads:
            thread.start()
        read_all(seed)
        for thread in threads:
            thread.join()

    busy = [threading.Thread(target=keep_busy) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        assert run_in_children(4, in_child) == [0] * 4
    finally:
        stop.set()
        for thread in busy:
            thread.join()


def test_pickles_without_descriptors(store: LocalStore, shard: Path) -> None:
    store.read_range(str(shard), 0, 1)
    copy = pickle.loads(pickle.dumps(store))
    assert not copy._open
    assert copy.read_range(str(shard), 0, 4) == CONTENT[:4]


def test_stat_and_find(store: LocalStore, shard: Path) -> None:
    info = store.stat(str(shard))
    assert (info.path, info.num_bytes, info.version) == (str(shard), 16384, str(shard.stat().st_mtime_ns))
    assert store.find(str(shard)) == info
    assert store.find(str(shard) + "x") is None
    with pytest.raises(StorageError, match="directory"):
        store.stat(str(shard.parent))


@pytest.mark.parametrize("appears", ["as the question is answered", "never"])
def test_a_file_that_appears_while_it_is_looked_for(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appears: str
) -> None:
    path, stat = tmp_path / "late", os.stat

    def late_stat(of: str) -> os.stat_result:
        try:
            return stat(of)
        finally:
            if appears != "never":
                path.write_bytes(b"x")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", late_stat)
        assert store.find(str(path)) is None
    assert path.exists() == (appears != "never")


def test_find_says_why_it_cannot_look(store: LocalStore, shard: Path, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="it is a link to"):
        store.find(str(tmp_path / "dangling"))
    with pytest.raises(StorageError, match="longer than the file system allows"):
        store.find(str(tmp_path / ("n" * 300)))
    assert store.find(str(shard / "below")) is None


def test_list_is_sorted_recursive_and_survives_circles(store: LocalStore, tmp_path: Path) -> None:
    for name in ("b/2", "a/1", "c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    infos = list(store.list(str(tmp_path)))
    assert [os.path.relpath(info.path, tmp_path) for info in infos] == ["a/1", "b/2", "c"]
    assert infos[0] == store.stat(str(tmp_path / "a/1"))
    with pytest.raises(StorageError, match="could not list"):
        store.list(str(tmp_path / "none"))


def test_put_replaces_and_makes_directories(store: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "x"
    store.put(str(path), [b"ab", bytearray(b"cd"), memoryview(b"ef")])
    assert store.read_range(str(path), 0, 6) == b"abcdef"
    store.put(str(path), b"changed")
    assert store.read_range(str(path), 0, 7) == b"changed"
    assert names_in(path.parent) == ["x"]


def test_failed_put_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(TypeError):
        store.put(str(tmp_path / "x"), [b"new", None])  # type: ignore[list-item]
    assert (tmp_path / "x").read_bytes() == b"old"
    assert names_in(tmp_path) == ["x"]
    with pytest.raises(StorageError, match="could not write"):
        store.put(str(tmp_path / "x" / "below a file"), b"")


def test_put_with_the_longest_name(store: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    store.put(str(path), b"1")
    assert path.read_bytes() == b"1"


def test_map(store: LocalStore, shard: Path, tmp_path: Path) -> None:
    mapped = store.map(str(shard))
    assert mapped.readonly
    assert mapped[5:9] == CONTENT[5:9]
    store.close()
    assert bytes(mapped) == CONTENT
    (tmp_path / "empty").touch()
    assert len(store.map(str(tmp_path / "empty"))) == 0


def test_a_reader_keeps_its_file_while_others_come_and_go(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 100)
    store = LocalStore(max_open=1)
    reader = store.reader(str(tmp_path / "0"))
    for number in range(1, 5):
        assert store.read_range(str(tmp_path / f"{number}"), 0, 3) == bytes([number]) * 3
        assert reader(10, 14) == bytes(4)
    reader.confirm()
    with pytest.raises(StorageError, match="ends at byte 100"):
        reader(90, 110)
    (tmp_path / "0").write_bytes(b"other")
    with pytest.raises(StorageError, match="changed"):
        reader.confirm()


def test_writes_wait_for_the_disk_only_if_they_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    passing = pickle.loads(pickle.dumps(LocalStore(durable=False)))
    passing.put(str(tmp_path / "a"), b"12")
    assert not flushed
    LocalStore().put(str(tmp_path / "b"), b"34")
    assert len(flushed) == 2  # the file and its directory
    assert passing.read_range(str(tmp_path / "a"), 0, 2) + passing.read_range(str(tmp_path / "b"), 0, 2) == b"1234"
