"""The chunks of a dataset, as a cut of the extents in the mapped index: columns are computed when they are read.

A process keeps 8 bytes per chunk, its first sample. A table of all columns takes 44, in each of the processes of a
machine, and cutting a large index into it takes several times the memory of the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.index.shard_scan import BEHIND_BYTES, has_unverified_borders
from shoal.index.table import Index, joined_ranges

_TILE = 1 << 16

Places = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
"""The shard of each chunk, its first byte and its end byte there."""


class Chunks(Protocol):
    """The columns of some chunks, given by number in an array or a slice."""

    def places(self, chunks: NDArray[np.int64] | slice) -> Places:
        """Return shard, first byte and end byte of chunks."""

    def decoded_bytes(self, chunks: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the bytes of chunks in memory once decoded."""


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of a dataset: consecutive extents of a shard that an order moves as a unit.

    ``first_sample``, int64, has shape (num_chunks + 1,): chunk ``c`` holds the samples ``[first_sample[c],
    first_sample[c + 1])``. The other columns have shape (num_chunks,) and are computed at each access, unless they are
    columns of the index: ``shard`` int32 is the shard of a chunk, ``[first_byte, end_byte)`` int64 its bytes there,
    ``num_samples`` int64 its samples, ``decoded_bytes`` int64 its bytes in memory once decoded.

    In tars with unverified borders, a chunk includes the headers after it: they show `Format.parse` whether its last
    sample continues in the next chunk.
    """

    first_sample: NDArray[np.int64]
    chunks: Chunks
    counts: NDArray[np.int64] | None = None  # the column ``num_samples``, if it exists

    def __len__(self) -> int:
        return len(self.first_sample) - 1

    @property
    def shard(self) -> NDArray[np.int32]:
        """Shard of each chunk."""
        return self.chunks.places(slice(0, len(self)))[0]

    @property
    def first_byte(self) -> NDArray[np.int64]:
        """First byte of each chunk in its shard."""
        return self.chunks.places(slice(0, len(self)))[1]

    @property
    def end_byte(self) -> NDArray[np.int64]:
        """End of the bytes of each chunk in its shard."""
        return self.chunks.places(slice(0, len(self)))[2]

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """Number of samples of each chunk."""
        return np.diff(self.first_sample) if self.counts is None else self.counts

    @property
    def decoded_bytes(self) -> NDArray[np.int64]:
        """Bytes of each chunk in memory once decoded."""
        return self.chunks.decoded_bytes(slice(0, len(self)))

    def samples_of(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first sample and the number of samples of some chunks."""
        first = self.first_sample[chunks]
        return first, self.first_sample[chunks + 1] - first

    def columns_of(self, chunks: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the columns of some chunks: shard, first byte, end byte, first sample and number of samples."""
        return [*self.chunks.places(chunks), *self.samples_of(chunks)]

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks in memory once decoded."""
        return self._total_and_largest[0]

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest chunk in memory once decoded; 0 without chunks."""
        return self._total_and_largest[1]

    @cached_property
    def _total_and_largest(self) -> tuple[int, int]:
        """The bytes of all chunks and of the largest, once decoded; O(num_extents), once."""
        total = largest = 0
        for tile in self._tiles:
            decoded_bytes = self.chunks.decoded_bytes(tile)
            total, largest = total + int(decoded_bytes.sum()), max(largest, int(decoded_bytes.max()))
        return total, largest

    @cached_property
    def most_samples(self) -> int:
        """Samples of the largest chunk; 0 without chunks; O(num_chunks), once."""
        borders = (self.first_sample[tile.start : tile.stop + 1] for tile in self._tiles)
        return max((int(np.diff(border).max()) for border in borders), default=0)

    @property
    def mean_bytes(self) -> float:
        """Mean bytes of a chunk in memory once decoded; 0 without chunks."""
        return self.total_bytes / max(1, len(self))

    @property
    def _tiles(self) -> list[slice]:
        return [slice(begin, min(begin + _TILE, len(self))) for begin in range(0, len(self), _TILE)]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkColumns:
    """`Chunks` whose columns exist, such as those of the index for chunks of one extent."""

    shard: NDArray[np.int32]
    first_byte: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    decoded: NDArray[np.int64]

    def places(self, chunks: NDArray[np.int64] | slice) -> Places:
        """Return shard, first byte and end byte of chunks."""
        return self.shard[chunks], self.first_byte[chunks], self.end_byte[chunks]

    def decoded_bytes(self, chunks: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the bytes of chunks in memory once decoded."""
        return self.decoded[chunks]


class EvenCut:
    """`Chunks` of up to ``extents_per_chunk`` extents, at whose cuts a formula gives the extents of each chunk."""

    def __init__(self, index: Index, *, extents_per_chunk: int) -> None:
        self._index = index
        self._first_extent = index.shard_first_extent
        self._num_extents = np.diff(self._first_extent)
        self._num_chunks = -(-self._num_extents // extents_per_chunk)
        self._first_chunk = np.concatenate([[0], np.cumsum(self._num_chunks)])
        self._header_limits = header_limits(index)
        self.num_chunks = int(self._first_chunk[-1])

    def borders(self) -> NDArray[np.int64]:
        """Return the first sample of each chunk, then the number of samples; shape (num_chunks + 1,)."""
        borders = np.empty(self.num_chunks + 1, dtype=np.int64)
        borders[-1] = self._index.num_samples
        for begin in range(0, self.num_chunks, _TILE):
            tile = slice(begin, min(begin + _TILE, self.num_chunks))
            borders[tile] = self._index.extent_first_sample[self._extents(tile)[0]]
        return borders

    def places(self, chunks: NDArray[np.int64] | slice) -> Places:
        """Return shard, first byte and end byte of chunks; O(log num_shards) each."""
        first, end, shard = self._extents(chunks)
        end_byte = self._index.extent_end_byte[end - 1].astype(np.int64)
        return (
            shard.astype(np.int32),
            self._index.extent_first_byte[first],
            with_headers_behind(end_byte, shard, self._header_limits),
        )

    def decoded_bytes(self, chunks: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Return the bytes of chunks in memory once decoded; O(extents of the chunks)."""
        first, end, _ = self._extents(chunks)
        if not len(first):
            return np.zeros(0, dtype=np.int64)
        # reduceat, not differences of a running sum: in a hostile file, the sum of decoded bytes can exceed 2**63.
        if isinstance(chunks, slice):  # of consecutive extents: in a third of the time
            return np.add.reduceat(self._index.extent_decoded_bytes[first[0] : end[-1]], first - first[0])
        extents = joined_ranges(first, end - first)
        starts = np.cumsum(end - first) - (end - first)
        return np.add.reduceat(self._index.extent_decoded_bytes[extents], starts)

    def _extents(
        self, chunks: NDArray[np.int64] | slice
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the first extent, the end extent and the shard of chunks."""
        if isinstance(chunks, slice):
            numbers, shard = np.arange(chunks.start, chunks.stop), self._shards_between(chunks.start, chunks.stop)
        else:
            numbers, shard = chunks, np.searchsorted(self._first_chunk, chunks, side="right") - 1
        before, num_extents = numbers - self._first_chunk[shard], self._num_extents[shard]
        num_chunks, first_extent = self._num_chunks[shard], self._first_extent[shard]
        first = first_extent + before * num_extents // num_chunks
        return first, first_extent + (before + 1) * num_extents // num_chunks, shard

    def _shards_between(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the shard of each chunk in ``[begin, end)``, without a search for each."""
        first_shard, end_shard = np.searchsorted(self._first_chunk, [begin + 1, end]) - [1, 0]
        borders = np.clip(self._first_chunk[first_shard : end_shard + 1], begin, end)
        return np.repeat(np.arange(first_shard, end_shard), np.diff(borders))


def header_limits(index: Index) -> NDArray[np.int64] | None:
    """Return the end of the last extent of each shard with unverified borders, 0 for others; None if there are none."""
    unverified = [number for number, head in index.shard_heads.items() if has_unverified_borders(head)]
    if not unverified or not index.num_extents or index.format != "tar" or index.sample_bytes is None:
        return None
    numbers = np.array(unverified)
    # The last chunk of a shard has no border after it.
    limits = np.zeros(index.num_shards, dtype=np.int64)
    limits[numbers] = index.extent_end_byte[index.shard_first_extent[1:][numbers] - 1]
    return limits


def with_headers_behind(
    end_byte: NDArray[np.int64], shard: NDArray[np.integer[Any]], limits: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return the ends of chunks with the headers after them, in shards with unverified borders."""
    if limits is None:
        return end_byte
    extended: NDArray[np.int64] = np.maximum(end_byte, np.minimum(end_byte + BEHIND_BYTES, limits[shard]))
    return extended
