"""One file of a chunk cache: the bytes, followed by a footer that tells whether they are those that were written."""

from __future__ import annotations

import os
import struct
import zlib

# Behind the bytes and not before them, so that they are read straight into the object that is returned.
_FOOTER = struct.Struct("<4sIQ")
_MAGIC = b"shl1"
FOOTER_BYTES = _FOOTER.size


def read_checked(descriptor: int, name: str, num_bytes: int) -> bytes | None:
    """Return the bytes of a chunk, or None if they are not those that were written under this name."""
    footer = os.pread(descriptor, FOOTER_BYTES + 1, num_bytes)
    if len(footer) != FOOTER_BYTES:
        return None
    magic, crc, size = _FOOTER.unpack(footer)
    if magic != _MAGIC or size != num_bytes:
        return None
    data = os.pread(descriptor, num_bytes, 0)
    while len(data) < num_bytes:  # a signal, or more than 2 GiB
        more = os.pread(descriptor, num_bytes - len(data), len(data))
        if not more:
            return None
        data += more
    return data if zlib.crc32(data, zlib.crc32(name.encode())) == crc else None


def write_checked(descriptor: int, data: bytes, name: str) -> None:
    """Write the bytes, followed by the footer that `read_checked` compares."""
    crc = zlib.crc32(data, zlib.crc32(name.encode()))
    place = 0
    for part in (data, _FOOTER.pack(_MAGIC, crc, len(data))):
        rest = memoryview(part)
        while rest:
            num_written = os.pwrite(descriptor, rest, place)
            place, rest = place + num_written, rest[num_written:]


def allocate(descriptor: int, num_bytes: int) -> None:
    """Reserve disk space for a file of this size, where the file system can; raise `OSError` if there is not enough."""
    os.ftruncate(descriptor, num_bytes)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
