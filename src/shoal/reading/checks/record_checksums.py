"""Comparison of bytes with the checksums in the index, for extents and single samples."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from shoal.index.table import Index
from shoal.reading.schedule.units import UnitRead, starts_in

RECORD_CRCS = "record_crc32"
"""Column of an index with a CRC-32 of the bytes of each sample, for shards written by shoal."""

FRAMES = "frames"
"""Key in the metadata of such an index: a CRC-32 of all bytes before and after the samples, by shard name."""


def wrong_extent(index: Index, shard: int, first_byte: int, data: bytes | memoryview) -> tuple[int, int] | None:
    """Return the byte range of the first extent whose checksum in ``data`` differs from the index; None if all match.

    ``data`` begins at ``first_byte`` of the shard. Extents at its ends that are not complete are not checked; nothing
    is checked if the index has no checksums. O(log num_extents), and half a millisecond per megabyte without the
    interpreter lock.
    """
    if index.extent_checksum is None:
        return None
    begin, end = np.searchsorted(index.extent_shard, np.array([shard, shard + 1], dtype=np.int32)).tolist()
    first = begin + int(np.searchsorted(index.extent_first_byte[begin:end], first_byte))
    last = begin + int(np.searchsorted(index.extent_end_byte[begin:end], first_byte + len(data), side="right"))
    view = memoryview(data)
    starts, ends = index.extent_first_byte[first:last].tolist(), index.extent_end_byte[first:last].tolist()
    for start, stop, checksum in zip(starts, ends, index.extent_checksum[first:last].tolist(), strict=True):
        if crc32(view[start - first_byte : stop - first_byte]) != checksum:
            return start, stop
    return None


def knows_records(index: Index, read: UnitRead) -> bool:
    """Return True if the index has the checksum and the offset of each sample of a read."""
    starts = starts_in(index, read)
    return RECORD_CRCS in index.columns and starts is not None and starts[-1] == read.num_bytes


def wrong_records(index: Index, read: UnitRead, data: bytes | memoryview) -> list[int]:
    """Return the numbers of the samples in a read whose checksums in ``data`` differ from the index.

    Empty if the index lacks the checksums or the offsets of samples.
    """
    starts = starts_in(index, read)
    if starts is None or not knows_records(index, read):
        return []
    known = index.columns[RECORD_CRCS][read.first_sample : read.first_sample + read.num_samples].tolist()
    view = memoryview(data)
    return [at for at, checksum in enumerate(known) if crc32(view[starts[at] : starts[at + 1]]) != checksum]
