"""Files of a chunk cache, with checksums that reveal changed bytes."""

from __future__ import annotations

import os
import struct
import zlib

from shoal.storage.files.local_store import read_fully

# The footer follows the bytes, so that they are read straight into the returned object.
_FOOTER = struct.Struct("<4sIQ")
_MAGIC = b"shl1"
FOOTER_BYTES = _FOOTER.size


def read_checked(descriptor: int, name: str, num_bytes: int) -> bytes | None:
    """Return the bytes of a chunk; None if they have changed since they were written under this name."""
    footer = os.pread(descriptor, FOOTER_BYTES + 1, num_bytes)
    if len(footer) != FOOTER_BYTES:
        return None
    magic, crc, size = _FOOTER.unpack(footer)
    if magic != _MAGIC or size != num_bytes:
        return None
    data = read_fully(descriptor, 0, num_bytes)
    return data if len(data) == num_bytes and zlib.crc32(data, zlib.crc32(name.encode())) == crc else None


def write_checked(descriptor: int, data: bytes, name: str) -> None:
    """Write the bytes and the footer that `read_checked` compares."""
    crc = zlib.crc32(data, zlib.crc32(name.encode()))
    write_all(descriptor, data, 0)
    write_all(descriptor, _FOOTER.pack(_MAGIC, crc, len(data)), len(data))


def write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write all the bytes at a position of a file."""
    rest = memoryview(data)
    while rest:
        num_written = os.pwrite(descriptor, rest, position)
        position, rest = position + num_written, rest[num_written:]
