"""Iteration of one rank over the rest of an epoch: samples or batches out, and a position that counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

from shoal.errors import ForkError, UsageError
from shoal.formats.shard_format import ColumnarFormat
from shoal.indexing.open_source import Opened
from shoal.pipeline.batch_memory import keep_for_next
from shoal.pipeline.columns.column_gathering import Gathering
from shoal.pipeline.columns.selection import with_chosen
from shoal.pipeline.decode_pool import Decoders
from shoal.pipeline.quarantine import Skips, skips_of
from shoal.pipeline.stages import in_epoch
from shoal.processes import forks
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.processes.parents import end_with_trainer
from shoal.reading.borrowed_values import with_views
from shoal.reading.budgets import Budget, budget_of
from shoal.reading.fetcher import Fetch
from shoal.reading.options import ReadingOptions
from shoal.reading.single_samples import Singles, singles_of
from shoal.stats.counters import Counters
from shoal.stats.pinned_views import Pins
from shoal.stats.throughput import Throughput
from shoal.stream.certificate.delivery_sums import DeliverySums, RecordHashes
from shoal.stream.checkpoint.position import Position
from shoal.stream.iterating.batches import BatchContext, batches_gathered, batches_made, samples_made
from shoal.stream.iterating.pipeline_spec import PipelineSpec, WorkerSpec
from shoal.stream.iterating.read_schedule import gathered, planned, unplanned
from shoal.stream.progress_line import progress_line
from shoal.stream.ranks.rank_share import shares_of


class Iteration:
    """The batches (or samples) of one rank from a position to the end of an epoch.

    `place` is the position after everything yielded so far. Close it, use it in a ``with``, or drop it: no thread is
    left in any case. After an error it raises the same error again: an epoch that failed must not look like one that
    ended.
    """

    def __init__(
        self,
        work: WorkerSpec,
        counters: Counters,
        *,
        epoch: int,
        start: int,
        ended: Callable[[Position], None],
        state: Callable[[int, int], dict[str, Any]],
        first_step: int = 0,
    ) -> None:
        end_with_trainer()
        self._ended, self._state = ended, state
        arrangement, options = work.arrangement, work.options
        recipe = replace(work.recipe, stages=in_epoch(work.recipe.stages, epoch))
        opened = with_chosen(work.opened, recipe.stages)
        if not options.copy:
            opened = _viewed(opened, counters)
        order = arrangement.epoch(epoch)
        ledger = DeliverySums(RecordHashes(opened.index), epoch)
        self.place = Position(epoch, start, recipe.partition, order.num_samples, first_step, ledger=ledger)
        self.place.leaves_out = recipe.filters or options.leaves_out
        reading = singles_of if arrangement.by_singles else Fetch
        skips = skips_of(options, opened.index, counters)
        is_far, verifies = not opened.store.reads_ahead, options.verify == "always"
        budget = budget_of(arrangement, options.memory_limit_bytes, is_far=is_far, verifies=verifies)
        self._opened = opened
        self._reading = reading(opened, budget.units, counters, ahead_limit_bytes=budget.ahead_bytes, options=options)
        shares = shares_of(order, arrangement, recipe, self.place, budget.units)
        self._decoders = _decoders_of(opened, recipe, skips)
        source = BatchContext(opened, arrangement, recipe, counters, self.place, ledger, skips, self._decoders)
        self._results: Iterator[Any]
        if isinstance(self._reading, Singles):
            deliver = batches_made if recipe.partition.batched else samples_made
            self._results = deliver(unplanned(shares, self._reading, skips), source)
        elif (gathering := _gathering(source, budget, self._reading, options)) is not None:
            self._results = batches_gathered(gathered(shares, self._reading, gathering), source)
        else:
            deliver = batches_made if recipe.partition.batched else samples_made
            self._results = deliver(planned(shares, budget, self._reading, skips), source)
        if recipe.partition.batched:
            rank_batch = recipe.partition.global_batch / recipe.partition.world_size
            mean_bytes = int(opened.index.extent_decoded_bytes.sum()) / max(1, opened.index.num_samples)
            keep_for_next(int(rank_batch * mean_bytes))
        self._num_steps = recipe.partition.num_batches(order.num_samples, start)
        self._failure: BaseException | None = None
        self._closed = self._is_stopped = False
        self._generation = forks.generation
        self._pace = counters.pace = Throughput(counters)
        self._counters = counters
        self._line = progress_line(options, recipe, self.place, counters, opened)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after everything this iterator has yielded; see `Dataset.state_dict`."""
        return self._state(*self.place.position)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if forks.generation != self._generation:
            msg = "this iterator was made by the parent of this process, and is the parent's to go on with"
            raise ForkError(msg, hint="call iter() in the child: the dataset itself may be used there")
        if self._is_stopped:
            raise StopIteration
        before, pace = self.place.num_yielded, self._pace
        began = perf_counter()
        try:
            result = next(self._results)
            pace.last = ended = perf_counter()
            if pace.first is None:
                pace.first = began
            self._counters.make_seconds += ended - began
            if self._line is not None:
                self._line.step()
            if self.place.num_yielded >= self._num_steps:
                self._end_line()
                self._ended(self.place)  # now, since a loop that counts to len() never asks for more
        except StopIteration:
            self._exhausted()
            raise
        except BaseException as error:
            if isinstance(error, ValueError) and "already executing" in str(error):
                msg = "two threads asked one iterator for its next batch at the same time"
                raise UsageError(msg, hint="one iterator for each thread, or a lock around next()") from None
            # Also for an interrupt: the batch is lost, and going on would skip it. It may have been counted already.
            self.fail(error, num_yielded=before)
            if self.is_stopped and isinstance(error, Exception):
                raise StopIteration from None
            raise
        return result

    @property
    def is_stopped(self) -> bool:
        """True once `stop` was called, perhaps by another thread or in a signal handler."""
        return self._is_stopped

    def _exhausted(self) -> None:
        """Handle the end of the batches: an epoch that failed must not look like one that ended."""
        if self._failure is not None and not self.is_stopped:
            raise self._failure from None
        if not self._closed:
            self.close()
            self._ended(self.place)

    def _end_line(self) -> None:
        if self._line is not None:
            self._line.close()

    def fail(self, error: BaseException, *, num_yielded: int) -> None:
        """Remember the first error, and stop; ``num_yielded`` batches were given out, though more may be counted."""
        with InterruptsHeld():
            if self._failure is None:
                self._failure = error
                self.place.num_yielded = num_yielded
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Stop yielding; returns at once, and a ``next`` that waits for bytes ends within a moment.

        Unlike `close` it may be called in a signal handler. The state stays the same: after everything yielded.
        """
        self._is_stopped = True
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop reading and yielding; the threads have ended when this returns."""
        with InterruptsHeld():
            self._closed = self.place.is_over = True  # perhaps while a thread makes the next batch
            self._results = iter(())
            self._reading.close()
            if self._decoders is not None:
                self._decoders.close()
            if self._opened.cache is not None:
                self._opened.cache.tell()
            self._end_line()


def _decoders_of(opened: Opened, recipe: PipelineSpec, skips: Skips | None) -> Decoders | None:
    forgiving = skips is not None and skips.finds
    if recipe.threaded is None:
        return None
    return Decoders(recipe.stages, recipe.threaded, index=opened.index, forgiving=forgiving)


def _viewed(opened: Opened, counters: Counters) -> Opened:
    """Return the dataset with values that are views, if its format can, and with their bytes counted."""
    pins = counters.pins or Pins()
    viewed = with_views(opened, pins)
    if viewed is not opened:
        counters.pins = pins
    return viewed


def _gathering(source: BatchContext, budget: Budget, fetch: Fetch, options: ReadingOptions) -> Gathering | None:
    """Return the maker of batches from columns; None if they must be made of samples.

    They must if damaged samples are skipped, since these are reported one by one, and if memory is limited.
    """
    opened, recipe = source.opened, source.recipe
    if not (recipe.stacks and options.copy and source.skips is None and budget.keeping is None):
        return None
    if not isinstance(opened.format, ColumnarFormat):
        return None
    num_units = budget.units.num_units
    unit_rows = opened.index.num_samples / max(1, num_units)
    formatting, allocate = recipe.formatting, recipe.allocate
    return Gathering(fetch, num_units=num_units, unit_rows=unit_rows, formatting=formatting, allocate=allocate)
