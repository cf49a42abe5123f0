"""Orders of which only some positions are delivered: `take`, `skip` and `select` after a shuffle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.index_ranges import Runs
from shoal.order.arrays.sorting import distinct
from shoal.order.protocol import BoundOrder, as_span


class ChosenPositions:
    """The positions of an order that lie in some runs, renumbered from 0."""

    def __init__(self, order: BoundOrder, chosen: Runs) -> None:
        self._order, self._chosen = order, chosen
        self.num_samples = len(chosen)
        self.span = order.span
        self.version = order.version
        self.parameters = order.parameters

    @property
    def num_canonical_nodes(self) -> int:
        """Always 1: positions no longer alternate over the order's nodes, so dealing only keeps chunks together."""
        return 1

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at the chosen positions ``[start, stop)``."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at the chosen positions ``[start, stop)`` and the chunk of each."""
        first, end = as_span(start, stop, self.num_samples)
        positions = self._chosen.members(np.arange(first, end))
        ids, chunks = np.empty_like(positions), np.empty_like(positions)
        # Ask span by span of the order, from the first to the last chosen position in each.
        numbers = positions // self.span
        for number in distinct(numbers):
            mine = np.flatnonzero(numbers == number)
            low, high = int(positions[mine[0]]), int(positions[mine[-1]]) + 1
            span_ids, span_chunks = self._order.locate(low, high)
            ids[mine], chunks[mine] = span_ids[positions[mine] - low], span_chunks[positions[mine] - low]
        return ids, chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id among the chosen ones, -1 if it is not delivered."""
        return self._chosen.numbers(self._order.positions(ids))
