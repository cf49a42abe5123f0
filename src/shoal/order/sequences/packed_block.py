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
    length
        Tokens that a sequence has room for; 0 if sequences have room for different numbers.
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


def with_full_sequences(
    lengths: NDArray[np.int64], length: int, document: NDArray[np.int64], sequence: NDArray[np.int64]
) -> PackedBlock:
    """Return the sequences that longer documents fill alone, then those of what is left of all documents.

    ``document`` and ``sequence``, both of shape (num_rests,), say where the rest of each document goes: its last
    ``lengths % length`` tokens. Sequences are numbered from 0, and rests in one have the order of ``document``.
    """
    num_full = lengths // length
    full = np.repeat(np.arange(len(lengths)), num_full)
    full_starts = (np.arange(len(full)) - np.repeat(np.cumsum(num_full) - num_full, num_full)) * length
    by_sequence = np.argsort(sequence, kind="stable")
    ends = np.cumsum(np.bincount(sequence, minlength=1)) if len(sequence) else np.zeros(0, np.int64)
    rests = document[by_sequence]
    starts = num_full[rests] * length
    return PackedBlock(
        length,
        np.concatenate([np.arange(len(full) + 1), len(full) + ends]),
        np.concatenate([full, rests]),
        np.concatenate([full_starts, starts]),
        np.concatenate([full_starts + length, lengths[rests]]),
    )
