"""Jobs for any process: making a shard, or inspecting a span of samples for their columns."""

from __future__ import annotations

import os
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

from shoal.errors import ShoalError, UsageError, WorkerError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.column_kinds import ColumnKinds, kinds_of_rows
from shoal.formats.tables.rows_to_columns import own_row
from shoal.formats.tables.writer import GROUP_BYTES
from shoal.formats.writing.encoder import RecordBlock
from shoal.index.table import Index
from shoal.pack.destination import Output
from shoal.pack.inputs.tree_inputs import TreeSamples
from shoal.pack.shard_writer import Input, Named, Shard, ShardSummary, Unreadable, pack_shard
from shoal.processes.interpreters import start_python

CameTo = Callable[[int, float], None]
"""Progress callback, called now and then with the number of a job and its progress from 0 to 1."""

Answer_co = TypeVar("Answer_co", covariant=True)
_Given = TypeVar("_Given", bound=Input)

_SAY_EVERY_SECONDS = 0.2
_ASK_EVERY = 64  # samples between two checks of the clock


class JobContext(Protocol[Answer_co]):
    """A picklable piece of work."""

    @property
    def name(self) -> str:
        """Description of the job for messages."""
        ...

    def do(self, out: Output, came_to: CameTo) -> Answer_co:
        """Run the job and return its result."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One shard and its inputs."""

    number: int
    shard: Shard
    inputs: Iterable[Sample | Named | Unreadable]
    num_inputs: int
    record_bytes: int

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.shard.name

    def do(self, out: Output, came_to: CameTo) -> Done:
        """Make the shard and return its summary and part of the index."""
        inputs = self.inputs.blocks(self.shard) if isinstance(self.inputs, TreeSamples) else self.inputs
        summary = pack_shard(self.shard, _counted(self.number, self.num_inputs, inputs, came_to), out)
        part = out.kept(self.shard.name)
        if part is None:
            msg = f"{self.shard.name}: this shard was finished, and is gone"
            raise ShoalError(msg, hint="is somebody removing files?")
        return Done(self.number, summary, part, os.getpid(), peak_bytes())


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """Result of a job: its summary, its part of the index, its process and that process's peak memory."""

    number: int
    summary: ShardSummary
    part: Index
    process: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class SchemaLook:
    """Samples from number ``first`` on, whose columns must be known before any shard is made."""

    number: int
    inputs: Iterable[Sample | Named | Unreadable]
    num_inputs: int
    first: int
    format: str
    skips: bool

    @property
    def name(self) -> str:
        """Numbers of the samples, in words."""
        return f"the columns of samples {self.first} to {self.first + self.num_inputs - 1}"

    def do(self, out: Output, came_to: CameTo) -> Looked:  # noqa: ARG002  # nothing is written
        """Determine the columns of the samples, 1 MiB of rows at a time."""
        kinds: ColumnKinds = {}
        rows: list[Sample] = []
        row_bytes = 0
        at = self.first
        for given in _counted(self.number, self.num_inputs, self.inputs, came_to):
            if isinstance(given, Unreadable):
                if not self.skips:
                    raise given.error
                continue
            try:
                row, num_bytes = own_row(given.sample if isinstance(given, Named) else given)
            except UsageError:
                if not self.skips:
                    raise
                continue
            rows.append(row)
            row_bytes += num_bytes
            if row_bytes >= GROUP_BYTES:
                kinds = kinds_of_rows(kinds, rows, first=at, format_name=self.format, skips=self.skips)
                at, rows, row_bytes = at + len(rows), [], 0
        kinds = kinds_of_rows(kinds, rows, first=at, format_name=self.format, skips=self.skips)
        return Looked(self.number, kinds, os.getpid(), peak_bytes())


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """Columns of some samples, the process that determined them, and its peak memory."""

    number: int
    kinds: ColumnKinds
    process: int
    peak_bytes: int


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _counted(number: int, num_inputs: int, inputs: Iterable[_Given], came_to: CameTo) -> Iterator[_Given]:
    due = time.monotonic() + _SAY_EVERY_SECONDS
    count = 0
    for place, sample in enumerate(inputs):
        yield sample
        is_block = isinstance(sample, RecordBlock)
        count += sample.num_records if isinstance(sample, RecordBlock) else 1
        if (is_block or place % _ASK_EVERY == 0) and time.monotonic() > due:
            came_to(number, min(0.999, count / num_inputs))  # it reaches 1 only when the job is complete
            due = time.monotonic() + _SAY_EVERY_SECONDS


_Answer = TypeVar("_Answer")


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
        self._process = start_python("shoal.pack.pack_worker", worker, stdin=subprocess.DEVNULL, pass_fds=inherited)
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


Progress = Callable[[int, int], None]
"""Progress callback, called with the approximate bytes done and the total."""


class Tally:
    """Bytes done, of pieces of ``piece_bytes``, in one pass or in several passes in a row."""

    def __init__(self, piece_bytes: Sequence[int], progress: Progress | None, *, num_passes: int = 1) -> None:
        self._sizes = piece_bytes
        self._total = sum(piece_bytes) * num_passes
        self._shares: dict[int, float] = {}  # of pieces in progress
        self._finished = 0
        self._progress = progress

    def came_to(self, number: int, share: float) -> None:
        """Record the progress of a piece, from 0 to 1; 1 means finished and must come only once."""
        if share >= 1.0:
            self._shares.pop(number, None)
            self._finished += self._sizes[number]
        else:
            self._shares[number] = share
        if self._progress is not None:
            under_way = sum(self._sizes[piece] * part for piece, part in self._shares.items())
            self._progress(self._finished + int(under_way), self._total)

    def pass_over(self) -> None:
        """Count one of the passes as done by an earlier run."""
        self._finished += sum(self._sizes)
