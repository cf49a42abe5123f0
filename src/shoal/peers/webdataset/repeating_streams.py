"""Streams of workers in which samples come several times, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import as_ids
from shoal.peers.rank_streams import RankStreams
from shoal.peers.repeated_ids import first_found


class RepeatingStreams(RankStreams):
    """The order of one epoch of such streams."""

    _first: NDArray[np.int64] | None = None

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first position of each sample id, -1 if it has none; the first call goes through the epoch."""
        wanted = as_ids(ids, int(self._chunk_first_id[-1]))
        if self._first is None:
            first = np.full(int(self._chunk_first_id[-1]), -1, dtype=np.int64)
            for start in range(0, self.num_samples, self.span):
                stop = min(start + self.span, self.num_samples)
                found, places = np.unique(self.ids(start, stop), return_index=True)
                new = first[found] < 0
                first[found[new]] = start + places[new]
            self._first = first
        return self._first[wanted]

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first of the positions ``[start, stop)`` that has this sample; -1 if none has."""
        return first_found(self, sample_id, start, stop)
