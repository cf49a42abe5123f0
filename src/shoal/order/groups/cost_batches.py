"""Batches within the limits of several costs, such as text tokens and image tiles.

The samples of a block are placed in their order, each into the first batch with room for all of its costs: first fit
for vectors. From the costliest to the cheapest (first-fit decreasing) is worse for two costs: samples with much text
share batches that have room for many tiles left, and samples with little text then need more batches.

References
----------
M. R. Garey, R. L. Graham, D. S. Johnson, A. C. Yao, "Resource Constrained Scheduling as Generalized Bin Packing", 1976
(first fit for vectors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice
from shoal.order.protocol import as_within
from shoal.order.sequences.packing_strategies import PackedBlock

TOO_LARGE = ("refuse", "drop")
"""Treatments of a sample that costs more than a limit."""

_PLACED_AT_ONCE = 4096  # samples; with more, placing takes longer, and batches are hardly fuller
_MOST_SIZE, _MOST_BLOCK = 1 << 24, 1 << 62


@dataclass(frozen=True, slots=True)
class CostBatches:
    """Arguments of batches within limits.

    Attributes
    ----------
    limits
        The most that the samples of a batch cost together, by column of the index.
    size
        Maximum number of samples in a batch; None without a limit.
    block
        Positions of samples that are batched together, separately for each canonical node.
    too_large
        Treatment of a sample that costs more than a limit; "refuse" is checked before.
    scaled
        The limits in the whole numbers that costs are compared in, in the order of ``limits``.
    """

    verb: ClassVar[str] = "batch"
    alike: ClassVar[int] = 1
    longest: ClassVar[None] = None
    none_made: ClassVar[tuple[str, str]] = (
        "no batch of {:,} samples: every sample costs more than a limit",
        "larger limits=",
    )

    limits: Mapping[str, Any]
    size: int | None = None
    block: int = 1 << 16
    too_large: str = "refuse"
    scaled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", as_within("the size of a batch", self.size, 1, _MOST_SIZE))
        object.__setattr__(self, "block", as_within("batch(block=)", self.block, 1, _MOST_BLOCK))
        as_choice("batch(too_large=)", self.too_large, TOO_LARGE)

    @property
    def too_long(self) -> str:
        """Treatment of a sample beyond a limit."""
        return self.too_large

    def are_too_large(self, costs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which samples cost more than a limit; ``costs`` has shape (num_samples, num_limits)."""
        return np.asarray((costs > np.array(self.scaled)).any(axis=1))

    def packed(self, costs: NDArray[np.int64]) -> PackedBlock:
        """Put samples with these costs, of shape (num_samples, num_limits), into batches; 5 us per sample.

        >>> batches = CostBatches({"tokens": 10, "tiles": 3}, scaled=(10, 3))
        >>> cut = batches.packed(np.array([[6, 0], [2, 3], [4, 1], [1, 2], [7, 0]]))
        >>> [cut.document[start:stop].tolist() for start, stop in zip(cut.first_piece, cut.first_piece[1:])]
        [[0, 1], [2, 3], [4]]
        """
        rows = np.flatnonzero(~self.are_too_large(costs))
        numbers, num_batches = np.empty(len(rows), dtype=np.int64), 0
        for begin in range(0, len(rows), _PLACED_AT_ONCE):
            placed = self._placed(costs[rows[begin : begin + _PLACED_AT_ONCE]])
            numbers[begin : begin + _PLACED_AT_ONCE] = placed + num_batches
            num_batches += int(placed.max()) + 1
        first = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=num_batches))]).astype(np.int64)
        starts = np.zeros(len(rows), dtype=np.int64)
        return PackedBlock(0, first, rows[np.argsort(numbers, kind="stable")], starts, starts + 1)

    def _placed(self, costs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the batch of each sample, numbered from 0 without gaps."""
        limits = np.array(self.scaled, dtype=np.int64)
        if self.size is not None:  # a cost of one for each sample
            costs = np.concatenate([costs, np.ones((len(costs), 1), dtype=np.int64)], axis=1)
            limits = np.append(limits, self.size)
        rooms, used = np.empty((len(limits), len(costs)), dtype=np.int64), 0
        batches = np.empty(len(costs), dtype=np.int64)
        for row, needed in enumerate(costs.tolist()):
            fits = rooms[0, :used] >= needed[0]  # one cost at a time: twice as fast as all costs of a batch together
            for room, cost in zip(rooms[1:, :used], needed[1:], strict=True):
                fits &= room >= cost
            batch = int(fits.argmax()) if used else 0
            if batch == used or not fits[batch]:
                batch, used = used, used + 1
                rooms[:, batch] = limits
            rooms[:, batch] -= costs[row]
            batches[row] = batch
        return batches

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, for a state."""
        names = ("size", "block", "too_large")
        return {"limits": dict(self.limits), **{name: getattr(self, name) for name in names}}
