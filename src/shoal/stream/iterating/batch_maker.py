"""The making of a rank's batches, or samples, in the thread that asks for them: reads, stages and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

from shoal.formats.shard_format import ColumnarFormat
from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.partition import Partition
from shoal.pipeline.batch_memory import keep_for_next
from shoal.pipeline.columns.column_gathering import Gathering
from shoal.pipeline.columns.column_sources import ColumnSource, with_chosen
from shoal.pipeline.decode_pool import Decoders
from shoal.pipeline.quarantine import Quarantine, quarantine_of
from shoal.pipeline.stages.stage import Stage, in_epoch, stages_of
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.processes.process_ends import end_with_trainer
from shoal.reading.borrowed_values import with_views
from shoal.reading.fetcher import Fetcher, most_in_run
from shoal.reading.growing.resolved_segments import ResolvedSegments
from shoal.reading.memory_warning import warn_of_memory
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stats.counters import Counters, Pins
from shoal.stream.certificates.delivery_sums import DeliverySums, RecordHashes
from shoal.stream.certificates.sequence_hashes import hashes_of
from shoal.stream.iterating.batches import BatchContext, batches_gathered, batches_made, samples_made, samples_read
from shoal.stream.iterating.filled_batches import SharedParts
from shoal.stream.iterating.iterator_specs import IteratorSpec, PipelineSpec, WorkerSpec
from shoal.stream.iterating.packed_batches import filler_of, tokens_kept
from shoal.stream.iterating.read_schedule import gathered, gathered_runs, shares_of
from shoal.stream.iterating.sequence_batches import SequenceShares
from shoal.stream.iterating.source_reading import MixedReading, SourceReading
from shoal.stream.iterator_position import Position


class BatchMaker:
    """The source of an iterator that makes its batches itself; its position is that of what it has made.

    ``convert`` maps the iterator over batches to one over what is given out. If the batches are a piece of an epoch,
    ``position`` is that of those made before, and ``of_all`` as in `BatchContext`.
    """

    def __init__(
        self,
        spec: IteratorSpec,
        convert: Callable[[Iterator[Any]], Iterator[Any]] | None = None,
        position: Position | None = None,
        of_all: Callable[[BatchContext], BatchContext] | None = None,
    ) -> None:
        end_with_trainer()
        work, counters = spec.work if spec.work.growing is None else spec.work.of_epoch(spec.epoch), spec.counters
        options, resolved = work.options, work.resolved
        pipeline = replace(work.pipeline, stages=_counting(in_epoch(work.pipeline.stages, spec.epoch), work, counters))
        parts = _prepared_parts(work.opened.parts, pipeline.stages, options, counters)
        opened = work.opened.with_parts(parts)
        order, batched = resolved.epoch(spec.epoch), pipeline.partition.batched
        packed = resolved if isinstance(resolved, ResolvedSequences) else None
        documents = resolved.documents if isinstance(resolved, ResolvedSequences) else resolved
        hashes = hashes_of(resolved)
        self.position = position = spec.position() if position is None else position
        sums = _sums(position, hashes)
        quarantine = quarantine_of(options, opened.index, spec.results, growing=work.numbering)
        self._reading = reading = (
            MixedReading(parts, documents, counters, options)
            if isinstance(documents, ResolvedMixture)
            else SourceReading(parts[0], documents, counters, options)
        )
        _compare_memory(documents.parts, pipeline, options)
        self._decoders = decoders = _decoders(pipeline, opened.index, quarantine)
        requests = RequestStats(counters)
        context = BatchContext(
            opened, resolved, pipeline, spec.results, requests, position, sums, quarantine, decoders, of_all
        )
        gathering = _gathering(context, reading, options)
        # Reading samples of a mixture finds the units of each source, and most orders move the units themselves.
        finds_units = isinstance(reading, MixedReading) and gathering is None
        units_of = None if finds_units or reading.moves_units else reading.units_of
        shares = shares_of(order, pipeline, position, None if packed else units_of)
        make = batches_made if batched else samples_read if pipeline.makes_together(quarantine) else samples_made
        fields = pipeline.sequences
        if packed is not None and fields is not None:
            sequences = SequenceShares(packed.untouched(spec.epoch), fields, packed.lengths)
            shares, make = sequences.of_documents(shares, units_of), sequences.batches
        if pipeline.partition.refills:
            parts_made = SharedParts(hashes, position, tokens_kept(pipeline))
            shares, make = parts_made.noted(shares), parts_made.made
            if pipeline.fills:
                make = partial(parts_made.batches, filler=filler_of(context))
        else:
            position.sums = sums
        if gathering is None:
            made = make(reading.spans(shares, quarantine), context)
        elif batched:
            made = batches_gathered(gathered(shares, gathering), context)
        else:
            made = samples_read(gathered_runs(shares, gathering), context)
        # Generators, without a call in between for every sample.
        self.batches: Iterator[Any] = made if convert is None else convert(made)
        self.are_converted = convert is not None
        if batched:
            _keep_memory(pipeline.partition, parts)

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


def _compare_memory(orders: Sequence[ResolvedOrder], pipeline: PipelineSpec, options: ReadingOptions) -> None:
    """Warn of a window beyond the memory of this machine, once for all workers of a rank."""
    if not pipeline.worker:
        world_size, limit_bytes = pipeline.partition.world_size, options.memory_limit_bytes
        warn_of_memory(orders, world_size=world_size, num_workers=pipeline.num_workers, memory_limit_bytes=limit_bytes)


def context_of_all(
    work: WorkerSpec, counters: Counters, piece: Callable[[], tuple[Opened, ResolvedSegments]], context: BatchContext
) -> BatchContext:
    """Return the inputs of a piece over all samples of its epoch, which ``piece`` waits for."""
    opened, resolved = piece()
    opened = _prepared(opened, context.pipeline.stages, work.options, counters)
    quarantine = quarantine_of(work.options, opened.index, context.counters, growing=work.numbering)
    return replace(context, opened=opened, resolved=resolved, quarantine=quarantine)


def _counting(stages: tuple[Stage, ...], work: WorkerSpec, counters: Counters) -> tuple[Stage, ...]:
    """Return stages that count the tokens they make, unless sequences count theirs."""
    lock = Lock()

    def count(num_tokens: int) -> None:
        with lock:
            counters.num_tokens += num_tokens

    return stages if work.pipeline.sequences is not None else tuple(stage.counting(count) for stage in stages)


def _decoders(pipeline: PipelineSpec, index: Index | JoinedIndex, quarantine: Quarantine | None) -> Decoders | None:
    """Return the threads that run the first stages; None if there are none."""
    if pipeline.threaded is None:
        return None
    forgiving = quarantine is not None and quarantine.finds
    return Decoders(pipeline.stages, pipeline.threaded, index=index, forgiving=forgiving)


def _sums(position: Position, hashes: RecordHashes) -> DeliverySums:
    """Return the sums of what was delivered before, if that was a piece of the epoch, else new ones."""
    sums = position.sums or DeliverySums(hashes, position.epoch)
    sums.hash_by(hashes)
    return sums


def _keep_memory(partition: Partition, parts: tuple[Opened, ...]) -> None:
    """Have the memory of a batch of average samples stay for the next one."""
    num_samples = sum(part.index.num_samples for part in parts)
    num_bytes = sum(int(part.index.extent_decoded_bytes.sum()) for part in parts)
    keep_for_next(int(partition.global_batch / partition.world_size * num_bytes / max(1, num_samples)))


def _prepared_parts(
    parts: Sequence[Opened], stages: tuple[Stage, ...], options: ReadingOptions, counters: Counters
) -> tuple[Opened, ...]:
    numbered = enumerate(parts)
    return tuple(_prepared(part, stages_of(stages, number), options, counters) for number, part in numbered)


def _prepared(opened: Opened, stages: tuple[Stage, ...], options: ReadingOptions, counters: Counters) -> Opened:
    """Return a dataset with the columns that its stages keep, and with values that are views if they are asked for."""
    opened = with_chosen(opened, stages)
    if options.copy:
        return opened
    pins = counters.pins or Pins()
    viewed = with_views(opened, pins)
    if viewed is not opened:
        counters.pins = pins
    return viewed


def _are_small(opened: Opened | OpenedMixture) -> bool:
    """True if making samples together pays."""
    num_bytes = sum(int(part.index.extent_decoded_bytes.sum()) for part in opened.parts)
    return most_in_run(opened.index.num_samples, num_bytes) > 1


def _gathering(
    context: BatchContext, reading: SourceReading | MixedReading, options: ReadingOptions
) -> Gathering | None:
    """Return the maker of batches, or samples, from columns; None if each sample must be read by itself.

    It must if damaged samples are skipped, since these are reported one by one, if memory is limited, and if sources
    of a mixture disagree about types that samples do not carry.
    """
    pipeline, formatting = context.pipeline, context.pipeline.formatting
    made = pipeline.stacks and formatting.has_types and context.quarantine is None
    if not (options.copy and (made or (pipeline.makes_together(context.quarantine) and _are_small(context.opened)))):
        return None
    if isinstance(reading, MixedReading):
        parts, units, ids = reading.parts, reading.first_units, reading.first_ids
    else:
        parts, units, ids = [reading], [0], [0]
    own_stages = pipeline.stages[0].own_stages if pipeline.stages else ()
    sources = []
    for number, (part, first_unit, first_id) in enumerate(zip(parts, units, ids, strict=False)):
        fetch, budget = part.reader, part.budget
        if not isinstance(fetch, Fetcher) or budget.keeping is not None:
            return None
        if not isinstance(fetch.opened.format, ColumnarFormat):
            return None
        own = own_stages[number] if own_stages else ()
        sources.append(ColumnSource(fetch, budget.units.num_units, first_unit, first_id, own))
    return Gathering(sources, formatting=formatting, allocate=pipeline.allocate)
