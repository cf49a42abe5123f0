"""Jobs, and sinks of Ray Data, whose tasks take their time or fail once; importable by Ray's workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import ray

import shoal.pack.ray
from shoal.errors import StorageError, UsageError
from shoal.pack import PackJob, PackSummary, ShardSummary, plan
from shoal.pack.jobs.pack_job import PackTask
from shoal.pack.output.destination import Output
from shoal.pack.output.journal import Journal
from shoal.pack.ray import ShoalDatasink

OPTIONS: dict[str, Any] = {"shard_bytes": 14_000, "shuffle": True, "seed": 3, "columns": ["length"]}
SINK: dict[str, Any] = {"format": "jsonl", "shard_bytes": 4_000, "columns": ["id"]}
ALWAYS = {"max_retries": -1}
NUM_ROWS, NUM_BLOCKS = 2_000, 20


class Job:
    """A job of `shoal.pack.plan` whose tasks are others, made by ``wrap`` of the number and the task."""

    def __init__(self, job: PackJob, wrap: Callable[[int, PackTask], Callable[[], Any]]) -> None:
        self.job, self.wrap = job, wrap
        self.num_made = 0

    @property
    def num_units(self) -> int:
        return self.job.num_units

    def missing(self) -> list[int]:
        return self.job.missing()

    def task(self, number: int) -> Callable[[], Any]:
        self.num_made += 1
        return self.wrap(number, self.job.task(number))

    def finish(self) -> PackSummary:
        return self.job.finish()


class Slowly:
    """A task that takes its time before and behind each step, so that a kill finds it anywhere."""

    def __init__(self, number: int, task: PackTask) -> None:
        self.number, self.task = number, task

    def __call__(self) -> ShardSummary:
        slow_down()
        return self.task()


class FailingOnce:
    """A task that fails at its first attempt, in one of three ways, before or behind its work."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self, number: int, task: PackTask) -> Callable[[], Any]:
        return _Failing(self.marks / str(number), number, task)


class _Failing:
    def __init__(self, mark: Path, number: int, task: PackTask) -> None:
        self.mark, self.number, self.task = mark, number, task

    def __call__(self) -> ShardSummary | None:
        is_first = not self.mark.exists()
        self.mark.touch()
        if self.number % 2:
            self.task()
        if is_first and self.number % 3 == 0:
            msg = "a disk that is away for a moment"
            raise StorageError(msg)
        if is_first and self.number % 6 == 1:
            os._exit(3)
        return self.task()


class Refused:
    """A task that raises an error of shoal's, with its hint, for one of the units."""

    def __init__(self, number: int, task: PackTask) -> None:
        self.number, self.task = number, task

    def __call__(self) -> ShardSummary:
        if self.number == 3:
            msg = "unit 3 is refused"
            raise UsageError(msg, hint="this is the hint")
        return self.task()


def slow_down() -> None:
    """Let what publishes and records shards sleep, in this process."""
    if getattr(Output, "is_slow", False):
        return
    Output.is_slow = True  # type: ignore[attr-defined]
    moments = np.random.default_rng()

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(moments.uniform(0, 0.02))
            result = function(*arguments, **options)
            time.sleep(moments.uniform(0, 0.02))
            return result

        return slow

    steps: list[tuple[Any, str]] = [(Output, "begin_shard"), (Output, "publish"), (Journal, "made"), (Journal, "keep")]
    for owner, name in steps:
        setattr(owner, name, slowly(getattr(owner, name)))


class SlowSink(ShoalDatasink):
    """A sink whose tasks take their time."""

    def write(self, blocks: Iterable[Any], ctx: Any) -> Any:
        slow_down()
        return super().write(blocks, ctx)


class FailingSink(ShoalDatasink):
    """A sink of whose tasks some die once, behind their work; told to fail for good, one of them does so."""

    def __init__(self, *arguments: Any, marks: Path, fails: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.marks, self.fails = marks, fails

    def write(self, blocks: Iterable[Any], ctx: Any) -> Any:
        mark = self.marks / str(ctx.task_idx)
        is_first = not mark.exists()
        mark.touch()
        written = super().write(blocks, ctx)
        if self.fails and ctx.task_idx == 2:
            msg = "a sink that fails"
            raise ValueError(msg)
        if is_first and not self.fails and ctx.task_idx % 4 == 1:
            os._exit(3)
        return written


def rows() -> Any:
    """2000 rows of Ray Data in their order, in 20 blocks."""
    found = ray.data.range(NUM_ROWS, override_num_blocks=NUM_BLOCKS).map_batches(_texts)
    found.context.execution_options.preserve_order = True
    return found


def _texts(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "text": np.array([f"row {number} " * (number % 7) for number in batch["id"].tolist()])}


def main() -> None:
    """Pack as a driver of its own, which may be killed: ``ray_jobs.py ADDRESS SOURCE OUT``, SOURCE "-" for the sink."""
    address, source, out = sys.argv[1:]
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    print("connected", flush=True)
    if source == "-":
        sink = SlowSink(out, **SINK)
        rows().write_datasink(sink, ray_remote_args=ALWAYS)
        summary = sink.summary
    else:
        summary = shoal.pack.ray.run(Job(plan(source, out, **OPTIONS), Slowly), remote_options=ALWAYS)
    assert summary is not None
    print(summary.fingerprint, flush=True)


if __name__ == "__main__":
    main()
