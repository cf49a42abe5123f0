"""Chunks: consecutive extents of one shard that an order moves as a unit and that are read at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.table import Index
from shoal.index.unseen_borders import BEHIND_BYTES, may_be_cut


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """The chunks of a dataset, as columns of shape (num_chunks,) except ``first_extent`` and ``first_sample``.

    ``first_extent`` and ``first_sample``, int64, have shape (num_chunks + 1,): chunk ``c`` holds the extents
    ``[first_extent[c], first_extent[c + 1])`` of the index and the samples ``[first_sample[c], first_sample[c + 1])``.
    ``shard`` int32 is its shard, ``[first_byte, end_byte)`` int64 its bytes there, ``num_samples`` int64 its samples,
    ``decoded_bytes`` int64 its bytes in memory once decoded.

    In tars with unchecked borders, the bytes of a chunk include the headers behind it, by which `Format.parse` sees
    whether its last sample continues in the next chunk.
    """

    first_extent: NDArray[np.int64]
    first_sample: NDArray[np.int64]
    shard: NDArray[np.int32]
    first_byte: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)


def cut_chunks(index: Index, *, extents_per_chunk: int) -> ChunkTable:
    """Cut each shard's X extents into ``ceil(X / extents_per_chunk)`` chunks whose extents differ by at most one.

    Cuts are even, without a short remainder: chunk sizes within a shard stay within a factor of two. A chunk never
    crosses a shard border. O(num_extents), vectorised.

    Raises
    ------
    UsageError
        If ``extents_per_chunk`` is not positive.
    """
    if extents_per_chunk < 1:
        msg = f"extents_per_chunk={extents_per_chunk} is not positive"
        raise UsageError(msg, hint="a chunk holds at least one extent")
    shard_first = index.shard_first_extent
    num_extents = np.diff(shard_first)
    num_chunks = -(-num_extents // extents_per_chunk)
    ends = np.cumsum(num_chunks)
    total = int(ends[-1]) if len(ends) else 0
    shard = np.repeat(np.arange(index.num_shards, dtype=np.int32), num_chunks)
    place = np.arange(total, dtype=np.int64) - (ends - num_chunks)[shard]
    first = np.empty(total + 1, dtype=np.int64)
    first[:-1] = shard_first[shard] + place * num_extents[shard] // num_chunks[shard]
    first[-1] = index.num_extents
    first_sample = index.extent_first_sample[first]
    # reduceat, not differences of a running sum: decoded bytes of a whole dataset can exceed 2**63 in hostile files.
    decoded = np.add.reduceat(index.extent_decoded_bytes, first[:-1]) if total else np.zeros(0, dtype=np.int64)
    end_byte = index.extent_end_byte[first[1:] - 1] if total else np.zeros(0, dtype=np.int64)
    return ChunkTable(
        first_extent=first,
        first_sample=first_sample,
        shard=shard,
        first_byte=index.extent_first_byte[first[:-1]],
        end_byte=_with_what_is_behind(index, shard, end_byte),
        num_samples=np.diff(first_sample),
        decoded_bytes=decoded,
    )


def _with_what_is_behind(index: Index, shard: NDArray[np.int32], end_byte: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the end of each chunk's bytes, including those behind it that show whether its border is a real one."""
    unseen = [number for number, head in index.shard_heads.items() if may_be_cut(head)]
    if not unseen or not len(end_byte) or index.format != "tar" or index.sample_bytes is None:
        return end_byte
    numbers = np.array(unseen)
    # The last chunk of a shard has no border behind it.
    limits = np.zeros(index.num_shards, dtype=np.int64)
    limits[numbers] = index.extent_end_byte[index.shard_first_extent[1:][numbers] - 1]
    extended: NDArray[np.int64] = np.maximum(end_byte, np.minimum(end_byte + BEHIND_BYTES, limits[shard]))
    return extended
