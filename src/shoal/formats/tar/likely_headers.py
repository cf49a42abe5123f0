"""Guesses of where a member begins in the middle of a tar archive, by what a header looks like.

Payload may look like a header: an archive within the archive is full of them. So a guess says where to look, never what
is there.
"""

from __future__ import annotations

import numpy as np

from shoal.formats.tar.header_fields import BLOCK_BYTES, check_sums
from shoal.index.shard_scan import Buffer

_CHECKSUM_DIGITS = slice(148, 154)
_IS_DIGIT = np.isin(np.arange(256), list(b" 01234567"))
_NAME, _SIZE = 0, 124  # the first bytes of these fields
_IS_SIZE = np.isin(np.arange(256), [*b" 01234567", 0o200])  # 128: the size is in base 256


def likely_header(buffer: Buffer, first_byte: int) -> int | None:
    """Return the byte of the shard at which the first likely header in ``buffer`` lies; None if there is none.

    ``buffer`` begins at ``first_byte`` of the shard. A header is likely if it has a name and a size, and its checksum
    is right. About 20 ns for each 512 bytes.
    """
    skipped = -first_byte % BLOCK_BYTES
    num_blocks = max(0, len(buffer) - skipped) // BLOCK_BYTES
    if not num_blocks:
        return None
    blocks = np.frombuffer(buffer, np.uint8, num_blocks * BLOCK_BYTES, skipped).reshape(num_blocks, BLOCK_BYTES)
    likely = np.flatnonzero(_IS_SIZE[blocks[:, _SIZE]])
    likely = likely[blocks[likely, _NAME] != 0]
    likely = likely[_IS_DIGIT[blocks[likely, _CHECKSUM_DIGITS]].all(axis=1)]
    right = likely[check_sums(blocks[likely])]
    return first_byte + skipped + BLOCK_BYTES * int(right[0]) if right.size else None
