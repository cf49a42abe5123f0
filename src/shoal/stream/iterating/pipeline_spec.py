"""What becomes of the samples of an epoch, and who makes which batches."""

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

__all__ = ["PipelineSpec"]


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """What becomes of samples: stages of one, batches or not, stages of a batch; and who makes which batches.

    Worker ``worker`` of ``num_workers`` makes those of the rank's batches whose step leaves this remainder.
    ``threaded`` says which of the stages are run in threads; None for none. ``allocate`` makes the arrays of batches
    that are gathered from columns, or stacked.
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
        """Whether which samples are left is not known before they are read."""
        return any(isinstance(stage, Filter) for stage in self.stages)

    @property
    def stacks(self) -> bool:
        """Whether batches can be made of columns, with nothing done to a sample that cannot be done to its columns."""
        return self.partition.batched and gathers(self.stages) and self.collate is collate

    def in_epoch(self, epoch: int) -> PipelineSpec:
        """The same for the samples of one epoch."""
        return replace(self, stages=in_epoch(self.stages, epoch))

    def collated(self, samples: list[Any]) -> Any:
        """A batch of samples after their stages, before `finished`."""
        return collate(samples, self.allocate) if self.collate is collate else self.collate(samples)

    def finished(self, batch: Any) -> Any:
        """A batch, collated or gathered, as it goes to the stages of batches."""
        if self.collate is collate and self.formatting.nests:
            batch = nested(batch, self.allocate)
        return self.formatting.finished(batch)
