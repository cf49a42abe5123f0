"""Parquet shards: a row group is a piece, since its columns are compressed as wholes.

The index keeps the footer, which lists the position of each row group, so later reads are of row groups alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from shoal.errors import ShardError
from shoal.formats.by_library.file_of_ranges import FileOfRanges
from shoal.formats.compressed.packed_heads import number_of, packed, unusable
from shoal.formats.decoding.hf_features import features_in
from shoal.formats.field_columns import wanted_of
from shoal.formats.shard_format import Format, ReadBytes, Span, Spilled, SpillSpace
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.extension_types import shaped_schema
from shoal.formats.tables.parquet_groups import (
    KEPT,
    Group,
    footer_of,
    groups_at,
    groups_of,
    metadata_in,
    no_bytes,
    opened_file,
)
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

_BUFFERS_BYTES = 32 << 20  # for read-ahead in all columns of a row group that is read incrementally
_MISSING_LISTS = "install pyarrow 26: older ones cannot read missing lists of a fixed size from Parquet"
_NOT_BY_PYARROW = "leave the column out: format=shoal.formats.Parquet(columns=[...]); or write smaller row groups"


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
    int96_unit: str | None = None
    """Unit of the timestamps of old writers (INT96); None for nanoseconds, which hold the years 1677 to 2262."""

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
        footer = footer_of(read, num_bytes, shard)
        groups = groups_of(footer, num_bytes, shard)
        borders = [group.first_byte for group in groups] + [group.end_byte for group in groups[-1:]]
        return ShardScan(
            np.array(borders or [0], dtype=np.int64),
            np.array([group.crc for group in groups], dtype=np.uint32),
            head={KEPT: packed(footer), "num_bytes": num_bytes},
            piece_samples=np.array([group.num_rows for group in groups], dtype=np.int64),
            piece_decoded_bytes=np.array([group.decoded_bytes for group in groups], dtype=np.int64),
        )

    def parse(self, buffer: Buffer, span: Span) -> TableRecords:
        """Decode row groups; memory O(their decoded size).

        Raises `ShardError` if they cannot be decoded, or have another number of rows than the index says.
        """
        end_byte = span.first_byte + len(buffer)
        footer, groups = groups_at(span, end_byte, self.int96_unit)
        with _decoding(groups, span):
            loaded, file = footer.file(number_of(span.head, "num_bytes", shard=span.shard))
            loaded.load(buffer, span.first_byte)
            table = _rows_of(file, [group.number for group in groups], self.decoded_columns(file.schema_arrow, span))
            loaded.load(b"", 0)
            footer.files.append((loaded, file))  # not after an error, which leaves its state unknown
        return self._group_records(table, groups, span, end_byte)

    def read_fields(self, read: ReadBytes, end_byte: int, span: Span) -> TableRecords:
        """Decode row groups and read only the pages of the wanted columns; raises `ShardError` as `parse`."""
        footer, groups = groups_at(span, end_byte, self.int96_unit)
        ranges = FileOfRanges(read, number_of(span.head, "num_bytes", shard=span.shard))
        with _decoding(groups, span, ranges):
            file = opened_file(ranges, footer.metadata, **footer.options)
            table = _rows_of(file, [group.number for group in groups], self.decoded_columns(file.schema_arrow, span))
        return self._group_records(table, groups, span, end_byte)

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Spill the rows of row groups, a few per part; memory: some pages per column. Raises as `parse`."""
        footer, groups = groups_at(span, end_byte, self.int96_unit)
        ranges = FileOfRanges(read, number_of(span.head, "num_bytes", shard=span.shard))
        buffer_bytes = min(max(_BUFFERS_BYTES // max(1, footer.metadata.num_columns), 64 << 10), 1 << 20)
        with _decoding(groups, span, ranges):
            file = opened_file(ranges, footer.metadata, buffer_size=buffer_bytes, **footer.options)
            decoded_bytes = sum(group.decoded_bytes for group in groups)
            rows = rows_of_part(span.num_samples, decoded_bytes, file.schema_arrow)
            numbers, columns = [group.number for group in groups], self.decoded_columns(file.schema_arrow, span)
            batches = file.iter_batches(rows, numbers, columns=columns, use_threads=False)
            spilled = spilled_rows((self.shown(batch, span) for batch in batches), rows, space)
        _check_rows(spilled.num_samples, span, end_byte)
        return spilled

    def parse_part(self, data: bytes, span: Span) -> TableRecords:
        """Open one spilled part."""
        return self._records(table_of_part(data), [], span.shard, None)

    def _group_records(self, table: Any, groups: Sequence[Group], span: Span, end_byte: int) -> TableRecords:
        _check_rows(table.num_rows, span, end_byte)
        table = self.shown(table, span)
        return self._records(table, [group.crc for group in groups], span.shard, span.first_byte)

    def _records(self, table: Any, crcs: Sequence[int], shard: str, byte: int | None) -> TableRecords:
        return TableRecords(table, crcs, shard=shard, byte=byte, constants=self.constants(shard))

    def constants(self, shard: str) -> dict[str, str | None]:
        """Return the fields that all rows of a shard share, beside its columns."""
        fields = partition_fields(shard)
        return fields if self.columns is None else {name: fields[name] for name in fields if name in self.columns}

    def shown(self, rows: Any, span: Span) -> Any:  # noqa: ARG002
        """Return decoded rows, a table or a record batch, with the columns that samples show: here all of them.

        Raises `ShardError`: a column cannot be shown.
        """
        return rows

    def features(self, head: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the Hugging Face ``datasets`` features in the footer of a shard."""
        return features_in(metadata_in(head).metadata)

    def schema(self, head: Mapping[str, Any]) -> Any:
        """Return the Arrow schema of a shard with all its columns."""
        try:
            return shaped_schema(opened_file(FileOfRanges(no_bytes, 0), metadata_in(head)).schema_arrow)
        except ValueError as error:
            raise unusable(KEPT, error) from None

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the columns."""
        return self.columns or (self.schema(head).names if head else None)

    def decoded_columns(self, schema: Any, span: Span) -> list[str] | None:
        """Return the names of the columns to decode of a shard with this Arrow schema; None for all.

        Raises `ShardError`: the shard lacks a column of ``columns``.
        """
        names, directories = schema.names, partition_fields(span.shard)
        if self.columns is None:
            if self._projection is None:
                return None
            return list(wanted_of(names, [name for name in self._projection if name not in directories]))
        if missing := [name for name in self.columns if name not in names and name not in directories]:
            msg = f"there is no column {missing[0]!r}; the columns are {', '.join(names)}"
            hint = did_you_mean(missing[0], names) + "correct columns=, or leave it out"
            raise ShardError(msg, shard=span.shard, hint=hint)
        return [name for name in self.columns if name in names]


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
def _decoding(groups: Sequence[Group], span: Span, ranges: FileOfRanges | None = None) -> Iterator[None]:
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
