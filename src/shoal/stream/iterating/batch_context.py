"""The inputs of a batcher for a piece of an epoch, and the delivery of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.order.states.forms import MAX_POSITION
from shoal.pipeline.decode_pool import Decoders
from shoal.pipeline.quarantine import Quarantine
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import Stage
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_order import Resolved
from shoal.stats.counters import Counters
from shoal.stream.certificates.delivery_sums import DeliverySums
from shoal.stream.iterating.pipeline_spec import PipelineSpec, have_no_effects
from shoal.stream.iterating.read_schedule import ReadSpan
from shoal.stream.iterator_position import Position

_DROPPED_BETWEEN_CHECKS = 1024


def _itself(context: BatchContext) -> BatchContext:
    return context


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Inputs for making the samples and batches of a piece; counters of results, and of requests beside the reading.

    ``of_all`` returns these inputs for the whole epoch, and may wait for it.
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
    decoders: Decoders | None
    of_all: Callable[[BatchContext], BatchContext] = _itself

    def sum_deliveries(self) -> None:
        """Let the position note the samples that it passes."""
        self.position.sums = self.sums

    def samples(self, span: ReadSpan) -> Iterator[Any]:
        """Iterate over the samples of a span, after the stages that run in threads."""
        return span.samples if self.decoders is None else self.decoders.samples(span.samples, span.ids)

    @property
    def made(self) -> Callable[[Any, int], Any] | None:
        """The function from a sample of `samples`, and its id, to the result of the last stage; None without stages."""
        threaded = self.pipeline.threaded
        stages = self.pipeline.stages[0 if threaded is None else threaded.num_stages :]
        if self.quarantine is not None:
            return partial(self.quarantine.run, stages)
        return partial(run_stages, stages, index=self.opened.index) if stages else None

    @property
    def made_together(self) -> Callable[[list[Any], list[int]], list[Any]] | None:
        """The function from many such samples and their ids to their results; None if each must be made by itself.

        Stages that have effects, or that leave samples out, need each sample by itself, also in a thread. An error does
        not name its sample: its receiver makes the samples one by one.
        """
        stages = self.pipeline.stages
        alone = self.quarantine is not None or self.pipeline.threaded is not None
        return None if alone or not have_no_effects(stages) else partial(_through, stages)

    def most_dropped(self, step: int) -> int:
        """Return how many samples in a row may be dropped before this step."""
        position, resolved = self.position, self.resolved
        if not position.knows_end:  # later samples may be kept
            return MAX_POSITION
        return resolved.most_until_any(position.epoch, position.start + step * position.partition.global_batch)

    def check_dropped(self, num_dropped: int, step: int) -> None:
        """Raise `UsageError` if more samples in a row were dropped; called now and then, since it takes a while."""
        if num_dropped % _DROPPED_BETWEEN_CHECKS or num_dropped < self.most_dropped(step):
            return
        what = [repr(stage) for stage in filters_in(self.pipeline.stages)]
        what += ['reading(on_error="skip")'] if self.quarantine is not None else []
        msg = f"{' and '.join(what)} left none of {num_dropped} samples in a row, in an epoch without end: more than "
        msg += "two rounds of every source"
        raise UsageError(msg, hint="try the function on ds[0]")

    @property
    def deliverer(self) -> Callable[..., Any]:
        """The function from a collated batch and the marks of its repeats to the batch that is yielded."""
        return partial(_delivered, self, self.pipeline.after_collation)


# Functions, not methods: a generator that referenced its iteration would keep it, and with it its threads, alive when
# nothing else does.


def _through(stages: Sequence[Stage], samples: list[Any], ids: list[int]) -> list[Any]:
    for stage in stages:
        samples = list(map(stage, samples, ids))
    return samples


def _delivered(
    source: BatchContext,
    finish: tuple[Callable[[Any], Any], ...],
    batch: Any,
    repeated: Sequence[bool] | NDArray[np.bool_],
) -> Any:
    """Mark the repeats of a batch, format it and run the stages of batches; count it."""
    num_repeats = int(np.count_nonzero(repeated))
    if isinstance(batch, dict) and "__pad__" in batch:  # checked in all batches, not only in the last
        msg = "the samples have a field '__pad__', by which batches mark their repeats"
        raise UsageError(msg, hint='rename the field before batch(): .rename(padding="__pad__")')
    if num_repeats and isinstance(batch, dict):
        batch["__pad__"] = np.asarray(repeated)
    for function in finish:
        batch = function(batch)
    try:
        for stage in source.pipeline.batch_stages:
            batch = stage(batch, -1)
    except Exception as error:
        position = source.position
        number = position.start + position.global_batches.start * position.partition.global_batch
        start = source.resolved.position_of(position.epoch, number)
        error.add_note(f"shoal: in {stage!r} of the global batch at position {start} of epoch {position.epoch}")
        raise
    counters = source.counters
    counters.num_batches += 1
    counters.num_samples += len(repeated)
    counters.num_repeats += num_repeats
    return batch
