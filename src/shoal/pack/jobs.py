"""One shard as a piece of work, wherever it is done."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.pack.output import Output
from shoal.pack.tree_inputs import TreeSamples
from shoal.pack.unit import Input, Named, Shard, ShardSummary, Unreadable, pack_shard
from shoal.shards.index.table import Index
from shoal.shards.protocol import Sample
from shoal.shards.writing.record_block import RecordBlock

__all__ = ["Done", "Job", "peak_bytes", "work"]

_SAY_EVERY_SECONDS = 0.2
_ASK_EVERY = 64  # samples between two looks at the clock


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One shard and its inputs."""

    number: int
    shard: Shard
    inputs: Iterable[Sample | Named | Unreadable]
    num_inputs: int
    record_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """What became of a job: its summary, its part of the index, its process and the most memory that has had."""

    number: int
    summary: ShardSummary
    part: Index
    process: int
    peak_bytes: int


def work(job: Job, out: Output, came_to: Callable[[int, float], None]) -> Done:
    """Do a job; ``came_to`` is told now and then which job is how far, from 0 to 1."""
    inputs = job.inputs.blocks(job.shard) if isinstance(job.inputs, TreeSamples) else job.inputs
    summary = pack_shard(job.shard, _counted(job, inputs, came_to), out)
    part = out.kept(job.shard.name)
    if part is None:
        msg = f"{job.shard.name}: this shard was finished, and is gone"
        raise ShoalError(msg, hint="is somebody removing files?")
    return Done(job.number, summary, part, os.getpid(), peak_bytes())


def peak_bytes() -> int:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _counted(job: Job, inputs: Iterable[Input], came_to: Callable[[int, float], None]) -> Iterator[Input]:
    due = time.monotonic() + _SAY_EVERY_SECONDS
    number = 0
    for place, sample in enumerate(inputs):
        yield sample
        is_block = isinstance(sample, RecordBlock)
        number += sample.num_records if isinstance(sample, RecordBlock) else 1
        if (is_block or place % _ASK_EVERY == 0) and time.monotonic() > due:
            came_to(job.number, min(1.0, number / job.num_inputs))
            due = time.monotonic() + _SAY_EVERY_SECONDS
