"""Cutting of shards into extents, the rows of an index, and grouping of extents into chunks, the units of reading."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.chunk_table import ChunkColumns, ChunkTable, EvenCut, header_limits, with_headers_behind
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index

EXTENT_BYTES = 65536
CUTTING_RULE = 1
_MOST_EXTENTS = 10_000_000


def usual_extent_bytes(total_bytes: int) -> int:
    """Return the default bytes of an extent in a dataset of this size; part of cutting rule 1.

    64 KiB, doubled until the dataset has at most ten million extents. So the index of any dataset takes about 520 MB at
    most, without columns of samples.

    >>> [usual_extent_bytes(terabytes * 10**12) >> 10 for terabytes in (0, 0.6, 1, 30, 1000)]
    [64, 64, 128, 4096, 131072]
    """
    extent_bytes = EXTENT_BYTES
    while total_bytes > _MOST_EXTENTS * extent_bytes:
        extent_bytes *= 2
    return extent_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """The extents of a shard; all arrays have shape (num_extents,)."""

    first_byte: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]
    layout_crc: NDArray[np.uint32]


def even_cuts(total: int, *, size: int) -> NDArray[np.int64]:
    """Cut ``total`` items into ``ceil(total / size)`` parts whose sizes differ by at most one; return the borders.

    >>> even_cuts(10, size=4).tolist()
    [0, 3, 6, 10]
    """
    num_parts = -(-total // size)
    return np.arange(num_parts + 1, dtype=np.int64) * total // max(1, num_parts)


def cut_extents(scan: ShardScan, *, extent_bytes: int = EXTENT_BYTES) -> Extents:
    """Cut the samples of a shard into extents of about ``extent_bytes``, by cutting rule 1.

    With ``n = max(1, round(extent_bytes / mean sample bytes))`` the shard's S samples form ``ceil(S / n)`` extents
    whose counts differ by at most one. An extent never holds part of a sample. Pieces cannot be cut: each is an extent.
    """
    if extent_bytes < 1:
        msg = f"extent_bytes={extent_bytes} is not positive"
        raise UsageError(msg, hint="give the bytes of an extent, 65536 for instance")
    starts = scan.sample_starts
    if scan.num_samples == 0:
        none = np.zeros(0, dtype=np.int64)
        return Extents(none, none, none, none, np.zeros(0, dtype=np.uint32))
    if scan.piece_samples is not None:
        decoded = scan.ends - starts[:-1] if scan.piece_decoded_bytes is None else scan.piece_decoded_bytes
        return Extents(starts[:-1], scan.ends, scan.piece_samples, decoded, layout_of(scan.layout_crcs))
    cuts = cut_borders(scan, extent_bytes=extent_bytes)
    borders = starts[cuts]
    crcs = scan.layout_crcs.astype("<u4").tobytes()
    layout = [crc32(crcs[first:end]) for first, end in pairwise((4 * cuts).tolist())]
    return Extents(borders[:-1], borders[1:], np.diff(cuts), np.diff(borders), np.array(layout, dtype=np.uint32))


def cut_borders(scan: ShardScan, *, extent_bytes: int) -> NDArray[np.int64]:
    """Return where `cut_extents` cuts a shard without pieces, as sample numbers from 0 to the number of samples."""
    starts, num_samples = scan.sample_starts, scan.num_samples
    # round(extent_bytes * S / bytes) in integers, halves up: the rule must give equal results everywhere.
    num_bytes = int(starts[-1] - starts[0])
    per_extent = max(1, (2 * extent_bytes * num_samples + num_bytes) // (2 * num_bytes))
    return even_cuts(num_samples, size=per_extent)


def layout_of(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the layout CRCs of extents with one CRC each, of a piece or a single sample; same shape."""
    return np.array([crc32(crc.tobytes()) for crc in crcs.astype("<u4")], dtype=np.uint32)


def cut_chunks(index: Index, *, extents_per_chunk: int) -> ChunkTable:
    """Cut each shard's X extents into ``ceil(X / extents_per_chunk)`` chunks whose extents differ by at most one.

    Cuts are even, without a short remainder: chunk sizes within a shard stay within a factor of two. A chunk never
    crosses a shard border. O(num_chunks), vectorised, and 8 bytes per chunk. Chunks of one extent share the columns of
    the index, which all processes map: copies of 10^7 rows would take 0.4 s, and 0.5 GB per process. Raises
    `UsageError` if ``extents_per_chunk`` is not positive.
    """
    if extents_per_chunk < 1:
        msg = f"extents_per_chunk={extents_per_chunk} is not positive"
        raise UsageError(msg, hint="a chunk holds at least one extent")
    if extents_per_chunk == 1:
        end_byte = with_headers_behind(index.extent_end_byte, index.extent_shard, header_limits(index))
        columns = ChunkColumns(index.extent_shard, index.extent_first_byte, end_byte, index.extent_decoded_bytes)
        return ChunkTable(index.extent_first_sample, columns, index.extent_num_samples)
    cut = EvenCut(index, extents_per_chunk=extents_per_chunk)
    return ChunkTable(cut.borders(), cut)
