"""Sample values that go into columns of the index: numbers unchanged, strings as codes into a list.

A column is given as a field, or as a path into a field that holds JSON: ``label``, ``json.caption.language``.
``length`` is the total bytes of a sample's values, unless the sample has a field of that name. ``name=path`` gives the
column another name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.hints import did_you_mean

_NUMBER = re.compile("0|-?[1-9][0-9]{0,18}")

_RESERVED = "record_crc32"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in the index, and the path of its value in a sample."""

    name: str
    path: str

    def value(self, sample: Sample) -> Any:
        """Return the value of this column in a sample; None if it has none."""
        if self.path in sample:
            return _plain(sample[self.path])
        found = _plain(_inside(sample, self.path))
        if found is None and self.path == "length":
            values = (value for name, value in sample.items() if name[:2] != "__")
            return sum(len(value) for value in values if isinstance(value, bytes | str | bytearray | memoryview))
        return found


def as_columns(asked: str | Sequence[str | Column]) -> tuple[Column, ...]:
    """Parse columns from ``name`` or ``name=path``.

    >>> as_columns(["label", "language=json.meta.language"])
    (Column(name='label', path='label'), Column(name='language', path='json.meta.language'))

    Raises `UsageError` if a name is empty, repeated, or reserved for a column that shards always get.
    """
    each = [asked] if isinstance(asked, str) else asked
    columns = tuple(text if isinstance(text, Column) else _parsed(text) for text in each)
    names = [column.name for column in columns]
    for name in names:
        if not name or names.count(name) > 1 or name == _RESERVED:
            msg = f"{name!r} cannot name a column: names must not be empty, repeated, or {_RESERVED}"
            raise UsageError(msg, hint="name=path gives a column another name")
    return columns


def values_in(columns: Sequence[Column], sample: Sample) -> list[Any]:
    """Return the values of all columns in a sample; `UsageError` if one is missing, or no number or string."""
    found = [column.value(sample) for column in columns]
    for column, value in zip(columns, found, strict=True):
        if not isinstance(value, bool | int | float | str):
            name = sample.get("__key__", sample.get("key", ""))
            said = "none" if value is None else f"a {type(value).__name__}"
            what = f"the column {column.name!r} is {column.path!r} of each sample"
            msg = f"{what}, and the sample {name!r} has {said} there"
            meant = _meant(sample, column.path)
            hint = f"did you mean {column.name}={meant}? " if meant else did_you_mean(column.path, sample)
            hint = hint or "numbers and texts go into the index; "
            raise UsageError(msg, hint=f"{hint}its fields are {', '.join(sample)}")
    return found


class ColumnValues:
    """The values of some columns, collected sample by sample."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._values: list[list[Any]] = [[] for _ in columns]

    def take(self, found: Sequence[Any]) -> None:
        """Append the values that `values_in` found in a sample."""
        for values, value in zip(self._values, found, strict=True):
            values.append(value)

    def drop(self, number: int) -> None:
        """Remove the values of one sample."""
        for values in self._values:
            del values[number]

    def add_block(self, values: Mapping[str, NDArray[Any]], num_samples: int) -> None:
        """Append the values of many samples, keyed by path, each of shape (num_samples,)."""
        for column, known in zip(self._columns, self._values, strict=True):
            found = values[column.path].tolist()
            if len(found) != num_samples:
                msg = f"the column {column.name!r} has {len(found)} values for {num_samples} samples"
                raise UsageError(msg)
            known.extend(found)

    def arrays(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        """Return the columns, and for string columns the strings that their codes stand for."""
        arrays: dict[str, NDArray[Any]] = {}
        texts: dict[str, list[str]] = {}
        for column, values in zip(self._columns, self._values, strict=True):
            if any(isinstance(value, str) for value in values):
                strings = list(map(str, values))
                texts[column.name] = sorted(set(strings))
                arrays[column.name] = _codes(strings, texts[column.name])
            else:
                arrays[column.name] = _numbers(values, column.name)
        return arrays, texts


def joined_columns(
    parts: Sequence[Mapping[str, NDArray[Any]]], texts: Sequence[Mapping[str, Sequence[str]]]
) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Join the columns of several shards into those of one dataset; string codes are reassigned."""
    arrays: dict[str, NDArray[Any]] = {}
    words: dict[str, list[str]] = {}
    for name in parts[0] if parts else ():
        columns = [part[name] for part in parts]
        if any(name in known for known in texts):
            # As within one shard: if some values are strings, all become strings.
            both = [_as_texts(column, known.get(name)) for column, known in zip(columns, texts, strict=True)]
            words[name] = sorted({word for _, known in both for word in known})
            columns = [_codes(known, words[name])[codes] for codes, known in both]
        else:
            # A shard without samples does not know the types of its columns.
            columns = [column for column in columns if len(column)] or columns[:1]
        arrays[name] = np.concatenate(columns)
    return arrays, words


def _codes(strings: Sequence[str], words: Sequence[str]) -> NDArray[np.int32]:
    code_of = {word: code for code, word in enumerate(words)}
    return np.array([code_of[string] for string in strings], dtype=np.int32)


def _as_texts(column: NDArray[Any], known: Sequence[str] | None) -> tuple[NDArray[np.int64], Sequence[str]]:
    """Return a column of one shard as codes of strings, and the strings."""
    if known is not None:
        return column.astype(np.int64), known
    values, codes = np.unique(column, return_inverse=True)
    return codes.astype(np.int64), [str(value) for value in values.tolist()]


def _numbers(values: list[Any], name: str) -> NDArray[Any]:
    if not values:
        return np.zeros(0, dtype=np.int64)
    kinds = {next(kind for base, kind in _KINDS.items() if issubclass(known, base)) for known in set(map(type, values))}
    kind = np.result_type(*kinds)
    try:
        return np.array(values, dtype=kind)
    except OverflowError:
        msg = f"the column {name!r} has integers beyond 64 bits"
        raise UsageError(msg, hint="leave it out, or make it a text") from None


_KINDS: Mapping[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


def _parsed(text: str) -> Column:
    name, sign, path = text.partition("=")
    return Column(name, path if sign else name)


def _plain(value: Any) -> Any:
    """Return a value as a plain number or string if it can be one."""
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


def _inside(sample: Sample, path: str) -> Any:
    """Return the value at a path whose first part, up to some dot, is a field that holds JSON."""
    cut = path.find(".")
    while cut > 0:
        found = sample.get(path[:cut])
        if found is not None:
            try:
                value = json.loads(found) if isinstance(found, str | bytes) else found
            except (ValueError, RecursionError):
                return None
            return _part(value, path[cut + 1 :])
        cut = path.find(".", cut + 1)
    return None


def _part(value: Any, path: str) -> Any:
    """Return the part of an object at a path, whose names may contain dots; None if there is none."""
    if not isinstance(value, dict) or path in value:
        return value.get(path) if isinstance(value, dict) else None
    cut = path.find(".")
    while cut >= 0:
        if (found := _part(value.get(path[:cut]), path[cut + 1 :])) is not None:
            return found
        cut = path.find(".", cut + 1)
    return None


def _meant(sample: Sample, path: str) -> str | None:
    """Return a path to a number or string that a wrong path may have meant: deeper inside a field, or less deep."""
    within = path.partition(".")[2]
    for other in (*(f"{name}.{path}" for name in sample if _is_object(sample[name])), *([within] if within else [])):
        if isinstance(Column("", other).value(sample), bool | int | float | str):
            return other
    return None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, str | bytes) and value[:1] in ("{", b"{"))
