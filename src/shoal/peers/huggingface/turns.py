"""Shards in turn, chunk by chunk: the samples in the order of arrival at a worker's shuffle buffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import chunk_starts
from shoal.peers.round_robin import RoundRobin


class ShardTurns:
    """Lists of shards with chunks in turn; samples are numbered in the order of arrival.

    A chunk may span several shards of a list; the last chunk of a list may be short.

    Parameters
    ----------
    parts
        The shards of each list.
    shard_samples
        Samples of every shard of the dataset.
    chunk_size
        Samples of a chunk.
    """

    def __init__(self, parts: list[NDArray[np.int64]], shard_samples: NDArray[np.int64], chunk_size: int) -> None:
        shards = np.concatenate(parts)
        self._first_id = chunk_starts(shard_samples)
        self._starts = chunk_starts(shard_samples[shards])  # in the line of all lists, one after another
        self._id_less_line = self._first_id[shards] - self._starts[:-1]
        self._by_id = np.argsort(shards, kind="stable")
        self.shards = shards[self._by_id]
        self.num_samples, self.chunk_size = int(self._starts[-1]), chunk_size
        ends = np.cumsum([len(part) for part in parts])
        self._part_starts = np.concatenate([self._starts[:1], self._starts[ends]])
        self._part_samples = np.diff(self._part_starts)
        self._turns = RoundRobin(-(-self._part_samples // chunk_size)) if len(parts) > 1 else None
        short = self.short_chunks()
        self._short = np.array([chunk for chunk, _ in short], dtype=np.int64)
        # The number of samples missing in all earlier short chunks.
        self._missing = chunk_starts(np.array([chunk_size - samples for _, samples in short], dtype=np.int64))
        self._after = (self._short + 1) * chunk_size - self._missing[1:]

    def short_chunks(self) -> list[tuple[int, int]]:
        """Return the numbers of short chunks, ascending, and the samples of each short chunk."""
        parts = np.flatnonzero(self._part_samples % self.chunk_size)
        samples = self._part_samples[parts] % self.chunk_size
        chunks = self._part_samples[parts] // self.chunk_size
        if self._turns is not None:
            chunks = self._turns.positions(parts, chunks)
        return sorted(zip(chunks.tolist(), samples.tolist(), strict=True))

    def ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of the samples with these numbers."""
        if self._turns is None:
            return self._ids_of_line(numbers)
        chunks, offsets = self._chunks_of(numbers)
        parts, items = self._turns.locate(chunks)
        return self._ids_of_line(self._part_starts[parts] + items * self.chunk_size + offsets)

    def arriving(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the ids of the samples with numbers ``[first, end)``; faster than `ids`."""
        if self._turns is None or self.chunk_size == 1 or first >= end:
            return self.ids(np.arange(first, end))
        chunks, offsets = self._chunks_of(np.array([first, end - 1]))
        parts, items = self._turns.locate(np.arange(chunks[0], chunks[1] + 1))
        samples = np.minimum(self._part_samples[parts] - items * self.chunk_size, self.chunk_size)
        begins = np.cumsum(samples) - samples
        line = np.repeat(self._part_starts[parts] + items * self.chunk_size - begins, samples)
        line += np.arange(len(line))
        return self._ids_of_line(line[offsets[0] : offsets[0] + end - first])

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of samples, the inverse of `ids`."""
        shards = np.searchsorted(self._first_id, ids, side="right") - 1
        line: NDArray[np.int64] = ids - self._id_less_line[self._by_id[np.searchsorted(self.shards, shards)]]
        if self._turns is None:
            return line
        parts = np.searchsorted(self._part_starts, line, side="right") - 1
        items, offsets = np.divmod(line - self._part_starts[parts], self.chunk_size)
        chunks = self._turns.positions(parts, items)
        numbers: NDArray[np.int64] = chunks * self.chunk_size + offsets
        numbers -= self._missing[np.searchsorted(self._short, chunks)]
        return numbers

    def _chunks_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunk of each number, and its place in the chunk."""
        if self.chunk_size == 1:
            return numbers, np.zeros(1, dtype=np.int64)
        passed = np.searchsorted(self._after, numbers, side="right")
        chunks, offsets = np.divmod(numbers + self._missing[passed], self.chunk_size)
        return chunks, offsets

    def _ids_of_line(self, line: NDArray[np.int64]) -> NDArray[np.int64]:
        ids: NDArray[np.int64] = line + self._id_less_line[np.searchsorted(self._starts, line, side="right") - 1]
        return ids
