"""CRC-32C, the checksum of TFRecord: for many short byte strings at once, or for one long one."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.hints import pip_install
from shoal.index.shard_scan import Buffer

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_MASK_DELTA = 0xA282EAD8


def crc32c(data: Buffer) -> int:
    """Return the CRC-32C of a buffer, at about 6 GB/s.

    Raises `UsageError` if google-crc32c is not installed.
    """
    value: int = _library().value(data if isinstance(data, bytes) else bytes(data))
    return value


def crc32c_of_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC-32C of each row, shape (num_rows,), from ``rows`` of shape (num_rows, num_bytes)."""
    table = _table()
    crcs = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crcs = table[(crcs ^ column) & 0xFF] ^ (crcs >> np.uint32(8))
    return crcs ^ np.uint32(0xFFFFFFFF)


def masked(crcs: Any) -> Any:
    """Mask a CRC, an int or an array of uint32, as TFRecord does: rotate it, then add a constant.

    A checksum of data that holds checksums is weak, as a comment in TensorFlow's ``record_writer.h`` explains.
    """
    return ((crcs >> 15 | crcs << 17 & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF


@cache
def _table() -> NDArray[np.uint32]:
    """Return the effect of each byte value on the CRC; the usual table of 256."""
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), values >> np.uint32(1))
    return values


@cache
def _library() -> Any:
    try:
        import google_crc32c  # noqa: PLC0415  # optional
    except ImportError:
        msg = "TFRecord shards have CRC-32C checksums, but google-crc32c is not installed"
        raise UsageError(msg, hint=pip_install("google-crc32c")) from None
    return google_crc32c
