"""The samples of an epoch with all their copies: numbered, and divided into turns for an order to mix.

Copies are numbered in storage order, with the copies of a sample side by side. If an order moves chunks, and a chunk
has more copies than samples, the chunk comes in several *turns* of about as many copies as the chunk has samples. The
order moves a turn like a chunk: turn ``j`` of ``p`` has the copies j, j + p, j + 2p, ..., so the copies of a sample are
in different turns, all over the epoch. Without turns, a rare class that is stored together would make a few huge
chunks, and a window mixes well only with chunks of similar size. A chunk is read once per turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import expand
from shoal.order.protocol import BoundOrder, Renumbered, chunk_starts
from shoal.order.sampling.systematic_draws import holding

_BLOCK = 64  # samples; copies are counted from the start of a block. Other tables take 1/8 byte per sample
_TILE_BITS = 16


class Copies:
    """The numbered copies of an epoch, and the sample of each copy; 1.1 or 2.1 bytes per sample.

    Parameters
    ----------
    counts
        Copies of each sample in the epoch, shape (num_samples,).
    """

    def __init__(self, counts: NDArray[Any]) -> None:
        num_blocks = len(counts) // _BLOCK + 1  # the last block is never full, so that `before` includes the end
        rest = np.zeros((1, _BLOCK), dtype=counts.dtype)
        rest[0, : len(counts) % _BLOCK] = counts[(num_blocks - 1) * _BLOCK :]
        blocks = counts[: (num_blocks - 1) * _BLOCK].reshape(num_blocks - 1, _BLOCK)
        sums = np.concatenate([blocks.sum(axis=1, dtype=np.int64), rest.sum(axis=1, dtype=np.int64)])
        self._before = chunk_starts(sums)
        self._ends = np.empty((num_blocks, _BLOCK), dtype=holding(int(sums.max())))
        np.cumsum(blocks, axis=1, dtype=self._ends.dtype, out=self._ends[:-1])
        np.cumsum(rest, axis=1, dtype=self._ends.dtype, out=self._ends[-1:])

    def __len__(self) -> int:
        return int(self._before[-1])

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self._ends.nbytes + self._before.nbytes

    def samples(self, copies: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample of each copy; 50 to 70 ns per copy."""
        samples = np.empty(len(copies), dtype=np.int64)
        for first in range(0, len(copies), 1 << _TILE_BITS):
            # Sorting, with places in the low bits, makes a search among 10^8 samples five times as fast.
            words = copies[first : first + (1 << _TILE_BITS)] << _TILE_BITS
            words |= np.arange(len(words))
            words.sort()
            part, places = words >> _TILE_BITS, words & ((1 << _TILE_BITS) - 1)
            block = np.searchsorted(self._before, part, side="right") - 1
            inside = (part - self._before[block]).astype(self._ends.dtype)
            passed = (self._ends[block] <= inside[:, None]).sum(axis=1, dtype=np.uint8)
            samples[first + places] = block * _BLOCK + passed
        return samples

    def before(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of copies before each sample; the sample after the last sample is allowed."""
        block, inside = np.divmod(samples, _BLOCK)
        before: NDArray[np.int64] = self._before[block] + np.where(inside, self._ends[block, inside - 1], 0)
        return before

    def count_between(self, borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the copies of the samples between neighbouring borders; shape (len(borders) - 1,)."""
        counts: NDArray[np.int64] = np.diff(self.before(borders))
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """The copies of an epoch, numbered turn by turn.

    Parameters
    ----------
    copies
        The copies of each sample.
    starts
        The first number of each turn, then the number of copies; shape (num_turns + 1,).
    chunk, first_copy, stride
        The chunk of each turn, its first copy, and the distance to its next copy; shape (num_turns,).
    chunk_copies, chunk_turns
        The first copy and the first turn of each chunk, then their totals; shape (num_chunks + 1,).
    """

    copies: Copies
    starts: NDArray[np.int64]
    chunk: NDArray[np.int64]
    first_copy: NDArray[np.int64]
    stride: NDArray[np.int64]
    chunk_copies: NDArray[np.int64]
    chunk_turns: NDArray[np.int64]

    @staticmethod
    def of(copies: Copies, chunk_samples: NDArray[np.int64], *, whole: bool = False) -> Turns:
        """Divide the copies of chunks into turns; with ``whole``, each chunk has one turn."""
        chunk_copies = copies.before(chunk_starts(chunk_samples))
        counts = np.diff(chunk_copies)
        sizes = np.maximum(chunk_samples, 1)
        turns = np.ones_like(counts) if whole else np.maximum((counts + sizes // 2) // sizes, 1)
        chunk_turns = chunk_starts(turns)
        chunk = np.repeat(np.arange(len(turns)), turns)
        number = np.arange(len(chunk)) - chunk_turns[chunk]
        starts = chunk_starts((counts // turns)[chunk] + (number < (counts % turns)[chunk]))
        return Turns(copies, starts, chunk, chunk_copies[chunk] + number, turns[chunk], chunk_copies, chunk_turns)

    def samples(self, numbers: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample of each copy number, given its turn."""
        inside = numbers - self.starts[turns]
        return self.copies.samples(self.first_copy[turns] + inside * self.stride[turns])

    def all_samples(self) -> NDArray[np.int64]:
        """Return the sample of every copy number, shape (num_copies,)."""
        sizes = np.diff(self.starts)
        return self.samples(np.arange(self.starts[-1]), np.repeat(np.arange(len(sizes)), sizes))

    def numbers(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of all copies of these samples, sample after sample, and the copies of each."""
        copies, lengths = expand(self.copies.before(samples), self.copies.before(samples + 1))
        chunk = np.searchsorted(self.chunk_copies, copies, side="right") - 1
        first_turn = self.chunk_turns[chunk]
        inside, turn = np.divmod(copies - self.chunk_copies[chunk], self.chunk_turns[chunk + 1] - first_turn)
        return self.starts[first_turn + turn] + inside, lengths


class OverCopies(Renumbered):
    """An order over the numbered copies of samples; returns samples, with turns as chunks."""

    def __init__(self, numbered: BoundOrder, turns: Turns) -> None:
        super().__init__(numbered)
        self._turns = turns

    def renumbered(
        self, numbers: NDArray[np.int64], turns: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample of each copy, and its turn."""
        return self._turns.samples(numbers, turns), turns

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first position of each sample, -1 for a sample without copies."""
        numbers, lengths = self._turns.numbers(np.atleast_1d(np.asarray(ids)))
        positions = np.full(len(lengths), -1, dtype=np.int64)
        if len(numbers):
            starts = np.cumsum(lengths) - lengths
            positions[lengths > 0] = np.minimum.reduceat(self.numbered.positions(numbers), starts[lengths > 0])
        return positions

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first position in ``[start, stop)`` with this sample; -1 without such a position."""
        numbers, _ = self._turns.numbers(np.array([sample_id]))
        positions = self.numbered.positions(numbers) if len(numbers) else numbers
        inside = positions[(start <= positions) & (positions < stop)]
        return int(inside.min()) if inside.size else -1
