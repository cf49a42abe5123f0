"""CRC-32 of concatenated parts from the CRC-32 of each part: extents get checksums while records are written.

Appending n zero bytes to a text multiplies its CRC by x^(8 n) modulo the polynomial. The CRC of two texts in a row is
the CRC of the first, shifted by the length of the second, plus the CRC of the second. A shift by a power of two is four
tables of 256 each, so all records of a shard are shifted at once, a table step for each bit of their distance to the
end of the extent.

References
----------
M. Adler, ``crc32_combine`` in zlib; the tables are as in "slicing by four" (Kounavis and Berry, 2005).
"""

from __future__ import annotations

from functools import cache, reduce
from operator import xor

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0xEDB88320  # zlib's, bits reversed


def joined_crcs(crcs: NDArray[np.uint32], num_bytes: NDArray[np.int64], cuts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32 of each group of concatenated records ``[cuts[i], cuts[i + 1])`` from the CRCs of records.

    ``crcs`` and ``num_bytes`` have shape (num_records,); ``cuts`` (num_groups + 1,), ascending, without empty groups;
    the result (num_groups,). About 0.2 us a record of usual sizes.

    >>> from zlib import crc32
    >>> parts = [b"many small", b" ", b"things"]
    >>> crcs = np.array([crc32(part) for part in parts], dtype=np.uint32)
    >>> sizes = np.array([len(part) for part in parts])
    >>> joined_crcs(crcs, sizes, np.array([0, 3])).tolist() == [crc32(b"many small things")]
    True
    """
    if len(cuts) < 2:
        return np.zeros(0, dtype=np.uint32)
    ends = np.cumsum(num_bytes)
    groups = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
    distances = ends[cuts[1:] - 1][groups] - ends
    shifted = crcs.astype(np.uint32, copy=True)
    for bit in range(int(distances.max()).bit_length()):
        rows = np.flatnonzero((distances >> bit) & 1)
        tables, values = _tables(bit), shifted[rows]
        shifted[rows] = (
            tables[0][values & 0xFF]
            ^ tables[1][(values >> np.uint32(8)) & 0xFF]
            ^ tables[2][(values >> np.uint32(16)) & 0xFF]
            ^ tables[3][values >> np.uint32(24)]
        )
    result: NDArray[np.uint32] = np.bitwise_xor.reduceat(shifted, cuts[:-1])
    return result


@cache
def _tables(power: int) -> NDArray[np.uint32]:
    """Return the tables of a shift by ``2**power`` bytes; shape (4, 256)."""
    columns = _columns(power)
    tables = np.zeros((4, 256), dtype=np.uint32)
    values = np.arange(256)
    for number in range(4):
        for bit in range(8):
            tables[number] ^= np.where(values >> bit & 1, np.uint32(columns[8 * number + bit]), np.uint32(0))
    return tables


@cache
def _columns(power: int) -> tuple[int, ...]:
    """Return the result of a shift by ``2**power`` bytes for each single bit."""
    if power:
        half = _columns(power - 1)
        return tuple(reduce(xor, (half[bit] for bit in range(32) if value >> bit & 1), 0) for value in half)
    columns = []
    for bit in range(32):
        value = 1 << bit
        for _ in range(8):  # one byte of zeros is eight steps of division
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        columns.append(value)
    return tuple(columns)
