"""CSV and TSV shards: a first record of column names, then one record per sample, fields between delimiters.

As in RFC 4180, a field that holds the delimiter, a quote or a newline is quoted, and a quote inside the field is
doubled. Deviations from RFC 4180 are read where Python's `csv` and pandas agree.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.formats.rows.lines.line_borders import BOM, WHITE, LineEnds, LineScan, line_records, scan_lines
from shoal.formats.rows.records import BadRecordError, CutRecords
from shoal.formats.shard_format import About, BorderSink, Content, Format, Sample, SampleBorders, Span
from shoal.hints import did_you_mean
from shoal.index.shard_scan import Buffer

_NAMES_LIMIT_BYTES = 1 << 20
_NEWLINES = (None, "\n", "\r\n")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_HINT = "correct the record, or remove it from the shard"
_OPEN = "a quoted field has no end"
_SEVERAL = "an end of line stands outside of quotes: these are several records"
# Records up to here are split by Python's `csv`, in half the time; it takes 11 times the memory of a large one.
SMALL_BYTES = 64 << 10
_TYPES: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


class Delimited(Format):
    r"""The format of one record a line, fields between delimiters.

    The first record names the columns, unless ``columns`` does. A column with no name or a repeated name gets a name as
    in pandas (``Unnamed: 0``, ``name.1``). Values are text, since the file has no types;
    ``types={"label": "int", "score": "float"}`` sets the types of some columns.

    In a field without an opening quote, a quote is an ordinary character. Text after a closing quote belongs to the
    field, and a carriage return alone ends a record, too. ``strict=True`` refuses all of that, and columns without a
    name of their own. ``quoted=False`` gives quotes no meaning and ends a record at every newline; the delimiter may
    then have several characters. ``newline="\n"`` or ``"\r\n"``, for unquoted files, ends records only there, and makes
    an empty line a record.

    A record longer than ``record_limit_bytes``, for example after a quote that never closes, is refused. Raises
    `UsageError`: the delimiter cannot stand between fields, or a type or the newline is not supported.

    Examples
    --------
    >>> shoal.open("pets.csv", format=shoal.formats.Delimited(delimiter=";", types={"age": "int"}))[0]
    {'name': 'Tom', 'age': 3}
    """

    scan_rule = 1
    needs_front = True  # the front names the columns

    def __init__(
        self,
        *,
        name: str = "csv",
        suffixes: tuple[str, ...] = (".csv",),
        delimiter: str = ",",
        quoted: bool = True,
        strict: bool = False,
        newline: str | None = None,
        columns: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
        record_limit_bytes: int = 64 << 20,
        window_bytes: int = 1 << 20,
    ) -> None:
        _check_delimiter(delimiter, quoted=quoted)
        if newline not in _NEWLINES or (newline and quoted):
            msg = f"newline={newline!r}" + (" with quotes" if quoted else "")
            raise UsageError(msg, hint=r'give "\n" or "\r\n" with quoted=False, else leave it out: any end is read')
        self.types = dict(types or {})
        if unknown := [kind for kind in self.types.values() if kind not in _TYPES]:
            msg = f"types= has {unknown[0]!r}"
            raise UsageError(msg, hint=f"{did_you_mean(unknown[0], _TYPES)}a type is one of {', '.join(_TYPES)}")
        self.name, self.suffixes = name, suffixes
        self.delimiter, self.quoted, self.strict, self.newline = delimiter, quoted, strict, newline
        self.columns = None if columns is None else tuple(columns)
        self.record_limit_bytes, self.window_bytes = record_limit_bytes, window_bytes
        white = "".join(letter for letter in WHITE if letter not in delimiter)
        self._blank_lines = re.compile(rb"(?:[%b]*[\r\n])+" % re.escape(white.encode()))
        usual: dict[str, Any] = {"delimiter": _DELIMITERS.get(name), "quoted": True, "strict": False}
        usual |= {"newline": None, "columns": None, "types": {}, "record_limit_bytes": 64 << 20}
        self.options = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About:
        """Find the records of a shard by reading all of it; the layout CRC of a sample is the CRC-32 of its bytes.

        Memory: some windows, and 12 bytes a sample. Raises `ShardError`: a record is too long; or, with ``strict``, a
        quote stands in the middle of a field without quotes, or the columns have no names.
        """
        if self.columns is not None:
            return scan_lines(content, borders, self._lines(shard), window_bytes=self.window_bytes)
        columns = self._names(content, shard)
        behind_names = borders if columns is None else _WithoutFirst(borders)
        about = scan_lines(content, behind_names, self._lines(shard), window_bytes=self.window_bytes)
        return about if columns is None else about._replace(head={"columns": columns})

    def _names(self, content: Content, shard: str) -> list[str] | None:
        """Return the names of the columns, from the first record; None if there is none."""
        front = bytes(content.read(0, _NAMES_LIMIT_BYTES))
        begin = len(BOM) if front.startswith(BOM) else 0
        lines, borders = self._lines(shard), SampleBorders()
        lines.start_at(begin)
        lines_of_front = front[begin:]
        is_all = len(front) < _NAMES_LIMIT_BYTES or not content.read(0, _NAMES_LIMIT_BYTES + 1)[_NAMES_LIMIT_BYTES:]
        if self.quoted and lines_of_front.endswith(b"\r") and not is_all:
            lines_of_front = lines_of_front[:-1]  # the next byte may continue this line end
        borders.add(*lines.add(lines_of_front, is_last=is_all, with_crcs=False))
        starts = borders.starts()
        if len(starts) > 1:
            return self._names_in(front[starts[0] : starts[1]], int(starts[0]), shard)
        if is_all:
            return None
        msg = f"the first {_NAMES_LIMIT_BYTES} bytes hold no whole record that could name the columns"
        hint = "is this a delimited file? If its columns have no names, pass format=Delimited(columns=[...])"
        raise ShardError(msg, shard=shard, byte=begin, hint=hint)

    def _names_in(self, record: bytes, byte: int, shard: str) -> list[str]:
        try:
            columns = self._fields(record)
        except BadRecordError as error:
            raise error.placed(shard, byte) from None
        if self.strict and ("" in columns or len(set(columns)) < len(columns)):
            msg = f"the first record should name the columns, but is {columns!r:.200}"
            hint = "strict=False names them as pandas does; if the file has no names, give Delimited(columns=[...])"
            raise ShardError(msg, shard=shard, byte=byte, hint=hint)
        return _column_names(columns)

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the columns."""
        return self.columns or head.get("columns")

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive records; each is parsed when its sample is requested.

        Raises `ShardError`: the bytes are not cut at line ends, or their number of lines differs from the index.
        """
        columns = tuple(span.head.get("columns", ()) if self.columns is None else self.columns)
        return line_records(buffer, span, self._lines(span.shard), partial(self._decode, columns))

    def _decode(self, columns: Sequence[str], data: bytes) -> Sample:
        """Return the fields of a record by column."""
        fields = self._fields(data, most=len(columns))
        if len(fields) != len(columns):
            many = f"more than {len(columns)}" if len(fields) > len(columns) else len(fields)
            raise BadRecordError(f"this record has {many} fields, but the shard has {len(columns)} columns", hint=_HINT)
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
        quote, delimiter = ord('"') if self.quoted else None, self.delimiter.encode()
        single = delimiter[0] if len(delimiter) == 1 else None
        ends = LineEnds(quote, single, strict=self.strict, newline=(self.newline or "").encode())
        return LineScan(shard, self.record_limit_bytes, ends)

    def _fields(self, record: bytes, *, most: int | None = None) -> list[str]:
        """Return the fields of a record; with ``most``, splitting may stop after ``most + 1`` fields."""
        text = self._without_end(record)
        how = {"quoted": self.quoted, "strict": self.strict}
        try:
            if len(text) <= SMALL_BYTES:
                return _split_small(text.decode("utf-8"), self.delimiter, **how)
            fields = _split_fields(text, self.delimiter.encode(), most=most, **how)
            return [field.decode("utf-8") for field in fields]
        except UnicodeDecodeError:
            what, byte = _not_utf_8(record)
        except ValueError as error:
            what, byte = str(error), 0
        raise BadRecordError(f"this record cannot be read: {what}", byte=byte, hint=_HINT)

    def _without_end(self, record: bytes) -> bytes:
        """Strip the line end of a record, and the blank lines at the start of its bytes."""
        if self.newline:
            return record.removesuffix(self.newline.encode())
        if record[:1].isspace() and (blank := self._blank_lines.match(record)) and blank.end() < len(record):
            record = record[blank.end() :]
        for end in (b"\r\n", b"\n", b"\r"):
            if record.endswith(end):
                return record[: -len(end)]
        return record


def _not_utf_8(record: bytes) -> tuple[str, int]:
    """Return the defect of a record with a field that is not UTF-8, and the byte of the defect if known."""
    try:
        record.decode("utf-8")
    except UnicodeDecodeError as error:
        return str(error), error.start
    return "a field of it is not UTF-8", 0


class _WithoutFirst:
    """A receiver of all samples but the first one, which names the columns."""

    def __init__(self, borders: BorderSink) -> None:
        self._borders, self._passed = borders, False

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        if not self._passed and len(borders):
            self._passed = True
            borders, crcs = borders[1:], crcs[1:]
        self._borders.add(borders, crcs)


def _check_delimiter(delimiter: str, *, quoted: bool) -> None:
    fits = len(delimiter.encode()) == 1 if quoted else len(delimiter) > 0
    if not fits or "\r" in delimiter or "\n" in delimiter or (quoted and '"' in delimiter):
        msg = f"delimiter={delimiter!r} " + (
            "is not one character of ASCII that may stand between fields" if quoted else "cannot stand between fields"
        )
        raise UsageError(msg, hint='give "," or ";" or a tab, for instance; several characters with quoted=False')


def _split_small(record: str, delimiter: str, *, quoted: bool, strict: bool) -> list[str]:
    r"""Split a small record, without its line end, into fields.

    >>> _split_small('a,"b, ""c"" d",5" disk', ",", quoted=True, strict=False)
    ['a', 'b, "c" d', '5" disk']

    Raises `ValueError`: as `_split_fields` does.
    """
    if not quoted or '"' not in record:
        if quoted and ("\n" in record or "\r" in record):
            raise ValueError(_SEVERAL)
        return record.split(delimiter)
    lines = iter((record, ""))
    try:
        fields = next(csv.reader(lines, delimiter=delimiter, strict=strict))
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if next(lines, None) is None:  # only an open quote makes the reader take another line
        raise ValueError(_OPEN)
    return fields


def _split_fields(
    record: bytes, delimiter: bytes, *, quoted: bool, strict: bool, most: int | None = None
) -> list[bytes]:
    r"""Split a record of any size into fields, as bytes, in little extra memory; with ``most``, only the first ones.

    >>> _split_fields(b'a,"b, ""c"" d",5" disk', b",", quoted=True, strict=False)
    [b'a', b'b, "c" d', b'5" disk']

    Raises `ValueError`: a quoted field has no end, or, with ``strict``, is followed by text; or a line ends outside of
    quotes, so that these are several records.
    """
    if not quoted or b'"' not in record:
        if quoted:
            _check_one(record)
        return record.split(delimiter) if most is None else record.split(delimiter, most)
    fields: list[bytes] = []
    at = 0
    while at <= len(record) and (most is None or len(fields) <= most):
        field = b""
        if is_quoted := record.startswith(b'"', at):
            end = record.find(b'"', at + 1)
            while end >= 0 and record.startswith(b'"', end + 1):
                end = record.find(b'"', end + 2)
            if end < 0:
                raise ValueError(_OPEN)
            field, at = record[at + 1 : end].replace(b'""', b'"'), end + 1
        stop = record.find(delimiter, at)
        stop = len(record) if stop < 0 else stop
        rest = record[at:stop]
        if is_quoted and rest and strict:
            msg = f"{delimiter.decode()!r} is expected after a quoted field; got {rest[:20]!r}"
            raise ValueError(msg)
        _check_one(rest)
        fields.append(field + rest if rest else field)
        at = stop + len(delimiter)
    return fields


def _check_one(field: bytes) -> None:
    if b"\n" in field or b"\r" in field:
        raise ValueError(_SEVERAL)


def _column_names(fields: Sequence[str]) -> list[str]:
    """Return unique names for all columns, as pandas does: by position if unnamed, numbered if repeated.

    >>> _column_names(["", "a", "a", "a.1"])
    ['Unnamed: 0', 'a', 'a.2', 'a.1']
    """
    names = [name or f"Unnamed: {number}" for number, name in enumerate(fields)]
    own, taken = set(names), set[str]()
    next_number: dict[str, int] = {}
    for at in sorted(range(len(names)), key=lambda at: not fields[at]):  # names in the file take precedence
        name = names[at]
        if name in taken:
            number = next_number.get(name, 1)
            while f"{name}.{number}" in own or f"{name}.{number}" in taken:
                number += 1
            next_number[name] = number + 1
            names[at] = f"{name}.{number}"
        taken.add(names[at])
    return names
