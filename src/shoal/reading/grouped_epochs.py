"""Orders of batches by column, epoch by epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.groups.group_batches import GroupBatches
from shoal.order.groups.grouped_order import GroupedOrder
from shoal.order.mixture.source_schedule import SequenceChange
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder


class GroupedEpochs:
    """Orders of the batches of every epoch, from the same samples and groups.

    `UsageError` if the weights of a mixture change at a batch: the batches after a change would need other samples than
    the samples that wait.
    """

    def __init__(
        self,
        documents: ResolvedOrder | ResolvedMixture,
        groups: NDArray[np.integer[Any]],
        grouping: GroupBatches,
        changes: tuple[SequenceChange, ...],
    ) -> None:
        if changes:
            raise UsageError("reweight() was called after batch(by=)", hint="call reweight() before batch(by=)")
        self._documents, self._groups, self._grouping = documents, groups, grouping

    def order(self, epoch: int) -> GroupedOrder:
        """Return the order of an epoch."""
        documents = self._documents
        return GroupedOrder(documents.epoch(epoch), self._groups, self._grouping, seed=documents.seed, epoch=epoch)
