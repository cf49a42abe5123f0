"""One job in the environment of one library: write its shards, or stream an epoch of them and say what that took.

``python job.py JOB``, which is JSON; the result is a line of JSON at the end. A module of a library has ``write(job)``,
and ``samples(job)`` and ``batches(job)``, which return a stream and the key of the class in each sample or batch.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from workloads import BATCH, WORKLOADS


@dataclass(frozen=True)
class Job:
    """What is asked of a library; ``far`` is the address of the server whose folder is that of ``directory``."""

    module: str
    variant: str
    workload: str
    way: str
    directory: str
    window_bytes: int
    seed: int
    far: str = ""
    workers: int = 0
    packages: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What a sample holds."""
        return WORKLOADS[self.workload].kind

    @property
    def flat(self) -> Path:
        """Where the samples are from which all shards are made."""
        return Path(self.directory, self.workload, "flat")

    @property
    def num_samples(self) -> int:
        """Of the workload."""
        return len(np.load(self.flat / "offsets.npy", mmap_mode="r")) - 1

    @property
    def window_samples(self) -> int:
        """As many samples as the window has bytes for."""
        return max(BATCH, self.window_bytes * self.num_samples // (self.flat / "data.bin").stat().st_size)

    def folder(self, name: str) -> Path:
        """Where the shards of a format are."""
        return Path(self.directory, self.workload, name)

    def url(self, name: str) -> str:
        """The same, from the server."""
        return f"{self.far}/{self.workload}/{name}"

    def s3(self, name: str) -> str:
        """The same, by S3: a workload is a bucket."""
        return f"s3://{self.workload}/{name}"

    def scratch(self) -> str:
        """Make an empty folder, which the driver removes."""
        return tempfile.mkdtemp(prefix="cache-")


def cpu_seconds() -> float:
    """Of this process and all below it, whether they have ended or not."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    seconds, pids = sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who)), [os.getpid()]
    for parent in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    for pid in pids[1:]:
        with suppress(OSError):
            told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, told[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def one_by_one(module: Any, job: Job) -> list[Any]:
    stream, key = module.samples(job)
    return [sample[key] for sample in stream]


def in_batches(module: Any, job: Job) -> list[Any]:
    stream, key = module.batches(job)
    labels: list[Any] = []
    for batch in stream:
        found = batch[key]
        labels.extend(found if isinstance(found, (list, tuple)) else found.tolist())
    return labels


def distinct_classes(labels: Any) -> float:
    """Of a batch, on average."""
    whole = labels[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    return float(np.mean([len(set(batch)) for batch in whole.tolist()]))


def first_batch(module: Any, job: Job) -> dict[str, Any]:
    """The time until it, from the construction of the dataset; packages are imported, as far as they are at once."""
    cpu, began = cpu_seconds(), time.perf_counter()
    next(iter(module.first(job) if hasattr(module, "first") else module.batches(job)[0]))
    seconds = time.perf_counter() - began
    versions = {name: version(name) for name in job.packages}
    return {"seconds": seconds, "cpu_seconds": cpu_seconds() - cpu, "versions": versions}


def read(job: Job) -> dict[str, Any]:
    module: Any = importlib.import_module(job.module)
    if job.workload == "first":
        if job.workers:
            importlib.import_module(getattr(module, "LOADER", "torch.utils.data"))
        return first_batch(module, job)
    stream_all = one_by_one if job.way == "one" else in_batches
    if not job.far:  # imports that wait for the first sample, and indexes, are not counted
        stream, _ = module.samples(job) if job.way == "one" else module.batches(job)
        stream = iter(stream)
        next(stream)
        del stream
    cpu, began = cpu_seconds(), time.perf_counter()
    labels = stream_all(module, job)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    found = {"seconds": seconds, "cpu_seconds": cpu, "versions": {name: version(name) for name in job.packages}}
    if getattr(module, "HAS_NO_CLASSES", False):
        return found
    delivered = np.array([int(label) for label in labels])
    counts = np.bincount(delivered, minlength=100)
    each = np.bincount(np.arange(job.num_samples) * 100 // job.num_samples, minlength=100)
    wrong = int(np.abs(counts - each).sum())
    return found | {"num_samples": len(delivered), "num_wrong": wrong, "classes": distinct_classes(delivered)}


def main() -> None:
    given = json.loads(sys.argv[2])
    job = Job(**{**given, "packages": tuple(given["packages"])})
    if sys.argv[1] == "write":
        importlib.import_module(job.module).write(job)
        found: dict[str, Any] = {}
    else:
        found = read(job)
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # some libraries wait for threads that never end


if __name__ == "__main__":
    main()
