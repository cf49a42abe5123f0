"""Parquet shards: a row group is a piece, since its columns are compressed as wholes.

The index keeps the footer, which lists the position of each row group, so later reads are of row groups alone.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShardError
from shoal.formats.compressed.packed_heads import number_of, packed, unpacked, unusable
from shoal.formats.decoding.hf_features import features_in
from shoal.formats.field_columns import wanted_of
from shoal.formats.shard_format import Format, ReadBytes, Span, Spilled, SpillSpace
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.extension_types import footer_without_extensions, shaped_schema
from shoal.formats.tables.file_of_ranges import FileOfRanges
from shoal.formats.tables.parquet_footer import FooterGroup, groups_in
from shoal.formats.tables.table_rows import (
    OTHER_FILE,
    TableRecords,
    partition_fields,
    rows_of_part,
    spilled_rows,
    table_of_part,
)
from shoal.hints import did_you_mean
from shoal.index.shard_scan import Buffer, ShardScan

_MAGIC = b"PAR1"
_KEPT = "footer"  # kept in the head
_TAIL_BYTES = 64 << 10  # read at once: most footers fit
_FOOTER_LIMIT_BYTES = 256 << 20
_CACHED_FOOTERS = 128
_BUFFERS_BYTES = 32 << 20  # for read-ahead in all columns of a row group that is read incrementally
# Before version 1.2.9, parquet-mr did not count the dictionary header in a column's size (PARQUET-816), so pyarrow
# reads this many more bytes of each column of such files.
_UNCOUNTED_BYTES = 100
_FIRST_TO_COUNT = (1, 2, 9)
_NO_SHARD = "this is not a Parquet shard, or it is encrypted or damaged"
_MISSING_LISTS = "install pyarrow 26: older ones cannot read missing lists of a fixed size from Parquet"
_NOT_BY_PYARROW = "leave the column out: format=shoal.formats.Parquet(columns=[...]); or write smaller row groups"


class _Group(NamedTuple):
    """A row group: its number in the file, the byte range of its pages, its rows, and its decompressed size."""

    number: int
    first_byte: int
    end_byte: int
    num_rows: int
    decoded_bytes: int

    @property
    def crc(self) -> int:
        return zlib.crc32(struct.pack("<4q", self.number, self.first_byte, self.end_byte, self.num_rows))


class Parquet(Format):
    """The format of columns in row groups; a sample is a row.

    ``columns`` are the names of the decoded columns (all by default). Directories named ``column=value`` give a field
    to all rows below them.

    Examples
    --------
    >>> packed = shoal.pack.pack([{"text": "a cat", "label": 0}], "packed", format="parquet")
    >>> shoal.open("packed", format=shoal.formats.Parquet(columns=["label"]))[0]
    {'label': 0}
    """

    name: str = "parquet"
    suffixes: tuple[str, ...] = (".parquet", ".pq")
    has_columns = reads_fields = True

    def __init__(self, *, columns: Sequence[str] | None = None) -> None:
        self.columns = None if columns is None else tuple(columns)
        self._projection: tuple[str, ...] | None = None
        self.spilled_as = f"{self.name} {self.columns} None"

    def projected(self, names: Sequence[str]) -> Parquet:
        """Return a copy that decodes only these columns of shards that have all of them."""
        projected = Parquet(columns=self.columns)
        projected._projection = tuple(names)
        projected.spilled_as = f"{self.name} {self.columns} {projected._projection}"
        return projected

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read only the footer; row groups without rows are left out.

        Raises `ShardError` if there is no footer, or its contents are impossible.
        """
        footer = _footer(read, num_bytes, shard)
        groups = _groups(footer, num_bytes, shard)
        borders = [group.first_byte for group in groups] + [group.end_byte for group in groups[-1:]]
        return ShardScan(
            np.array(borders or [0], dtype=np.int64),
            np.array([group.crc for group in groups], dtype=np.uint32),
            head={_KEPT: packed(footer), "num_bytes": num_bytes},
            piece_samples=np.array([group.num_rows for group in groups], dtype=np.int64),
            piece_decoded_bytes=np.array([group.decoded_bytes for group in groups], dtype=np.int64),
        )

    def parse(self, buffer: Buffer, span: Span) -> TableRecords:
        """Decode row groups; memory O(their decoded size).

        Raises `ShardError` if they cannot be decoded, or have another number of rows than the index says.
        """
        end_byte = span.first_byte + len(buffer)
        footer, groups = _groups_at(span, end_byte)
        with _decoding(groups, span):
            loaded, file = footer.file(number_of(span.head, "num_bytes", shard=span.shard))
            loaded.load(buffer, span.first_byte)
            table = _rows_of(file, [group.number for group in groups], self._decoded_columns(file, span.shard))
            loaded.load(b"", 0)
            footer.files.append((loaded, file))  # not after an error, which leaves its state unknown
        return self._group_records(table, groups, span, end_byte)

    def read_fields(self, read: ReadBytes, end_byte: int, span: Span) -> TableRecords:
        """Decode row groups and read only the pages of the wanted columns; raises `ShardError` as `parse`."""
        footer, groups = _groups_at(span, end_byte)
        ranges = FileOfRanges(read, number_of(span.head, "num_bytes", shard=span.shard))
        with _decoding(groups, span, ranges):
            file = _opened(ranges, footer.metadata)
            table = _rows_of(file, [group.number for group in groups], self._decoded_columns(file, span.shard))
        return self._group_records(table, groups, span, end_byte)

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Spill the rows of row groups, a few per part; memory: some pages per column. Raises as `parse`."""
        footer, groups = _groups_at(span, end_byte)
        ranges = FileOfRanges(read, number_of(span.head, "num_bytes", shard=span.shard))
        buffer_bytes = min(max(_BUFFERS_BYTES // max(1, footer.metadata.num_columns), 64 << 10), 1 << 20)
        with _decoding(groups, span, ranges):
            file = _opened(ranges, footer.metadata, buffer_size=buffer_bytes)
            decoded_bytes = sum(group.decoded_bytes for group in groups)
            rows = rows_of_part(span.num_samples, decoded_bytes, file.schema_arrow)
            numbers, columns = [group.number for group in groups], self._decoded_columns(file, span.shard)
            spilled = spilled_rows(file.iter_batches(rows, numbers, columns=columns, use_threads=False), rows, space)
        _check_rows(spilled.num_samples, span, end_byte)
        return spilled

    def parse_part(self, data: bytes, span: Span) -> TableRecords:
        """Open one spilled part."""
        return self._records(table_of_part(data), [], span.shard, None)

    def _group_records(self, table: Any, groups: Sequence[_Group], span: Span, end_byte: int) -> TableRecords:
        _check_rows(table.num_rows, span, end_byte)
        return self._records(table, [group.crc for group in groups], span.shard, span.first_byte)

    def _records(self, table: Any, crcs: Sequence[int], shard: str, byte: int | None) -> TableRecords:
        constants = partition_fields(shard)
        if self.columns is not None:
            constants = {name: value for name, value in constants.items() if name in self.columns}
        return TableRecords(table, crcs, shard=shard, byte=byte, constants=constants)

    def features(self, head: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the Hugging Face ``datasets`` features in the footer of a shard."""
        return features_in(_metadata_in(head).metadata)

    def schema(self, head: Mapping[str, Any]) -> Any:
        """Return the Arrow schema of a shard with all its columns."""
        try:
            return shaped_schema(_opened(FileOfRanges(_no_bytes, 0), _metadata_in(head)).schema_arrow)
        except ValueError as error:
            raise unusable(_KEPT, error) from None

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the columns."""
        return self.columns or (self.schema(head).names if head else None)

    def _decoded_columns(self, file: Any, shard: str) -> list[str] | None:
        names, directories = file.schema_arrow.names, partition_fields(shard)
        if self.columns is None:
            if self._projection is None:
                return None
            return list(wanted_of(names, [name for name in self._projection if name not in directories]))
        if missing := [name for name in self.columns if name not in names and name not in directories]:
            msg = f"there is no column {missing[0]!r}; the columns are {', '.join(names)}"
            hint = did_you_mean(missing[0], names) + "correct columns=, or leave it out"
            raise ShardError(msg, shard=shard, hint=hint)
        return [name for name in self.columns if name in names]


class _Footer(NamedTuple):
    """A parsed footer, and files opened with it: opening a file takes a third as long as reading 64 KiB.

    Each file is used by one thread at a time: lists append and pop an entry atomically.
    """

    metadata: Any
    groups: list[_Group]
    files: list[tuple[_LoadedRange, Any]]

    def file(self, num_bytes: int) -> tuple[_LoadedRange, Any]:
        """Return an empty range of a file, and the file opened by pyarrow."""
        try:
            return self.files.pop()
        except IndexError:
            loaded = _LoadedRange(_uncounted_bytes(self.metadata))
            return loaded, _opened(FileOfRanges(loaded.read, num_bytes), self.metadata)


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


def _groups_at(span: Span, end_byte: int) -> tuple[_Footer, list[_Group]]:
    """Return the footer of a shard, and the row groups of a span."""
    footer = _kept_footer(str(span.head.get(_KEPT)), number_of(span.head, "num_bytes", shard=span.shard), span.shard)
    return footer, [
        group for group in footer.groups if span.first_byte <= group.first_byte and group.end_byte <= end_byte
    ]


def _rows_of(file: Any, numbers: Sequence[int], columns: Sequence[str] | None) -> Any:
    """Return the rows of some row groups as one table."""
    # Without pyarrow's threads: after an error in a damaged column they went on decoding other columns, and crashed the
    # process. Chunks are decoded side by side anyway.
    pa = arrow_library("Parquet")
    try:
        return file.read_row_groups(numbers, columns=columns, use_threads=False)
    except pa.ArrowNotImplementedError:
        # pyarrow reads dictionaries inside structs and lists only from one row group at a time.
        if len(numbers) == 1:
            raise
        return pa.concat_tables([file.read_row_group(number, columns=columns, use_threads=False) for number in numbers])


@contextmanager
def _decoding(groups: Sequence[_Group], span: Span, ranges: FileOfRanges | None = None) -> Iterator[None]:
    """Turn pyarrow's errors into `ShardError`, except the error of a failed read of ``ranges``."""
    try:
        yield
    except (arrow_library("Parquet").ArrowException, OSError, ValueError) as error:
        if ranges is not None and ranges.failure is not None:
            raise ranges.failure from None
        msg, hint = f"row groups {[group.number for group in groups]} cannot be decoded: {error}", OTHER_FILE
        if isinstance(error, NotImplementedError):
            hint = _NOT_BY_PYARROW
        elif re.search(r"lists to be of size=\d+ but index \d+ had size=0", str(error)):  # pyarrow before 26
            hint = _MISSING_LISTS
        raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=hint) from None


def _check_rows(num_rows: int, span: Span, end_byte: int) -> None:
    if num_rows != span.num_samples:
        where = f"bytes [{span.first_byte}, {end_byte})"
        msg = f"the index says {span.num_samples} rows in {where}, but they hold {num_rows}"
        raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=OTHER_FILE)


def _metadata(footer: bytes) -> Any:
    """Parse a footer, given to pyarrow as a file without row groups."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # optional, and slow to import

    return pq.read_metadata(io.BytesIO(_MAGIC + footer_without_extensions(footer)))


def _opened(ranges: FileOfRanges, metadata: Any, **options: int) -> Any:
    """Open a file by its footer; types that Parquet itself names (UUID) give their storage, too."""
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415  # optional, and slow to import

    if "arrow_extensions_enabled" in signature(ParquetFile).parameters:  # pyarrow 21 and newer; before, always False
        options |= {"arrow_extensions_enabled": False}
    return ParquetFile(ranges, metadata=metadata, pre_buffer=False, **options)


def _no_bytes(begin: int, end: int, /) -> bytes:
    raise OSError(f"bytes [{begin}, {end}) of a file were requested, but only the footer is known")


def _metadata_in(head: Mapping[str, Any]) -> Any:
    footer = unpacked(head, _KEPT)
    try:
        groups_in(footer[:-8])  # raises where pyarrow would crash the process
        return _metadata(footer)
    except (arrow_library("Parquet").ArrowException, OSError, ValueError) as error:
        raise unusable(_KEPT, error) from None


def _footer(read: ReadBytes, num_bytes: int, shard: str) -> bytes:
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
def _kept_footer(text: str, num_bytes: int, shard: str) -> _Footer:
    """Parse the footer in a head; cached, since parsing takes longer than reading a row group."""
    footer = unpacked({_KEPT: text}, _KEPT, shard=shard)
    groups = _groups(footer, num_bytes, shard)
    return _Footer(_metadata(footer), groups, [])


def _groups(footer: bytes, num_bytes: int, shard: str) -> list[_Group]:
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


def _group(group: FooterGroup, number: int) -> _Group:
    starts = [
        min(column.dictionary_offset or column.data_offset, column.data_offset)  # some writers say 0 for none
        for column in group.columns
    ]
    ends = [start + column.compressed_bytes for start, column in zip(starts, group.columns, strict=True)]
    decoded = sum(max(column.decoded_bytes, column.value_bytes) for column in group.columns)
    if max(abs(decoded), group.num_rows) >= 1 << 62:
        raise ValueError(f"row group {number} would have {group.num_rows} rows in {decoded} bytes")
    return _Group(number, min(starts, default=0), max(ends, default=0), group.num_rows, decoded)
