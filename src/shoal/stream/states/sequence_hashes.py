"""Hashes of sequences for certificates: each hash covers the documents of a sequence, and the places of its cuts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.seeds import draws, key, keys
from shoal.reading.resolved_order import Resolved
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.states.delivery_sums import RecordHashes


class SequenceHashes(RecordHashes):
    """A 64-bit hash of each sequence at its position, from the hashes of its documents and their tokens in it."""

    def __init__(self, resolved: ResolvedSequences) -> None:
        super().__init__(resolved.documents.index)
        self._resolved = resolved

    def of(self, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hashes, shape (num_sequences,)."""
        pieces = self._resolved.untouched(epoch).pieces(ids)
        hashes = draws(super().of(epoch, pieces.positions, pieces.ids), pieces.starts)
        sums = np.zeros(len(hashes) + 1, dtype=np.uint64)
        np.cumsum(hashes, out=sums[1:])
        of_sequences = sums[pieces.first[1:]] - sums[pieces.first[:-1]]
        return draws(keys(key(0, epoch, "sequences"), positions), of_sequences)


def hashes_of(resolved: Resolved) -> RecordHashes:
    """Return the hashes of the samples of these epochs, or of their sequences."""
    return SequenceHashes(resolved) if isinstance(resolved, ResolvedSequences) else RecordHashes(resolved.sample_index)
