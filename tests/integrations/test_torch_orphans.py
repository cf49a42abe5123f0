"""A trainer that is killed leaves nothing: no process, no file of its cache, no semaphore."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integrations import orphaned
from tests.stream.made import open_finely, write_tars

from shoal.storage.chunk_cache.directory import FOLDER
from shoal.testing import Fault, RangeServer

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")

_SECONDS_TO_END = 3.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RangeServer]]:
    directory = tmp_path_factory.mktemp("orphans")
    open_finely(write_tars(directory / "data", [100, 97]))
    with RangeServer(directory) as server:
        yield directory, server


def session_of(leader: int) -> dict[int, str]:
    """The processes that are left of a session, with their command lines."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        except (OSError, IndexError):
            continue
    return found


def semaphores_of(process: int) -> set[str]:
    return set(re.findall(r"/dev/shm/sem\.\S+", Path(f"/proc/{process}/maps").read_text()))


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def within(seconds: float, is_so: Callable[[], object]) -> bool:
    until = time.monotonic() + seconds
    while not (found := bool(is_so())) and time.monotonic() < until:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("fork", signal.SIGKILL),
        pytest.param("fork", signal.SIGTERM, marks=pytest.mark.drill),
        pytest.param("spawn", signal.SIGKILL, marks=pytest.mark.drill),
        pytest.param("forkserver", signal.SIGKILL, marks=pytest.mark.drill),
    ],
)
def test_a_killed_trainer_leaves_nothing(
    method: str, number: signal.Signals, served: tuple[Path, RangeServer], tmp_path: Path, scratch: Path
) -> None:
    directory, server = served
    server.clear()
    server.faults = [Fault("stall", path="*.tar", requests=range(24, 10**9), seconds=60.0)]
    cache = tmp_path / "cache"
    url = server.url_of("data/s-000.tar").replace("000", "{000..001}")
    trainer = subprocess.Popen(
        [sys.executable, orphaned.__file__, str(directory / "data"), str(directory / "fine.index"), url, cache, method],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert trainer.stdout is not None
        assert sorted(trainer.stdout.readline() for _ in range(2)) == ["both go\n", "in the function\n"]
        assert within(20, lambda: server.num_faults().get("stall"))
        assert within(20, lambda: left_in(cache / FOLDER / "filling"))
        assert left_in(cache / FOLDER / "chunks")
        assert len(session_of(trainer.pid)) >= 3
        semaphores = semaphores_of(trainer.pid)
        trainer.send_signal(number)
        trainer.wait(20)
        within(_SECONDS_TO_END, lambda: not session_of(trainer.pid))
        assert session_of(trainer.pid) == {}
        assert [path for path in semaphores if Path(path).exists()] == []
        assert left_in(cache / FOLDER / "filling") == left_in(cache / FOLDER / "chunks") == []
    finally:
        for process in session_of(trainer.pid):
            os.kill(process, signal.SIGKILL)
        trainer.communicate(timeout=20)
