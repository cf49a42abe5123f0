"""Shards as files of Python, for formats whose library opens files; and ranges of a shard that an index keeps."""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.errors import ShardError
from shoal.formats.compressed.packed_heads import packed, unpacked, unusable
from shoal.formats.shard_format import ReadBytes
from shoal.index.shard_scan import Buffer

_NOTE = struct.Struct("<2q")


class FileOfRanges(io.RawIOBase):
    """A shard of ``num_bytes`` bytes as a file that is only read, and only where the library reads.

    ``failure`` is the error of the first failed read: raise it instead of the error that the library makes of it. With
    ``raises=False`` a failed read gives zeros, for C libraries that an error in the middle of a read can crash.

    Examples
    --------
    >>> data = b"one two"
    >>> file = shoal.formats.FileOfRanges(lambda first_byte, end_byte: data[first_byte:end_byte], len(data))
    >>> file.seek(4), file.read(3)
    (4, b'two')
    """

    def __init__(self, read: ReadBytes, num_bytes: int, *, raises: bool = True) -> None:
        self._read_range, self._num_bytes, self._position, self._raises = read, num_bytes, 0, raises
        self.failure: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position of the next read."""
        self._position = offset + (0, self._position, self._num_bytes)[whence]
        return self._position

    def read(self, size: int | None = -1) -> Any:
        """Return the next bytes, as the buffer that the shard's reader gives: pyarrow uses it without a copy."""
        first, end = self._position, self._num_bytes
        if size is not None and size >= 0:
            end = min(first + size, end)
        try:
            data = self._read_range(first, end) if first < end else b""
        except Exception as error:
            self.failure = self.failure or error
            if self._raises:
                raise
            data = bytes(end - first)
        self._position = max(first, end)
        return data

    def readinto(self, space: Any) -> int:
        """Read into a buffer; return the number of bytes, fewer only at the end."""
        data = self.read(len(space))
        space[: len(data)] = data
        return len(data)


class NotedReads:
    """A reader of a shard that notes what it reads, so that the index can keep these bytes: `packed`, `known_reads`.

    Examples
    --------
    >>> noted = shoal.formats.NotedReads(lambda first_byte, end_byte: b"one two"[first_byte:end_byte])
    >>> noted(0, 3), noted(4, 7), noted.num_bytes
    (b'one', b'two', 6)
    """

    def __init__(self, read: ReadBytes) -> None:
        self._read, self._notes = read, list[tuple[int, bytes]]()
        self.num_bytes = 0

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Read, and note the bytes."""
        data = self._read(first_byte, end_byte)
        self._notes.append((first_byte, bytes(data)))
        self.num_bytes += len(data)
        return data

    def keep(self, steps: Iterable[object], *, limit_bytes: int) -> bool:
        """Take the steps, which read; forget what they read, and return False, if it is more than ``limit_bytes``."""
        num_notes, before = len(self._notes), self.num_bytes
        for _ in steps:
            if self.num_bytes > before + limit_bytes:
                del self._notes[num_notes:]
                self.num_bytes = before
                return False
        return True

    def packed(self) -> str:
        """Return the noted ranges, each byte once, as text for the head of a shard."""
        ranges: list[tuple[int, bytearray]] = []
        for first, data in sorted(self._notes):
            if ranges and first <= ranges[-1][0] + len(ranges[-1][1]):
                before, known = ranges[-1]
                known += data[before + len(known) - first :]
            else:
                ranges.append((first, bytearray(data)))
        return packed(b"".join(_NOTE.pack(first, len(data)) + data for first, data in ranges))


def known_reads(
    head: Mapping[str, Any], name: str, piece: Buffer | ReadBytes, *, first_byte: int, end_byte: int, shard: str
) -> ReadBytes:
    """Return a reader of the ranges that a head keeps under a name, and of the bytes ``[first_byte, end_byte)``.

    These are the bytes of a ``piece``: the buffer of `Format.parse`, or the reader of `Format.spill`.
    Reading anything else raises `ShardError`. Raises `ShardError` if the head is damaged.

    Examples
    --------
    >>> noted = shoal.formats.NotedReads(lambda first_byte, end_byte: b"one two"[first_byte:end_byte])
    >>> head = {"kept": noted(0, 3) and noted.packed()}
    >>> read = shoal.formats.known_reads(head, "kept", b"two", first_byte=4, end_byte=7, shard="a.txt")
    >>> bytes(read(0, 3)), bytes(read(4, 6))
    (b'one', b'tw')
    """
    data, at = memoryview(unpacked(head, name, shard=shard)), 0
    firsts, ranges = list[int](), list[memoryview]()
    read_piece = piece if callable(piece) else _reader_of(memoryview(piece), first_byte)
    while at < len(data):
        try:
            first, size = _NOTE.unpack_from(data, at)
        except struct.error as error:
            raise unusable(name, error, shard=shard) from None
        firsts.append(first)
        ranges.append(data[at + _NOTE.size : at + _NOTE.size + size])
        at += _NOTE.size + max(size, 0)

    def read(first: int, end: int, /) -> Buffer:
        if (number := bisect_right(firsts, first) - 1) >= 0 and end - firsts[number] <= len(ranges[number]):
            return ranges[number][first - firsts[number] : end - firsts[number]]
        if first_byte <= first and end <= end_byte:
            return read_piece(first, end)
        msg = f"bytes [{first}, {end}) are needed, but neither the index nor bytes [{first_byte}, {end_byte}) have them"
        raise ShardError(msg, shard=shard, byte=first_byte, hint="another file? index the shard again")

    return read


def _reader_of(view: memoryview, first_byte: int) -> ReadBytes:
    return lambda first, end: view[first - first_byte : end - first_byte]
