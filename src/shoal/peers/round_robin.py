"""Round-robin merging of lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import chunk_starts


class RoundRobin:
    """Lists of given lengths, merged by taking an item of each list in turn; finished lists are skipped.

    O(log num_lists) per position or item. Memory: for every distinct length, the longer lists; so 8 bytes per list if
    lengths are equal.

    >>> turns = RoundRobin([2, 0, 3])
    >>> [pair.tolist() for pair in turns.locate(np.arange(5))]
    [[0, 2, 0, 2, 2], [0, 0, 1, 1, 2]]
    """

    def __init__(self, lengths: Any) -> None:
        lengths = np.asarray(lengths, dtype=np.int64)
        self._ends = np.unique(lengths[lengths > 0])  # rounds after which a list has ended
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), self._ends])[: len(self._ends)]
        left = [np.flatnonzero(lengths > start) for start in self._starts]
        self._widths = np.array([len(lists) for lists in left], dtype=np.int64)
        self._lists = np.concatenate([np.zeros(0, dtype=np.int64), *left])
        self._lists_first = chunk_starts(self._widths)
        self._first = chunk_starts((self._ends - self._starts) * self._widths)
        self._num_lists = len(lengths)
        self._keys = np.repeat(np.arange(len(left)), self._widths) * self._num_lists + self._lists

    def __len__(self) -> int:
        return int(self._first[-1])

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the list at each position, and the number of the item in the list."""
        stage = np.searchsorted(self._first, positions, side="right") - 1
        rounds, turn = np.divmod(positions - self._first[stage], self._widths[stage])
        return self._lists[self._lists_first[stage] + turn], self._starts[stage] + rounds

    def positions(self, lists: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each item, given its list and its number in the list."""
        stage = np.searchsorted(self._ends, items, side="right")
        turn = np.searchsorted(self._keys, stage * self._num_lists + lists) - self._lists_first[stage]
        positions: NDArray[np.int64] = self._first[stage] + (items - self._starts[stage]) * self._widths[stage] + turn
        return positions
