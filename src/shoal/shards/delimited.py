"""CSV and TSV shards: a first record of column names, then one record a sample, fields between delimiters.

As RFC 4180 has it: a field that holds the delimiter, a quote or a newline stands between quotes, and a quote inside it
is written twice.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.lines import LineScan, line_crcs, lines_in, scan_lines
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan

__all__ = ["Delimited", "DelimitedRecords"]

_QUOTE = ord('"')
_RECORD_LIMIT_BYTES = 1 << 30


class Delimited:
    """The format of one record a line, fields between delimiters.

    The first record names the columns, unless ``columns`` does. All values are text: what they mean, the file does not
    say. ``quoted=False`` takes quotes for what they are and every newline for the end of a record.
    """

    def __init__(
        self,
        *,
        name: str = "csv",
        suffixes: tuple[str, ...] = (".csv",),
        delimiter: str = ",",
        quoted: bool = True,
        columns: Sequence[str] | None = None,
        window_bytes: int = 4 << 20,
    ) -> None:
        self.name, self.suffixes = name, suffixes
        self.delimiter, self.quoted = delimiter, quoted
        self.columns = None if columns is None else tuple(columns)
        self.window_bytes = window_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the records of a shard by reading all of it; the layout CRC of a sample is the CRC-32 of its bytes.

        Raises
        ------
        ShardError
            Where a quote stands in the middle of a field without quotes, or the columns have no names.
        """
        found = scan_lines(read, num_bytes, self._lines(shard), window_bytes=self.window_bytes)
        if self.columns is not None or not found.num_samples:
            return found
        starts = found.sample_starts
        columns = self._fields(bytes(read(int(starts[0]), int(starts[1]))), shard, int(starts[0]))
        if "" in columns or len(set(columns)) < len(columns):
            msg = f"the first record should name the columns, and is {columns!r:.200}"
            hint = "names are not empty and differ; where the file has none, give Delimited(columns=[...]) as format="
            raise ShardError(msg, shard=shard, byte=int(starts[0]), hint=hint)
        return ShardScan(starts[1:], found.layout_crcs[1:], head={"columns": columns}, notes=found.notes)

    def read_sample(
        self, read: ReadBytes, first_byte: int, end_byte: int, *, shard: str, head: Mapping[str, Any]
    ) -> Sample:
        """One record, read and parsed whole."""
        line, borders = read(first_byte, end_byte), [0, end_byte - first_byte]
        return self.parse(line, borders, num_samples=1, shard=shard, first_byte=first_byte, head=head).sample(0)

    def parse(
        self,
        buffer: Buffer,
        sample_starts: Sequence[int] | None,
        *,
        num_samples: int,
        shard: str,
        first_byte: int,
        head: Mapping[str, Any],
    ) -> DelimitedRecords:
        """Open the bytes of consecutive records; one is parsed when its sample is asked for.

        Raises
        ------
        ShardError
            Where the bytes are not cut at the ends of lines, or hold another number of them than the index says.
        """
        lines = self._lines(shard)
        starts = lines_in(buffer, sample_starts, lines, num_samples=num_samples, shard=shard, first_byte=first_byte)
        columns = head.get("columns", ()) if self.columns is None else self.columns
        return DelimitedRecords(self, buffer, starts, shard, first_byte, tuple(columns))

    def _lines(self, shard: str) -> LineScan:
        if not self.quoted:
            return LineScan(shard, _RECORD_LIMIT_BYTES)
        return LineScan(shard, _RECORD_LIMIT_BYTES, quote=_QUOTE, delimiter=ord(self.delimiter))

    def _fields(self, line: bytes, shard: str, byte: int) -> list[str]:
        """The fields of a record, at ``byte`` of the shard."""
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        csv.field_size_limit(_RECORD_LIMIT_BYTES)
        try:
            text = line.decode("utf-8").lstrip("\r\n")
            rows = list(
                csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter, quoting=quoting, strict=True)
            )
        except (UnicodeDecodeError, csv.Error) as error:
            place = byte + (error.start if isinstance(error, UnicodeDecodeError) else 0)
            msg = f"this record cannot be read: {error}"
            raise ShardError(msg, shard=shard, byte=place, hint=_HINT) from None
        rows = [row for row in rows if len(row) > 1 or "".join(row).strip()] or [[""]]  # blank lines come along
        if len(rows) != 1:
            msg = f"by its newlines this is one record, by its fields it is {len(rows)}"
            raise ShardError(msg, shard=shard, byte=byte, hint=_HINT)
        return rows[0]


_HINT = "correct the record, or take it out of the shard"


class DelimitedRecords:
    """Some consecutive records of a shard, handed out by number."""

    __slots__ = ("_buffer", "_columns", "_first_byte", "_format", "_shard", "_starts")

    def __init__(
        self,
        format: Delimited,  # noqa: A002
        buffer: Buffer,
        starts: NDArray[np.int64],
        shard: str,
        first_byte: int,
        columns: tuple[str, ...],
    ) -> None:
        self._format, self._columns = format, columns
        self._buffer, self._starts = buffer, starts.tolist()
        self._shard, self._first_byte = shard, first_byte

    def __len__(self) -> int:
        return len(self._starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """CRC-32 of the bytes of each record, as `Delimited.scan` gives them; shape (len,)."""
        return line_crcs(self._buffer, self._starts)

    def sample(self, number: int) -> Sample:
        """Sample ``number``: its fields by column; O(its bytes).

        Raises
        ------
        ShardError
            Where it cannot be parsed, or has another number of fields than there are columns.
        """
        start, end = self._starts[number], self._starts[number + 1]
        byte = self._first_byte + start
        fields = self._format._fields(bytes(memoryview(self._buffer)[start:end]), self._shard, byte)
        if len(fields) != len(self._columns):
            msg = f"this record has {len(fields)} fields, and there are {len(self._columns)} columns"
            raise ShardError(msg, shard=self._shard, byte=byte, hint=_HINT)
        return dict(zip(self._columns, fields, strict=True))
