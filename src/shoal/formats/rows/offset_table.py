"""The table of sample offsets at the start of a shard, as MDS and LitData have it.

Layout: ``u32 n``, ``u32 offsets[n + 1]``, counted from the start of the file. A sample is a ``u32`` size for every
value of variable size, followed by the values one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.shard_format import ReadBytes
from shoal.index.shard_scan import Buffer


def table_bytes(num_samples: int) -> int:
    """Return the size of the table."""
    return 4 * (num_samples + 2)


def read_offsets(read: ReadBytes, num_bytes: int, *, shard: str, least_bytes: int, hint: str) -> NDArray[np.int64]:
    """Return the offsets where samples begin and the last one ends; shape (num_samples + 1,).

    Each sample has at least ``least_bytes``; the last one ends where the shard does. Raises `ShardError`: the table
    contradicts itself or the size of the shard.
    """
    num_samples = int(np.frombuffer(read(0, 4), "<u4")[0]) if num_bytes >= table_bytes(0) else -1
    end = table_bytes(num_samples)
    if num_samples < 0 or end > num_bytes:
        msg = f"a table of {num_samples} samples does not fit into {num_bytes} bytes"
        raise ShardError(msg, shard=shard, byte=0, hint=hint)
    starts: NDArray[np.int64] = np.frombuffer(read(4, end), "<u4").astype(np.int64)
    least = np.where(np.arange(num_samples + 1) > 0, least_bytes, 0)
    wrong = np.flatnonzero(np.diff(starts, prepend=end) < least)
    if wrong.size or starts[-1] != num_bytes:
        number = int(wrong[0]) if wrong.size else num_samples
        msg = f"sample {number} begins at byte {starts[number]} by the table of offsets; the shard has {num_bytes}"
        raise ShardError(msg, shard=shard, byte=4 * (1 + number), hint=hint)
    return starts


def offset_crcs(starts: Sequence[int] | NDArray[np.int64], first_byte: int = 0) -> NDArray[np.uint32]:
    """Return the CRC-32 of the two offsets of each sample, counted from ``first_byte``; shape (num_samples,)."""
    words = (np.asarray(starts, dtype=np.int64) + first_byte).astype("<u4")
    pairs = np.stack([words[:-1], words[1:]], axis=1).tobytes() if len(words) > 1 else b""
    return np.array([crc32(pairs[at : at + 8]) for at in range(0, len(pairs), 8)], dtype=np.uint32)


def walk_sizes(buffer: Buffer, num_samples: int, *, num_sizes: int, fixed_bytes: int = 0) -> list[int]:
    """Return where samples begin, by the sizes at the start of each; fewer if one ends outside the buffer."""
    starts = [0]
    while len(starts) <= num_samples and starts[-1] + 4 * num_sizes <= len(buffer):
        sizes = np.frombuffer(buffer, "<u4", count=num_sizes, offset=starts[-1])
        starts.append(starts[-1] + 4 * num_sizes + fixed_bytes + int(sizes.sum(dtype=np.int64)))
    return starts
