"""The nearest kept sample before a batch, which a rank repeats if all of its samples were dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.pipeline.quarantine import SKIPPED
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED
from shoal.reading.beside.partners import read_together, salvaged_together
from shoal.reading.checks.damaged_samples import Damaged
from shoal.stream.iterating.batch_context import BatchContext


@dataclass(slots=True)
class NearestKept:
    """Search for the nearest kept sample before a batch, cyclically: a rank without samples repeats that sample.

    The order alone determines the repeat, so a resumed run repeats the same sample. Each position is checked only once,
    even if many batches need a repeat: positions between an earlier repeat and its batch are not checked again.
    """

    context: BatchContext
    _begin: int = 0
    _last: list[tuple[BatchContext, int]] = field(default_factory=list)  # the last repeat, before the position `_begin`

    def before_batch(self) -> Any:
        """Return the sample for the current batch."""
        context, num_looked_at = self.context, 0
        begin = context.position.start + context.position.num_yielded * context.position.partition.global_batch
        for read_from, sample_id in self._candidates(begin):
            sample = _alone(read_from, sample_id)
            if sample is not DROPPED and sample is not SKIPPED:
                self._begin, self._last = begin, [(read_from, sample_id)]
                return sample
            num_looked_at += 1
            context.check_dropped(num_looked_at, context.position.num_yielded)
        if context.quarantine is None:
            msg = f"filter() keeps none of the {num_looked_at} samples of the epoch"
            raise UsageError(msg, hint="try the function on ds[0]")
        msg = f"all {num_looked_at} samples of the epoch are damaged, or dropped by filter()"
        raise UsageError(msg, hint='without reading(on_error="skip") the first error is raised')

    def _candidates(self, begin: int) -> Iterator[tuple[BatchContext, int]]:
        """Yield candidates: the samples since the last repeat, the last repeat, then all other samples."""
        if self._last:
            yield from _between(self.context, self._begin, begin)
            yield from self._last
            begin = self._begin  # the filter dropped the last repeat this time: it does not depend on the sample alone
        yield from _before(self.context, begin)


def _between(context: BatchContext, first: int, stop: int) -> Iterator[tuple[BatchContext, int]]:
    """Yield the ids at the positions ``[first, stop)``, backwards, each with the context to read it."""
    epoch = context.position.epoch
    order = context.resolved.epoch(epoch)
    for position in range(stop - 1, first - 1, -1):
        for sample_id in context.resolved.samples_of(epoch, order.ids(position, position + 1))[::-1].tolist():
            yield context, sample_id


def _before(context: BatchContext, begin: int) -> Iterator[tuple[BatchContext, int]]:
    """Yield the ids of all samples, backwards from a position and cyclically, each with the context to read it.

    The last sample of an epoch precedes the first, so reaching it waits until all samples of the epoch are counted.
    """
    position, num_samples = context.position, context.position.num_samples
    yield from _between(context, 0, begin)
    if not position.knows_end:
        context = context.of_all(context)
        num_samples = context.resolved.num_samples_of(position.epoch)
    yield from _between(context, begin, num_samples)


def _alone(context: BatchContext, sample_id: int) -> Any:
    """Read a sample out of turn and run all stages; damaged samples are not counted."""
    opened, stages, quarantine = context.opened, context.pipeline.stages, context.quarantine
    if quarantine is None:
        return run_stages(
            stages, read_together(*opened.part_of(sample_id), context.requests), sample_id, index=opened.index
        )
    if quarantine.among(np.array([sample_id]))[0]:
        return SKIPPED
    sample = (salvaged_together if quarantine.finds else read_together)(*opened.part_of(sample_id), context.requests)
    result = run_stages(stages, sample, sample_id, index=opened.index, forgiving=quarantine.finds)
    return SKIPPED if type(result) is Damaged else result
