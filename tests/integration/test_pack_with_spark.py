"""Packing with Spark, in processes of their own that end with the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
INSIDE = Path(__file__).parent / "inside_spark.py"


def test_packing_works_with_spark(python: Callable[[str], Path], tmp_path: Path) -> None:
    run_inside(python("spark"), tmp_path)


def run_inside(python: Path, directory: Path, *options: str) -> None:
    """Run tests of ours with a Python that has pyspark; no process of Spark stays."""
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    told = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": str(python),
        "SHOAL_CACHE_DIR": str(directory / "cache"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
        "SPARK_WORKER_DIR": str(directory / "workers"),
    }
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "--durations",
        "9",
        *options,
        str(INSIDE),
    ]
    job = subprocess.Popen(
        command,
        env={**os.environ, **told},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=400)
    finally:
        # Executors are in its process group, too.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    print(said)
    assert job.returncode == 0, said[-6000:]
