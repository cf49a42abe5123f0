"""The batches of a piece of an epoch: from positions through reads and stages to the batches of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.partition import Partition
from shoal.pipeline.batch_memory import keep_for_next
from shoal.pipeline.columns.column_sources import with_chosen
from shoal.pipeline.quarantine import Quarantine, quarantine_of
from shoal.pipeline.samples_ahead import SamplesAhead, samples_ahead
from shoal.pipeline.stages.stage import Stage, in_epoch, stages_of, steps_of
from shoal.reading.borrowed_values import with_views
from shoal.reading.part_readers import PartReaders
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_epochs import Piece
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.memory_division import warn_of_memory
from shoal.stats.counters import Counters, Pins
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.iterating.shares import shares_of
from shoal.stream.iterating.source_reading import Reading
from shoal.stream.states.delivery_sums import DeliverySums
from shoal.stream.states.iterator_position import Position
from shoal.stream.states.sequence_hashes import hashes_of


class PieceBatches:
    """The batches, or samples, of a piece of an epoch from ``position`` on; each batch made advances ``position``.

    ``whole`` waits for the whole epoch.
    """

    def __init__(
        self,
        spec: IteratorSpec,
        piece: Piece[ResolvedOrder],
        position: Position,
        whole: Callable[[], Piece[ResolvedOrder]],
    ) -> None:
        work, counters, options = spec.work, spec.counters, spec.work.options
        resolved, orders, stages = piece.resolved, piece.resolved.parts, in_epoch(work.pipeline.stages, spec.epoch)
        stages = stages if work.batcher.counts_tokens else _counting(stages, counters)
        stages = tuple(stage.metered(counters) for stage in stages)
        timed, steps = counters.events.timed, steps_of(stages)
        pipeline = replace(work.pipeline, stages=timed(steps), batch_stages=timed(work.pipeline.batch_stages))

        def prepared(piece: Piece[ResolvedOrder]) -> tuple[OpenedDataset, Quarantine | None]:
            parts = enumerate(piece.opened.parts)
            opened = piece.opened.with_parts(
                tuple(_prepared(part, stages_of(stages, number), options, counters) for number, part in parts)
            )
            return opened, quarantine_of(options, opened.index, spec.results, numbering=work.resolved.numbering)

        def of_all(context: BatchContext) -> BatchContext:
            everything = whole()
            opened, quarantine = prepared(everything)
            return replace(context, opened=opened, resolved=everything.resolved, quarantine=quarantine)

        opened, quarantine = prepared(piece)
        if not pipeline.worker:
            _compare_memory(orders, pipeline, options)
        self._ahead = _ahead(steps, pipeline, opened, quarantine, counters)
        hashes = hashes_of(resolved)
        sums = position.sums or DeliverySums(hashes, position.epoch)  # position.sums: from earlier pieces of the epoch
        sums.hash_by(hashes)
        context = BatchContext(
            opened=opened,
            resolved=resolved,
            pipeline=pipeline,
            options=options,
            counters=spec.results,
            requests=RequestStats(counters),
            position=position,
            sums=sums,
            quarantine=quarantine,
            ahead=self._ahead,
            of_all=of_all,
        )
        shares = shares_of(resolved.epoch(spec.epoch), pipeline, position)
        if pipeline.partition.batched:
            _keep_memory(pipeline.partition, opened.parts)
        self.batches: Iterator[Any] = iter(())
        self._readers = PartReaders(opened, orders, counters, options)
        try:
            reading = Reading(self._readers, resolved.sample_index)
            # Generators, without a call in between for every sample.
            self.batches = work.batcher.batches(shares, reading, context)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop reading; the threads have ended when this returns."""
        self.batches = iter(())
        self._readers.close()
        if self._ahead is not None:
            self._ahead.close()


def _ahead(
    steps: tuple[Stage, ...],
    pipeline: PipelineSpec,
    opened: OpenedDataset,
    quarantine: Quarantine | None,
    counters: Counters,
) -> SamplesAhead | None:
    """Return the maker of samples ahead of their batch; ``steps`` are the stages of the pipeline, not timed."""
    return samples_ahead(
        steps,
        pipeline.threaded,
        index=opened.index,
        forgiving=quarantine is not None and quarantine.finds,
        limit_bytes=pipeline.ahead_bytes,
        timed=counters.events.timed,
    )


def _compare_memory(orders: Sequence[ResolvedOrder], pipeline: PipelineSpec, options: ReadingOptions) -> None:
    """Warn of a window beyond the memory of this machine, once for all workers of a rank."""
    world_size, limit_bytes = pipeline.partition.world_size, options.memory_limit_bytes
    warn_of_memory(orders, world_size=world_size, num_workers=pipeline.num_workers, memory_limit_bytes=limit_bytes)


def _counting(stages: tuple[Stage, ...], counters: Counters) -> tuple[Stage, ...]:
    """Return stages that count the tokens they make."""
    lock = Lock()

    def count(num_tokens: int) -> None:
        with lock:
            counters.num_tokens += num_tokens

    return tuple(stage.counting(count) for stage in stages)


def _keep_memory(partition: Partition, parts: tuple[Opened, ...]) -> None:
    """Keep freed memory of the size of an average batch for the next batch."""
    num_samples = sum(part.index.num_samples for part in parts)
    num_bytes = sum(int(part.index.extent_decoded_bytes.sum()) for part in parts)
    keep_for_next(int(partition.global_batch / partition.world_size * num_bytes / max(1, num_samples)))


def _prepared(opened: Opened, stages: tuple[Stage, ...], options: ReadingOptions, counters: Counters) -> Opened:
    """Return a dataset with the columns that its stages keep, and with views as values without ``copy``."""
    opened = with_chosen(opened, stages)
    if options.copy:
        return opened
    pins = counters.pins or Pins()
    viewed = with_views(opened, pins)
    if viewed is not opened:
        counters.pins = pins
    return viewed
