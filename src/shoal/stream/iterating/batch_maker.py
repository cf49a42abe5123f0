"""The making of a rank's batches, or samples, in the thread that asks for them: reads, stages and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from shoal.formats.shard_format import ColumnarFormat
from shoal.indexing.open_source import Opened
from shoal.pipeline.batch_memory import keep_for_next
from shoal.pipeline.columns.column_gathering import Gathering, with_chosen
from shoal.pipeline.decode_pool import Decoders
from shoal.pipeline.quarantine import quarantine_of
from shoal.pipeline.stages import in_epoch
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.processes.process_ends import end_with_trainer
from shoal.reading.borrowed_values import with_views
from shoal.reading.fetcher import Fetcher
from shoal.reading.local.local_samples import LocalSamples
from shoal.reading.memory_division import Budget, budget_of
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.remote_samples import RemoteSamples
from shoal.stats.counters import Counters, Pins
from shoal.stream.delivery_sums import DeliverySums, RecordHashes
from shoal.stream.iterating.batches import BatchContext, batches_gathered, batches_made, samples_made
from shoal.stream.iterating.filled_batches import SharedParts
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.read_schedule import gathered, planned, shares_of, unplanned


class BatchMaker:
    """The source of an iterator that makes its batches itself; its position is that of what it has made.

    ``convert`` maps the iterator over batches to one over what is given out.
    """

    def __init__(self, spec: IteratorSpec, convert: Callable[[Iterator[Any]], Iterator[Any]] | None = None) -> None:
        end_with_trainer()
        work, counters = spec.work, spec.counters
        options, resolved = work.options, work.resolved
        pipeline = replace(work.pipeline, stages=in_epoch(work.pipeline.stages, spec.epoch))
        opened = with_chosen(work.opened, pipeline.stages)
        if not options.copy:
            opened = _viewed(opened, counters)
        order, batched = resolved.epoch(spec.epoch), pipeline.partition.batched
        hashes = RecordHashes(opened.index)
        sums = DeliverySums(hashes, spec.epoch)
        self.position = spec.position()
        quarantine = quarantine_of(options, opened.index, counters)
        is_remote, verifies = not opened.store.reads_ahead, options.verify == "always"
        budget = budget_of(
            resolved, options.memory_limit_bytes, epoch=spec.epoch, is_remote=is_remote, verifies=verifies
        )
        reading: type[Fetcher | LocalSamples | RemoteSamples] = Fetcher
        if resolved.by_singles:
            reading = RemoteSamples if is_remote else LocalSamples
        self._reading = reading(opened, budget.units, counters, ahead_limit_bytes=budget.ahead_bytes, options=options)
        self._decoders = None
        if pipeline.threaded is not None:
            forgiving = quarantine is not None and quarantine.finds
            self._decoders = Decoders(pipeline.stages, pipeline.threaded, index=opened.index, forgiving=forgiving)
        shares = shares_of(order, resolved, pipeline, self.position, budget.units)
        context = BatchContext(opened, resolved, pipeline, counters, self.position, sums, quarantine, self._decoders)
        make = batches_made if batched else samples_made
        if pipeline.partition.refills:
            parts = SharedParts(hashes, self.position)
            shares, make = parts.noted(shares), parts.batches if pipeline.fills else parts.made
        else:
            self.position.sums = sums
        if not isinstance(self._reading, Fetcher):
            made = make(unplanned(shares, self._reading, quarantine), context)
        elif (gathering := _gathering(context, budget, self._reading, options)) is not None:
            made = batches_gathered(gathered(shares, self._reading, gathering), context)
        else:
            made = make(planned(shares, budget, self._reading, quarantine), context)
        # Generators, without a call in between for every sample.
        self.batches: Iterator[Any] = made if convert is None else convert(made)
        if batched:
            rank_batch = pipeline.partition.global_batch / pipeline.partition.world_size
            mean_bytes = int(opened.index.extent_decoded_bytes.sum()) / max(1, opened.index.num_samples)
            keep_for_next(int(rank_batch * mean_bytes))
        self._opened = opened

    def end(self) -> None:
        """Stop after the last batch."""
        self.close()

    def stop(self) -> None:
        """Stop, without waiting for the end and without taking locks here."""
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop reading; the threads have ended when this returns."""
        with InterruptsHeld():
            self.position.is_over = True  # perhaps while a thread makes the next batch
            self.batches = iter(())
            self._reading.close()
            if self._decoders is not None:
                self._decoders.close()
            if self._opened.cache is not None:
                self._opened.cache.report_counts()


def _viewed(opened: Opened, counters: Counters) -> Opened:
    """Return the dataset with values that are views, if its format can, and with their bytes counted."""
    pins = counters.pins or Pins()
    viewed = with_views(opened, pins)
    if viewed is not opened:
        counters.pins = pins
    return viewed


def _gathering(context: BatchContext, budget: Budget, fetch: Fetcher, options: ReadingOptions) -> Gathering | None:
    """Return the maker of batches from columns; None if they must be made of samples.

    They must if damaged samples are skipped, since these are reported one by one, and if memory is limited.
    """
    opened, pipeline = context.opened, context.pipeline
    if not (pipeline.stacks and options.copy and context.quarantine is None and budget.keeping is None):
        return None
    if not isinstance(opened.format, ColumnarFormat):
        return None
    num_units = budget.units.num_units
    unit_rows = opened.index.num_samples / max(1, num_units)
    formatting, allocate = pipeline.formatting, pipeline.allocate
    return Gathering(fetch, num_units=num_units, unit_rows=unit_rows, formatting=formatting, allocate=allocate)
