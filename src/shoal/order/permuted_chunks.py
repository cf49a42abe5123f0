"""The line of all chunks of an epoch in random order, on which the simpler orders are built."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.permutation import permute, unpermute
from shoal.order.protocol import chunk_starts


class ChunkLine:
    """Chunks in an order drawn from a key, and their samples along that line; 24 bytes per chunk.

    ``starts`` has shape (num_chunks + 1,): the number of samples before each place of the line.
    """

    def __init__(self, chunk_samples: NDArray[np.int64], line_key: int) -> None:
        self._key = line_key
        self._first_id = chunk_starts(chunk_samples)
        self._chunk_at = permute(np.arange(len(chunk_samples)), len(chunk_samples), line_key)
        self.starts = chunk_starts(chunk_samples[self._chunk_at])
        self.num_samples = int(self.starts[-1])

    def locate(self, line: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample id at each point of the line, and its chunk; O(log num_chunks) each."""
        places = np.searchsorted(self.starts, line, side="right") - 1
        chunks = self._chunk_at[places]
        return self._first_id[chunks] + line - self.starts[places], chunks

    def line_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the point on the line of each sample id; O(log num_chunks) each."""
        chunks = np.searchsorted(self._first_id, ids, side="right") - 1
        places = unpermute(chunks, len(self._chunk_at), self._key)
        line: NDArray[np.int64] = self.starts[places] + ids - self._first_id[chunks]
        return line
