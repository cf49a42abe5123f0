"""Jobs in one or several processes of this machine: shards to make, or samples whose columns are determined."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from shoal.errors import ShoalError, StorageError, UsageError, WorkerError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.column_kinds import ColumnKinds, kinds_of_rows
from shoal.formats.tables.rows_to_columns import own_row
from shoal.formats.tables.writer import GROUP_BYTES
from shoal.formats.writing.encoder import RecordBlock
from shoal.pack.inputs.tree_inputs import TreeSamples
from shoal.pack.output.commit import Committed
from shoal.pack.output.destination import Output
from shoal.pack.shards.shard_writer import Input, Named, Shard, ShardSummary, Unreadable, pack_shard
from shoal.processes.interpreters import start_python, usable_processors

Progress = Callable[[int, int], None]
"""Progress callback of a packing: the approximate bytes done, and the total."""

JobProgress = Callable[[int, float], None]
"""Progress callback of jobs: the number of a job and its progress from 0 to 1; 1 comes once, when it is done."""

_Input = TypeVar("_Input", bound=Input)
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)

_REPORT_EVERY_SECONDS = 0.2
_CHECK_EVERY = 64  # samples between two checks of the clock


class _Job(Protocol[_Result_co]):
    """A picklable piece of work; its text names its result."""

    @property
    def number(self) -> int: ...

    def run(self, out: Any, report: JobProgress, /) -> _Result_co: ...


@dataclass(frozen=True, slots=True, eq=False)
class ShardJob:
    """One shard to make from its inputs."""

    number: int
    shard: Shard
    inputs: Iterable[Sample | Named | Unreadable]
    num_inputs: int

    def __str__(self) -> str:
        return self.shard.name

    def run(self, out: Output, report: JobProgress) -> ShardSummary:
        """Make the shard and store its part of the index, unless it exists; return the summary of the shard."""
        if (done := out.committed()) is not None:
            return Committed.of_index(out.url, done).summary.shards[self.number]
        inputs = self.inputs.blocks(self.shard) if isinstance(self.inputs, TreeSamples) else self.inputs
        try:
            summary = pack_shard(self.shard, _reported(self.number, self.num_inputs, inputs, report), out)
        except StorageError:
            if (done := out.committed()) is None:
                raise
            # Another machine has made all shards, committed them, and removed the records of this one.
            summary = Committed.of_index(out.url, done).summary.shards[self.number]
        try:
            done = out.committed()
        except UsageError:
            if not summary.done_before:
                out.undo(summary.name, summary.digest)
            raise
        if done is not None:
            out.journal.forget(self.shard.name)
        return summary


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsJob:
    """Job that determines the columns of samples from number ``first`` on, before any shard is written."""

    number: int
    inputs: Iterable[Sample | Named | Unreadable]
    num_inputs: int
    first: int
    format: str
    skips: bool

    def __str__(self) -> str:
        return f"the columns of samples {self.first} to {self.first + self.num_inputs - 1}"

    def run(self, out: Output, report: JobProgress) -> ColumnKinds:  # noqa: ARG002  # nothing is written
        """Determine the columns of the samples, 1 MiB of rows at a time."""
        kinds: ColumnKinds = {}
        rows: list[Sample] = []
        row_bytes, position = 0, self.first
        for entry in _reported(self.number, self.num_inputs, self.inputs, report):
            if isinstance(entry, Unreadable):
                if not self.skips:
                    raise entry.error
                continue
            try:
                row, num_bytes = own_row(entry.sample if isinstance(entry, Named) else entry)
            except UsageError:
                if not self.skips:
                    raise
                continue
            rows.append(row)
            row_bytes += num_bytes
            if row_bytes >= GROUP_BYTES:
                kinds = kinds_of_rows(kinds, rows, first=position, format_name=self.format, skips=self.skips)
                position, rows, row_bytes = position + len(rows), [], 0
        return kinds_of_rows(kinds, rows, first=position, format_name=self.format, skips=self.skips)


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a job in another process, and the peak memory of that process."""

    number: int
    result: Any
    peak_bytes: int


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_jobs(
    jobs: Iterator[_Job[_Result]], out: Output | None, *, num_workers: int, report: JobProgress
) -> tuple[list[_Result], int]:
    """Run all jobs, ``num_workers`` at a time; a single worker is this process. ``out`` is None if nothing is written.

    Returns the results by job number, and the peak memory of all processes together. No worker process outlives the
    call. Raises the first error of a job, or a `WorkerError` if a process ended in the middle of a job.
    """
    results: dict[int, _Result] = {}
    workers: list[_Worker[_Result]] = []
    try:
        if num_workers <= 1:
            for job in jobs:
                results[job.number] = job.run(out, report)
                report(job.number, 1.0)
        else:
            first = list(islice(jobs, num_workers))
            workers += [_Worker(out) for _ in first]
            for worker, job in zip(workers, first, strict=True):
                worker.give(job)
        while busy := [worker for worker in workers if worker.job is not None]:
            ready = wait([worker.connection for worker in busy])
            for worker in (worker for worker in busy if worker.connection in ready):
                answer = worker.answer()
                if isinstance(answer, ShoalError):
                    raise answer
                if isinstance(answer, Done):
                    worker.give(next(jobs, None))
                    worker.peak_bytes = answer.peak_bytes
                    results[answer.number] = answer.result
                    answer = (answer.number, 1.0)
                report(*answer)
    finally:
        for worker in workers:
            worker.end()
    total_bytes = peak_bytes() + sum(worker.peak_bytes for worker in workers)
    return [results[number] for number in sorted(results)], total_bytes


def useful_workers(seconds: float) -> int:
    """Return one process per processor, or fewer if some would have less than a second of work."""
    return max(1, min(usable_processors(), int(seconds)))


class PackProgress:
    """Finished bytes of a packing, summed over jobs of ``job_bytes`` that run in one or several consecutive passes."""

    def __init__(self, job_bytes: Sequence[int], progress: Progress | None, *, num_passes: int = 1) -> None:
        self._job_bytes = job_bytes
        self._total_bytes = sum(job_bytes) * num_passes
        self._shares: dict[int, float] = {}  # of unfinished jobs
        self._finished_bytes = 0
        self._progress = progress

    def report(self, number: int, share: float) -> None:
        """Record the progress of a job (`JobProgress`)."""
        if share >= 1.0:
            self._shares.pop(number, None)
            self._finished_bytes += self._job_bytes[number]
        else:
            self._shares[number] = share
        if self._progress is not None:
            unfinished = sum(self._job_bytes[job] * part for job, part in self._shares.items())
            self._progress(self._finished_bytes + int(unfinished), self._total_bytes)

    def skip_pass(self) -> None:
        """Count a pass as done by an earlier run."""
        self._finished_bytes += sum(self._job_bytes)


def _reported(number: int, num_inputs: int, inputs: Iterable[_Input], report: JobProgress) -> Iterator[_Input]:
    due = time.monotonic() + _REPORT_EVERY_SECONDS
    count = 0
    for position, sample in enumerate(inputs):
        yield sample
        is_block = isinstance(sample, RecordBlock)
        count += sample.num_records if isinstance(sample, RecordBlock) else 1
        if (is_block or position % _CHECK_EVERY == 0) and time.monotonic() > due:
            report(number, min(0.999, count / num_inputs))  # 1 means that the job is complete
            due = time.monotonic() + _REPORT_EVERY_SECONDS


class _Worker(Generic[_Result]):
    """A worker process, as its parent sees it."""

    def __init__(self, out: Output | None) -> None:
        self.connection, far_end = Pipe()
        self.job: _Job[_Result] | None = None
        self.peak_bytes = 0
        lock = None if out is None else out.lock_descriptor
        inherited = [far_end.fileno(), *([] if lock is None else [lock])]
        arguments = ("shoal.pack.jobs.pack_worker", str(far_end.fileno()))
        self._process = start_python(*arguments, stdin=subprocess.DEVNULL, pass_fds=inherited)
        far_end.close()
        self._send([str(Path(entry).absolute()) for entry in sys.path])
        self._send(out)

    def give(self, job: _Job[_Result] | None) -> None:
        """Send a job; None ends the worker process."""
        self.job = job
        self._send(job)

    def answer(self) -> Any:
        """Receive the next answer of the process; a `WorkerError` if it has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            status = self._process.wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        hint = "out of memory? The same call continues where this one ended, also with num_workers=1"
        return WorkerError(f"the process that made {self.job} {how}", hint=hint)

    def end(self) -> None:
        """Kill the process and close its connection."""
        self._process.kill()
        self._process.wait()
        self.connection.close()

    def _send(self, message: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # a dead process is noticed when its answer is received
            self.connection.send(message)
