"""The stream of one worker of WebDataset: shards in its order, and their samples through its buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import chunk_starts
from shoal.peers.webdataset.growing_buffer import GrowingBuffer
from shoal.peers.webdataset.python_integers import words_of

Shuffle = Callable[[int | None], GrowingBuffer | None]
"""Given how many items there are, or None for no end, the buffer that they go through; None if they go through none."""


def shuffle_of(bufsize: int, initial: int, seed: Any) -> Shuffle:
    """Return the shuffle with these arguments; buffers of one sample change nothing."""
    if bufsize <= 1:
        return lambda _: None
    return lambda length: GrowingBuffer(length, bufsize, initial, words_of(seed))


def shuffled(items: NDArray[np.int64], shuffle: Shuffle) -> NDArray[np.int64]:
    """Return a list of items behind a shuffle."""
    buffer = shuffle(len(items))
    return items if buffer is None else items[buffer.arrivals(0, len(items))]


class WorkerStream:
    """The samples of one worker; ``count`` of them where its shards have no end.

    Parameters
    ----------
    shards
        The shards in the order in which they are read.
    chunk_samples
        Samples of each shard of the dataset.
    """

    def __init__(
        self, shards: NDArray[np.int64], chunk_samples: NDArray[np.int64], shuffle: Shuffle, count: int | None = None
    ) -> None:
        self._shards = shards
        self._starts = chunk_starts(chunk_samples[shards])
        self._first_id = chunk_starts(chunk_samples)
        self._shift = np.append(self._first_id[shards] - self._starts[:-1], 0)
        self.num_samples = int(self._starts[-1]) if count is None else count
        self._buffer = shuffle(self.num_samples if count is None else None)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)`` of the stream; cheap where the last call ended."""
        arrivals = np.arange(start, stop) if self._buffer is None else self._buffer.arrivals(start, stop)
        arrivals += self._shift[np.searchsorted(self._starts, arrivals, side="right") - 1]
        return arrivals

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in the stream of each sample id, none of which may come twice; O(samples of the stream)."""
        shards = np.searchsorted(self._first_id, ids, side="right") - 1
        by_shard = np.argsort(self._shards)
        arrivals = ids - self._shift[by_shard[np.searchsorted(self._shards, shards, sorter=by_shard)]]
        return arrivals if self._buffer is None else self._buffer.steps(arrivals)
