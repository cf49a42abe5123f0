"""The index: where the samples of a dataset lie, as columns that numpy maps from one file.

A row is an extent, the smallest indexed byte range of a shard. The extents of a shard have no gaps between them; if
they consist of frames, an extent may begin with the last frame of the extent before it. Samples are numbered over all
shards in their order. `shoal.index.assembly` builds an index, `shoal.index.index_file` stores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import NoSampleError

EXTENT_COLUMNS = {
    "extent_shard": "<i4",
    "extent_first_byte": "<i8",
    "extent_end_byte": "<i8",
    "extent_num_samples": "<i8",
    "extent_decoded_bytes": "<i8",
    "extent_layout_crc": "<u4",
}
"""The columns of extents, and their types in an index file."""

BYTES_OF_AN_EXTENT, BYTES_OF_A_SAMPLE = 52, 4
"""Bytes of an index file per extent, with its first sample and its checksum, and per sample size."""


_TILE = 1 << 16


class SampleIndex(Protocol):
    """An index of single samples, of one dataset or of a mixture."""

    @property
    def fingerprint(self) -> str:
        """Identity of the dataset."""
        ...

    @property
    def num_samples(self) -> int:
        """Number of sample ids."""
        ...

    def place(self, sample_id: int) -> tuple[str, int, int]:
        """Return the shard of a sample, and the first and end byte of the sample or of its extent."""
        ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Index:
    """The table of all samples of a dataset.

    Shards (sequences or arrays of length num_shards): ``shard_names`` relative to the directory of the dataset, with
    "/" between parts; ``shard_bytes`` int64; ``shard_versions`` as the store gave them (`ObjectInfo.version`);
    ``shard_heads``, the heads of shards for `Format.parse`, by shard number, without empty heads.

    Extents (arrays of length num_extents): ``extent_shard`` int32; ``extent_first_byte`` and ``extent_end_byte``
    int64; ``extent_num_samples`` int64; ``extent_decoded_bytes`` int64, bytes in memory once decoded;
    ``extent_layout_crc`` uint32, CRC-32 over the little-endian layout CRCs of its samples;
    ``extent_checksum`` uint32, CRC-32 of its bytes, or None if they were not read.

    Samples (length num_samples): ``sample_bytes`` uint32 (uint64 if a sample has 4 GiB or more), or None for very large
    datasets; ``columns``, further columns by name.

    ``fingerprint`` identifies the dataset: base names of shards, extents and counts; not location, time or checksums.
    ``notes`` counts entries that were not indexed; ``metadata`` has the creation time, the cutting rule and so on.

    ``extent_first_sample``, shape (num_extents + 1,), int64: extent ``i`` holds the samples
    ``[extent_first_sample[i], extent_first_sample[i + 1])``. By default it is computed from the counts; an index file
    stores it, so that opening a file of 10^7 extents does not read a column.
    """

    format: str
    shard_names: Sequence[str]
    shard_bytes: NDArray[np.int64]
    shard_versions: Sequence[str]
    shard_heads: Mapping[int, Mapping[str, Any]]
    extent_shard: NDArray[np.int32]
    extent_first_byte: NDArray[np.int64]
    extent_end_byte: NDArray[np.int64]
    extent_num_samples: NDArray[np.int64]
    extent_decoded_bytes: NDArray[np.int64]
    extent_layout_crc: NDArray[np.uint32]
    extent_checksum: NDArray[np.uint32] | None
    sample_bytes: NDArray[np.unsignedinteger[Any]] | None
    fingerprint: str
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    extent_first_sample: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.extent_first_sample):
            return
        first = np.zeros(len(self.extent_num_samples) + 1, dtype=np.int64)
        np.cumsum(self.extent_num_samples, out=first[1:])
        first.flags.writeable = False
        object.__setattr__(self, "extent_first_sample", first)

    def __repr__(self) -> str:
        counts = f"{self.num_samples} samples in {self.num_extents} extents of {self.num_shards} {self.format} shards"
        return f"<shoal index: {counts}>"  # results of packing are printed with their index, and a column has pages

    def place(self, sample_id: int) -> tuple[str, int, int]:
        """Return the shard of a sample, and the first and end byte of the sample or of its extent; see `locate`."""
        (shard,), (first_byte,), (end_byte,) = (column.tolist() for column in locate(self, [sample_id]))
        return self.shard_names[shard], first_byte, end_byte

    @property
    def num_shards(self) -> int:
        """Number of shards of the dataset; some may have no samples."""
        return len(self.shard_names)

    @property
    def num_extents(self) -> int:
        """Number of extents, the rows of the index."""
        return len(self.extent_shard)

    @property
    def num_samples(self) -> int:
        """Number of samples of the dataset."""
        return int(self.extent_first_sample[-1])

    @property
    def num_bytes(self) -> int:
        """Stored bytes of all shards."""
        return int(self.shard_bytes.sum())

    @property
    def shard_first_extent(self) -> NDArray[np.int64]:
        """First extent of each shard, then the number of extents; shape (num_shards + 1,), O(num_shards)."""
        return np.searchsorted(self.extent_shard, np.arange(self.num_shards + 1, dtype=np.int32)).astype(np.int64)


def own_bytes(index: Index) -> NDArray[np.int64]:
    """Count the bytes of each extent that no earlier extent has; shape (num_extents,). Their sum is the coverage."""
    first, end = index.extent_first_byte, index.extent_end_byte
    before = np.where(index.extent_shard[1:] == index.extent_shard[:-1], end[:-1], 0)
    own = end - first
    own[1:] = end[1:] - np.maximum(first[1:], before)
    return own


def largest_shared_bytes(index: Index) -> int:
    """Return the decoded bytes of the largest extent with several samples; 0 without such an extent; O(extents)."""
    largest = 0
    for begin in range(0, index.num_extents, _TILE):  # a mask of all extents would take a byte for each
        tile = slice(begin, begin + _TILE)
        shared = index.extent_num_samples[tile] > 1
        largest = max(largest, int(index.extent_decoded_bytes[tile].max(where=shared, initial=0)))
    return largest


def locate(
    index: Index, sample_ids: NDArray[np.integer[Any]] | Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return shard number, first byte and end byte of each sample, as arrays of shape (len(sample_ids),).

    Without sample sizes in the index, the bytes are the whole extent of the sample. O(log num_extents + samples of an
    extent) per id, vectorised. Raises `NoSampleError` if an id is not in 0..num_samples-1.
    """
    ids = np.asarray(sample_ids, dtype=np.int64)
    check_ids(index, ids)
    extents = np.searchsorted(index.extent_first_sample, ids, side="right") - 1
    first = index.extent_first_byte[extents].astype(np.int64)
    if index.sample_bytes is None:
        return index.extent_shard[extents], first, index.extent_end_byte[extents].astype(np.int64)
    before = ids - index.extent_first_sample[extents]  # samples of the same extent
    sums = np.zeros(int(before.sum()) + 1, dtype=np.int64)
    earlier = joined_ranges(index.extent_first_sample[extents], before)
    np.cumsum(index.sample_bytes[earlier], out=sums[1:], dtype=np.int64)
    ends = np.cumsum(before)
    first += sums[ends] - sums[ends - before]
    return index.extent_shard[extents], first, first + index.sample_bytes[ids].astype(np.int64)


def check_ids(index: SampleIndex, ids: NDArray[np.int64]) -> None:
    """Raise `NoSampleError` if no sample has one of these ids."""
    outside = ids[(ids < 0) | (ids >= index.num_samples)]
    if outside.size:
        msg = f"there is no sample {outside[0]}: the dataset has {index.num_samples} samples"
        raise NoSampleError(msg, hint=f"sample ids are 0 to {index.num_samples - 1}")


def joined_ranges(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges of ``counts[i]`` numbers from ``firsts[i]`` on; O(sum of counts).

    >>> joined_ranges(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: NDArray[np.int64] = np.arange(total, dtype=np.int64) + np.repeat(firsts - (ends - counts), counts)
    return numbers
