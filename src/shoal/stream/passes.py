"""One pass of a rank over the rest of an epoch, described before anything is read: here or in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from shoal.stream.arrangement import Arrangement
from shoal.stream.counters import Counters
from shoal.stream.decoding import threaded
from shoal.stream.indexing.opening import Opened
from shoal.stream.iteration import Iteration, Place, Recipe
from shoal.stream.reading.options import ReadingOptions

__all__ = ["Pass", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a process needs to make batches of any epoch of one rank; it pickles, and knows no position."""

    opened: Opened
    arrangement: Arrangement
    recipe: Recipe
    options: ReadingOptions

    def iterate(
        self,
        counters: Counters,
        *,
        epoch: int,
        start: int,
        ended: Callable[[Place], None],
        state: Callable[[int, int], dict[str, Any]],
        first_step: int = 0,
    ) -> Iteration:
        """Make these batches from a step on; steps count from position ``start``."""
        return Iteration(
            self.opened,
            self.arrangement,
            self.recipe,
            counters,
            self.options,
            epoch=epoch,
            start=start,
            ended=ended,
            state=state,
            first_step=first_step,
        )

    def of_worker(self, worker: int, num_workers: int) -> Work:
        """The part of one worker of so many, which share what this process was given to hold.

        What goes to another process is copied on its way: views would not arrive.
        """
        limit = self.options.memory_limit_bytes
        each = None if limit is None else max(1, limit // num_workers)
        options = replace(self.options, progress=False, copy=True, memory_limit_bytes=each)
        recipe = replace(self.recipe, worker=worker, num_workers=num_workers)
        return replace(self, recipe=recipe, options=options)


@dataclass(frozen=True, slots=True)
class Pass:
    """A rank's work from a position to the end of an epoch, and who is told how far it has come.

    ``follow`` is given the place that moves, ``ended`` the place once it came to its end; ``state`` makes a state of
    epoch and position. Positions, ``start`` too, count what is left of the epoch.
    """

    work: Work
    counters: Counters
    epoch: int
    start: int
    follow: Callable[[Place], None]
    ended: Callable[[Place], None]
    state: Callable[[int, int], dict[str, Any]]

    def place(self) -> Place:
        """Where it begins: to be moved on by whoever receives the batches."""
        num_samples = self.work.arrangement.num_samples_of(self.epoch)
        return Place(self.epoch, self.start, self.work.recipe.partition, num_samples)

    @property
    def num_steps(self) -> int:
        """Batches to come, or positions without batches."""
        return self.work.recipe.partition.num_batches(self.work.arrangement.num_samples_of(self.epoch), self.start)

    def with_threads(self, *, num_threads: int | None, limit_bytes: int) -> Pass:
        """The same with samples decoded in threads, where that gains, or as many as were asked for."""
        recipe = self.work.recipe
        how = threaded(recipe.stages, num_threads=num_threads, limit_bytes=limit_bytes)
        return replace(self, work=replace(self.work, recipe=replace(recipe, threaded=how)))

    def gathered_into(self, allocate: Callable[..., NDArray[Any]]) -> Pass:
        """The same with batches of columns in arrays that this makes of a shape and a type."""
        return replace(self, work=replace(self.work, recipe=replace(self.work.recipe, allocate=allocate)))

    def iterate(self) -> Iteration:
        """Begin, in this process."""
        iteration = self.work.iterate(
            self.counters, epoch=self.epoch, start=self.start, ended=self.ended, state=self.state
        )
        self.follow(iteration.place)
        return iteration
