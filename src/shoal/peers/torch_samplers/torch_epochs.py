"""Epochs of torch's samplers: a list of indices, of which ranks take turns or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import as_ids, as_span, chunk_starts
from shoal.peers.mersenne_twister import MersenneWords
from shoal.peers.repeated_ids import first_found
from shoal.peers.torch_samplers.torch_numbers import bounded

_SPAN = 1 << 17


class IndexEpoch(ABC):
    """An epoch of indices: common to all are the chunk of each sample, and the rank it goes to.

    ``num_ranks`` is the number of ranks that take samples in turn; 1 if ranks have consecutive samples of a batch.
    """

    num_canonical_nodes: ClassVar[int] = 1
    version: ClassVar[int] = 1
    span: ClassVar[int] = _SPAN
    _draws: ClassVar[bool] = False

    def __init__(
        self, chunk_samples: NDArray[np.int64], num_samples: int, parameters: Mapping[str, Any], *, num_ranks: int = 1
    ) -> None:
        self.num_samples, self.parameters = num_samples, parameters
        self._num_ranks = num_ranks
        self._chunk_first_id = chunk_starts(chunk_samples)
        self._stored = int(self._chunk_first_id[-1])

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``."""
        return self._ids(*as_span(start, stop, self.num_samples))

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._chunk_first_id, ids, side="right") - 1

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first position of each id, -1 where it does not come; the first call costs O(num_samples)."""
        return self._positions(as_ids(ids, self._stored))

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first of the positions ``[start, stop)`` that has this sample; -1 if none has."""
        repeats = self._draws or self.num_samples > self._stored
        return first_found(self, sample_id, start, stop, repeats=repeats)

    def axis(
        self,
        positions: NDArray[np.int64],
        chunks: NDArray[np.int64],  # noqa: ARG002
        batches: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint64]:
        """Return the rank whose sample each was."""
        return (positions % self._num_ranks).astype(np.uint64)

    @abstractmethod
    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions that exist."""

    @abstractmethod
    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position of ids that exist."""


class PermutedEpoch(IndexEpoch):
    """One permutation after the other, or one again and again; ``made(k)`` makes that of number ``k``; one is kept."""

    def __init__(
        self, made: Callable[[int], NDArray[Any]], *arguments: Any, repeating: bool = False, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._repeating = repeating
        self._made = made
        self._kept: tuple[int, NDArray[Any]] | None = None
        self._inverse: NDArray[Any] | None = None

    def _permutation(self, number: int) -> NDArray[Any]:
        number = 0 if self._repeating else number
        kept = self._kept
        if kept is None or kept[0] != number:
            self._kept = kept = number, self._made(number)
        return kept[1]

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        found = np.empty(stop - start, dtype=np.int64)
        at = start
        while at < stop:
            number, first = divmod(at, self._stored)
            part = self._permutation(number)[first : first + stop - at]
            found[at - start : at - start + len(part)] = part
            at += len(part)
        return found

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._inverse is None:
            first = self._permutation(0)
            self._inverse = np.empty_like(first)
            self._inverse[first] = np.arange(len(first))
        found = self._inverse[ids].astype(np.int64)
        return np.where(found < self.num_samples, found, -1)


class StoredEpoch(IndexEpoch):
    """Storage order, again and again."""

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop) % max(1, self._stored)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(ids < self.num_samples, ids, -1)


class DrawnEpoch(IndexEpoch):
    """Independent draws with replacement."""

    _draws = True

    def __init__(self, words: MersenneWords, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._words = words
        self._first: NDArray[np.int64] | None = None

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return bounded(self._words, start, stop, self._stored)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._first is None:
            self._first = np.full(self._stored, -1, dtype=np.int64)
            for stop in range(self.num_samples, 0, -_SPAN):
                start = max(0, stop - _SPAN)
                self._first[self._ids(start, stop)[::-1]] = np.arange(stop - 1, start - 1, -1)  # the last one stays
        return self._first[ids]
