"""An order whose samples have weights from a column, so that ranks share a global batch by cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.position_subsets import locate_at
from shoal.order.protocol import BoundOrder, Changing, Renumbered, first_between


class WeighedOrder(Renumbered):
    """An order with the weight of each sample, by its id; ids and positions stay the same."""

    def __init__(self, numbered: BoundOrder, weights: NDArray[np.integer[Any]]) -> None:
        super().__init__(numbered)
        self._weights = weights

    def renumbered(
        self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and chunks as they are."""
        return numbers, chunks

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each sample id."""
        return self.numbered.positions(ids)

    @property
    def changes(self) -> Any:
        """Positions of changes of the order."""
        return self.numbered.changes if isinstance(self.numbered, Changing) else ()

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first position in ``[start, stop)`` with this sample; -1 without such a position."""
        return first_between(self.numbered, sample_id, start, stop)

    def weights(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the weight of the sample at each position, same shape."""
        ascending, rows = np.unique(positions, return_inverse=True)
        return self._weights[locate_at(self.numbered, ascending)[0]].astype(np.int64)[rows]
