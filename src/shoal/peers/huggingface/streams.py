"""The samples of one worker: shards that take turns, and a shuffle buffer behind them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.reservoir import found_by_scan
from shoal.peers.huggingface.buffers import ShuffleBuffer
from shoal.peers.huggingface.turns import ShardTurns


class ShuffledStream:
    """The samples of a worker behind its shuffle buffer. What was asked for last is kept, for ranks that share it."""

    def __init__(self, turns: ShardTurns, buffer: ShuffleBuffer) -> None:
        self._turns, self._buffer, self.num_samples = turns, buffer, turns.num_samples
        self.shards = turns.shards
        self._recent, self._recent_first = np.zeros(0, dtype=np.int64), 0

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)`` of the stream."""
        kept, known = self._recent[:0], self._recent_first + len(self._recent)
        if self._recent_first <= start <= known:
            kept = self._recent[start - self._recent_first :]
        if start + len(kept) < stop:
            new = self._buffer.left(start + len(kept), stop)
            kept = np.concatenate([kept, new]) if len(kept) else new
            self._recent, self._recent_first = kept, start
        return kept[: stop - start]

    def left_when(self, arrived: int) -> tuple[int, int]:
        """Return the fewest and the most samples that may have left when so many have arrived and one just left."""
        return self._buffer.left_when(arrived)

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in the stream of each sample id; it goes through the stream from the earliest."""
        begin = self._buffer.earliest(int(self._turns.numbers(ids).min(initial=self.num_samples)))
        return found_by_scan(self._buffer.left, ids, begin, self.num_samples)


class Strided:
    """One of every ``step`` samples of a stream, from sample ``offset`` on."""

    def __init__(self, stream: ShuffledStream, step: int, offset: int) -> None:
        self._stream, self._step, self._offset = stream, step, offset
        self.num_samples = max(0, -(-(stream.num_samples - offset) // step))

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)``."""
        # The span of all offsets: the streams of the other ranks find it there.
        end = min(stop * self._step, self._stream.num_samples)
        return self._stream.ids(start * self._step, end)[self._offset :: self._step][: stop - start]

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sample id, all of which are in it."""
        return (self._stream.numbers(ids) - self._offset) // self._step
