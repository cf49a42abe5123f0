"""The rows of some consecutive extents by field, decoded once, for all windows that have them.

A field whose rows are numbers of one type, or arrays of one shape, is one array, and windows of it are taken by index.
Any other field is values row by row. A row that cannot be decoded has its error, which a window with this row raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns, Kind, is_python_type
from shoal.formats.shard_format import ColumnRecords, Records, Sample
from shoal.formats.tables.arrow_values import getter_of

Stack = Callable[[list[Any]], Any]
"""A function that stacks the values of a field as a batch does, or returns the list."""

Field = NDArray[Any] | Callable[[int], Any]
"""The values of a field by row: an array, or a function of the row."""

ABSENT = object()
"""The value of a field in a row without the field."""


class RowFields(NamedTuple):
    """Fields of some rows by name, in the order of ``fields``; rows are counted from 0.

    ``errors`` has the errors of damaged rows. ``stored`` has the columns of fields that are no array of numbers.
    """

    fields: Mapping[str, Field]
    errors: Mapping[int, ShardError]
    stored: Mapping[str, tuple[Kind, Any]] = {}

    def value(self, name: str, row: int) -> Any:
        """Return the value of a field in one row, as in a sample of this row; it owns its bytes."""
        field = self.fields[name]
        if not isinstance(field, np.ndarray):
            return owned(field(row))
        value = field[row]
        if field.ndim > 1:
            return value.copy()
        return value.item() if is_python_type(field.dtype) else value

    def column(self, name: str, rows: NDArray[np.int64]) -> tuple[Kind, Any] | None:
        """Return some rows of a field as a column; None if the field is no column."""
        field = self.fields[name]
        if isinstance(field, np.ndarray):
            how = "number" if field.ndim == 1 and is_python_type(field.dtype) else "array"
            return Kind(how, field.dtype, field.shape[1:]), field[rows]
        if name not in self.stored:
            return None
        kind, array = self.stored[name]
        return kind, array.take(rows) if kind.how == "cells" else array[rows]


def owned(value: Any) -> Any:
    """Return a value that shares no array, list or dict with another window.

    >>> values = [[1], (2,)]
    >>> owned(values) == values, owned(values)[0] is values[0]
    (True, False)
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is list:
        return [owned(each) for each in value]
    if type(value) is dict:
        return {name: owned(each) for name, each in value.items()}
    return value


def fields_of_columns(columns: Columns) -> RowFields:
    """Return the fields of records that lie in memory as columns."""
    fields: dict[str, Field] = {}
    stored: dict[str, tuple[Kind, Any]] = {}
    for (name, kind), array in zip(columns.kinds, columns.arrays, strict=True):
        if kind.how in ("number", "array"):
            fields[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
            continue
        stored[name] = kind, array
        fields[name] = getter_of(array) if kind.how == "cells" else partial(_bytes_at, array)
    return RowFields(fields, {}, stored)


def _bytes_at(array: NDArray[np.uint8], row: int) -> bytes:
    return bytes(array[row].data)


def fields_of_rows(rows: Mapping[int, Sample | ShardError], num_rows: int) -> RowFields:
    """Return the fields of some of ``num_rows`` rows, by row; a damaged row is its error."""
    errors = {row: decoded for row, decoded in rows.items() if isinstance(decoded, ShardError)}
    samples = {row: decoded for row, decoded in rows.items() if isinstance(decoded, dict)}
    names = dict.fromkeys(name for sample in samples.values() for name in sample)
    numbers = np.fromiter(samples, dtype=np.int64, count=len(samples))
    fields: dict[str, Field] = {}
    for name in names:
        values = [sample.get(name, ABSENT) for sample in samples.values()]
        array = _joined(values)
        if array is None:
            fields[name] = partial(_value_at, dict(zip(samples, values, strict=True)))
        elif len(values) == num_rows:
            fields[name] = array
        else:  # pages of rows that no window has are never written, and take no memory
            sparse = np.zeros((num_rows, *array.shape[1:]), array.dtype)
            sparse[numbers] = array
            fields[name] = sparse
    return RowFields(fields, errors)


def _value_at(values: Mapping[int, Any], row: int) -> Any:
    return values[row]


def _joined(values: list[Any]) -> NDArray[Any] | None:
    """Return values as one array if each is a number, record or array of the same type and shape, else None."""
    first, kind = values[0], type(values[0])
    is_typed = isinstance(first, np.generic | np.ndarray)
    alike = (kind in (int, float, bool) or is_typed) and all(type(value) is kind for value in values)
    if alike and is_typed:
        alike = first.dtype.kind in "biufcV" and all(v.shape == first.shape and v.dtype == first.dtype for v in values)
    array = np.array(values) if alike else None
    if array is not None and kind is int and array.dtype != np.int64:
        return None  # larger integers are stacked window by window
    return array


def each_row(records: Records, numbers: Sequence[int]) -> dict[int, Sample | ShardError]:
    """Decode some rows once; a row that cannot be decoded is its error."""
    rows: dict[int, Sample | ShardError] = {}
    for number in numbers:
        try:
            rows[number] = records.sample(number)
        except ShardError as error:
            rows[number] = error
    return rows


def columns_in(records: Records) -> Columns | None:
    """Return the columns of records; None if there are none, or a value is damaged: rows show which."""
    try:
        return records.columns() if isinstance(records, ColumnRecords) else None
    except ShardError:
        return None
