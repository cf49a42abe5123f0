"""However a loop over a loader ends: no hang, no process, thread or file that is left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integrations import closing
from tests.stream.made import open_finely, write_tars

WAYS = ["leave_early", "fail", "interrupt", "interrupt_the_end", "let_go"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("closing")
    open_finely(write_tars(directory / "data", [100, 97]))
    return directory / "data", directory / "fine.index"


def shared_memory() -> set[str]:
    """What lies in the shared memory of this machine by names like ours."""
    try:
        names = {path.name for path in Path("/dev/shm").iterdir()}
    except OSError:
        return set()
    return {name for name in names if name.startswith(("torch_", "shoal"))}


def run(worker_counts: list[int], times: int, data: tuple[Path, Path], tmp_path: Path, scratch: Path) -> None:
    """End loops in all ways with each number of workers, then exit Python in the middle of a loop with the last."""
    pids = tmp_path / "pids"
    pids.mkdir()
    environment = {
        **os.environ,
        "SHOAL_TEST_PIDS": str(pids),
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    before = shared_memory()
    arguments = [str(data[0]), str(data[1]), ",".join(WAYS), ",".join(map(str, worker_counts)), str(times)]
    done = subprocess.run(
        [sys.executable, closing.__file__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60 + 20 * times,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # An interrupt may cut off a tensor on its way; the worker's own multiprocessing says so, and goes on to end.
    assert done.stderr == "" or "multiprocessing/resource_sharer.py" in done.stderr
    lines = [
        (way, int(num_workers), int(threads)) for way, num_workers, threads in map(str.split, done.stdout.splitlines())
    ]
    ends = [(way, num_workers) for num_workers in worker_counts for way in WAYS for _ in range(times)]
    assert [line[:2] for line in lines] == [*ends, ("exit_in_the_middle", worker_counts[-1])]
    # The main thread; those of multiprocessing's queues may still be on their way out.
    assert all(threads <= 2 + num_workers for _, num_workers, threads in lines[:-1])
    assert len(list(pids.iterdir())) == sum(num_workers for _, num_workers, _ in lines)
    deadline = time.monotonic() + 10
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []
    assert list(scratch.iterdir()) == []
    while (left_there := shared_memory() - before) and time.monotonic() < deadline:  # perhaps of another run of tests
        time.sleep(0.1)
    assert left_there == set()


def alive(pids: Path) -> list[str]:
    running = []
    for path in pids.iterdir():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{path.name}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.append(path.name)
    return running


needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")


@needs_proc
@pytest.mark.parametrize(
    ("worker_counts", "times"),
    [([0, 2], 1), pytest.param([0], 2, marks=pytest.mark.drill), pytest.param([2], 2, marks=pytest.mark.drill)],
    ids=str,
)
def test_a_loop_may_end_in_any_way(
    worker_counts: list[int], times: int, data: tuple[Path, Path], tmp_path: Path, scratch: Path
) -> None:
    run(worker_counts, times, data, tmp_path, scratch)


@needs_proc
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("number", range(20))
def test_a_loop_may_end_1000_times(
    number: int, num_workers: int, data: tuple[Path, Path], tmp_path: Path, scratch: Path
) -> None:
    run([num_workers], 12, data, tmp_path, scratch)
