"""The processing of the samples of an epoch, and the division of batches among workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Partition
from shoal.pipeline.collate import collate, nested
from shoal.pipeline.columns.selection import gathers
from shoal.pipeline.decode_pool import Threaded
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages import Filter, Stage, in_epoch


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

    def in_epoch(self, epoch: int) -> PipelineSpec:
        """Return this spec for the samples of one epoch."""
        return replace(self, stages=in_epoch(self.stages, epoch))

    def collated(self, samples: list[Any]) -> Any:
        """Return a batch of samples after their stages, before `finished`."""
        return collate(samples, self.allocate) if self.collate is collate else self.collate(samples)

    def finished(self, batch: Any) -> Any:
        """Convert a batch, collated or gathered, for the stages of batches."""
        if self.collate is collate and self.formatting.nests:
            batch = nested(batch, self.allocate)
        return self.formatting.finished(batch)
