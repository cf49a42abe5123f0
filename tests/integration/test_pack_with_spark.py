"""Packing with Spark, in processes of their own that end with the test; SHOAL_NUM_KILLS says how many are killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import shoal
from shoal.pack import clean, pack

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
NUM_KILLS = int(os.environ.get("SHOAL_NUM_KILLS", "2"))
SECONDS = 300 + 60 * NUM_KILLS
MASTER = os.environ.get("SHOAL_SPARK_MASTER", "local[2]")  # local-cluster[2,1,1024] takes long to start each time

PythonWith = Callable[[str], Path]


@pytest.mark.timeout(SECONDS + 60)
def test_packing_works_with_spark(python: PythonWith, tmp_path: Path) -> None:
    options = ["-m", "pytest", "-q", "-x", "-m", "", "-W", "default", "-p", "no:cacheprovider"]
    job = started(python("spark"), tmp_path, *options, str(HERE / "inside_spark.py"))
    try:
        said, _ = job.communicate(timeout=SECONDS)
    finally:
        end(job)
    assert job.returncode == 0, said[-6000:]


@pytest.mark.timeout(SECONDS + 60)
def test_a_driver_that_is_killed_leaves_nothing_lost_doubled_or_behind(python: PythonWith, tmp_path: Path) -> None:
    inputs, out = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir()
    for number in range(600):
        (inputs / f"{number:04d}.txt").write_text(f"document {number}\n" * (number % 50))
    expected = pack(inputs, tmp_path / "expected", shard_bytes="32KiB", shuffle=True, seed=1)
    rng = random.Random(5)
    num_unfinished = 0
    for number in range(NUM_KILLS):
        driver = started(python("spark"), tmp_path, str(HERE / "spark_driver.py"), MASTER, str(inputs), str(out))
        try:
            assert driver.stdout is not None
            assert any(line.startswith("planned") for line in driver.stdout), "the driver did not begin"
            time.sleep(rng.uniform(0, 4))
        finally:
            end(driver)
        num_unfinished += not (out / "shoal.index").exists()
        if number % 2 and (out / ".shoal-pack").exists():
            clean(out, grace_seconds=0)
            assert [path for path in out.rglob("*") if path.is_file()] == []
    assert num_unfinished
    summary = pack(inputs, out, shard_bytes="32KiB", shuffle=True, seed=1)  # any engine finishes the same job
    assert summary.digest == expected.digest
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "expected").iterdir()}
    for shard in expected.shards:
        assert (out / shard.name).read_bytes() == (tmp_path / "expected" / shard.name).read_bytes()
    assert len(shoal.open(str(out))) == 600


def started(python: Path, directory: Path, *command: str) -> subprocess.Popen[str]:
    """Start a process that runs Spark, and leads a group of all that it starts."""
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    told = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": str(python),
        "SHOAL_CACHE_DIR": str(directory / "cache"),
        "SHOAL_NUM_KILLS": str(NUM_KILLS),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
        "SPARK_WORKER_DIR": str(directory / "workers"),
    }
    return subprocess.Popen(
        [str(python), *command],
        env={**os.environ, **told},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(job: subprocess.Popen[str]) -> None:
    """Kill a process and all that it started; nothing of Spark stays."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    if job.stdout is not None:
        job.stdout.close()
