"""Columns of an index, by name and by the path of their value in a sample.

A path is a field, or leads into a field that holds JSON: ``label``, ``json.caption.language``. ``length`` is the total
bytes of a sample's values, and ``tokens:len`` the number of elements of a list, characters of a text or bytes of a
value at the path ``tokens``; a field of exactly that name comes first. ``name=path`` gives the column another name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample, Unread

TOTAL_BYTES = "length"
LENGTH = ":len"
"""Ending of a path: the length of a value in place of the value."""

_NUMBER = re.compile("0|-?[1-9][0-9]{0,18}")

_RESERVED = "record_crc32"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in the index, and the path of its value in a sample.

    Examples
    --------
    >>> captions = [{"text": "ein Hund", "meta": {"lang": "de"}}, {"text": "a dog", "meta": {"lang": "en"}}]
    >>> packed = shoal.pack.pack(captions, "captions", format="jsonl", columns=[shoal.pack.Column("lang", "meta.lang")])
    >>> shoal.open("captions").select(lang="de")[0]["text"]
    'ein Hund'
    """

    name: str
    path: str

    def value(self, sample: Sample) -> Any:
        """Return the value of this column in a sample; None if it has none."""
        if self.path in sample:
            return plain_value(sample[self.path])
        if self.path.endswith(LENGTH):
            path = self.path.removesuffix(LENGTH)
            return length_of(sample[path] if path in sample else value_inside(sample, path))
        value = plain_value(value_inside(sample, self.path))
        return total_bytes(sample) if value is None and self.path == TOTAL_BYTES else value


def as_columns(columns: str | Sequence[str | Column]) -> tuple[Column, ...]:
    """Parse columns from ``name`` or ``name=path``.

    >>> as_columns(["label", "language=json.meta.language"])
    (Column(name='label', path='label'), Column(name='language', path='json.meta.language'))

    Raises `UsageError` if a name is empty, repeated, or reserved for a column that shards always get.
    """
    texts = [columns] if isinstance(columns, str) else columns
    parsed = tuple(text if isinstance(text, Column) else _parsed(text) for text in texts)
    names = [column.name for column in parsed]
    for name in names:
        if not name or names.count(name) > 1 or name == _RESERVED:
            msg = f"{name!r} cannot name a column: names must not be empty, repeated, or {_RESERVED}"
            raise UsageError(msg, hint="name=path gives a column another name")
    return parsed


def plain_value(value: Any) -> Any:
    """Return a value as a plain number or string if it can be one; bytes that are not text as None.

    >>> plain_value(b"7"), plain_value(b"007"), plain_value(np.array([2])), plain_value([2])
    (7, '007', 2, [2])
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        return value.item()
    if isinstance(value, bytes):
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            return None
        number = text.strip()
        # "007" and "1_000" stay strings.
        return int(number) if _NUMBER.fullmatch(number) else text
    # An enum member is stored as its value; str() would give its name.
    return value.value if isinstance(value, Enum) and isinstance(value, int | float | str) else value


def length_of(value: Any) -> int | None:
    """Return the length of a list, an array, a text (in characters) or bytes; None of anything else.

    >>> length_of([1, 2]), length_of("naïve"), length_of(b"abc"), length_of(np.zeros((4, 2))), length_of(7)
    (2, 5, 3, 4, None)
    """
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    if isinstance(value, Unread):
        return value.num_bytes
    return len(value) if isinstance(value, list | tuple | str | bytes | bytearray | memoryview) else None


def total_bytes(sample: Sample) -> int:
    """Return the total bytes of a sample's values."""
    values = (value for name, value in sample.items() if name[:2] != "__")
    sized = bytes | str | bytearray | memoryview | Unread
    return sum(length_of(value) or 0 for value in values if isinstance(value, sized))


def value_inside(sample: Mapping[str, Any], path: str, *, missing: Any = None) -> Any:
    """Return the value at a path whose first part, up to some dot, is a field that holds JSON; else ``missing``.

    >>> value_inside({"json": b'{"meta": {"lang": "de"}}'}, "json.meta.lang")
    'de'
    """
    cut = path.find(".")
    while cut > 0:
        outer = sample.get(path[:cut])
        if outer is not None:
            return part_of(parsed_json(outer), path[cut + 1 :], missing=missing)
        cut = path.find(".", cut + 1)
    return missing


def parsed_json(value: Any) -> Any:
    """Return what a field that holds JSON stands for; None if it holds none. Other values stay as they are."""
    try:
        return json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return None


def part_of(value: Any, path: str, *, missing: Any = None) -> Any:
    """Return the part of an object at a path; names in the path may contain dots; ``missing`` if there is none."""
    if not isinstance(value, dict):
        return missing
    if path in value:
        return value[path]
    cut = path.find(".")
    while cut >= 0:
        part = part_of(value.get(path[:cut]), path[cut + 1 :], missing=missing)
        if part is not missing:
            return part
        cut = path.find(".", cut + 1)
    return missing


def meant_path(sample: Sample, path: str) -> str | None:
    """Return a path to a number or string that a wrong path may have meant: deeper inside a field, or less deep."""
    within = path.partition(".")[2]
    for other in (*(f"{name}.{path}" for name in sample if _is_object(sample[name])), *([within] if within else [])):
        if isinstance(Column("", other).value(sample), bool | int | float | str):
            return other
    return None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, str | bytes) and value[:1] in ("{", b"{"))


def _parsed(text: str) -> Column:
    name, sign, path = text.partition("=")
    return Column(name, path if sign else name)
