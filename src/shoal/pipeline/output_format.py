"""Output formats of batches: Python values, numpy arrays, an Arrow table, or torch tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import itemgetter, setitem
from typing import Any

import numpy as np

from shoal.arguments import as_choice
from shoal.errors import UsageError
from shoal.formats.field_columns import Kind, bytes_of_rows
from shoal.formats.tables.arrow_columns import arrow_array, arrow_table
from shoal.formats.tables.arrow_types import is_number, is_numpy_time
from shoal.formats.tables.arrow_values import numpy_cells, plain_cells, python_values, typed_array
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.pipeline.collate import collate, column_of
from shoal.pipeline.stages.stage import Stage, stages_of
from shoal.pipeline.stored_types import StoredTypes, stored_types
from shoal.pipeline.tensors import tensors, torch_library

FORMATS = ("python", "numpy", "arrow", "torch")


@dataclass(frozen=True, slots=True)
class Formatting:
    """Conversion of columns or samples to a batch, with identical results from either.

    ``name`` is one of `FORMATS`, or None for the result of `collate` on stored samples. ``types`` are the stored types
    of fields whose values do not carry their type through a sample. ``has_types`` is false if the sources of a mixture
    disagree about types; then only the values count.
    """

    name: str | None = None
    types: StoredTypes = field(default_factory=dict)
    has_types: bool = True

    @classmethod
    def named(cls, name: str) -> Formatting:
        """Return the formatting for the argument of `Dataset.format`."""
        hint = 'other libraries take the arrays of "numpy" by DLPack, and the tables of "arrow"'
        return cls(as_choice("format()", name, FORMATS, hint=hint))

    def __post_init__(self) -> None:
        if self.name == "arrow":
            arrow_table({})  # so that a missing library raises here, not when iterating
        elif self.name == "torch":
            torch_library()

    def of(self, opened: OpenedDataset, stages: tuple[Stage, ...]) -> Formatting:
        """Return this formatting with the types of samples after these stages, if all sources of a mixture agree."""
        if self.name in (None, "python"):
            return self
        types, *others = (stored_types(part, stages_of(stages, number)) for number, part in enumerate(opened.parts))
        agree = all(other == types for other in others)
        if self.name != "arrow" and isinstance(types, dict):  # numpy's values need only the types of times
            types = {name: kind for name, kind in types.items() if kind is not None and is_numpy_time(kind)}
        return replace(self, types=types if agree else {}, has_types=agree)

    @property
    def nests(self) -> bool:
        """True if dicts and tuples in samples become dicts and tuples of columns."""
        return self.name not in ("python", "arrow")

    def columns(self, kinds: Sequence[tuple[str, Kind]], arrays: Sequence[Any]) -> dict[str, Any]:
        """Convert gathered columns, by name, before stages and `finished`."""
        return {name: self._column(kind, array) for (name, kind), array in zip(kinds, arrays, strict=True)}

    def finished(self, batch: Any) -> Any:
        """Convert a batch to its final form."""
        if self.name is None:
            return batch
        if self.name == "python":
            return _plain(batch)
        if self.name != "arrow":
            batch = self._with_types(batch, _numpy_times)
            return tensors(batch) if self.name == "torch" else batch
        if not isinstance(batch, Mapping):
            msg = f'format("arrow") needs batches with names; got {type(batch).__name__}'
            raise UsageError(msg, hint="leave out to_tuple(), or the map() that turns samples into something else")
        return arrow_table(self._with_types(batch, _stored_array))

    def sample(self, sample: Any) -> Any:
        """Convert one sample to its final form, if there are no batches; an Arrow table has one row."""
        if self.name is None:
            return sample
        if self.name == "python":
            return _plain(sample)
        if self.name == "arrow":
            return self.finished(collate([sample]) if isinstance(sample, Mapping) else sample)
        sample = self._with_types(_scalars(sample), lambda value, kind: _numpy_times([value], kind)[0])
        return tensors(sample) if self.name == "torch" else sample

    def samples(self, samples: list[Any]) -> list[Any]:
        """Convert each sample as `sample` does; field by field, which takes half of the time, if fields are alike."""
        alike = set(map(type, samples)) == {dict} and len(set(map(tuple, samples))) == 1
        if self.name != "numpy" or self.types or not alike:
            return list(map(self.sample, samples))
        converted = list(map(dict, samples))
        for name in samples[0]:
            values = list(map(itemgetter(name), samples))
            if (scalars := _scalars_of_field(values)) is not values:
                deque(map(setitem, converted, repeat(name), scalars), maxlen=0)
        return converted

    def _with_types(self, batch: Any, typed: Callable[[Any, Any], Any]) -> Any:
        """Apply ``typed`` to each field of known type in a batch or sample."""
        types = self.types
        if not types:
            return batch
        if isinstance(batch, dict) and isinstance(types, dict):
            return {
                name: value if types.get(name) is None else typed(value, types[name]) for name, value in batch.items()
            }
        if type(batch) is tuple and isinstance(types, tuple) and len(types) == len(batch):
            return tuple(
                value if kind is None else typed(value, kind) for value, kind in zip(batch, types, strict=True)
            )
        return batch

    def _column(self, kind: Kind, array: Any) -> Any:
        if isinstance(array, list):
            return array
        if self.name == "arrow":
            return array if kind.how == "cells" or kind.arrow is None else arrow_array(kind, array)
        if kind.how == "cells":
            if self.name == "python":
                return python_values(array)
            if self.name is None and not is_number(kind.arrow):
                return column_of(plain_cells(array))
            values = numpy_cells(array)
            return column_of(values) if isinstance(values, list) else values
        if kind.how == "bytes":
            return bytes_of_rows(array)
        return array.tolist() if self.name == "python" else array


def _numpy_times(values: Any, kind: Any) -> Any:
    """Convert a field of times to a numpy array if no value is missing; return any other field unchanged."""
    if not isinstance(values, list) or not is_numpy_time(kind) or any(value is None for value in values):
        return values
    array = typed_array(values, kind)
    return values if array is None else numpy_cells(array)


def _stored_array(values: Any, kind: Any) -> Any:
    """Convert a field to an Arrow array of this type if its values fit; else return it unchanged."""
    array = typed_array(values, kind) if isinstance(values, list | np.ndarray) else None
    return values if array is None else array


def _plain(value: Any) -> Any:
    """Convert numpy values to Python's own types, as far as possible."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        plain = value.item()
        # For a time that Python cannot represent, item() gives a number without its unit.
        return value if isinstance(plain, int) and value.dtype.kind in "mM" else plain
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _number(value: Any) -> Any:
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return np.int64(value)
    array = np.asarray(value)
    return value if array.dtype.kind == "O" else array[()]  # integers beyond 64 bits stay Python integers


_NUMPY_SCALARS: Mapping[type, Callable[[Any], Any]] = {
    bool: np.bool_, int: _number, float: np.float64, complex: np.complex128, str: str, bytes: lambda value: value,
}  # fmt: skip
_UNCHANGED = {str, bytes, np.ndarray, type(None)}


def _scalars_of_field(values: list[Any]) -> list[Any]:
    """Return `_scalars` of each value; the list itself if no value changes."""
    kinds = set(map(type, values))
    if all(kind in _UNCHANGED or issubclass(kind, np.generic) for kind in kinds):
        return values
    if kinds in ({int}, {float}):
        array = np.array(values)
        if array.dtype == (np.int64 if kinds == {int} else np.float64):  # integers beyond 64 bits are objects
            return list(array)
    return list(map(_scalars, values))


def _scalars(value: Any) -> Any:
    """Convert Python numbers to numpy scalars."""
    if (scalar := _NUMPY_SCALARS.get(type(value))) is not None:
        return scalar(value)
    if isinstance(value, dict):
        known = _NUMPY_SCALARS.get
        return {
            name: _scalars(item) if (scalar := known(type(item))) is None else scalar(item)
            for name, item in value.items()
        }
    if type(value) is tuple:
        return tuple(map(_scalars, value))
    return _number(value) if isinstance(value, bool | int | float | complex) else value  # a subclass, as an IntEnum
