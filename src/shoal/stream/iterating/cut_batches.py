"""Batches cut from the samples of a rank: each is its share of a global batch, without dropped samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.compiled_cutting import transposed
from shoal.pipeline.batch_rows import BatchRows, ReusedArrays
from shoal.pipeline.collate import collate, collate_columns, nested
from shoal.pipeline.quarantine import SKIPPED
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.storage.retry import StoppedError
from shoal.stream.iterating.batch_context import BatchContext, gathering_of
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.nearest_kept import NearestKept
from shoal.stream.iterating.shares import ReadSpan, Shares, gathered
from shoal.stream.iterating.source_reading import Reading


class CutBatches(Batcher):
    """The batches that `Dataset.batch` cuts."""

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the batches, made from columns if the result is the same."""
        context.sum_deliveries()
        has_columns = context.pipeline.stacks and context.pipeline.formatting.has_types and context.quarantine is None
        if has_columns and (gathering := gathering_of(reading, context)) is not None:
            return batches_gathered(gathered(reading.with_units(shares), gathering), context)
        return batches_made(reading.spans(shares, context.quarantine), context)


def batches_made(spans: Iterator[ReadSpan], context: BatchContext) -> Iterator[Any]:
    """Yield batch after batch, made from samples."""
    position, pipeline, stages_of_runs = context.position, context.pipeline, context.stages_of_runs
    collated, deliver, nearest = pipeline.collator_into, context.deliverer, NearestKept(context)
    has_columns = stages_of_runs is not None and pipeline.collate is collate
    allocate = ReusedArrays() if pipeline.allocate is np.empty else pipeline.allocate
    memory_of = partial(BatchRows, allocate=allocate, fills=pipeline.fills_rows)
    for span in spans:
        stored, share = context.samples_of_batches(span, memory_of), span.share
        ids, marks = share.ids.tolist(), share.repeated.tolist()
        for step, (begin, end) in zip(span.steps, itertools.pairwise(share.batch_first.tolist()), strict=True):
            position.num_yielded = step
            samples, memory = next(stored)
            repeated, num_filtered = marks[begin:end], 0
            stages = _filling(context.stages_left, memory)
            columns = _columns_of(stages, samples, share.ids[begin:end]) if has_columns else None
            if columns is None:
                samples = _processed(context, stages, samples, ids[begin:end])
            if position.is_over:
                raise StoppedError("the stream was closed while a batch was made")
            if len(samples) < end - begin:
                raise RuntimeError(f"{end - begin} samples are due in a batch, but {len(samples)} were read")
            if stages_of_runs is None and any(sample is DROPPED or sample is SKIPPED for sample in samples):
                num_filtered = sum(sample is DROPPED for sample in samples)
                samples, repeated = _kept(samples, repeated, nearest)
            if columns is None:
                batch = collated(samples, memory)
            else:
                batch = collate_columns(columns, memory, nests=pipeline.nests)
            batch = deliver(batch, repeated)
            context.counters.num_filtered += num_filtered
            position.num_yielded = step + 1  # only now: a batch that failed was not yielded
            yield batch


def _filling(stages: Sequence[Stage], memory: BatchRows) -> Sequence[Stage]:
    """Return the stages, which write into the rows of a batch if they may."""
    rows = memory.next_from(0)
    return stages if rows is None else [stage.filling(rows) for stage in stages]


def _columns_of(stages: Sequence[Stage], samples: list[Any], ids: NDArray[np.int64]) -> Any | None:
    """Return the columns of samples after the stages; None if each sample must be processed by itself.

    An error gives None, too: it is raised again at its sample.
    """
    if not stages or any(stage.own_stages for stage in stages) or transposed is None:
        return None
    with suppress(Exception):
        if (columns := transposed(samples)) is not None:
            for stage in stages:
                columns = stage.on_columns(columns, ids)
        return columns
    return None


def _processed(context: BatchContext, stages: Sequence[Stage], samples: list[Any], ids: list[int]) -> list[Any]:
    """Return the processed samples of a batch; fewer if the stream is closed meanwhile."""
    if context.stages_of_runs is not None:
        results = samples
        with suppress(Exception):  # the same error is raised below, at its sample
            for stage in stages:
                results = list(map(stage, results, ids))
            return results
    process, position = context.process_by(stages), context.position
    if process is None:
        return samples
    return [process(sample, sample_id) for sample, sample_id in zip(samples, ids, strict=True) if not position.is_over]


def batches_gathered(spans: Iterator[ReadSpan], context: BatchContext) -> Iterator[Any]:
    """Yield batch after batch, made of columns."""
    pipeline, collated, deliver = context.pipeline, context.pipeline.collator, context.deliverer
    stages = [stage.on_batch_columns for stage in pipeline.stages]
    for span in spans:
        ids, repeated = span.share.ids, span.share.repeated
        for step, (begin, end) in zip(span.steps, itertools.pairwise(span.share.batch_first.tolist()), strict=True):
            context.position.num_yielded = step
            batch = next(span.runs)
            if isinstance(batch, list):
                if stages:
                    named = zip(batch, ids[begin:end].tolist(), strict=True)
                    index = context.opened.index
                    batch = [run_stages(stages, sample, sample_id, index=index) for sample, sample_id in named]
                batch = collated(batch)
            else:
                for stage in stages:
                    batch = stage(batch, ids[begin:end])  # one id for each row
                batch = nested(batch, pipeline.allocate) if pipeline.nests else batch
            delivered = deliver(batch, repeated[begin:end])
            context.position.num_yielded = step + 1  # only now: a batch that failed was not yielded
            yield delivered


def _kept(samples: list[Any], repeated: list[bool], nearest: NearestKept) -> tuple[list[Any], list[bool]]:
    """Return the kept samples of a batch, and marks of repeats; without kept samples, an earlier sample as a repeat."""
    pairs, context = [], nearest.context
    for number, (sample, again) in enumerate(zip(samples, repeated, strict=True)):
        if sample is DROPPED or sample is SKIPPED:
            context.sums.dropped(context.position.num_yielded, number)
        else:
            pairs.append((sample, again))
    if not pairs:
        pairs = [(nearest.before_batch(), True)]
    return [sample for sample, _ in pairs], [again for _, again in pairs]
