"""The processing of the samples of an epoch, and the division of batches among workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.indexing.open_source import Opened
from shoal.order.partition import Partition
from shoal.pipeline.collate import collate, nested
from shoal.pipeline.columns.selection import gathers
from shoal.pipeline.decode_pool import Threaded
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages import Filter, Stage
from shoal.reading.options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Stages of a sample, collation, stages of a batch; and the division of batches among workers.

    Worker ``worker`` of ``num_workers`` makes those of the rank's batches whose step leaves this remainder.
    ``threaded`` are the stages that run in threads; None for none. ``allocate`` makes the arrays of batches that are
    gathered from columns, or stacked.
    """

    partition: Partition
    rank: int
    stages: tuple[Stage, ...]
    batch_stages: tuple[Stage, ...]
    collate: Callable[[list[Any]], Any] = collate
    worker: int = 0
    num_workers: int = 1
    formatting: Formatting = field(default_factory=Formatting)
    threaded: Threaded | None = None
    allocate: Callable[..., NDArray[Any]] = np.empty

    @property
    def filters(self) -> bool:
        """True if the samples that remain are not known before they are read."""
        return any(isinstance(stage, Filter) for stage in self.stages)

    @property
    def stacks(self) -> bool:
        """True if batches can be made of columns, since no stage does anything that columns do not allow."""
        return self.partition.batched and gathers(self.stages) and self.collate is collate

    @property
    def collator(self) -> Callable[[list[Any]], Any]:
        """The function that makes a batch of samples after their stages, before `after_collation`."""
        return partial(collate, allocate=self.allocate) if self.collate is collate else self.collate

    @property
    def after_collation(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions that convert a batch, collated or gathered, for the stages of batches."""
        nests = self.collate is collate and self.formatting.nests
        nesting = (partial(nested, allocate=self.allocate),) if nests else ()
        return nesting if self.formatting.name is None else (*nesting, self.formatting.finished)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a process needs to make batches of any epoch of one rank; it pickles, and has no position."""

    opened: Opened
    arrangement: ResolvedOrder
    recipe: PipelineSpec
    options: ReadingOptions

    def of_worker(self, worker: int, num_workers: int) -> WorkerSpec:
        """Return the spec of one of ``num_workers`` workers, which share the memory limit of this process.

        Values are copied on their way to another process, so views are turned off.
        """
        limit = self.options.memory_limit_bytes
        each = None if limit is None else max(1, limit // num_workers)
        options = replace(self.options, copy=True, memory_limit_bytes=each)
        recipe = replace(self.recipe, worker=worker, num_workers=num_workers)
        return replace(self, recipe=recipe, options=options)
