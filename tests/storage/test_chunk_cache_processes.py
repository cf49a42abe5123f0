"""Many processes and one chunk cache: each chunk fetched once, within the budget, whoever is killed whenever."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import FOLDER
from shoal.storage.chunk_cache.eviction import is_name

MIB = 1 << 20
NUM_PROCESSES = 16

# Forks its workers, which costs less than 16 interpreters; each opens the cache for itself. Each begins elsewhere in
# the chunks, so that they meet. What is read is known from its key, so that each byte is compared.
WORKERS = """
import os, random, signal, sys, time
sys.path[:0] = {source!r}
from shoal.storage.chunk_cache.chunk_cache import ChunkCache

def content(key):
    rng = random.Random(key)
    return rng.randbytes(rng.choice({sizes!r}))

def fetching(key):
    def fetch():
        os.write(log, b"%d\\n" % key)
        time.sleep({latency!r})
        return contents[key]
    return fetch

def work(number):
    cache = ChunkCache({directory!r}, budget_bytes={budget!r})
    rng = random.Random(os.getpid())
    done = 0
    while done < {num_reads!r}:
        key = (number * 7 + done) % {num_chunks!r} if {in_order!r} else rng.randrange({num_chunks!r})
        data = cache.read(str(key), len(contents[key]), fetching(key))
        if data != contents[key]:
            os.write(log, b"wrong %d\\n" % key)
        done += 1
    cache.close()

log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
contents = [content(key) for key in range({num_chunks!r})]
print("ready", flush=True)

def start(number):
    child = os.fork()
    if not child:
        try:
            work(number)
        except BaseException as error:
            os.write(log, b"failed %r\\n" % repr(error).encode())
        os._exit(0)
    return child

children = {{start(number): number for number in range({num_processes!r})}}
kills, rng = {num_kills!r}, random.Random(1)
while children:
    if kills:
        time.sleep(rng.random() * {kill_every!r})
        victim = rng.choice(list(children))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        number = children.pop(victim)
        children[start(number)] = number
        kills -= 1
    else:
        child, _ = os.wait()
        children.pop(child)
print("done", flush=True)
"""


def used_bytes(folder: Path) -> int:
    """Blocks of everything there, as the file system counts them, at one moment.

    Of a file system of its own that is one call. Elsewhere it takes a walk, in which nobody may reserve or delete
    anything, or what goes on one side and comes on the other would be counted twice.
    """
    if folder.parent.is_mount():
        found = os.statvfs(folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize
    total = 0
    with contextlib.suppress(FileNotFoundError), (folder / "ledger").open("rb") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        for path in (folder, *folder.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                total += path.lstat().st_blocks * 512
    return total


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for the cache of a `Run`, where that is possible."""
    mount = tmp_path / "cache"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(mount)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
    yield tmp_path
    if is_mounted:
        subprocess.run(["umount", "--lazy", mount], check=True)


class Run:
    """What the processes of one run did."""

    def __init__(self, tmp_path: Path, **options: object) -> None:
        self.directory = tmp_path / "cache"
        self.log = tmp_path / "log"
        self.log.write_bytes(b"")
        self.options = {
            "source": [str(Path(__file__).parents[2] / "src")],
            "directory": str(self.directory),
            "log": str(self.log),
            "sizes": [20_000, 60_000, 100_000],
            "latency": 0.002,
            "num_processes": NUM_PROCESSES,
            "num_kills": 0,
            "kill_every": 0.1,
            "in_order": True,
        } | options

    def wait(self, *, timeout_seconds: float) -> int:
        """Wait for the end; the most bytes that were seen on the disk."""
        most = 0
        command = [sys.executable, "-c", WORKERS.format(**self.options)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            until = time.monotonic() + timeout_seconds
            while process.poll() is None:
                if time.monotonic() > until:
                    os.killpg(process.pid, signal.SIGKILL)
                    pytest.fail("the processes did not come to an end")
                if (self.directory / FOLDER).exists():
                    most = max(most, used_bytes(self.directory / FOLDER))
                time.sleep(0.02)
            assert process.stdout.read() == b"done\n"
        assert process.returncode == 0
        lines = self.log.read_text().splitlines()
        assert not [line for line in lines if not line.isdigit()]
        self.fetches = Counter(map(int, lines))
        return most


def test_16_processes_fetch_each_chunk_once(tmp_path: Path) -> None:
    run = Run(tmp_path, num_chunks=150, num_reads=150, budget=64 * MIB)
    run.wait(timeout_seconds=60)
    assert run.fetches == Counter(range(150))
    again = Run(tmp_path, num_chunks=150, num_reads=150, budget=64 * MIB)
    again.wait(timeout_seconds=60)
    assert not again.fetches


def test_16_processes_stay_within_the_budget(small_disk: Path) -> None:
    run = Run(small_disk, num_chunks=200, num_reads=120, budget=4 * MIB, in_order=False, latency=0.0)
    most = run.wait(timeout_seconds=60)
    assert MIB < most <= 4 * MIB


def test_a_budget_far_too_small_is_plain_reading(tmp_path: Path) -> None:
    run = Run(tmp_path, num_chunks=200, num_reads=60, budget=MIB, in_order=False, latency=0.0)
    assert run.wait(timeout_seconds=60) <= MIB
    book = _book(run.directory)
    assert book["num_bypasses"] > 0
    assert book["num_hits"] + book["num_fills"] + book["num_bypasses"] == 60 * NUM_PROCESSES


def test_a_process_that_ends_while_others_use_the_ledger_reports_its_counts(tmp_path: Path) -> None:
    cache, other = ChunkCache(tmp_path / "cache"), ChunkCache(tmp_path / "cache")
    cache.read("a", 3, lambda: b"abc")
    cache.report_counts()
    cache.read("a", 3, lambda: b"abc")
    is_held = threading.Event()

    def hold() -> None:
        with other._ledger.held():
            is_held.set()
            time.sleep(0.6)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    cache.close()
    holder.join()
    other.close()
    assert _book(tmp_path / "cache")["num_hits"] == 1


def _book(directory: Path) -> dict[str, int]:
    cache = ChunkCache(directory)
    with cache._ledger.held() as book:
        return {name: getattr(book, name) for name in ("num_hits", "num_fills", "num_bypasses", "used_bytes")}


def killed(tmp_path: Path, *, num_kills: int, num_reads: int, timeout_seconds: float, budget: int) -> None:
    """Kills at random moments; then a quiet run, in which each chunk that is not there is fetched once."""
    run = Run(
        tmp_path,
        num_chunks=100,
        num_reads=num_reads,
        budget=budget,
        in_order=False,
        num_kills=num_kills,
        latency=0.001,
        kill_every=0.1,
    )
    assert run.wait(timeout_seconds=timeout_seconds) <= budget
    # What is left is reused or cleared by the next to open it.
    cache = ChunkCache(run.directory, budget_bytes=budget)
    folder = run.directory / FOLDER
    assert not list((folder / "filling").iterdir())
    assert all(is_name(path.name) for path in (folder / "chunks").iterdir())
    assert {path.name for path in folder.iterdir()} <= {"chunks", "filling", "datasets", "ledger", "users", "victims"}
    assert _book(run.directory)["used_bytes"] >= used_bytes(folder)
    rng = random.Random(5)
    present = {number for number in range(100) if cache.has(str(number))}
    for number in rng.sample(range(100), 100):
        data = random.Random(number)
        expected = data.randbytes(data.choice([20_000, 60_000, 100_000]))
        assert cache.read(str(number), len(expected), partial(bytes, expected)) == expected
    assert cache.counts.num_damaged == 0
    if budget > 16 * MIB:
        assert cache.counts.num_hits == len(present)


@pytest.mark.parametrize(
    ("num_kills", "num_reads"), [(5, 60), pytest.param(50, 700, marks=pytest.mark.drill)], ids=["few", "many"]
)
def test_processes_killed_at_random(tmp_path: Path, num_kills: int, num_reads: int) -> None:
    killed(tmp_path, num_kills=num_kills, num_reads=num_reads, timeout_seconds=90, budget=4 * MIB)


@pytest.mark.soak
@pytest.mark.parametrize("budget", [2 * MIB, 4 * MIB, 64 * MIB])
@pytest.mark.parametrize("place", ["disk", "small disk"])
def test_processes_killed_at_random_100_times(request: pytest.FixtureRequest, budget: int, place: str) -> None:
    tmp_path: Path = request.getfixturevalue("tmp_path" if place == "disk" else "small_disk")
    killed(tmp_path, num_kills=100, num_reads=2000, timeout_seconds=500, budget=budget)


def test_a_process_killed_while_it_fetches_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
sys.path[:0] = {[str(Path(__file__).parents[2] / "src")]!r}
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
cache = ChunkCache({str(tmp_path)!r}, budget_bytes=1 << 22)
def fetch():
    print("fetching", flush=True)
    time.sleep(60)
cache.read("a", 1 << 20, fetch)
"""
    cache = ChunkCache(tmp_path, budget_bytes=4 * MIB)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"fetching\n"
        assert len(list((tmp_path / FOLDER / "filling").iterdir())) == 1
        reserved = _book(tmp_path)["used_bytes"]
        assert reserved >= MIB
        process.kill()
    assert cache.read("a", MIB, lambda: bytes(MIB)) == bytes(MIB)
    assert cache.counts.num_fills == 1
    assert _book(tmp_path)["used_bytes"] == reserved


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as somebody else")
def test_two_users() -> None:
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o777)
        ChunkCache(shared, budget_bytes=MIB).close()
        script = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parents[2] / "src")]!r}
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.errors import ShoalError
os.setgroups([]); os.setgid(12345); os.setuid(12345)
try:
    ChunkCache({shared!r}, budget_bytes=1 << 20)
except ShoalError as error:
    print(error)
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "Permission denied" in said
    assert "directory of your own" in said
