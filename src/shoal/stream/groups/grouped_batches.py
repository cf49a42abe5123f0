"""Batches by column of a rank: the samples of its batches, cut and collated like other batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from shoal.order.groups.grouped_order import GroupedOrder
from shoal.order.partition import Share
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.cut_batches import CutBatches
from shoal.stream.iterating.shares import Shares
from shoal.stream.iterating.source_reading import Reading


@dataclass(frozen=True)
class GroupedBatches(CutBatches):
    """Batches by column; a share counts batches, and is read as the samples of these batches.

    ``num_left_out`` returns the samples of an epoch that are in no batch.
    """

    num_left_out: Callable[[ResolvedSequences, int], int]
    counts_samples = False

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the batches."""
        context.sum_deliveries()
        return self._counted(super().batches(_of_samples(shares, context), reading, context), context)

    def _counted(self, batches: Iterator[Any], context: BatchContext) -> Iterator[Any]:
        """Yield the batches; the worker that makes the last batch of the epoch counts the samples in no batch."""
        position = context.position
        for batch in batches:
            if position.num_yielded >= position.num_steps:
                resolved = cast("ResolvedSequences", context.resolved)
                context.counters.num_ungrouped_samples += self.num_left_out(resolved, position.epoch)
            yield batch


def _of_samples(shares: Shares, context: BatchContext) -> Shares:
    """Yield the samples of each share of batches."""
    order = cast("ResolvedSequences", context.resolved).untouched(context.position.epoch)
    for share, steps in shares:
        pieces = order.pieces(share.ids)
        repeated = np.repeat(share.repeated, np.diff(pieces.first))
        yield Share(pieces.ids, pieces.positions, pieces.chunks, repeated, pieces.first[share.batch_first]), steps


def num_without_batch(resolved: ResolvedSequences, epoch: int) -> int:
    """Return the samples of an epoch that fill no batch of their group or class."""
    return cast("GroupedOrder", resolved.untouched(epoch)).num_left_out
