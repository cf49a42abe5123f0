"""Jobs for any process: making a shard, or inspecting a span of samples for their columns."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shoal.errors import ShoalError, UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.column_kinds import ColumnKinds, kinds_of_rows
from shoal.formats.tables.rows_to_columns import own_row
from shoal.formats.tables.writer import GROUP_BYTES
from shoal.formats.writing.record_block import RecordBlock
from shoal.index.table import Index
from shoal.pack.destination import Output
from shoal.pack.inputs.tree_inputs import TreeSamples
from shoal.pack.unit import Input, Named, Shard, ShardSummary, Unreadable, pack_shard

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
