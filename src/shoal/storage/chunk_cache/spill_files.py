"""Files of decoded pieces, spilled part by part, with checksums like chunks.

The size of a decoded piece is not known beforehand: space is reserved in steps while it grows. A table after the parts
has the end and the checksum of each: one part takes three small reads, and nothing of the file stays in memory.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.storage.chunk_cache.chunk_files import write_all
from shoal.storage.files.local_store import read_fully

_SPILL_MAGIC = b"shs2"
_ENTRY = struct.Struct("<QI")  # of each part: its end, and `_part_crc`
_PART = struct.Struct("<QQQ")
_NUMBERS = struct.Struct("<6Q")
_SPILL_FOOTER = struct.Struct("<4sIQQQQQI")  # magic, CRC of the rest with the name, and the numbers of `_SpillFooter`
_STEP_BYTES = 16 << 20
_AT_ONCE_BYTES = 1 << 20


class NoRoomError(Exception):
    """Failure to grow the file: no budget is left, or, with a ``reason``, the file system failed."""

    def __init__(self, reason: OSError | None = None) -> None:
        super().__init__("the chunk cache has no room")
        self.reason = reason


class _Spilling(Protocol):
    """Division of appended bytes into parts, which `shoal.formats.shard_format.Spilled` describes."""

    @property
    def borders(self) -> NDArray[np.int64]: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def samples_per_part(self) -> int: ...
    @property
    def head(self) -> Mapping[str, Any]: ...


class SpilledPart(NamedTuple):
    """The bytes of a part, from ``first_byte`` of the piece on; ``number`` is the requested sample in the part."""

    data: bytes
    first_byte: int
    number: int
    num_samples: int
    head: Mapping[str, Any]


class _SpillFooter(NamedTuple):
    base: int
    content_bytes: int
    num_parts: int
    num_samples: int
    samples_per_part: int
    head_bytes: int


class SpillFile:
    """A claimed file that grows.

    ``reserve`` reserves the space for a file of some size, and returns True on success. Every failure of the file is a
    `NoRoomError`, so that it is not mistaken for damage of the data.
    """

    def __init__(self, descriptor: int, name: str, reserve: Callable[[int], bool]) -> None:
        self._descriptor, self._name, self._reserve = descriptor, name, reserve
        self._reserved_bytes = os.fstat(descriptor).st_size
        self.num_bytes = self._base = 0

    def append(self, data: bytes | bytearray | memoryview, /) -> None:
        """Append bytes to the file."""
        view = memoryview(data).cast("B")
        size = self.num_bytes + len(view)
        try:
            if size > self._reserved_bytes:
                if not any(self._reserve(step) for step in (size + _STEP_BYTES, size)):
                    raise NoRoomError
                self._reserved_bytes = os.fstat(self._descriptor).st_size
            write_all(self._descriptor, view, self.num_bytes)
        except OSError as error:
            raise NoRoomError(error) from None
        self.num_bytes = size

    def restart(self) -> None:
        """Discard all appended bytes: they were damaged."""
        self.num_bytes = self._base = 0

    def begin_here(self) -> None:
        """Begin the parts after the bytes appended so far; `read_before` returns these bytes."""
        self._base = self.num_bytes

    def read_before(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return a range of the bytes appended before the parts."""
        return self._read(first_byte, min(end_byte, self._base))

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return a range of the appended bytes, counted from where the parts begin."""
        return self._read(self._base + first_byte, self._base + end_byte)

    def _read(self, first_byte: int, end_byte: int) -> bytes:
        try:
            return read_fully(self._descriptor, first_byte, end_byte)
        except OSError as error:
            raise NoRoomError(error) from None

    def finish(self, spilled: _Spilling) -> None:
        """Append table, head and footer, which locate the parts."""
        content_bytes, head = self.num_bytes - self._base, json.dumps(dict(spilled.head)).encode()
        ends = spilled.borders.tolist()
        table = bytearray(_ENTRY.pack(ends[0], 0))
        position, window = 0, b""
        for part, (first, end) in enumerate(pairwise(ends)):
            if end - position > len(window):
                position, window = first, self.read(first, min(content_bytes, max(end, first + _AT_ONCE_BYTES)))
            table += _ENTRY.pack(end, _part_crc(part, first, memoryview(window)[first - position : end - position]))
            if len(table) >= _AT_ONCE_BYTES:
                self.append(table)
                table.clear()
        self.append(table)
        self.append(head)
        per_part = spilled.samples_per_part
        numbers = _SpillFooter(self._base, content_bytes, len(ends) - 1, spilled.num_samples, per_part, len(head))
        self.append(_SPILL_FOOTER.pack(_SPILL_MAGIC, _footer_crc(self._name, head, numbers), *numbers))


Spill = Callable[[SpillFile], _Spilling]
"""A function that appends a decoded piece to a file, and returns its division into parts."""


def read_part(descriptor: int, *, name: str, sample: int) -> SpilledPart | None:
    """Return the part that holds a sample; None if the file has changed since it was written under this name."""
    end = os.fstat(descriptor).st_size - _SPILL_FOOTER.size
    if end < 0:
        return None
    magic, crc, *footer = _SPILL_FOOTER.unpack(os.pread(descriptor, _SPILL_FOOTER.size, end))
    numbers = _SpillFooter(*footer)
    head = os.pread(descriptor, numbers.head_bytes, max(0, end - numbers.head_bytes)) if magic == _SPILL_MAGIC else b""
    if magic != _SPILL_MAGIC or crc != _footer_crc(name, head, numbers) or sample < 0:
        return None
    part, number = divmod(sample, numbers.samples_per_part)
    if part >= numbers.num_parts:
        return None
    table = numbers.base + numbers.content_bytes
    entries = os.pread(descriptor, 2 * _ENTRY.size, table + part * _ENTRY.size)
    (first_byte, _), (end_byte, crc) = _ENTRY.iter_unpack(entries)
    if not first_byte <= end_byte <= numbers.content_bytes:
        return None
    data = read_fully(descriptor, numbers.base + first_byte, numbers.base + end_byte)
    if _part_crc(part, first_byte, data) != crc:
        return None
    num_samples = min(numbers.samples_per_part, numbers.num_samples - part * numbers.samples_per_part)
    return SpilledPart(data, first_byte, number, num_samples, json.loads(head)) if number < num_samples else None


def _footer_crc(name: str, head: bytes, numbers: _SpillFooter) -> int:
    return zlib.crc32(_NUMBERS.pack(*numbers), zlib.crc32(head, zlib.crc32(name.encode())))


def _part_crc(part: int, first_byte: int, data: bytes | memoryview) -> int:
    """Return the CRC-32 of a part and its position: zeros, which reserved blocks hold until written, never match."""
    return zlib.crc32(data, zlib.crc32(_PART.pack(part, first_byte, first_byte + len(data))))
