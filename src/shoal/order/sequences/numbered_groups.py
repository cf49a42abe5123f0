"""An order of groups of samples, such as sequences or batches: the position of a group is its number."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import BoundOrder, as_ids, as_span


class NumberedGroups(ABC):
    """The common part of orders that group the samples of an order, ``documents``."""

    documents: BoundOrder

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of groups in the epoch."""

    @property
    def num_canonical_nodes(self) -> int:
        """Number of canonical nodes of the samples."""
        return self.documents.num_canonical_nodes

    @property
    def version(self) -> int:
        """Version of the order of the samples."""
        return self.documents.version

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers of the groups at positions ``[start, stop)``: the positions."""
        return np.arange(*as_span(start, stop, self.num_samples))

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each group: its number."""
        return as_ids(ids, self.num_samples)

    def axis(
        self,
        positions: NDArray[np.int64],  # noqa: ARG002
        chunks: NDArray[np.int64],
        batches: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint64]:
        """Return the node of each group, or its place in a run, as `locate` gives them in place of chunks."""
        return chunks.astype(np.uint64)
