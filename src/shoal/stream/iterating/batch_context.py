"""The inputs of a batcher for a piece of an epoch, and the delivery of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.pipeline.batch_rows import BatchRows
from shoal.pipeline.columns.column_gathering import Gathering
from shoal.pipeline.columns.column_sources import ColumnSource
from shoal.pipeline.quarantine import Quarantine
from shoal.pipeline.samples_ahead import SamplesAhead
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import Stage
from shoal.reading.fetcher import Fetcher
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_order import Resolved
from shoal.stats.counters import Counters
from shoal.stream.iterating.pipeline_spec import PipelineSpec, have_no_effects
from shoal.stream.iterating.shares import ReadSpan
from shoal.stream.iterating.source_reading import Reading
from shoal.stream.states.delivery_sums import DeliverySums
from shoal.stream.states.iterator_position import Position

_DROPPED_BETWEEN_CHECKS = 1024


def _itself(context: BatchContext) -> BatchContext:
    return context


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Inputs for the samples and batches of a piece; counters of results and of additional requests.

    ``of_all`` returns the inputs for the whole epoch, and may wait for the index.
    """

    opened: OpenedDataset
    resolved: Resolved
    pipeline: PipelineSpec
    options: ReadingOptions
    counters: Counters
    requests: RequestStats
    position: Position
    sums: DeliverySums
    quarantine: Quarantine | None
    ahead: SamplesAhead | None
    of_all: Callable[[BatchContext], BatchContext] = _itself

    def sum_deliveries(self) -> None:
        """Record the sums of delivered samples in the position."""
        self.position.sums = self.sums

    def samples(self, span: ReadSpan) -> Iterator[Any]:
        """Iterate over the samples of a span, after the stages that run ahead."""
        return span.samples if self.ahead is None else self.ahead.samples(span.samples, span.share.ids.tolist())

    def samples_of_batches(
        self, span: ReadSpan, memory_of: Callable[[int], BatchRows]
    ) -> Iterator[tuple[list[Any], BatchRows]]:
        """Iterate over the samples of each batch of a span as `samples` does, with the memory of the batch."""
        sizes = np.diff(span.share.batch_first).tolist()
        if self.ahead is not None:
            return self.ahead.batches(span.samples, span.share.ids.tolist(), sizes, memory_of)
        samples = span.samples
        return ((list(itertools.islice(samples, size)), memory_of(size)) for size in sizes)

    @property
    def process(self) -> Callable[[Any, int], Any] | None:
        """The function from a sample of `samples`, and its id, to the result of the last stage; None without stages."""
        return self.process_by(self.stages_left)

    @property
    def stages_left(self) -> Sequence[Stage]:
        """The stages that do not run ahead."""
        return self.pipeline.stages[0 if self.ahead is None else self.ahead.num_stages :]

    def process_by(self, stages: Sequence[Stage]) -> Callable[[Any, int], Any] | None:
        """Return the function from a sample and its id to the result of these stages; None without stages."""
        if self.quarantine is not None:
            return partial(self.quarantine.run, stages)
        return partial(run_stages, stages, index=self.opened.index) if stages else None

    @property
    def stages_of_runs(self) -> Sequence[Stage] | None:
        """The stages, if each stage may run on many samples before the next stage runs; else None.

        Stages that have effects, or that leave samples out, take one sample after another, also in a thread. An error
        in a run does not name its sample: the caller processes the samples again, one by one.
        """
        stages = self.pipeline.stages
        one_by_one = self.quarantine is not None or self.ahead is not None
        return None if one_by_one or not have_no_effects(stages) else stages

    def check_dropped(self, num_dropped: int, step: int) -> None:
        """Raise `UsageError` if so many samples in a row were dropped before a step that the filter may keep none."""
        position = self.position
        if num_dropped % _DROPPED_BETWEEN_CHECKS or not position.knows_end:  # later samples may be kept
            return
        number = position.start + step * position.partition.global_batch
        if num_dropped < self.resolved.most_until_any(position.epoch, number):
            return
        droppers = [repr(stage) for stage in filters_in(self.pipeline.stages)]
        droppers += ['reading(on_error="skip")'] if self.quarantine is not None else []
        msg = f"{' and '.join(droppers)} dropped all of {num_dropped} samples in a row, in an epoch without end: more "
        msg += "than two rounds of every source"
        raise UsageError(msg, hint="try the function on ds[0]")

    @property
    def deliverer(self) -> Callable[..., Any]:
        """The function from a collated batch and the marks of its repeats to the yielded batch."""
        return partial(_delivered, self)


# A function, not a method: a generator that referenced its iteration would keep the iteration and its threads alive.
def _delivered(context: BatchContext, batch: Any, repeated: Sequence[bool] | NDArray[np.bool_]) -> Any:
    """Mark the repeats of a batch, format and count the batch, and run the stages of batches."""
    num_repeats = int(np.count_nonzero(repeated))
    if isinstance(batch, dict) and "__pad__" in batch:  # checked in all batches, not only in the last
        msg = "the samples have a field '__pad__', but batches mark their repeats in this field"
        raise UsageError(msg, hint='rename the field before batch(): .rename(padding="__pad__")')
    if num_repeats and isinstance(batch, dict):
        batch["__pad__"] = np.asarray(repeated)
    if context.pipeline.formatting.name is not None:
        batch = context.pipeline.formatting.finished(batch)
    try:
        for stage in context.pipeline.batch_stages:
            batch = stage(batch, -1)
    except Exception as error:
        position = context.position
        number = position.start + position.global_batches.start * position.partition.global_batch
        start = context.resolved.position_of(position.epoch, number)
        error.add_note(f"shoal: in {stage!r} of the global batch at position {start} of epoch {position.epoch}")
        raise
    counters = context.counters
    counters.num_batches += 1
    counters.num_samples += len(repeated)
    counters.num_repeats += num_repeats
    return batch


def gathering_of(reading: Reading, context: BatchContext) -> Gathering | None:
    """Return the maker of batches, or of samples, from columns; None if each sample must be read by itself.

    Each sample is read by itself if values are views, if memory is limited, or if a format has no columns.
    """
    pipeline, parts = context.pipeline, context.opened.parts
    if not context.options.copy or not all(part.format.has_columns for part in parts):
        return None
    own_stages = pipeline.stages[0].own_stages if pipeline.stages else ()
    sources = []
    for number, part in enumerate(reading.readers.parts):
        fetch, budget = part.reader, part.budget
        if not isinstance(fetch, Fetcher) or budget.keeping is not None:
            return None
        own = own_stages[number] if own_stages else ()
        sources.append(ColumnSource(fetch, budget.units.num_units, part.first_unit, part.first_sample, own))
    return Gathering(sources, formatting=pipeline.formatting, allocate=pipeline.allocate)
