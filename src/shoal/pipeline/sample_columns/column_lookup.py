"""Lookup of the values of columns in samples: by field, by a path into JSON, or by a bare name in a JSON member.

The path of a column names a field; else a value inside a field that holds JSON (``meta.lang``); else a value inside the
only JSON member of a tar sample (``lang`` for ``json.lang``). A path must mean the same in all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.formats.column_paths import (
    LENGTH,
    TOTAL_BYTES,
    Column,
    length_of,
    meant_path,
    parsed_json,
    part_of,
    total_bytes,
)
from shoal.formats.shard_format import Sample
from shoal.hints import did_you_mean
from shoal.pipeline.sample_columns.column_parts import Where

_ABSENT = object()


class ColumnLookup:
    """The values of columns in some consecutive samples, collected sample by sample; ``where`` names a row in errors.

    ``values`` are the stored values of each column, or None. ``sources`` are the full paths of the values, "" if there
    are none yet.
    """

    def __init__(self, columns: Sequence[Column], where: Where) -> None:
        self._columns, self._where = tuple(columns), where
        self._paths = [column.path.removesuffix(LENGTH) for column in columns]
        self._are_lengths = [column.path.endswith(LENGTH) for column in columns]
        self.values: list[list[Any]] = [[] for _ in columns]
        self.sources = [""] * len(self._columns)
        self.example: Sample = {}

    def add(self, sample: Sample) -> None:
        """Add the values of the next sample.

        Raises `UsageError` if a path is ambiguous, means something else than in an earlier sample, or asks for the
        length of a value without length.
        """
        inside: dict[str, Any] = {}  # parsed JSON by member, for all columns; "" has the list of members
        self.example = self.example or sample
        for number, column in enumerate(self._columns):
            value = sample.get(column.path, _ABSENT)
            source = column.path
            if value is _ABSENT:
                value, source = self._nested(number, column, sample, inside)
            if source != self.sources[number] and value is not None:
                before, self.sources[number] = self.sources[number], source
                check_source(column, before, source, self._where(len(self.values[number])))
            self.values[number].append(value)

    def _nested(self, number: int, column: Column, sample: Sample, inside: dict[str, Any]) -> tuple[Any, str]:
        """Return the value of a path that is not a field (or None), and its full path."""
        path, is_length = self._paths[number], self._are_lengths[number]
        if path == TOTAL_BYTES and not is_length:
            return total_bytes(sample), TOTAL_BYTES
        if is_length and path in sample:
            value, source = sample[path], path
        else:
            value, source = self._inside(path, sample, inside)
        if value is None or not is_length:
            return value, source
        if (length := length_of(value)) is None:
            where = self._where(len(self.values[number]))
            msg = (
                f"the column {column.name!r} is the length of {path!r}, but {where} has a {type(value).__name__} there"
            )
            raise UsageError(msg, hint="lists, arrays, texts and bytes have a length")
        return length, source + LENGTH

    def _inside(self, path: str, sample: Sample, inside: dict[str, Any]) -> tuple[Any, str]:
        cut = path.find(".")
        while cut > 0:
            if sample.get(path[:cut]) is not None:
                return part_of(_json(sample, path[:cut], inside), path[cut + 1 :]), path
            cut = path.find(".", cut + 1)
        members = inside.get("")
        if members is None:
            members = inside[""] = json_members(sample)
        if len(members) == 1:  # nearly always
            return part_of(_json(sample, members[0], inside), path), f"{members[0]}.{path}"
        parts = [(f"{name}.{path}", part_of(_json(sample, name, inside), path)) for name in members]
        parts = [(source, value) for source, value in parts if value is not None]
        if len(parts) > 1:
            where = self._where(len(self.values[0]))
            msg = f"{path!r} could be {' or '.join(source for source, _ in parts)}: {where} has both"
            raise UsageError(msg, hint=f"name one: {path}={parts[0][0]}")
        return (parts[0][1], parts[0][0]) if parts else (None, "")


def check_source(column: Column, before: str, source: str, where: str) -> None:
    """Raise `UsageError` if a column has values at two paths; ``where`` is the sample with the second path."""
    if before and source and before != source:
        msg = f"the column {column.name!r} is found at {before!r} in some samples, but at {source!r} in {where}"
        raise UsageError(msg, hint=f"name one path: {column.name}={source}")


def wanted_members(columns: Sequence[Column]) -> Callable[[str], bool]:
    """Return a predicate on names of tar members: true if the lookup of these columns may need the member's bytes."""
    names = {column.path for column in columns}
    paths = [column.path.removesuffix(LENGTH) for column in columns]
    names |= {path[:at] for path in paths for at, letter in enumerate(path) if letter == "."}
    return lambda name: name in names or name == "json" or name.endswith(".json")


def json_members(sample: Mapping[str, Any]) -> list[str]:
    """Return the members of a tar sample with a JSON suffix: ``json``, ``meta.json``."""
    return [
        name
        for name, value in sample.items()
        if name[-4:] == "json" and isinstance(value, bytes) and (name == "json" or name[-5] == ".")
    ]


def refuse_unknown(column: Column, fields: Sequence[str], example: Sample) -> None:
    """Raise `UsageError` for a column without a value in the first samples; the hint is the most similar name."""
    path = column.path.removesuffix(LENGTH)
    known = dict.fromkeys(fields)
    for name in json_members(example):
        value = parsed_json(example[name])
        known |= dict.fromkeys(value if isinstance(value, dict) else ())
    meant = meant_path(example, path) if example else None
    hint = f"did you mean {column.name}={meant}? " if meant else did_you_mean(path, known)
    msg = f"the first samples have no {column.path!r}"
    msg += f", which the column {column.name!r} reads" if column.name != column.path else ""
    listed = ", ".join(list(known)[:20]) + (", ..." if len(known) > 20 else "")
    raise UsageError(msg, hint=f"{hint}they have {listed}")


def _json(sample: Sample, name: str, inside: dict[str, Any]) -> Any:
    if name not in inside:
        inside[name] = parsed_json(sample[name])
    return inside[name]
