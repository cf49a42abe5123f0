"""The description of a rank's pass over the rest of an epoch, made before any reads, for this process or workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from shoal.errors import ShuffleWarning
from shoal.pipeline.collate import collate
from shoal.pipeline.decode_pool import threaded
from shoal.processes.interrupts import InterruptsHeld
from shoal.reading.cached_ranges import expect_windows
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.spilled.large_chunks import refuse_too_large
from shoal.stats.counters import Counters
from shoal.stream.checkpoint.cursor import Cursor
from shoal.stream.checkpoint.position import Position
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.pipeline_spec import PipelineSpec, WorkerSpec
from shoal.stream.progress_line import ProgressLine, progress_line
from shoal.stream.spec import DatasetSpec
from shoal.stream.window_warning import warning_about


@dataclass(frozen=True, slots=True)
class IteratorSpec:
    """A rank's work from a position to the end of an epoch, with callbacks for its progress.

    ``follow`` receives the position that moves, ``ended`` the position once it has reached its end; ``state`` makes a
    state of epoch and position. Positions, ``start`` too, count what is left of the epoch.
    """

    work: WorkerSpec
    counters: Counters
    epoch: int
    start: int
    follow: Callable[[Position], None]
    ended: Callable[[Position], None]
    state: Callable[[int, int], dict[str, Any]]

    def place(self) -> Position:
        """Return the starting position, to be advanced by the receiver of the batches."""
        num_samples = self.work.arrangement.num_samples_of(self.epoch)
        work = self.work
        leaves_out = work.recipe.filters or work.options.leaves_out
        return Position(self.epoch, self.start, work.recipe.partition, num_samples, leaves_out=leaves_out)

    @property
    def num_steps(self) -> int:
        """Number of batches to come, or of positions without batches."""
        return self.work.recipe.partition.num_batches(self.work.arrangement.num_samples_of(self.epoch), self.start)

    def with_threads(self, *, num_threads: int | None, limit_bytes: int) -> IteratorSpec:
        """Return this spec with samples decoded in threads if that gains, or in as many as were asked for."""
        recipe = self.work.recipe
        how = threaded(recipe.stages, num_threads=num_threads, limit_bytes=limit_bytes)
        return replace(self, work=replace(self.work, recipe=replace(recipe, threaded=how)))

    def silent(self) -> IteratorSpec:
        """Return this spec without the progress line, which the receiver of the batches writes."""
        options = replace(self.work.options, progress=False)
        return replace(self, work=replace(self.work, options=options))

    def progress_line(self, place: Position) -> ProgressLine | None:
        """Return the progress line for the receiver of the batches at this position; None if there is none to write."""
        return progress_line(self.work.options, self.work.recipe, place, self.counters, self.work.opened)

    def gathered_into(self, allocate: Callable[..., NDArray[Any]]) -> IteratorSpec:
        """Return this spec with batches of columns in arrays that ``allocate`` makes of a shape and a type."""
        return replace(self, work=replace(self.work, recipe=replace(self.work.recipe, allocate=allocate)))

    def iterate(self) -> Iteration:
        """Start iterating in this process."""
        with InterruptsHeld():
            iteration = Iteration(
                self.work, self.counters, epoch=self.epoch, start=self.start, ended=self.ended, state=self.state
            )
            self.follow(iteration.place)
            return iteration


def pass_of(
    described: DatasetSpec,
    arrangement: ResolvedOrder,
    counters: Counters,
    cursor: Cursor,
    collate: Callable[[list[Any]], Any] = collate,
) -> IteratorSpec:
    """Describe the next iterator of a dataset, starting at its cursor; warn if it will mix badly.

    Raises
    ------
    UsageError
        A chunk is too large for the memory limit.
    """
    opened, options = described.opened, described.reading
    rank, world_size = described.ranks.resolve()
    partition = described.partition(world_size)
    if message := warning_about(arrangement, partition.global_batch if described.batching else 1):
        warnings.warn(message, ShuffleWarning, stacklevel=3)
    refuse_too_large(opened, arrangement, options.memory_limit_bytes)
    expect_windows(opened, arrangement, world_size, options.memory_limit_bytes)
    stages, batch_stages = described.stages, described.batch_stages
    recipe = PipelineSpec(
        partition, rank, stages, batch_stages, collate, formatting=described.formatting.of(opened, stages)
    )
    work = WorkerSpec(opened, arrangement, recipe, options)
    return IteratorSpec(work, counters, cursor.epoch, cursor.start, cursor.follow, cursor.ended, arrangement.state_at)
