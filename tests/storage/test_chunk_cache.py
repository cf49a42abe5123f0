"""One process and its chunk cache: what is kept, what goes, and what happens when the disk or the directory fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import pickle
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.errors import ShoalError, StorageError, UsageError
from shoal.storage.chunk_cache import chunk_cache, eviction
from shoal.storage.chunk_cache import directory as chunk_cache_place
from shoal.storage.chunk_cache.cache_status import chunk_cache_status
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import FOLDER
from shoal.storage.chunk_cache.eviction import Chunk, eviction_order, is_name
from shoal.storage.chunk_cache.ledger import Book, charge_bytes

MIB = 1 << 20
CHUNK_BYTES = 60_000


def content(key: str, num_bytes: int = CHUNK_BYTES) -> bytes:
    return random.Random(key).randbytes(num_bytes)


def used_bytes(directory: Path) -> int:
    """Blocks of everything in the directory, as the file system counts them."""
    total = 0
    for path in (directory, *directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_blocks * 512
    return total


def names(directory: Path, folder: str = "chunks") -> list[str]:
    return sorted(path.name for path in (directory / FOLDER / folder).iterdir())


class Source:
    """What is remote, and how often it was asked for."""

    def __init__(self, cache: ChunkCache) -> None:
        self.cache = cache
        self.asked: list[str] = []

    def fetching(self, key: str, num_bytes: int = CHUNK_BYTES) -> Callable[[], bytes]:
        def fetch() -> bytes:
            self.asked.append(key)
            return content(key, num_bytes)

        return fetch

    def read(self, key: str, num_bytes: int = CHUNK_BYTES) -> bytes:
        data = self.cache.read(key, num_bytes, self.fetching(key, num_bytes))
        assert data == content(key, num_bytes)
        return data


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ChunkCache]:
    made = ChunkCache(tmp_path, budget_bytes=8 * MIB)
    yield made
    made.close()


def test_a_chunk_is_fetched_once(cache: ChunkCache) -> None:
    source = Source(cache)
    for _ in range(3):
        for number in range(20):
            source.read(str(number))
    assert source.asked == [str(number) for number in range(20)]
    assert (cache.counts.num_fills, cache.counts.num_hits, cache.counts.num_bypasses) == (20, 40, 0)


def test_chunks_stay_for_the_next_run(tmp_path: Path) -> None:
    first = ChunkCache(tmp_path, budget_bytes=8 * MIB)
    Source(first).read("a")
    first.close()
    again = Source(ChunkCache(tmp_path, budget_bytes=8 * MIB))
    again.read("a")
    assert not again.asked


def test_without_keep_the_last_one_out_clears(tmp_path: Path) -> None:
    one = ChunkCache(tmp_path, budget_bytes=8 * MIB, keep=False)
    other = ChunkCache(tmp_path, budget_bytes=8 * MIB, keep=False)
    Source(one).read("a")
    one.close()
    assert names(tmp_path)
    other.close()
    assert not list(tmp_path.iterdir())


def test_a_forgotten_cache_is_closed(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        Source(ChunkCache(tmp_path, budget_bytes=8 * MIB)).read("a")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_hits_are_told_by_who_fetches_nothing(tmp_path: Path) -> None:
    """A run that finds all of it in the cache never has the ledger in its hands for anything else."""
    Source(ChunkCache(tmp_path, budget_bytes=8 * MIB)).read("a")
    for _ in range(3):
        Source(ChunkCache(tmp_path, budget_bytes=8 * MIB)).read("a")  # forgotten, and not closed
    assert chunk_cache_status(str(tmp_path)).num_hits == 3
    kept = ChunkCache(tmp_path, budget_bytes=8 * MIB)
    Source(kept).read("a")
    kept.report_counts()
    kept.report_counts()
    assert chunk_cache_status(str(tmp_path)).num_hits == 4
    assert chunk_cache_status(str(tmp_path)).num_fills == 1


def test_a_closed_cache_reads_without(cache: ChunkCache) -> None:
    source = Source(cache)
    cache.close()
    source.read("a")
    source.read("a")
    assert source.asked == ["a", "a"]


def test_no_key_is_seen_in_names(cache: ChunkCache, tmp_path: Path) -> None:
    Source(cache).read("https://me:secret@host/a.tar?signature=secret")
    for path in tmp_path.rglob("*"):
        assert "secret" not in path.name
        assert path.is_dir() or b"secret" not in path.read_bytes()
    assert all(map(is_name, names(tmp_path)))


def test_empty_and_large_chunks(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=8 * MIB)
    source = Source(cache)
    for num_bytes in (0, 1, 4095, 4096, 3 * MIB):
        source.read(str(num_bytes), num_bytes)
        source.read(str(num_bytes), num_bytes)
    assert cache.counts.num_hits == 5
    source.read("larger than half of it", 4 * MIB)
    assert cache.counts.num_bypasses == 1


def test_what_fetching_raises_is_raised_and_leaves_nothing(cache: ChunkCache, tmp_path: Path) -> None:
    def fail() -> bytes:
        raise StorageError("no answer")

    with pytest.raises(StorageError, match="no answer"):
        cache.read("a", CHUNK_BYTES, fail)
    assert not names(tmp_path, "filling")
    assert not names(tmp_path)
    source = Source(cache)
    source.read("a")
    assert source.asked == ["a"]
    assert cache.read("short", CHUNK_BYTES, lambda: b"short") == b"short"  # for the caller to complain about
    assert len(names(tmp_path)) == 1


# ---- the budget


def test_the_budget_holds_and_the_cache_keeps_what_it_has(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=4 * MIB)
    source = Source(cache)
    for number in range(150):
        source.read(str(number))
        assert used_bytes(tmp_path / FOLDER) <= 4 * MIB
    assert used_bytes(tmp_path / FOLDER) > 3 * MIB
    source.asked.clear()
    for number in range(20):
        source.read(str(number))
    assert len(source.asked) < 15  # one in 16 that went was the oldest; a cache that forgets the oldest lost all 20


def test_chunks_of_a_dataset_that_nobody_has_open_go_first(tmp_path: Path) -> None:
    past = ChunkCache(tmp_path, budget_bytes=4 * MIB, dataset="past")
    other = ChunkCache(tmp_path, budget_bytes=4 * MIB, dataset="other")
    for number in range(25):
        Source(past).read(f"past {number}")
        Source(other).read(f"other {number}")
    past.close()
    now = Source(other)
    for number in range(25, 50):
        now.read(f"other {number}")
    now.asked.clear()
    for number in range(50):
        now.read(f"other {number}")
    assert not now.asked


def test_two_datasets_with_equal_keys(tmp_path: Path) -> None:
    one = ChunkCache(tmp_path, budget_bytes=4 * MIB, dataset="one")
    other = ChunkCache(tmp_path, budget_bytes=4 * MIB, dataset="other")
    assert one.read("a", 3, lambda: b"one") == b"one"
    assert other.read("a", 3, lambda: b"two") == b"two"
    assert one.read("a", 3, lambda: b"???") == b"one"


def test_unshared_chunks_are_taken_in_more_rarely(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=2 * MIB)
    source = Source(cache)
    for number in range(400):
        source.read(str(number))
    assert cache.counts.num_bypasses > 200
    assert cache.counts.num_fills + cache.counts.num_bypasses == 400


def test_shared_chunks_are_all_taken_in(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=2 * MIB)
    source = Source(cache)
    for number in range(120):
        for _ in range(2):
            source.read(str(number))
    assert source.asked == [str(number) for number in range(120)]


def test_the_smaller_of_two_budgets_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    large = ChunkCache(tmp_path, budget_bytes=8 * MIB)
    for number in range(100):
        Source(large).read(str(number))
    with caplog.at_level(logging.WARNING, "shoal"):
        small = ChunkCache(tmp_path, budget_bytes=2 * MIB)
    assert "for all it is now" in caplog.text
    assert used_bytes(tmp_path / FOLDER) <= 2 * MIB
    for number in range(100, 200):
        Source(large).read(str(number))
    assert used_bytes(tmp_path / FOLDER) <= 2 * MIB
    assert ChunkCache(tmp_path).budget_bytes == 2 * MIB
    small.close()
    large.close()
    assert ChunkCache(tmp_path, budget_bytes=8 * MIB).budget_bytes == 8 * MIB


def test_a_budget_below_the_windows_is_refused(cache: ChunkCache) -> None:
    cache.expect(8 * MIB)
    with pytest.raises(UsageError, match="windows of this machine") as caught:
        cache.expect(9 * MIB)
    assert str(18 * MIB) in caught.value.hint
    with pytest.raises(UsageError, match="least"):
        ChunkCache("anywhere", budget_bytes=1000)


def test_without_a_budget_it_is_half_of_what_is_free(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert ChunkCache(tmp_path).budget_bytes == pytest.approx(found.f_bavail * found.f_frsize / 2, rel=0.1)


def test_order_of_leaving() -> None:
    def chunk(dataset: int, made: int) -> Chunk:
        return Chunk(f"{dataset:016x}-{made:032x}", made, 1)

    chunks = [chunk(dataset, made) for made in range(40) for dataset in (1, 2, 3)]
    last_used = {f"{2:016x}": 7, f"{3:016x}": 5}
    leaving = eviction_order(chunks, last_used=last_used, guard_bytes=10 * charge_bytes(1))
    assert leaving[:40] == [chunk(3, made) for made in range(40)]
    assert leaving[40:80] == [chunk(2, made) for made in range(40)]
    assert len(leaving) == 80 + 30
    live = [chunk.created_ns for chunk in leaving[80:]]
    assert max(live) == 29
    assert live[:15] == list(range(29, 14, -1))
    assert 0 in live[:16]
    assert sorted(live) == list(range(30))


# ---- damage


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty", "other name"])
def test_a_damaged_file_is_noticed_and_fetched_again(cache: ChunkCache, tmp_path: Path, damage: str) -> None:
    source = Source(cache)
    source.read("a")
    (name,) = names(tmp_path)
    path = tmp_path / FOLDER / "chunks" / name
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[1234] ^= 4
    elif damage == "longer":
        data += b"x"
    elif damage == "other name":
        source.read("b")
        other = next(other for other in names(tmp_path) if other != name)
        data = bytearray((path.parent / other).read_bytes())
    else:
        del data[{"cut": 1000, "empty": 0}[damage] :]
    path.write_bytes(data)
    source.asked.clear()
    source.read("a")
    source.read("a")
    assert source.asked == ["a"]
    assert cache.counts.num_damaged == 1


def test_read_again_drops_what_was_kept(cache: ChunkCache) -> None:
    assert cache.read("a", 3, lambda: b"bad") == b"bad"
    assert cache.read_again("a", 3, lambda: b"new") == b"new"
    assert cache.read("a", 3, lambda: b"???") == b"new"


def test_has(cache: ChunkCache) -> None:
    assert not cache.has("a")
    Source(cache).read("a")
    assert cache.has("a")


@pytest.mark.parametrize("what", ["damaged", "gone", "open"])
def test_a_ledger_that_cannot_be_believed_is_made_anew(tmp_path: Path, what: str) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=4 * MIB)
    source = Source(cache)
    for number in range(60):
        source.read(str(number))
    ledger = tmp_path / FOLDER / "ledger"
    if what == "damaged":
        ledger.write_bytes(b"\xff" * ledger.stat().st_size)
    elif what == "gone":
        ledger.unlink()
    else:  # as a process leaves it that is killed while it holds it
        with pytest.raises(KeyboardInterrupt), cache._ledger.held() as book:
            book.used_bytes = 1
            cache._ledger._write(os.open(ledger, os.O_RDWR), book)
            raise KeyboardInterrupt
    for number in range(60, 120):
        source.read(str(number))
        assert used_bytes(tmp_path / FOLDER) <= 4 * MIB
    assert cache._ledger.peek() is not None


# ---- failing disks and directories


def test_a_full_disk_is_a_read_without_the_cache(
    cache: ChunkCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    source = Source(cache)
    for _ in range(2):
        source.read("a")
    assert cache.counts.num_bypasses == cache.num_failures == 2
    monkeypatch.undo()
    source.read("a")
    assert cache.counts.num_fills == 1
    for _ in range(2):
        cache.report_counts()
    cache.close()
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "2 of 3 reads could not be kept" in record.getMessage()
    assert "no space left" in record.getMessage()


def test_a_write_that_fails_is_a_read_without_the_cache(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(chunk_cache, "write_checked", broken)
    source = Source(cache)
    source.read("a")
    assert cache.counts.num_bypasses == 1
    monkeypatch.undo()
    source.read("a")
    source.read("a")
    assert cache.counts.num_hits == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_small_disk(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], check=False).returncode:
        pytest.skip("mounting is not possible here")
    try:
        cache = ChunkCache(mount, budget_bytes=16 * MIB)
        source = Source(cache)
        for number in range(100):
            source.read(str(number))
            source.read(str(number))
        assert cache.counts.num_fills > 30
        (mount / "of somebody else").write_bytes(bytes(os.statvfs(mount).f_bavail * 4096))
        for number in range(100, 200):
            source.read(str(number))
        cache.close()
    finally:
        subprocess.run(["umount", mount], check=True)


def test_files_may_be_no_larger(tmp_path: Path) -> None:
    script = f"""
import resource, sys
sys.path[:0] = {[str(Path(__file__).parents[2] / "src")]!r}
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
cache = ChunkCache({str(tmp_path)!r}, budget_bytes=1 << 23)
for _ in range(2):
    assert cache.read("a", 60_000, lambda: bytes(60_000)) == bytes(60_000)
assert cache.counts.num_bypasses == 2
"""
    assert resource.RLIMIT_FSIZE is not None
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_directory_that_vanishes(cache: ChunkCache, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(cache)
    source.read("a")
    (tmp_path / FOLDER).rename(tmp_path / "elsewhere")
    source.read("a")  # the open directory is the same one
    assert source.asked == ["a"]
    subprocess.run(["rm", "-rf", tmp_path / "elsewhere"], check=True)
    with caplog.at_level(logging.WARNING, "shoal"):
        for _ in range(3):
            source.read("a")
    assert source.asked == ["a"] * 4
    assert cache.counts.num_bypasses == 3
    assert caplog.text.count("reading continues without") == 1
    assert not (tmp_path / FOLDER).exists()


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    ChunkCache(tmp_path, budget_bytes=MIB).close()
    os.chown(tmp_path / FOLDER, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user number 12345") as caught:
        ChunkCache(tmp_path, budget_bytes=MIB)
    assert "of your own" in caught.value.hint


def test_a_directory_of_somebody_else_is_refused_before_anything_is_made_in_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(UsageError, match=r"theirs: this directory belongs to user number 12345") as caught:
        ChunkCache(theirs, budget_bytes=MIB)
    assert not [*theirs.iterdir()]
    own = theirs / f"shoal-{os.geteuid()}"
    assert str(own) in caught.value.hint
    ChunkCache(own, budget_bytes=MIB).close()


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=MIB)
    Source(cache).read("a")
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / FOLDER).rglob("*")} == {0}
    (tmp_path / FOLDER).chmod(0o770)
    with pytest.raises(UsageError, match="open to other users"):
        ChunkCache(tmp_path, budget_bytes=MIB)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / FOLDER).symlink_to("real")
    with pytest.raises(ShoalError):
        ChunkCache(tmp_path, budget_bytes=MIB)
    assert not list((tmp_path / "real").iterdir())


@pytest.mark.parametrize(
    "kind, is_trusted",
    [("ext4", True), ("tmpfs", True), ("overlay", True), ("fuse.fuse-overlayfs", True)]
    + [(kind, False) for kind in ("nfs", "nfs4", "cifs", "lustre", "fuse", "fuse.sshfs", "ceph", "9p")],
)
def test_locks_of_far_file_systems_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_trusted: bool
) -> None:
    monkeypatch.setattr(chunk_cache_place, "_file_system_of", lambda *_: kind)
    if is_trusted:
        ChunkCache(tmp_path, budget_bytes=MIB)
    else:
        with pytest.raises(UsageError, match=f"type {kind}, whose locks"):
            ChunkCache(tmp_path, budget_bytes=MIB)


def test_the_mount_table_is_understood(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n"
        "2 1 0:50 / /home rw - nfs4 server:/home rw\n"
        "3 2 0:51 / /home/with\\040space rw master:1 - tmpfs t rw\n"
        "4 1 0:52 /sub /data rw - btrfs /dev/b rw\n"
    )

    def kind(path: str, device: int) -> str:
        found = os.stat_result((0, 0, device, *[0] * 7))
        return chunk_cache_place._file_system_of(path, found, mounts=str(table))

    assert kind("/var/cache", os.makedev(8, 1)) == "ext4"
    assert kind("/home/me", os.makedev(0, 50)) == "nfs4"
    assert kind("/home/with space/x", os.makedev(0, 51)) == "tmpfs"
    assert kind("/data/x", os.makedev(0, 99)) == "btrfs"
    assert chunk_cache_place._file_system_of("/", Path("/").stat(), mounts="/nowhere") == ""


def test_small_shared_memory_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        f_frsize = 4096

        def __init__(self, free_bytes: int) -> None:
            self.f_bavail = free_bytes // 4096

    monkeypatch.setattr(chunk_cache_place, "spare_memory_bytes", lambda: 64 << 30)
    for free_bytes, is_used in ((64 << 20, False), (8 << 30, True)):
        monkeypatch.setattr(os, "statvfs", lambda _, free=free_bytes: Found(free))
        assert chunk_cache_place.shared_directory(1 << 30).startswith("/dev/shm/") == is_used
    monkeypatch.setattr(chunk_cache_place, "spare_memory_bytes", lambda: 2 << 30)
    assert not chunk_cache_place.shared_directory(1 << 30).startswith("/dev/shm/")


def test_only_its_own_files_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("1")
    cache = ChunkCache(tmp_path, budget_bytes=MIB)
    for folder in ("chunks", "filling"):
        (tmp_path / FOLDER / folder / "theirs").write_text("1")
    for number in range(100):
        Source(cache).read(str(number))
    again = ChunkCache(tmp_path, budget_bytes=MIB)
    again.close()
    assert len(list(tmp_path.rglob("theirs"))) == 3


# ---- threads, forks, pickles


def test_threads_fetch_each_chunk_once(cache: ChunkCache) -> None:
    source = Source(cache)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for number in range(40):
            source.read(str(number))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(source.asked, key=int) == [str(number) for number in range(40)]


def test_a_pickled_copy_opens_the_same(cache: ChunkCache) -> None:
    Source(cache).read("a")
    cache.expect(7 * MIB)
    copy = Source(pickle.loads(pickle.dumps(cache)))
    assert copy.cache._files.guard_bytes == cache._files.guard_bytes == 6 * MIB
    copy.read("a")
    assert not copy.asked
    assert copy.cache.budget_bytes == cache.budget_bytes


def test_a_child_forked_in_the_middle_of_a_fetch_holds_nothing(cache: ChunkCache) -> None:
    def fork_and_fetch() -> bytes:
        if not os.fork():
            os.close(wait_write)
            os.read(wait_read, 1)
            os._exit(0)
        os._exit(0)

    # A parent that forks while it fetches, and dies there; its child lives on.
    wait_read, wait_write = os.pipe()
    parent = os.fork()
    if not parent:
        cache.read("a", CHUNK_BYTES, fork_and_fetch)
    os.waitpid(parent, 0)
    os.close(wait_read)
    source = Source(cache)
    source.read("a")
    assert cache.counts.num_fills == 1
    os.close(wait_write)


def test_a_stopped_holder_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=MIB, wait_seconds=0.05)
    name = cache._name("a")
    with (tmp_path / FOLDER / "filling" / name).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Source(cache).read("a")
        assert cache.counts.num_bypasses == 1
    Source(cache).read("a")
    assert cache.counts.num_fills == 1


def test_a_chunk_that_is_finished_while_others_are_counted_is_counted(
    cache: ChunkCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Source(cache).read("a")
    (name,) = names(tmp_path)
    done, growing = (tmp_path / FOLDER / folder / name for folder in ("chunks", "filling"))
    done.rename(growing)

    def listed(folder: int, which: str = "chunks") -> list[Chunk]:
        found = list(usual(folder, which))
        if which == "filling":
            growing.rename(done)
        else:
            done.rename(growing)
        return found

    usual = eviction.chunks_in
    monkeypatch.setattr(eviction, "chunks_in", listed)
    book = Book()
    eviction.count(cache._folder, book)
    assert book.used_bytes == Book().used_bytes + charge_bytes(CHUNK_BYTES)


def test_locks_that_do_nothing_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with caplog.at_level(logging.WARNING, "shoal"):
        source = Source(ChunkCache(tmp_path, budget_bytes=MIB))
    assert "file locks have no effect" in caplog.text
    source.read("a")
    source.read("a")
    assert source.asked == ["a", "a"]
    source.cache.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
