"""The failure drill: executors and the driver of a job are killed at random moments, and nothing is lost or left."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.pack.contents import contents_of
from tests.pack.files import make_files

from shoal.pack import clean, pack, plan

DRIVER = """
import sys, time
from shoal.pack import plan
job = plan(sys.argv[1], sys.argv[2], shard_bytes=8_000, format=sys.argv[3])
while job.missing():
    time.sleep(0.02)
job.finish()
"""

EXECUTOR = """
import os, pickle, sys
import numpy as np
job = pickle.load(open(sys.argv[1], "rb"))
for number in np.random.default_rng(os.getpid()).permutation(job.num_units).tolist():
    job.task(number)()
"""


class Cluster:
    """A driver and two executors, each a process; one that is killed is started anew."""

    def __init__(self, source: Path, out: Path, format_name: str) -> None:
        self.out = out
        job = out.with_suffix(".job")
        job.write_bytes(pickle.dumps(plan(source, out, shard_bytes=8_000, format=format_name)))
        executor = [sys.executable, "-c", EXECUTOR, str(job)]
        self.words = [[sys.executable, "-c", DRIVER, str(source), str(out), format_name], executor, executor]
        self.processes = [subprocess.Popen(words) for words in self.words]

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def replace(self, number: int) -> None:
        self.kill(number)
        self.processes[number] = subprocess.Popen(self.words[number])

    def is_finished(self) -> bool:
        return (self.out / "shoal.index").exists()

    def wait(self) -> None:
        """Until the driver has finished; executors that were killed too often are replaced."""
        for number in (1, 2):
            self.replace(number)
        assert [process.wait(timeout=300) for process in self.processes] == [0, 0, 0]


def drill(tmp_path: Path, num_kills: int, *, format_name: str) -> None:
    """Kill executors and the driver, each this often; some clusters die for good, and are removed."""
    source = make_files(tmp_path / "in", classes={"a": 150, "b": 150})
    pack(source, tmp_path / "calm", num_workers=1, shard_bytes=8_000, format=format_name)
    calm = contents_of(tmp_path / "calm")
    began = time.monotonic()
    Cluster(source, tmp_path / "timed", format_name).wait()
    assert contents_of(tmp_path / "timed") == calm
    whole_seconds = time.monotonic() - began
    moments = np.random.default_rng(num_kills)
    killed = {"driver": 0, "executor": 0}
    for number in range(1000):
        if min(killed.values()) >= num_kills:
            return
        cluster = Cluster(source, tmp_path / f"out-{number}", format_name)
        is_given_up = number % 3 == 2
        for _ in range(int(moments.integers(1, 8))):
            time.sleep(whole_seconds * moments.uniform(0, 0.6))
            if cluster.is_finished():
                break
            victim = int(moments.integers(3))
            killed["executor" if victim else "driver"] += 1
            cluster.replace(victim)
        if is_given_up:
            for victim in range(3):
                cluster.kill(victim)
            clean(cluster.out, grace_seconds=0)
            assert contents_of(cluster.out) == (calm if cluster.is_finished() else {})
        else:
            cluster.wait()
            if (cluster.out / ".shoal-pack").exists():  # an executor was killed behind the end of the job
                clean(cluster.out, grace_seconds=0)
            assert contents_of(cluster.out) == calm


@pytest.mark.drill
def test_killed_now_and_then(tmp_path: Path) -> None:
    drill(tmp_path, 1, format_name="mds")


@pytest.mark.soak
@pytest.mark.parametrize("format_name", ["tar", "mds"])
def test_executors_and_the_driver_are_killed_twenty_times_each(tmp_path: Path, format_name: str) -> None:
    drill(tmp_path, 20, format_name=format_name)
