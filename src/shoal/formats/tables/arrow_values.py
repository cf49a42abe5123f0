"""Conversion between Arrow arrays and the values of samples.

A sample's value depends on the stored value and its type alone. Text and most other types become Python values, as in
pyarrow. int64 and float64 become Python numbers, other numbers numpy scalars of their stored type, and lists of numbers
without nulls numpy arrays. Times that Python cannot represent become numpy times: Python's datetime counts microseconds
and ends with the year 9999. pyarrow converts nanoseconds in one way with pandas (to its types, with times of the day
truncated to microseconds) and in another without it, so this module converts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.compiled_cutting import values_of_rows
from shoal.formats.field_columns import Kind, is_python_type, value_of
from shoal.formats.tables.arrow_columns import arrow_array, list_widths, numbers_of, offsets_of, rows_of_shape
from shoal.formats.tables.arrow_types import (
    array_shape,
    arrow_library,
    is_binary,
    is_list,
    is_number,
    is_number_list,
    is_numpy_time,
    is_text,
    leaf_type,
    number_type,
)


def python_value(scalar: Any) -> Any:
    """Convert a scalar as pyarrow does; times that Python cannot represent become numpy times.

    A time of the day becomes the time since midnight. Raises `ValueError` if the value is invalid for its type (text
    that is not UTF-8).
    """
    if not _has_nanoseconds(scalar.type):
        try:
            return scalar.as_py()
        except (ValueError, OverflowError):
            pass
    return _value_with_numpy_times(scalar)


def python_values(array: Any) -> list[Any]:
    """Convert the values of an array, each as `python_value` does."""
    try:
        if _has_nanoseconds(array.type):
            array = array.cast(_in_microseconds(array.type))  # fails if a value would change
        return [*array.to_pylist()]
    except (ValueError, OverflowError):
        return [python_value(scalar) for scalar in array]


def _value_with_numpy_times(scalar: Any) -> Any:
    pa = arrow_library("Arrow")
    kind, types = scalar.type, pa.types
    if not scalar.is_valid:
        return None
    if types.is_temporal(kind) and _has_nanoseconds(kind) and scalar.value % 1000 == 0:
        return scalar.cast(_in_microseconds(kind)).as_py()
    if types.is_timestamp(kind):
        return np.datetime64(scalar.value, kind.unit)
    if types.is_duration(kind) or types.is_time(kind):
        return np.timedelta64(scalar.value, kind.unit)
    if types.is_date(kind):
        return np.datetime64(scalar.value, "D" if types.is_date32(kind) else "ms")
    if types.is_struct(kind):
        return {kind.field(number).name: python_value(scalar[number]) for number in range(kind.num_fields)}
    if types.is_map(kind):
        return [(python_value(pair[0]), python_value(pair[1])) for pair in scalar.values]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        return python_value(scalar.value)
    if types.is_nested(kind) and not types.is_union(kind):
        return [python_value(item) for item in scalar.values]
    return scalar.as_py()  # raises the error again


@lru_cache(maxsize=1024)
def _has_nanoseconds(kind: Any) -> bool:
    """Return True if values of a type hold times in nanoseconds, at any depth."""
    pa = arrow_library("Arrow")
    if pa.types.is_temporal(kind):
        return getattr(kind, "unit", "") == "ns"
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nanoseconds(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _has_nanoseconds(kind.value_type)
    return any(_has_nanoseconds(kind.field(number).type) for number in range(kind.num_fields))


def _in_microseconds(kind: Any) -> Any:
    """Return a type of times with microseconds as its unit; `ValueError` for a type that only contains times."""
    pa = arrow_library("Arrow")
    if not pa.types.is_temporal(kind):
        raise ValueError
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


class BinaryRows(NamedTuple):
    """The texts or bytes of a column without nulls; called with a row, it returns the value.

    ``offsets`` have where each row begins in ``data``, and where the last one ends; a compiled function reads both.
    """

    offsets: memoryview
    data: memoryview
    is_text: bool

    def __call__(self, row: int, /) -> str | bytes:
        """Return the value of a row."""
        value = self.data[self.offsets[row] : self.offsets[row + 1]]
        return str(value, "utf-8") if self.is_text else bytes(value)


def gathered_values(
    getters: list[Callable[[int], Any]], which: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[Any]:
    """Return row ``rows[i]`` of getter ``which[i]``, for each i; getters are those of `getter_of`, of one type.

    >>> import pyarrow as pa
    >>> columns = [getter_of(pa.array(["a", "b"])), getter_of(pa.array(["c"]))]
    >>> gathered_values(columns, np.array([1, 0]), np.array([0, 1]))
    ['c', 'b']
    """
    first = getters[0]
    if values_of_rows is not None and type(first) is BinaryRows and all(type(each) is BinaryRows for each in getters):
        values: list[Any] | None = values_of_rows(getters, which, rows, first.is_text)
        if values is not None:
            return values
    return [getters[number](row) for number, row in zip(which.tolist(), rows.tolist(), strict=True)]


def getter_of(array: Any) -> Callable[[int], Any]:
    """Return a function from a row number to the value of a sample.

    Raises `ValueError` if the column has a time outside of a day, which pyarrow would turn into another time.
    """
    pa = arrow_library("Arrow")
    kind, is_chunked = array.type, isinstance(array, pa.ChunkedArray)
    if pa.types.is_time(kind):
        array.validate(full=True)
    if is_number(kind):
        dtype = number_type(kind)
        if not (is_chunked or array.null_count):
            numbers = numbers_of(array)
            return numbers.item if is_python_type(dtype) else numbers.__getitem__
        if is_python_type(dtype):
            return lambda row: array[row].as_py()
        return lambda row: None if (value := array[row].as_py()) is None else dtype.type(value)
    if is_binary(kind) and not (is_chunked or array.null_count):
        rows: Any = BinaryRows(offsets_of(array).data, memoryview(array.buffers()[2] or b""), is_text(kind))
        return rows  # type: ignore[no-any-return]
    if shape := array_shape(kind):
        tensors = None if is_chunked else rows_of_shape(array, shape)
        if tensors is None:
            return lambda row: _array_value(array[row], shape[1:])
        return lambda row: tensors[row].copy()
    if is_chunked or not is_number_list(kind):
        inside = _numpy_types_inside(kind)
        return lambda row: _with_types(python_value(array[row]), inside)
    values = array.flatten()
    if array.null_count or values.null_count:
        return lambda row: _array_value(array[row])
    numbers = numbers_of(values)
    borders = np.concatenate([[0], np.cumsum(list_widths(array))])
    return lambda row: numbers[borders[row] : borders[row + 1]].copy()


@lru_cache(maxsize=1024)
def _numpy_types_inside(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a struct, at any depth, that have numbers of numpy's types, with these types."""
    fields: list[tuple[str, Any]] = []
    for field in kind if arrow_library("Arrow").types.is_struct(kind) else ():
        if is_number(field.type):
            dtype = number_type(field.type)
            fields += [] if is_python_type(dtype) else [(field.name, dtype)]
        elif inside := _numpy_types_inside(field.type):
            fields.append((field.name, inside))
    return tuple(fields)


def _with_types(value: Any, inside: tuple[tuple[str, Any], ...]) -> Any:
    """Convert the numbers in a struct to their stored types: in batches its fields are columns."""
    for name, kind in inside if value is not None else ():
        if (item := value[name]) is not None:
            value[name] = _with_types(item, kind) if isinstance(kind, tuple) else kind.type(item)
    return value


def _array_value(value: Any, inner_shape: tuple[int, ...] = ()) -> Any:
    """Return one list as an array, or as a Python value if it is null or contains a null."""
    rows = None if value.values is None else rows_of_shape(value.values, inner_shape)
    return value.as_py() if rows is None else rows.copy()


def plain_cells(array: Any) -> list[Any]:
    """Return the values of an array as samples have them."""
    kind = array.type
    if is_number(kind) and not is_python_type(dtype := number_type(kind)):
        return [None if value is None else dtype.type(value) for value in array.to_pylist()]
    if shape := array_shape(kind):
        tensors = rows_of_shape(array, shape)
        if tensors is None:
            return [_array_value(value, shape[1:]) for value in array]
        return [row.copy() for row in tensors]
    if not is_number_list(kind):
        inside, values = _numpy_types_inside(kind), python_values(array)
        return [_with_types(value, inside) for value in values] if inside else values
    if array.null_count or array.flatten().null_count:
        return [_array_value(value) for value in array]
    numbers, ends = numbers_of(array.flatten()), np.cumsum(list_widths(array)).tolist()
    return [numbers[begin:end].copy() for begin, end in zip([0, *ends], ends, strict=False)]


def cells_as_list(kind: Kind, column: Any) -> list[Any] | None:
    """Return the values of a column of cells as samples have them; None for other columns."""
    return plain_cells(column) if kind.how == "cells" else None


def numpy_cells(array: Any) -> Any:
    """Return the values as a numpy array that owns its memory if numpy has their type, else as a list."""
    kind = array.type
    is_boolean = arrow_library("Arrow").types.is_boolean(kind)
    if array.null_count or not (is_boolean or is_number(kind) or is_numpy_time(kind)):
        return plain_cells(array)
    numbers = numbers_of(array)
    return numbers if numbers.flags.writeable else numbers.copy()


def value_in(kind: Kind, array: Any, row: int) -> Any:
    """Return the value of a sample from a row of a column of any kind; the value owns its bytes."""
    return plain_cells(array.slice(row, 1))[0] if kind.how == "cells" else value_of(kind, array, row)


def typed_array(values: Any, kind: Any) -> Any:
    """Convert the values of a field to an array of this Arrow type; None if a value does not fit it exactly.

    Only numbers keep their type in a sample: pyarrow turns `Decimal("1.25")` into a decimal of three digits, though the
    column had ten. Given a type, pyarrow rounds, truncates and encodes, so its result is compared with the values.

    >>> from decimal import Decimal
    >>> import pyarrow as pa
    >>> typed_array([Decimal("1.25"), None], pa.decimal128(10, 2)).type
    Decimal128Type(decimal128(10, 2))
    >>> typed_array([Decimal("1.257")], pa.decimal128(10, 2)), typed_array(["1.25"], pa.decimal128(10, 2))
    (None, None)
    """
    pa = arrow_library("Arrow")
    if isinstance(values, np.ndarray):
        if values.ndim > 1 and is_list(kind):
            is_fixed = pa.types.is_fixed_size_list(kind)
            shape = array_shape(kind) or (kind.list_size if is_fixed else values.shape[1],)
            leaf = leaf_type(kind)
            dtype = np.dtype(bool) if pa.types.is_boolean(leaf) else number_type(leaf) if is_number(leaf) else None
            if values.shape[1:] != shape or values.dtype != dtype:
                return None
            return arrow_array(Kind("array", values.dtype, values.shape[1:], kind), values)
        flat = pa.array(values) if values.ndim == 1 else None
        return flat if flat is not None and flat.type == kind else None
    try:
        array = pa.array([_countable(value, kind) for value in values], kind)
        stored = plain_cells(array)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return array if _equal(stored, values) else None


def _countable(value: Any, kind: Any) -> Any:
    """Replace numpy times by their number of units, since pyarrow does not accept them everywhere."""
    pa = arrow_library("Arrow")
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = {pa.date32(): "D", pa.date64(): "ms"}.get(kind) or getattr(kind, "unit", None)
        return int(value.astype(np.int64)) if np.datetime_data(value.dtype)[0] == unit else value
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {
            name: _countable(item, kind.field(name).type) if kind.get_field_index(name) >= 0 else item
            for name, item in value.items()
        }
    if isinstance(value, list) and pa.types.is_map(kind):
        return [(_countable(key, kind.key_type), _countable(item, kind.item_type)) for key, item in value]
    if isinstance(value, list) and is_list(kind):
        return [_countable(item, kind.value_type) for item in value]
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return value.tolist()
    return value


def _equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal and of one type; NaN is equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124  # NaN alone differs from itself
