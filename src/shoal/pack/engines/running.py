"""Jobs run in this process or in several, in any order, with results in the order of the shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from shoal.errors import ShoalError, WorkerError
from shoal.index.table import Index
from shoal.pack.destination import Output
from shoal.pack.engines.jobs import CameTo, Done, Job, JobContext, peak_bytes
from shoal.pack.engines.packing_progress import Tally
from shoal.pack.unit import ShardSummary
from shoal.processes.interpreters import start_python

_Answer = TypeVar("_Answer")


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_jobs(
    jobs: Iterator[JobContext[_Answer]], out: Output, *, num_workers: int, came_to: CameTo
) -> Iterator[_Answer]:
    """Run all jobs, ``num_workers`` at a time, and yield each result when ready; one worker means in this process.

    When the iteration ends, for whatever reason, no worker process is left running.

    Raises
    ------
    ShoalError
        The first error of a job.
    WorkerError
        A process ended in the middle of a job.
    """
    if num_workers <= 1:
        for job in jobs:
            yield job.do(out, came_to)
        return
    workers: list[_Worker[_Answer]] = []
    try:
        first = list(islice(jobs, num_workers))
        workers += [_Worker(out) for _ in first]
        for worker, job in zip(workers, first, strict=True):
            worker.give(job)
        while busy := [worker for worker in workers if worker.job is not None]:
            for connection in wait([worker.connection for worker in busy]):
                worker = next(worker for worker in busy if worker.connection is connection)
                answer = worker.answer()
                if isinstance(answer, ShoalError):
                    raise answer
                if isinstance(answer, tuple):
                    came_to(*answer)
                else:
                    worker.give(next(jobs, None))
                    yield answer
    finally:
        for worker in workers:
            worker.end()


@dataclass(frozen=True, slots=True)
class MadeShard:
    """Shards in order: their parts of the index, their summaries, and the peak memory of all processes together."""

    parts: tuple[Index, ...]
    summaries: tuple[ShardSummary, ...]
    peak_bytes: int


def made_shards(jobs: Iterator[Job], out: Output, *, num_workers: int, tally: Tally) -> MadeShard:
    """Make all shards; raises what `done_jobs` raises."""
    found: dict[int, Done] = {}
    peaks: dict[int, int] = {}
    for done in done_jobs(jobs, out, num_workers=num_workers, came_to=tally.came_to):
        found[done.number] = done
        peaks[done.process] = done.peak_bytes
        tally.came_to(done.number, 1.0)
    peaks[os.getpid()] = peak_bytes()
    ordered = [found[number] for number in sorted(found)]
    parts, summaries = tuple(done.part for done in ordered), tuple(done.summary for done in ordered)
    return MadeShard(parts, summaries, sum(peaks.values()))


class _Worker(Generic[_Answer]):
    """Parent-side handle of a worker process."""

    def __init__(self, out: Output) -> None:
        self.connection, theirs = Pipe()
        self.job: JobContext[_Answer] | None = None
        inherited = [theirs.fileno(), *([out.lock_descriptor] if out.lock_descriptor is not None else [])]
        worker = str(theirs.fileno())
        self._process = start_python(
            "shoal.pack.engines.pack_worker", worker, stdin=subprocess.DEVNULL, pass_fds=inherited
        )
        theirs.close()
        self._tell([str(Path(entry).absolute()) for entry in sys.path])
        self._tell(out)

    def give(self, job: JobContext[_Answer] | None) -> None:
        """Send a job; None ends the worker process."""
        self.job = job
        self._tell(job)

    def answer(self) -> Any:
        """Receive the next answer of the process; a `WorkerError` if it has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return self._epitaph()

    def end(self) -> None:
        """Kill the process and close its connection."""
        self._process.kill()
        self._process.wait()
        self.connection.close()

    def _tell(self, what: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # a dead process is noticed when its answer is received
            self.connection.send(what)

    def _epitaph(self) -> WorkerError:
        status = self._process.wait()
        made = self.job.name if self.job is not None else "nothing"
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        msg = f"the process that made {made} {how}"
        return WorkerError(
            msg, hint="out of memory? The same command goes on where this one ended, with --workers 1 too"
        )
