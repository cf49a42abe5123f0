"""The two extremes: storage order, and a permutation of the whole dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.permutation import permute, unpermute
from shoal.order.protocol import Moved, as_ids, as_span, check_chunk_samples, chunk_starts
from shoal.order.seeds import check_epoch, check_seed, key

_SPAN = 1 << 16


@dataclass(frozen=True, slots=True)
class Sequential:
    """Samples in storage order, in every epoch.

    >>> Sequential().bind([2, 3]).ids(1, 4).tolist()
    [1, 2, 3]
    """

    name: ClassVar[str] = "none"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "nothing"

    @property
    def parameters(self) -> dict[str, int]:
        """Empty: there are no parameters."""
        return {}

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> SequentialEpoch:
        """Return the order of one epoch; seed and epoch make no difference."""
        check_seed(seed)
        check_epoch(epoch)
        return SequentialEpoch(check_chunk_samples(chunk_samples))


@dataclass(frozen=True, slots=True)
class Full:
    """A random permutation of the whole dataset: the perfect shuffle, at one read per sample.

    O(1) memory and about 50 ns per sample; the cost is in reading, since neighbours share no chunk.

    >>> sorted(Full().bind([2, 3], seed=1).ids(0, 5).tolist())
    [0, 1, 2, 3, 4]
    """

    name: ClassVar[str] = "full"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "samples"

    @property
    def parameters(self) -> dict[str, int]:
        """Empty: there are no parameters."""
        return {}

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> FullEpoch:
        """Return the order of one epoch."""
        return FullEpoch(check_chunk_samples(chunk_samples), key(check_seed(seed), check_epoch(epoch), "full"))


class SequentialEpoch:
    """The storage order of one epoch."""

    version = Sequential.version
    parameters: ClassVar[dict[str, int]] = {}
    num_canonical_nodes = 1
    span = _SPAN

    def __init__(self, chunk_samples: NDArray[np.int64]) -> None:
        self._chunk_first_id = chunk_starts(chunk_samples)
        self.num_samples = int(self._chunk_first_id[-1])

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions themselves."""
        return np.arange(*as_span(start, stop, self.num_samples), dtype=np.int64)

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._chunk_first_id, ids, side="right") - 1

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the ids themselves."""
        return as_ids(ids, self.num_samples).copy()


class FullEpoch:
    """The full permutation of one epoch."""

    version = Full.version
    parameters: ClassVar[dict[str, int]] = {}
    num_canonical_nodes = 1
    span = _SPAN

    def __init__(self, chunk_samples: NDArray[np.int64], epoch_key: int) -> None:
        self._key = epoch_key
        self._chunk_first_id = chunk_starts(chunk_samples)
        self.num_samples = int(self._chunk_first_id[-1])

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``; O(1) memory beyond them."""
        first, end = as_span(start, stop, self.num_samples)
        return permute(np.arange(first, end), self.num_samples, self._key)

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._chunk_first_id, ids, side="right") - 1

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id; O(1) each."""
        return unpermute(as_ids(ids, self.num_samples), self.num_samples, self._key)
