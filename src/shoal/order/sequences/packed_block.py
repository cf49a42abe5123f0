"""Documents of a block in sequences of a fixed length: which part of which document lies where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PackedBlock:
    """Sequences of up to ``length`` tokens, made of pieces of documents.

    Attributes
    ----------
    first_piece
        Number of the first piece of each sequence, and of all pieces; shape (num_sequences + 1,).
    document
        Document of each piece, numbered in the block; shape (num_pieces,).
    start, stop
        Its tokens in the document, half-open.
    """

    length: int
    first_piece: NDArray[np.int64]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.first_piece) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return int((self.stop - self.start).sum())

    @property
    def fill(self) -> float:
        """Share of the tokens of all sequences that are no padding; 1.0 without sequences."""
        return self.num_tokens / (self.length * self.num_sequences) if self.num_sequences else 1.0
