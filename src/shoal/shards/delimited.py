"""CSV and TSV shards: a first record of column names, then one record a sample, fields between delimiters.

As RFC 4180 has it: a field that holds the delimiter, a quote or a newline stands between quotes, and a quote inside it
is written twice.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from shoal.errors import ShardError, UsageError
from shoal.hints import did_you_mean
from shoal.shards.lines import LineScan, line_records, scan_lines
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan, Stretch
from shoal.shards.records import BadRecordError, CutRecords

__all__ = ["Delimited"]

_QUOTE = ord('"')
_RECORD_LIMIT_BYTES = 1 << 30
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_TYPES: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


class Delimited:
    """The format of one record a line, fields between delimiters.

    The first record names the columns, unless ``columns`` does. Values are text, since the file does not say what they
    mean; ``types={"label": "int", "score": "float"}`` says it of some columns. ``quoted=False`` takes quotes for what
    they are and every newline for the end of a record.

    Raises
    ------
    UsageError
        For a delimiter that is no single character, or another type.
    """

    needs_front = True  # the names of columns, which a scan of some records would not see

    def __init__(
        self,
        *,
        name: str = "csv",
        suffixes: tuple[str, ...] = (".csv",),
        delimiter: str = ",",
        quoted: bool = True,
        columns: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        window_bytes: int = 4 << 20,
    ) -> None:
        if len(delimiter.encode()) != 1 or delimiter in '\r\n"':
            msg = f"delimiter={delimiter!r} is not one character of ASCII that may stand between fields"
            raise UsageError(msg, hint='give "," or ";" or a tab, for instance')
        self.types = dict(types or {})
        if unknown := [kind for kind in self.types.values() if kind not in _TYPES]:
            msg = f"types= says {unknown[0]!r}"
            raise UsageError(msg, hint=f"{did_you_mean(unknown[0], _TYPES)}a type is one of {', '.join(_TYPES)}")
        self.name, self.suffixes = name, suffixes
        self.delimiter, self.quoted = delimiter, quoted
        self.columns = None if columns is None else tuple(columns)
        self.window_bytes = window_bytes

    @property
    def options(self) -> dict[str, Any]:
        """What is not as the name of the format says."""
        chosen = {"delimiter": self.delimiter, "quoted": self.quoted, "columns": self.columns, "types": self.types}
        usual: dict[str, Any] = {"delimiter": _DELIMITERS.get(self.name), "quoted": True, "columns": None, "types": {}}
        return {name: value for name, value in chosen.items() if value != usual[name]}

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
        try:
            columns = self._fields(bytes(read(int(starts[0]), int(starts[1]))))
        except BadRecordError as error:
            raise error.placed(shard, int(starts[0])) from None
        if "" in columns or len(set(columns)) < len(columns):
            msg = f"the first record should name the columns, and is {columns!r:.200}"
            hint = "names are not empty and differ; where the file has none, give Delimited(columns=[...]) as format="
            raise ShardError(msg, shard=shard, byte=int(starts[0]), hint=hint)
        return ShardScan(starts[1:], found.layout_crcs[1:], head={"columns": columns}, notes=found.notes)

    def parse(self, buffer: Buffer, stretch: Stretch) -> CutRecords:
        """Open the bytes of consecutive records; one is parsed when its sample is asked for.

        Raises
        ------
        ShardError
            Where the bytes are not cut at the ends of lines, or hold another number of them than the index says.
        """
        columns = tuple(stretch.head.get("columns", ()) if self.columns is None else self.columns)
        return line_records(buffer, stretch, self._lines(stretch.shard), partial(self._decode, columns))

    def _decode(self, columns: Sequence[str], data: bytes) -> Sample:
        """The fields of a record by column."""
        fields = self._fields(data)
        if len(fields) != len(columns):
            msg = f"this record has {len(fields)} fields, and there are {len(columns)} columns"
            raise BadRecordError(msg, hint=_HINT)
        sample: Sample = dict(zip(columns, fields, strict=True))
        for name, kind in self.types.items():
            if name not in sample:
                msg = f"types= names the column {name!r}; there are {', '.join(columns)}"
                raise BadRecordError(msg, hint=did_you_mean(name, columns) + "correct types=, or columns=")
            try:
                sample[name] = _TYPES[kind](sample[name])
            except (KeyError, ValueError) as error:
                msg = f"column {name!r} has no {kind}: {error}"
                raise BadRecordError(msg, hint="correct types=, or the record") from None
        return sample

    def _lines(self, shard: str) -> LineScan:
        if not self.quoted:
            return LineScan(shard, _RECORD_LIMIT_BYTES)
        return LineScan(shard, _RECORD_LIMIT_BYTES, quote=_QUOTE, delimiter=ord(self.delimiter))

    def _fields(self, line: bytes) -> list[str]:
        """The fields of a record."""
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        csv.field_size_limit(_RECORD_LIMIT_BYTES)
        try:
            text = line.decode("utf-8").lstrip("\r\n")
            rows = list(
                csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter, quoting=quoting, strict=True)
            )
        except (UnicodeDecodeError, csv.Error) as error:
            msg = f"this record cannot be read: {error}"
            place = error.start if isinstance(error, UnicodeDecodeError) else 0
            raise BadRecordError(msg, byte=place, hint=_HINT) from None
        rows = [row for row in rows if len(row) > 1 or "".join(row).strip()] or [[""]]  # blank lines come along
        if len(rows) != 1:
            msg = f"by its newlines this is one record, by its fields it is {len(rows)}"
            raise BadRecordError(msg, hint=_HINT)
        return rows[0]


_HINT = "correct the record, or take it out of the shard"
