"""What a peer is asked for, and what comes back; runs in the environments of the peers, with numpy and nothing else.

``python PEER.py write DIRECTORY SIZES`` makes the sources of a mixture in the peer's own format, ``SIZES`` being a list
of JSON with the samples of each; ``python PEER.py read JOB`` runs one rank of a mixture, as the file ``JOB`` says.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SHARDS = 8
"""Shards that each source has, where a peer has shards: at 8 ranks each gets one, which suits all peers best."""

SEED = 17

Pair = tuple[int, int]
"""The number of a source, and of a sample in it."""


@dataclass(frozen=True)
class Job:
    """One rank of a run; ``states`` are the files of all ranks of the run that it resumes."""

    directory: str
    weights: list[float]
    rank: int
    world_size: int
    batch_size: int
    steps: int
    out: str
    save_at: int = 0
    states: list[str] = field(default_factory=list)
    workers: int = 0

    def source(self, number: int) -> str:
        """The directory of a source."""
        return source_directory(self.directory, number)

    def write(self) -> Path:
        """Write it beside what will come of it; where it lies."""
        path = Path(f"{self.out}.job")
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


class Reader(Protocol):
    """A peer's mixture on one rank, endless: where the peer has epochs, the reader goes on with the next."""

    epoch: int

    def __init__(self, job: Job, states: list[Any]) -> None: ...

    def batches(self) -> Iterator[Iterable[Pair]]:
        """What this rank gets, batch by batch."""

    def state(self) -> Any:
        """What the peer would write into a checkpoint after the last batch."""


def source_directory(directory: str | Path, number: int) -> str:
    """Where a source lies below the directory of all."""
    return str(Path(directory, f"source-{number:02d}"))


def payload(source: int, number: int) -> bytes:
    """1,000 bytes that no two samples share, so that memory is that of samples and not of objects alone."""
    return f"{source:03d}/{number:08d}:".encode().ljust(1000, b".")


def shards_of(size: int) -> list[range]:
    """The samples of each shard of a source."""
    return [range(shard * size // SHARDS, (shard + 1) * size // SHARDS) for shard in range(SHARDS)]


def run(job: Job, reader_class: type[Reader]) -> None:
    """Read what a job asks for, and write pairs, times and a state beside it."""
    imported = _age()
    memory = _pss()
    began, began_cpu = time.perf_counter(), _cpu()
    states = [pickle.loads(Path(path).read_bytes()) for path in job.states]
    reader = reader_class(job, states)
    pairs: list[Pair] = []
    ends: list[int] = []
    epochs: list[int] = []
    first = first_cpu = 0.0
    for batch in reader.batches():
        pairs.extend(batch)
        ends.append(len(pairs))
        epochs.append(reader.epoch)
        if not first:
            first, first_cpu = time.perf_counter() - began, _cpu() - began_cpu
        if len(ends) == job.save_at:
            Path(f"{job.out}.state").write_bytes(pickle.dumps(reader.state()))
        if len(ends) == job.steps:
            break
    np.savez(f"{job.out}.npz", pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2), ends=ends, epochs=epochs)
    told = {
        "import_s": imported,
        "first_s": first,
        "first_cpu_s": first_cpu,
        "imported_mib": memory,
        "cpu_s": _cpu(),
        "seconds": time.perf_counter() - began,
    }
    Path(f"{job.out}.json").write_text(json.dumps(told), encoding="utf-8")


def _age() -> float:
    """Seconds since this process began, to a hundredth."""
    began = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


def _cpu() -> float:
    """CPU seconds of this process and of those below it that ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def _pss() -> float:
    """The memory of this process in MiB, pages that are shared counted in parts."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main(reader: type[Reader], write: Callable[[str, int, int], None]) -> None:
    """Do what the command line says; ``write`` makes a source of a number and a size in a directory."""
    verb, *arguments = sys.argv[1:]
    if verb == "write":
        for number, size in enumerate(json.loads(arguments[1])):
            directory = source_directory(arguments[0], number)
            Path(directory).mkdir(parents=True)
            write(directory, number, size)
    else:
        run(Job(**json.loads(Path(arguments[0]).read_text(encoding="utf-8"))), reader)
