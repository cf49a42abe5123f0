"""Single samples of a rank, for datasets without batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any, NamedTuple

from shoal.pipeline.quarantine import SKIPPED
from shoal.pipeline.stages.stage import DROPPED
from shoal.reading.fetcher import most_in_run
from shoal.stream.iterating.batch_context import BatchContext, gathering_of
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.shares import ReadSpan, Shares, gathered
from shoal.stream.iterating.source_reading import Reading
from shoal.stream.states.iterator_position import EMPTY_QUEUE

KEPT = "samples filter() keeps"


@dataclass(frozen=True)
class SingleSamples(Batcher):
    """Samples without batches; ``unknown`` as in `Batcher`."""

    unknown: str = ""

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the samples; samples are made in runs if no user function can notice."""
        context.sum_deliveries()
        if not context.pipeline.makes_together(context.quarantine):
            return samples_made(reading.spans(shares, context.quarantine), context)
        num_bytes = sum(int(part.index.extent_decoded_bytes.sum()) for part in context.opened.parts)
        are_small = most_in_run(context.opened.index.num_samples, num_bytes) > 1  # runs speed up small samples only
        if are_small and (gathering := gathering_of(reading, context)) is not None:
            return samples_read(gathered(reading.with_units(shares), gathering, in_runs=True), context)
        return samples_read(reading.spans(shares, context.quarantine), context)


def samples_read(spans: Iterator[ReadSpan], context: BatchContext) -> Iterator[Any]:
    """Yield sample after sample as stored, or after stages that have no effects.

    Samples come from lists. `Position.queue` has the rest of a list: the iterator drains it without a call here.
    """
    counters, position, finishing = context.counters, context.position, _finishing(context)
    left_in, empty = length_hint, EMPTY_QUEUE  # at interpreter exit the generator may outlive the module globals
    for span in spans:
        last, ids = position.num_steps - 1, iter(span.share.ids.tolist())
        for run in _each_finished(span.runs, ids, finishing):
            # The last sample of an epoch gets its own list: the iterator must request it to end the epoch.
            ends = len(run) > 1 and position.num_made + len(run) > last
            for part in (run[:-1], run[-1:]) if ends else (run,):
                queue = iter(part)
                position.num_made += len(part)
                position.queue = queue
                counters.num_samples += len(part)
                counters.unfinished_lists.add(queue)
                try:
                    yield from queue
                finally:
                    counters.unfinished_lists.discard(queue)
                    counters.num_samples -= left_in(queue)
                    if position.queue is queue:
                        position.num_made -= left_in(queue)
                        position.queue = empty
        if position.num_made < span.steps.start + len(span.share.ids):
            raise RuntimeError(f"{len(span.share.ids)} samples are due, but fewer were read")
        position.num_yielded = span.steps.stop  # the last position may have no sample for this rank


class _Finishing(NamedTuple):
    """The functions that finish stored samples: a list with its ids, or a single sample with its id."""

    of_run: Callable[[list[Any], list[int]], list[Any]]
    of_sample: Callable[[Any, int], Any]


def _finishing(context: BatchContext) -> _Finishing | None:
    """Return the functions that finish stored samples; None if stored samples are yielded as they are."""
    process, stages_of_runs, formatting = context.process, context.stages_of_runs, context.pipeline.formatting
    formatted = None if formatting.name is None else formatting.sample
    if process is None and formatted is None:
        return None

    def of_sample(sample: Any, sample_id: int) -> Any:
        result = sample if process is None else process(sample, sample_id)
        return result if formatted is None else formatted(result)

    def of_run(run: list[Any], ids: list[int]) -> list[Any]:
        if stages_of_runs is None or len(run) == 1:  # fields of one large sample are faster in turn
            return list(map(of_sample, run, ids))
        for stage in stages_of_runs:
            run = stage.on_run(run, ids)
        return run if formatted is None else formatting.samples(run)

    return _Finishing(of_run, of_sample)


def _each_finished(runs: Iterator[list[Any]], ids: Iterator[int], finishing: _Finishing | None) -> Iterator[list[Any]]:
    """Yield finished runs; an error is raised at its sample, after the samples before it.

    Stages have no effects (`PipelineSpec.makes_together`), so a failed run is repeated sample by sample.
    """
    if finishing is None:
        yield from runs
        return
    for run in runs:
        named = list(itertools.islice(ids, len(run)))
        try:
            done = finishing.of_run(run, named)
        except Exception:  # noqa: BLE001  # raised again at its sample, with notes about the sample
            done = []
            try:
                done.extend(map(finishing.of_sample, run, named))
            except Exception:
                if done:
                    yield done
                raise
        yield done


def samples_made(spans: Iterator[ReadSpan], context: BatchContext) -> Iterator[Any]:
    """Yield sample after sample, without dropped and damaged samples."""
    process, counters, position = context.process, context.counters, context.position
    formatting = context.pipeline.formatting
    formatted = None if formatting.name is None else formatting.sample
    in_a_row = 0
    for span in spans:
        after, samples = span.steps.stop, zip(span.share.ids.tolist(), context.samples(span), strict=True)
        # The last position of an epoch may have no sample for this rank.
        for step, (sample_id, sample) in zip(span.steps, samples, strict=False):
            result = process(sample, sample_id) if process else sample
            position.num_made = step + 1
            if result is SKIPPED or result is DROPPED:
                counters.num_filtered += result is DROPPED
                context.sums.dropped(step, 0)
                in_a_row += 1
                context.check_dropped(in_a_row, step)
                continue
            in_a_row = 0
            counters.num_samples += 1
            yield formatted(result) if formatted else result
        position.num_yielded = after
