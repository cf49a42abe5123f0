"""Columns of the index from values of written samples: numbers unchanged, strings as codes into a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.column_paths import Column, meant_path
from shoal.formats.shard_format import Sample
from shoal.hints import did_you_mean


def values_in(columns: Sequence[Column], sample: Sample) -> list[Any]:
    """Return the values of all columns in a sample; `UsageError` if one is missing, or no number or string."""
    values = [column.value(sample) for column in columns]
    for column, value in zip(columns, values, strict=True):
        if not isinstance(value, bool | int | float | str):
            name = sample.get("__key__", sample.get("key", ""))
            kind = "none" if value is None else f"a {type(value).__name__}"
            msg = f"the column {column.name!r} is {column.path!r} of each sample, but the sample {name!r} has {kind} "
            msg += f"there; its fields are {', '.join(sample)}"
            meant = meant_path(sample, column.path)
            hint = f"did you mean {column.name}={meant}?" if meant else did_you_mean(column.path, sample).rstrip()
            raise UsageError(msg, hint=hint or "numbers and texts go into the index")
    return values


class ColumnValues:
    """The values of some columns, collected sample by sample."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._values: list[list[Any]] = [[] for _ in columns]

    def take(self, row: Sequence[Any]) -> None:
        """Append the values of a sample, from `values_in`."""
        for values, value in zip(self._values, row, strict=True):
            values.append(value)

    def drop(self, number: int) -> None:
        """Remove the values of one sample."""
        for values in self._values:
            del values[number]

    def add_block(self, values: Mapping[str, NDArray[Any]], num_samples: int) -> None:
        """Append the values of many samples, keyed by path, each of shape (num_samples,)."""
        for column, known in zip(self._columns, self._values, strict=True):
            block = values[column.path].tolist()
            if len(block) != num_samples:
                raise UsageError(f"the column {column.name!r} has {len(block)} values for {num_samples} samples")
            known.extend(block)

    def arrays(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        """Return the columns, and the strings of each string column."""
        arrays: dict[str, NDArray[Any]] = {}
        texts: dict[str, list[str]] = {}
        for column, values in zip(self._columns, self._values, strict=True):
            if any(isinstance(value, str) for value in values):
                strings = list(map(str, values))
                texts[column.name] = sorted(set(strings))
                arrays[column.name] = codes_of(strings, texts[column.name])
            else:
                arrays[column.name] = _numbers(values, column.name)
        return arrays, texts


def joined_columns(
    parts: Sequence[Mapping[str, NDArray[Any]]], texts: Sequence[Mapping[str, Sequence[str]]]
) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Join the columns of several shards into columns of one dataset; string codes are reassigned."""
    arrays: dict[str, NDArray[Any]] = {}
    words: dict[str, list[str]] = {}
    for name in parts[0] if parts else ():
        columns = [part[name] for part in parts]
        if any(name in known for known in texts):
            # As within one shard: if some values are strings, all become strings.
            both = [as_texts(column, known.get(name)) for column, known in zip(columns, texts, strict=True)]
            words[name] = sorted({word for _, known in both for word in known})
            columns = [codes_of(known, words[name])[codes] for codes, known in both]
        else:
            # A shard without samples does not know the types of its columns.
            columns = [column for column in columns if len(column)] or columns[:1]
        arrays[name] = np.concatenate(columns)
    return arrays, words


def codes_of(strings: Sequence[str], words: Sequence[str]) -> NDArray[np.int32]:
    """Return the numbers of strings among distinct words; shape (len(strings),)."""
    code_of = {word: code for code, word in enumerate(words)}
    return np.array([code_of[string] for string in strings], dtype=np.int32)


def as_texts(column: NDArray[Any], known: Sequence[str] | None) -> tuple[NDArray[np.int64], Sequence[str]]:
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
