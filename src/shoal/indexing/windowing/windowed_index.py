"""The index of windows, derived from the index of their rows without reading a byte.

A window belongs to the extent of its first row. So an extent begins where an extent of rows begins, and reaches behind
its own rows as far as its last window does (the halo). Both ends ascend within a shard, so consecutive extents can be
read as one chunk. Extents that would have a large halo are joined: else each of many small extents would read the rows
of the next ones again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.windows.row_offsets import EDGE, WindowShape, WindowTable
from shoal.formats.writing.joined_checksums import joined_crcs
from shoal.index.chunk_table import header_limits, with_headers_behind
from shoal.index.table import Index, joined_ranges

_OWN_FOR_HALO = 2  # an extent has this many bytes for each byte of its halo, if its shard has them

ROWS_IN_NO_WINDOW, EPISODES_TOO_SHORT = "rows_in_no_window", "episodes_without_window"
"""Notes of an index of windows."""


class _Cut(NamedTuple):
    """The extents of windows: extents of rows ``[first, end)`` each, their windows, and the last of its own extents."""

    first: NDArray[np.int64]
    end: NDArray[np.int64]
    num_windows: NDArray[np.int64]


def windowed_index(rows: Index, table: WindowTable, columns: Mapping[str, NDArray[Any]]) -> Index:
    """Return the index of the windows of some rows; ``columns`` has a value for each window."""
    cut = _cut(rows, table)
    shard, first_byte = rows.extent_shard[cut.first], rows.extent_first_byte[cut.first].astype(np.int64)
    limits = header_limits(rows)
    end_byte = with_headers_behind(rows.extent_end_byte[cut.end - 1].astype(np.int64), shard, limits)
    decoded_before = np.concatenate([[0], np.cumsum(rows.extent_decoded_bytes, dtype=np.int64)])
    metadata = {name: value for name, value in rows.metadata.items() if name != "windows"}
    return Index(
        format=rows.format,
        shard_names=rows.shard_names,
        shard_bytes=rows.shard_bytes,
        shard_versions=rows.shard_versions,
        shard_heads=rows.shard_heads,
        extent_shard=shard,
        extent_first_byte=first_byte,
        extent_end_byte=end_byte,
        extent_num_samples=cut.num_windows,
        extent_decoded_bytes=decoded_before[cut.end] - decoded_before[cut.first],
        extent_layout_crc=np.zeros(len(shard), dtype=np.uint32),  # shards are compared with the index of the rows
        extent_checksum=_checksums(rows, cut) if limits is None else None,
        sample_bytes=None,  # windows overlap
        fingerprint=_fingerprint(rows, table),
        columns=dict(columns),
        notes={
            **rows.notes,
            ROWS_IN_NO_WINDOW: rows.num_samples - table.num_rows_covered(),
            EPISODES_TOO_SHORT: int((np.diff(table.first_window) == 0).sum()),
        },
        metadata={**metadata, "windows": {**table.shape.to_dict(), "rows": rows.fingerprint}},
    )


def _cut(rows: Index, table: WindowTable) -> _Cut:
    """Cut the windows at borders of the extents of rows."""
    before = table.windows_before(rows.extent_first_sample.astype(np.int64))
    filled = np.flatnonzero(np.diff(before))
    _, end_rows = table.row_ranges(before[filled + 1] - 1)
    ends = np.searchsorted(rows.extent_first_sample, end_rows, side="left")
    last = _last_of_each(rows, filled, ends)
    first = np.concatenate([[0], last[:-1] + 1])
    return _Cut(filled[first], ends[last], before[filled[last] + 1] - before[filled[first]])


def _last_of_each(rows: Index, filled: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last of ``filled`` in each joined extent, so that halos are small; O(extents)."""
    halo_bytes = rows.extent_end_byte[ends - 1].astype(np.int64) - rows.extent_end_byte[filled].astype(np.int64)
    if not halo_bytes.any():
        return np.arange(len(filled))
    first_byte = rows.extent_first_byte[filled].astype(np.int64).tolist()
    # An extent that begins at or before this byte has enough bytes for the halo of its last part.
    enough = (rows.extent_end_byte[filled].astype(np.int64) - _OWN_FOR_HALO * halo_bytes).tolist()
    shard = rows.extent_shard[filled]
    ends_shard = np.append(shard[1:] != shard[:-1], True).tolist()
    last: list[int] = []
    begin = first_byte[0]
    for number, is_last in enumerate(ends_shard):
        if is_last or begin <= enough[number]:
            last.append(number)
            begin = first_byte[min(number + 1, len(first_byte) - 1)]
    return np.array(last, dtype=np.int64)


def _checksums(rows: Index, cut: _Cut) -> NDArray[np.uint32] | None:
    """Return the checksum of the bytes of each extent; None if the rows lack checksums, or their extents overlap."""
    if rows.extent_checksum is None:
        return None
    first, end = rows.extent_first_byte, rows.extent_end_byte
    if bool(((rows.extent_shard[1:] == rows.extent_shard[:-1]) & (first[1:] < end[:-1])).any()):
        return None
    counts = cut.end - cut.first
    parts = joined_ranges(cut.first, counts)
    cuts = np.concatenate([[0], np.cumsum(counts)])
    return joined_crcs(rows.extent_checksum[parts], (end - first).astype(np.int64)[parts], cuts)


def _fingerprint(rows: Index, table: WindowTable) -> str:
    """Return a digest of the rows, the shape of windows and the borders of episodes, and the shape in a few letters."""
    digest = hashlib.blake2b(b"shoal.windows.1\0", digest_size=16)
    digest.update(json.dumps([rows.fingerprint, table.shape.to_dict()], sort_keys=True).encode())
    digest.update(table.borders.astype("<i8").tobytes())
    return f"{digest.hexdigest()}-{_letters(table.shape)}"


def _letters(shape: WindowShape) -> str:
    words = [f"{shape.length}rows" if not shape.offsets else f"offsets{-shape.before}to{shape.after}"]
    words += [f"stride{shape.stride}"] if shape.stride > 1 else []
    words += [] if shape.pad is None else [EDGE if shape.pad == EDGE else f"pad{shape.pad}"]
    return "-".join(words)
