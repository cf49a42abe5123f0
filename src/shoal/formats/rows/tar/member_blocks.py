"""Blocks of many tar members laid out at once: headers in place, with room for the payloads between them.

Writing one header alone takes 3 us; here a few numpy steps over all of them take 0.5 us each, for identical bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.formats.rows.tar.header_fields import BLOCK_BYTES, NAME_BYTES
from shoal.formats.rows.tar.writer import MOST_OCTAL_BYTES, plain_header
from shoal.formats.writing.encoder import RecordBlock
from shoal.formats.writing.joined_checksums import joined_crcs

_SIZE = slice(124, 135)
_SUM = slice(148, 154)
_SIZE_SHIFTS = np.arange(30, -1, -3, dtype=np.int64)
_SUM_SHIFTS = np.arange(15, -1, -3, dtype=np.int64)
# A header with no name, size 0 and zeros as checksum digits; its CRC, and its true checksum.
_TEMPLATE = np.frombuffer(plain_header(b"", 0), dtype=np.uint8).copy()
_TEMPLATE[_SUM] = ord("0")
_TEMPLATE_CRC = crc32(_TEMPLATE.tobytes())
_BASE_SUM = int(plain_header(b"", 0)[_SUM], 8)


@dataclass(frozen=True, slots=True, eq=False)
class MemberBlock:
    """Members laid out in ``data``: member ``i`` has its header at ``headers[i]``, followed by its payload.

    ``header_crcs`` are the CRC-32 of the headers. All arrays have shape (num_members,).
    """

    data: bytearray
    headers: NDArray[np.int64]
    ends: NDArray[np.int64]
    header_crcs: NDArray[np.uint32]

    @property
    def payloads(self) -> NDArray[np.int64]:
        """Start of each member's payload; shape (num_members,)."""
        return self.headers + BLOCK_BYTES

    def records(self, *, members_each: int) -> RecordBlock:
        """Return the records of ``members_each`` members, once all payloads are in place; 0.5 us plus 0.4 us per KB."""
        view = memoryview(self.data)
        ends = self.ends[members_each - 1 :: members_each]
        groups = np.arange(0, len(self.headers) + 1, members_each)
        layouts = joined_crcs(self.header_crcs, np.full(len(self.headers), BLOCK_BYTES), groups)
        # The CRC of the first header is known, so each CRC continues from it.
        firsts = self.headers[::members_each]
        columns = self.payloads[::members_each].tolist(), ends.tolist(), self.header_crcs[::members_each].tolist()
        crcs = [crc32(view[start:end], crc) for start, end, crc in zip(*columns, strict=True)]
        return RecordBlock(self.data, ends - firsts, layouts, np.array(crcs, dtype=np.uint32))


def laid_out(names: Sequence[bytes], num_bytes: NDArray[np.int64]) -> MemberBlock | None:
    """Lay out members of these names and sizes in a row; None if one of them needs more than a plain header.

    The names are not checked. ``num_bytes`` has shape (len(names),).
    """
    if max(map(len, names)) > NAME_BYTES or int(num_bytes.max()) > MOST_OCTAL_BYTES:
        return None
    blocks = 1 + (num_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
    ends = np.cumsum(blocks)
    data = bytearray(int(ends[-1]) * BLOCK_BYTES)
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, BLOCK_BYTES)
    first = ends - blocks
    headers = _headers(names, num_bytes)
    rows[first] = headers
    return MemberBlock(data, first * BLOCK_BYTES, ends * BLOCK_BYTES, _header_crcs(headers, max(map(len, names))))


def _header_crcs(headers: NDArray[np.uint8], longest: int) -> NDArray[np.uint32]:
    """Return the CRC-32 of headers whose names have at most ``longest`` bytes; shape (num_members,).

    The CRC of a text follows from the CRC of another text of equal length and a term for each byte that differs: one
    look-up for each of 20 to 120 bytes, over all headers at once, in 0.1 us, while zlib takes 0.4 us over all 512.
    """
    crcs = np.full(len(headers), _TEMPLATE_CRC, dtype=np.uint32)
    for byte in (*range(longest), *range(_SIZE.start, _SIZE.stop), *range(_SUM.start, _SUM.stop)):
        crcs ^= _byte_crcs(byte)[headers[:, byte]]
    return crcs


@cache
def _byte_crcs(byte: int) -> NDArray[np.uint32]:
    """Return the contribution of this byte of the header to the CRC, by its value; shape (256,)."""
    header = bytearray(_TEMPLATE.tobytes())
    crcs = np.empty(256, dtype=np.uint32)
    for value in range(256):
        header[byte] = value
        crcs[value] = crc32(header)
    crcs ^= np.uint32(_TEMPLATE_CRC)
    return crcs


def _headers(names: Sequence[bytes], num_bytes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the headers of members; shape (num_members, 512)."""
    headers = np.empty((len(names), BLOCK_BYTES), dtype=np.uint8)
    headers[:] = _TEMPLATE
    letters = np.array(names, dtype=f"S{NAME_BYTES}").view(np.uint8).reshape(-1, NAME_BYTES)
    digits = (num_bytes[:, None] >> _SIZE_SHIFTS) & 7
    headers[:, :NAME_BYTES] = letters
    headers[:, _SIZE] += digits.astype(np.uint8)
    sums = _BASE_SUM + letters.sum(axis=1, dtype=np.int64) + digits.sum(axis=1)
    headers[:, _SUM] += ((sums[:, None] >> _SUM_SHIFTS) & 7).astype(np.uint8)
    return headers
