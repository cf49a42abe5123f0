"""Packing with Ray, in processes of their own that end with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
INSIDE = Path(__file__).parent / "inside_ray.py"


def test_packing_works_with_ray(python: Callable[[str], Path], tmp_path: Path) -> None:
    run_inside(python("ray"), tmp_path, seconds=400)


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
        words = [str(python), "-m", "pytest", "-q", "-x", "-W", "default", "-p", "no:cacheprovider", "--durations", "9"]
        words += [
            "-m",
            "soak" if options else "not soak",
            "--basetemp",
            str(directory / "inside"),
            *options,
            str(INSIDE),
        ]
        job = subprocess.Popen(
            words,
            env={**os.environ, **told},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = job.communicate(timeout=seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            end_what_is_left(short)
    print(said)
    assert job.returncode == 0, said[-6000:]


def end_what_is_left(directory: str) -> None:
    """Kill processes of the cluster that are in no group of ours: they have its directory among their words."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_ours = os.fsencode(f"{directory}/") in words.read_bytes()
        except OSError:
            continue
        if is_ours:
            os.kill(int(words.parent.name), signal.SIGKILL)
