"""Epochs of other libraries' orders: the chunk and the rank of each sample, and repeated samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import BoundOrder, Order, as_ids, as_span, chunk_starts


class PeerEpoch(ABC):
    """An epoch of another library's order, as a bound order; ranks take positions in turn.

    Parameters
    ----------
    order
        The order; the epoch has its version and parameters.
    chunk_samples
        Samples of each chunk.
    num_samples
        Positions of the epoch.
    num_ranks
        Ranks that take positions in turn; 1 if a rank has consecutive samples of a batch.
    """

    num_canonical_nodes: int = 1
    span: int = 1 << 17

    def __init__(self, order: Order, chunk_samples: NDArray[np.int64], num_samples: int, *, num_ranks: int = 1) -> None:
        self.version, self.parameters = order.version, order.parameters
        self.num_samples, self._num_ranks = num_samples, num_ranks
        self._chunk_first_id = chunk_starts(chunk_samples)
        self._num_stored = int(self._chunk_first_id[-1])

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``."""
        return self._ids(*as_span(start, stop, self.num_samples))

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions ``[start, stop)`` and the chunk of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._chunk_first_id, ids, side="right") - 1

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first position of each sample id, -1 for an id without a position."""
        return self._positions(as_ids(ids, self._num_stored))

    def axis(
        self,
        positions: NDArray[np.int64],
        chunks: NDArray[np.int64],  # noqa: ARG002
        batches: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint64]:
        """Return the rank of each position in the other library."""
        return self._rank_of(positions).astype(np.uint64)

    def _rank_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions % self._num_ranks

    @abstractmethod
    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at valid positions."""

    @abstractmethod
    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position of each valid sample id."""


class RepeatingEpoch(PeerEpoch):
    """An epoch in which samples may repeat; subclasses may find positions without a table."""

    @property
    def repeats(self) -> bool:
        """True if a sample may have several positions."""
        return True

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first position in ``[start, stop)`` with this sample; -1 without such a position.

        O(stop - start) at most.
        """
        first = int(self.positions([sample_id])[0])
        if first < 0 or first >= start or not self.repeats:
            return first if start <= first < stop else -1
        for begin in range(start, stop, self.span):
            matches = np.flatnonzero(self.ids(begin, min(begin + self.span, stop)) == sample_id)
            if len(matches):
                return begin + int(matches[0])
        return -1

    @cached_property
    def _table(self) -> NDArray[np.signedinteger[Any]]:
        return first_positions(self, self._num_stored)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._table[ids].astype(np.int64)


def first_positions(order: BoundOrder, num_ids: int) -> NDArray[np.signedinteger[Any]]:
    """Return the first position of every sample id, -1 without a position; O(num_samples), 4 or 8 bytes per id."""
    dtype = np.int32 if order.num_samples < 2**31 else np.int64
    first: NDArray[np.signedinteger[Any]] = np.full(num_ids, -1, dtype=dtype)
    for start in range(0, order.num_samples, order.span):
        stop = min(start + order.span, order.num_samples)
        ids, positions = order.ids(start, stop), np.arange(start, stop)
        new = first[ids] < 0
        first[ids[new][::-1]] = positions[new][::-1]  # backwards, so that the first position of an id is written last
    return first
