"""Jobs done in this process or in several, in whatever order they come; the results in the order of the shards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Pipe, wait
from typing import Any

from shoal.errors import ShoalError, WorkerError
from shoal.pack.jobs import Done, Job, work
from shoal.pack.output import Output
from shoal.stream.own_processes import start_python

__all__ = ["done_jobs", "usable_processors"]

_Progress = Callable[[int, float], None]


def usable_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_jobs(jobs: Iterator[Job], out: Output, *, num_workers: int, came_to: _Progress) -> Iterator[Done]:
    """Do all jobs, ``num_workers`` at a time; gives each when it is done. With one worker, in this process.

    When the iteration ends, for whatever reason, no process is left.

    Raises
    ------
    ShoalError
        The first error of a job.
    WorkerError
        A process ended in the middle of one.
    """
    if num_workers <= 1:
        for job in jobs:
            yield work(job, out, came_to)
        return
    workers: list[_Worker] = []
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
                if isinstance(answer, Done):
                    worker.give(next(jobs, None))
                    yield answer
                else:
                    came_to(*answer)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that works, seen from the one that has work for it."""

    def __init__(self, out: Output) -> None:
        self.connection, theirs = Pipe()
        self.job: Job | None = None
        inherited = [theirs.fileno(), *([out.lock_descriptor] if out.lock_descriptor is not None else [])]
        worker = str(theirs.fileno())
        self._process = start_python("shoal.pack.worker", worker, stdin=subprocess.DEVNULL, pass_fds=inherited)
        theirs.close()
        self._tell(out)

    def give(self, job: Job | None) -> None:
        """Send a job; None ends the process."""
        self.job = job
        self._tell(job)

    def answer(self) -> Any:
        """What the process says; a `WorkerError` where it has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return self._epitaph()

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.wait()
        self.connection.close()

    def _tell(self, what: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # that it is gone is seen when its answer is wanted
            self.connection.send(what)

    def _epitaph(self) -> WorkerError:
        status = self._process.wait()
        shard = self.job.shard.name if self.job is not None else "nothing"
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        msg = f"the process that made {shard} {how}"
        return WorkerError(
            msg, hint="out of memory? The same command goes on where this one ended, with --workers 1 too"
        )
