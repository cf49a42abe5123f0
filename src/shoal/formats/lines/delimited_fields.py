"""Splitting of a delimited record into fields, and the naming of columns from the first record."""

from __future__ import annotations

import csv
from collections.abc import Sequence

_OPEN = "a quoted field has no end"
_SEVERAL = "an end of line stands outside of quotes: these are several records"

SMALL_BYTES = 64 << 10
"""Records up to here are split by Python's `csv`, in half the time; it takes 11 times the memory of a large one."""


def split_small(record: str, delimiter: str, *, quoted: bool, strict: bool) -> list[str]:
    r"""Split a small record, without its line end, into fields.

    >>> split_small('a,"b, ""c"" d",5" disk', ",", quoted=True, strict=False)
    ['a', 'b, "c" d', '5" disk']

    Raises `ValueError`: as `split_fields` does.
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
    if next(lines, None) is None:  # it asked for another line, which only an open quote does
        raise ValueError(_OPEN)
    return fields


def split_fields(
    record: bytes, delimiter: bytes, *, quoted: bool, strict: bool, most: int | None = None
) -> list[bytes]:
    r"""Split a record of any size into fields, as bytes, in little extra memory; with ``most``, only the first ones.

    >>> split_fields(b'a,"b, ""c"" d",5" disk', b",", quoted=True, strict=False)
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
            field, at = _quoted_field(record, at + 1)
        stop = record.find(delimiter, at)
        stop = len(record) if stop < 0 else stop
        rest = record[at:stop]
        if is_quoted and rest and strict:
            msg = f"{delimiter.decode()!r} is expected behind a quoted field, and {rest[:20]!r} stands there"
            raise ValueError(msg)
        _check_one(rest)
        fields.append(field + rest if rest else field)
        at = stop + len(delimiter)
    return fields


def _quoted_field(record: bytes, begin: int) -> tuple[bytes, int]:
    """Return the text from ``begin`` up to the closing quote, and the position after that."""
    end = record.find(b'"', begin)
    while end >= 0 and record.startswith(b'"', end + 1):
        end = record.find(b'"', end + 2)
    if end >= 0:
        return record[begin:end].replace(b'""', b'"'), end + 1
    raise ValueError(_OPEN)


def _check_one(field: bytes) -> None:
    if b"\n" in field or b"\r" in field:
        raise ValueError(_SEVERAL)


def column_names(fields: Sequence[str]) -> list[str]:
    """Return unique names for all columns, as pandas does: by position if unnamed, numbered if repeated.

    >>> column_names(["", "a", "a", "a.1"])
    ['Unnamed: 0', 'a', 'a.2', 'a.1']
    """
    names = [name or f"Unnamed: {place}" for place, name in enumerate(fields)]
    given, taken = set(names), set[str]()
    next_number: dict[str, int] = {}
    for place in sorted(range(len(names)), key=lambda place: not fields[place]):  # given names take precedence
        name = names[place]
        if name in taken:
            number = next_number.get(name, 1)
            while f"{name}.{number}" in given or f"{name}.{number}" in taken:
                number += 1
            next_number[name] = number + 1
            names[place] = f"{name}.{number}"
        taken.add(names[place])
    return names
