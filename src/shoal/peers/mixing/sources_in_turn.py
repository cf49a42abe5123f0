"""Sources in a fixed order: alternating, or one whole source after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import chunk_starts
from shoal.peers.round_robin import RoundRobin


class SourcesInTurn:
    """Round robin: one sample of each source in turn until the epoch ends; O(log num_sources) per position.

    A source is skipped after ``limits`` samples in an epoch; ``num_samples`` is at most the sum of the limits.
    """

    def __init__(self, limits: Sequence[int], num_samples: int) -> None:
        self.num_samples = num_samples
        self._limits, self._turns = np.asarray(limits, dtype=np.int64), RoundRobin(limits)

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position; shape (num_sources,)."""
        if position >= len(self._turns):
            return self._limits.copy()
        source, number = (int(row[0]) for row in self._turns.locate(np.array([position])))
        before: NDArray[np.int64] = number + (np.arange(len(self._limits)) < source)
        return np.minimum(self._limits, before)

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``."""
        return self._turns.locate(np.arange(start, stop))[0]

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source; None if the epoch ends before this sample."""
        if number >= self._limits[source]:
            return None
        position = int(self._turns.positions(np.array([source]), np.array([number]))[0])
        return position if position < self.num_samples else None


class Concatenated:
    """All samples of a source, then all samples of the next source."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._first = chunk_starts(np.asarray(lengths, dtype=np.int64))
        self.num_samples = int(self._first[-1])

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position; shape (num_sources,)."""
        return np.minimum(np.maximum(position - self._first[:-1], 0), np.diff(self._first))

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``."""
        return np.searchsorted(self._first, np.arange(start, stop), side="right") - 1

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source; None if the source has no such sample."""
        position = int(self._first[source]) + number
        return position if position < self._first[source + 1] else None
