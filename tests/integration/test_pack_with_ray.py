"""Packing with Ray, in processes of their own that end with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
INSIDE = Path(__file__).parent / "inside_ray.py"


@pytest.mark.timeout(1000)
def test_packing_works_with_ray(python: Callable[[str], Path], tmp_path: Path) -> None:
    run_inside(python("ray"), tmp_path, seconds=900)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_workers_and_drivers_of_ray_that_are_killed_twenty_times(python: Callable[[str], Path], tmp_path: Path) -> None:
    run_inside(python("ray"), tmp_path, "-k", "killed and 20", seconds=2900)


def run_inside(python: Path, directory: Path, *options: str, seconds: float) -> None:
    """Run tests of ours with a Python that has ray; no process of Ray stays."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:  # sockets have short paths
        told = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SHOAL_CACHE_DIR": str(directory / "cache"),
            "RAY_TMPDIR": short,  # also for the address of the running cluster, which others must not find
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",  # or Ray writes a token into the home directory
        }
        words = [str(python), "-m", "pytest", "-v", "-x", "-W", "default", "-p", "no:cacheprovider", "--durations", "9"]
        words += ["-m", "soak" if options else "not soak", "--basetemp", str(directory / "inside"), *options]
        with (directory / "said").open("wb") as said:
            job = subprocess.Popen(
                [*words, str(INSIDE)],
                env={**os.environ, **told},
                cwd=ROOT,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait()
                end_what_is_left(short)
    text = (directory / "said").read_text()
    print(text)
    assert job.returncode == 0, text[-6000:]


def end_what_is_left(directory: str) -> None:
    """Kill what runs the cluster in this directory and is in no group of ours; workers end when it does."""
    end = time.monotonic() + 20
    while (left := running_in(directory)) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.2)
    assert not left


def running_in(directory: str) -> list[int]:
    """Processes whose words or open files are in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            opened = [str(file.readlink()) for file in process.glob("fd/*")]
            words = (process / "cmdline").read_text(errors="replace").split("\0")
            if any(f"{directory}/" in path for path in (*opened, *words)):
                found.append(int(process.name))
    return found
