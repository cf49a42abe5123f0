"""The processing of samples into batches, described before any reads: stages, collation, and the worker's part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Partition
from shoal.pipeline.collate import collate
from shoal.pipeline.columns.column_sources import gathers
from shoal.pipeline.decode_pool import Threaded, is_own
from shoal.pipeline.missing_fields import warner_of_missing
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.quarantine import Quarantine
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.pipeline.stages.stage import Stage

AHEAD_BYTES = 256 << 20
"""Limit on samples that functions of the user make ahead of use, divided among the workers of a rank."""


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Stages of a sample, collation, stages of a batch; and the division of batches among workers.

    Worker ``worker`` of ``num_workers`` makes the rank's batches with ``step % num_workers == worker``.
    ``threaded`` has the stages that run in threads, or None. ``ahead_bytes`` limits the samples that wait after stages
    that process several at a time. ``allocate`` makes the arrays of batches.
    """

    partition: Partition
    rank: int
    stages: tuple[Stage, ...]
    batch_stages: tuple[Stage, ...] = ()
    collate: Callable[[list[Any]], Any] = collate
    worker: int = 0
    num_workers: int = 1
    formatting: Formatting = field(default_factory=Formatting)
    threaded: Threaded | None = None
    ahead_bytes: int = AHEAD_BYTES
    allocate: Callable[..., NDArray[Any]] = np.empty

    @property
    def has_filters(self) -> bool:
        """True if only reading shows the samples that remain."""
        return any(filters_in(self.stages))

    @property
    def stacks(self) -> bool:
        """True if batches can be made from columns: every stage works on columns, too."""
        return self.collate is collate and gathers(self.stages)

    def makes_together(self, quarantine: Quarantine | None) -> bool:
        """Return True if samples may be made early: no user function runs, and no stage drops samples."""
        return quarantine is None and self.threaded is None and self.num_workers == 1 and have_no_effects(self.stages)

    @property
    def nests(self) -> bool:
        """True if dicts and tuples in samples become dicts and tuples of columns."""
        return self.collate is collate and self.formatting.nests

    @property
    def fills_rows(self) -> bool:
        """True if stages may write into the arrays of a batch: no function of the user sees a sample."""
        return self.collate is collate and all(map(is_own, self.stages))

    @property
    def collator(self) -> Callable[..., Any]:
        """The function that makes a batch of samples after their stages."""
        return self.collate if self.collate is not collate else partial(self.collator_into, allocate=self.allocate)

    @property
    def collator_into(self) -> Callable[..., Any]:
        """`collator` in memory of the second argument; a function of the user makes its own."""
        if self.collate is not collate:
            return lambda samples, _: self.collate(samples)
        return partial(collate, on_missing=warner_of_missing(self.stages), nests=self.nests)


def have_no_effects(stages: Sequence[Stage]) -> bool:
    """Return True if stages only select, rename and decode numbers, text and the like by shoal's functions.

    Media are decoded one by one, because decoding takes much time and memory.
    """
    return gathers([
        stage
        for stage in stages
        if not isinstance(stage, Decode) or stage.has_functions or stage.has_media
    ])  # fmt: skip
