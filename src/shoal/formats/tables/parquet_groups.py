"""Footers of Parquet shards: their row groups, and files of pyarrow that read ranges of a shard."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from inspect import signature
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.errors import ShardError
from shoal.formats.by_library.file_of_ranges import FileOfRanges
from shoal.formats.compressed.packed_heads import number_of, unpacked, unusable
from shoal.formats.shard_format import ReadBytes, Span
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.extension_types import footer_without_extensions
from shoal.formats.tables.parquet_footer import FooterGroup, groups_in
from shoal.index.shard_scan import Buffer

_MAGIC = b"PAR1"
KEPT = "footer"  # kept in the head
_TAIL_BYTES = 64 << 10  # read at once: most footers fit
_FOOTER_LIMIT_BYTES = 256 << 20
_CACHED_FOOTERS = 128
_NO_SHARD = "this is not a Parquet shard, or it is encrypted or damaged"
# Before version 1.2.9, parquet-mr did not count the dictionary header in a column's size (PARQUET-816), so pyarrow
# reads this many more bytes of each column of such files.
_UNCOUNTED_BYTES = 100
_FIRST_TO_COUNT = (1, 2, 9)


class Group(NamedTuple):
    """A row group: its number in the file, the byte range of its pages, its rows, and its decompressed size."""

    number: int
    first_byte: int
    end_byte: int
    num_rows: int
    decoded_bytes: int

    @property
    def crc(self) -> int:
        """The CRC of the place of the row group."""
        return zlib.crc32(struct.pack("<4q", self.number, self.first_byte, self.end_byte, self.num_rows))


class Footer(NamedTuple):
    """A parsed footer, and files opened with it: opening a file takes a third as long as reading 64 KiB.

    Each file is used by one thread at a time: lists append and pop an entry atomically.
    """

    metadata: Any
    groups: list[Group]
    files: list[tuple[_LoadedRange, Any]]
    options: Mapping[str, Any] = MappingProxyType({})

    def file(self, num_bytes: int) -> tuple[_LoadedRange, Any]:
        """Return an empty range of a file, and the file opened by pyarrow."""
        try:
            return self.files.pop()
        except IndexError:
            loaded = _LoadedRange(_uncounted_bytes(self.metadata))
            return loaded, opened_file(FileOfRanges(loaded.read, num_bytes), self.metadata, **self.options)


class _LoadedRange:
    """The one range of a file that is in memory; reading anything else is an error.

    Up to ``unused_bytes`` after it read as zeros: pyarrow requests them, but does not use them.
    """

    def __init__(self, unused_bytes: int) -> None:
        self._unused_bytes = unused_bytes
        self.load(b"", 0)

    def load(self, data: Buffer, first_byte: int) -> None:
        """Replace the range in memory."""
        self._data, self._first_byte = memoryview(data), first_byte

    def read(self, begin: int, end: int, /) -> Buffer:
        first, last = begin - self._first_byte, end - self._first_byte
        if not 0 <= first <= last <= len(self._data) + self._unused_bytes:
            raise OSError(f"bytes [{begin}, {end}) of the file were requested, but no row group that was read has them")
        if last <= len(self._data):
            return self._data[first:last]
        return bytes(self._data[first:]).ljust(last - first, b"\0")


def groups_at(span: Span, end_byte: int, int96_unit: str | None = None) -> tuple[Footer, list[Group]]:
    """Return the footer of a shard, and the row groups of a span."""
    num_bytes = number_of(span.head, "num_bytes", shard=span.shard)
    footer = _kept_footer(str(span.head.get(KEPT)), num_bytes, span.shard, int96_unit)
    return footer, [
        group for group in footer.groups if span.first_byte <= group.first_byte and group.end_byte <= end_byte
    ]


def _metadata(footer: bytes) -> Any:
    """Parse a footer, given to pyarrow as a file without row groups."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # optional, and slow to import

    return pq.read_metadata(io.BytesIO(_MAGIC + footer_without_extensions(footer)))


def opened_file(ranges: FileOfRanges, metadata: Any, **options: Any) -> Any:
    """Open a file by its footer; types that Parquet itself names (UUID) give their storage, too."""
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415  # optional, and slow to import

    if "arrow_extensions_enabled" in signature(ParquetFile).parameters:  # pyarrow 21 and newer; before, always False
        options |= {"arrow_extensions_enabled": False}
    return ParquetFile(ranges, metadata=metadata, pre_buffer=False, **options)


def no_bytes(begin: int, end: int, /) -> bytes:
    """Refuse to read a range: only the footer of the file is known."""
    raise OSError(f"bytes [{begin}, {end}) of a file were requested, but only the footer is known")


def metadata_in(head: Mapping[str, Any]) -> Any:
    """Return the metadata of pyarrow that the head of a shard keeps; raises `IndexFileError` if it is damaged."""
    footer = unpacked(head, KEPT)
    try:
        groups_in(footer[:-8])  # raises where pyarrow would crash the process
        return _metadata(footer)
    except (arrow_library("Parquet").ArrowException, OSError, ValueError) as error:
        raise unusable(KEPT, error) from None


def footer_of(read: ReadBytes, num_bytes: int, shard: str) -> bytes:
    """Return the footer with the length and the magic number after it."""
    if num_bytes < 12:
        raise ShardError(f"it has {num_bytes} bytes, too few for a footer", shard=shard, byte=0, hint=_NO_SHARD)
    tail = bytes(read(max(0, num_bytes - _TAIL_BYTES), num_bytes))
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != _MAGIC or length + 4 > num_bytes or length > _FOOTER_LIMIT_BYTES:
        msg = f"the last 8 bytes are {tail[-8:]!r}, not the length of a footer and {_MAGIC!r}"
        raise ShardError(msg, shard=shard, byte=num_bytes - 8, hint=_NO_SHARD)
    return tail[-length:] if length <= len(tail) else bytes(read(num_bytes - length, num_bytes))


@lru_cache(maxsize=_CACHED_FOOTERS)
def _kept_footer(text: str, num_bytes: int, shard: str, int96_unit: str | None) -> Footer:
    """Parse the footer in a head; cached, since parsing takes longer than reading a row group."""
    footer = unpacked({KEPT: text}, KEPT, shard=shard)
    groups = groups_of(footer, num_bytes, shard)
    options = {} if int96_unit is None else {"coerce_int96_timestamp_unit": int96_unit}
    return Footer(_metadata(footer), groups, [], options)


def groups_of(footer: bytes, num_bytes: int, shard: str) -> list[Group]:
    """Return the row groups that have rows, in file order."""
    pa = arrow_library("Parquet")
    footer_begin = num_bytes - len(footer)
    try:
        groups = [_group(group, number) for number, group in enumerate(groups_in(footer[:-8]))]
        uncounted_bytes = _uncounted_bytes(_metadata(footer))  # after groups_in, which raises where pyarrow would crash
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = f"the footer cannot be read: {error}"
        raise ShardError(msg, shard=shard, byte=footer_begin, hint=_NO_SHARD) from None
    groups = sorted((group for group in groups if group.num_rows), key=lambda group: group.first_byte)
    ends = [group.first_byte for group in groups[1:]] + [footer_begin] * bool(groups)
    for group, end in zip(groups, ends, strict=True):
        if not 4 <= group.first_byte < group.end_byte <= end or min(group.num_rows, group.decoded_bytes) < 0:
            where = f"bytes [{group.first_byte}, {group.end_byte})"
            msg = f"row group {group.number} would have {group.num_rows} rows at {where}"
            raise ShardError(msg, shard=shard, byte=footer_begin, hint=_NO_SHARD)
    if any(group.number > after.number for group, after in pairwise(groups)):
        msg = "the row groups are not stored in order"
        raise ShardError(msg, shard=shard, byte=footer_begin, hint="write the shard again with any writer of Parquet")
    # Every row group except the last reaches to the start of the next.
    ends[-1:] = [min(group.end_byte + uncounted_bytes, footer_begin) for group in groups[-1:]]
    return [group._replace(end_byte=end) for group, end in zip(groups, ends, strict=True)]


def _uncounted_bytes(metadata: Any) -> int:
    """Return how many bytes a column may have beyond its stated size: 0, except from old writers."""
    writer, _, version = str(metadata.created_by).lower().partition(" version ")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0])[:3])
    return _UNCOUNTED_BYTES if writer.strip() == "parquet-mr" and numbers < _FIRST_TO_COUNT else 0


def _group(group: FooterGroup, number: int) -> Group:
    starts = [
        min(column.dictionary_offset or column.data_offset, column.data_offset)  # some writers say 0 for none
        for column in group.columns
    ]
    ends = [start + column.compressed_bytes for start, column in zip(starts, group.columns, strict=True)]
    decoded = sum(max(column.decoded_bytes, column.value_bytes) for column in group.columns)
    if max(abs(decoded), group.num_rows) >= 1 << 62:
        raise ValueError(f"row group {number} would have {group.num_rows} rows in {decoded} bytes")
    return Group(number, min(starts, default=0), max(ends, default=0), group.num_rows, decoded)
