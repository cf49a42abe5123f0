"""Columns of Arrow tables: conversion to numpy where they are numbers in memory, gathering of rows, and sample values.

A sample's value depends on the value and its type alone: text and most other types are Python's, as pyarrow converts
them, and so are numbers whose type Python has (int64, float64); other numbers are numpy's, of the type they are stored
in; lists of numbers without nulls are numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.field_columns import Kind, is_python_type, value_of
from shoal.formats.tables.pyarrow_library import arrow_library
from shoal.formats.tables.values import python_value, python_values

# Slicing and joining single rows takes about 0.7 us each; taking from joined arrays copies all of them first.
_FLOATS = {"halffloat": "f2", "float": "f4", "double": "f8"}
_SLICE_SECONDS = 0.7e-6
_COPIED_BYTES_A_SECOND = 4e9


def joined(column: Any) -> Any:
    """Join a chunked column into one array, resolving its dictionary; still chunked if too large for one array."""
    pa = arrow_library("Arrow")
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    is_whole = not isinstance(array, pa.ChunkedArray)
    return _without_dictionary(pa, array) if is_whole and pa.types.is_dictionary(array.type) else array


def _without_dictionary(pa: Any, array: Any) -> Any:
    plain = plain_type(array.type)
    if plain != array.type.value_type:
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


def plain_type(kind: Any) -> Any:
    """Return a column's type with its dictionary resolved: plain text or bytes for views, which pyarrow cannot take."""
    pa = arrow_library("Arrow")
    if not pa.types.is_dictionary(kind):
        return kind
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind.value_type, kind.value_type)


def constant_column(value: str | None, num_rows: int) -> tuple[Kind, Any]:
    """Return a column of one repeated text, or of nulls."""
    pa = arrow_library("Arrow")
    return Kind("cells", arrow=pa.string()), pa.repeat(pa.scalar(value, pa.string()), num_rows)


def getter_of(array: Any) -> Callable[[int], Any]:
    """Return a function that gives one value of a column as samples have it.

    Raises
    ------
    ValueError
        The column has a time outside of a day, which pyarrow would turn into another.
    """
    pa = arrow_library("Arrow")
    kind = array.type
    if pa.types.is_time(kind):
        array.validate(full=True)
    if is_number(pa, kind):
        return _number_getter(array)
    if isinstance(array, pa.ChunkedArray) or not (is_list(pa, kind) and is_number(pa, kind.value_type)):
        inside = _types_inside(kind)
        return lambda row: _with_types(python_value(array[row]), inside)
    values = array.flatten()
    if array.null_count or values.null_count:
        return lambda row: _list_value(array, row)
    numbers = numbers_of(values)
    borders = np.concatenate([[0], np.cumsum(_widths(pa, array))])
    return lambda row: numbers[borders[row] : borders[row + 1]].copy()


def _number_getter(array: Any) -> Callable[[int], Any]:
    """Return a function that gives one number of a column: Python's if Python has its type, else numpy's."""
    pa = arrow_library("Arrow")
    dtype = number_type(array.type)
    if isinstance(array, pa.ChunkedArray) or array.null_count:
        if is_python_type(dtype):
            return lambda row: array[row].as_py()
        return lambda row: None if (value := array[row].as_py()) is None else dtype.type(value)
    numbers = numbers_of(array)
    return numbers.item if is_python_type(dtype) else numbers.__getitem__


@lru_cache(maxsize=1024)
def _types_inside(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return a struct's fields with numbers of types that Python lacks, at any depth, with their types."""
    pa = arrow_library("Arrow")
    found: list[tuple[str, Any]] = []
    for field in kind if pa.types.is_struct(kind) else ():
        if is_number(pa, field.type):
            dtype = number_type(field.type)
            found += [] if is_python_type(dtype) else [(field.name, dtype)]
        elif inside := _types_inside(field.type):
            found.append((field.name, inside))
    return tuple(found)


def _with_types(value: Any, inside: tuple[tuple[str, Any], ...]) -> Any:
    """Give the numbers in a struct their types, since batches have its fields as columns."""
    for name, kind in inside if value is not None else ():
        if (item := value[name]) is not None:
            value[name] = _with_types(item, kind) if isinstance(kind, tuple) else kind.type(item)
    return value


def check_values(array: Any) -> None:
    """Raise `ValueError` if a value is invalid for its type, or lies outside of the array.

    A date in milliseconds that is no whole day, as some writers produce, counts as the day that it falls in.
    """
    array.validate(full=not arrow_library("Arrow").types.is_date64(array.type))


def stored_column(array: Any) -> tuple[Kind, Any]:
    """Return a column as a numpy array of its stored type, if its values have one shape and no nulls; else as cells.

    Raises
    ------
    ValueError
        A value is invalid for its type.
    """
    pa = arrow_library("Arrow")
    kind = array.type
    if not is_number(pa, kind):
        check_values(array)
    if array.null_count or not len(array):
        return Kind("cells", arrow=kind), array
    if is_number(pa, kind) or pa.types.is_boolean(kind):
        numbers = numbers_of(array)
        return Kind("number", numbers.dtype, (), kind), numbers
    if is_list(pa, kind) and is_number(pa, kind.value_type):
        values = array.flatten()
        width = _common_width(pa, array)
        if width is not None and not values.null_count:
            rows = numbers_of(values).reshape(len(array), width)
            return Kind("array", rows.dtype, (width,), kind), rows
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        width = _common_width(pa, array)
        if width:
            data = np.frombuffer(_data_buffer(array), np.uint8)
            begin = _first_byte(pa, array, width)
            return Kind("bytes", data.dtype, (width,), kind), data[begin : begin + width * len(array)].reshape(
                -1, width
            )
    return Kind("cells", arrow=kind), array


def gathered_cells(arrays: Sequence[Any], which: NDArray[np.int64], rows: NDArray[np.int64]) -> Any:
    """Gather row ``rows[i]`` of array ``which[i]``, for each i, into a new array."""
    pa = arrow_library("Arrow")
    copying_seconds = sum(map(_num_bytes, arrays)) / _COPIED_BYTES_A_SECOND
    if copying_seconds < _SLICE_SECONDS * len(rows):
        starts = np.cumsum([0, *(len(array) for array in arrays)])
        try:
            return pa.concat_arrays(arrays).take(_positions(pa, starts[which] + rows))
        except pa.ArrowNotImplementedError:
            pass  # it cannot take values of views
    pairs = zip(which.tolist(), rows.tolist(), strict=True)
    return pa.concat_arrays([arrays[number].slice(row, 1) for number, row in pairs])


def _num_bytes(array: Any) -> int:
    """Return the size of an array; of its whole buffers where pyarrow cannot size views (23 for one)."""
    try:
        return int(array.nbytes)
    except TypeError:
        return int(array.get_total_buffer_size())


def joined_cells(parts: Sequence[Any]) -> Any:
    """Join parts of a column into one array."""
    return parts[0] if len(parts) == 1 else arrow_library("Arrow").concat_arrays(parts)


def plain_cells(array: Any) -> list[Any]:
    """Return the values of an array as samples have them."""
    pa = arrow_library("Arrow")
    kind = array.type
    if is_number(pa, kind) and not is_python_type(dtype := number_type(kind)):
        return [None if value is None else dtype.type(value) for value in array.to_pylist()]
    if not (is_list(pa, kind) and is_number(pa, kind.value_type)):
        inside, values = _types_inside(kind), python_values(array)
        return [_with_types(value, inside) for value in values] if inside else values
    if array.null_count or array.flatten().null_count:
        return [_list_value(array, row) for row in range(len(array))]
    numbers, ends = numbers_of(array.flatten()), np.cumsum(_widths(pa, array)).tolist()
    return [numbers[begin:end].copy() for begin, end in zip([0, *ends], ends, strict=False)]


def value_in(kind: Kind, array: Any, row: int) -> Any:
    """Return a sample's value from a row of a column of any kind; it owns its bytes."""
    return plain_cells(array.slice(row, 1))[0] if kind.how == "cells" else value_of(kind, array, row)


def arrow_array(kind: Kind, values: NDArray[Any]) -> Any:
    """Convert numpy rows to an array of the Arrow type they were stored in."""
    pa = arrow_library("Arrow")
    if kind.how == "number":
        return pa.array(values, kind.arrow)
    flat = np.ascontiguousarray(values).reshape(-1)
    width = kind.shape[0]
    if kind.how == "bytes" and pa.types.is_fixed_size_binary(kind.arrow):
        return pa.Array.from_buffers(kind.arrow, len(values), [None, pa.py_buffer(flat)])
    large = any(test(kind.arrow) for test in (pa.types.is_large_list, pa.types.is_large_binary))
    offsets = np.arange(len(values) + 1, dtype=np.int64 if large else np.int32) * width
    if kind.how == "bytes":
        return pa.Array.from_buffers(kind.arrow, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])
    inner = pa.array(flat, kind.arrow.value_type)
    if pa.types.is_fixed_size_list(kind.arrow):
        return pa.Array.from_buffers(kind.arrow, len(values), [None], children=[inner])
    lists = pa.LargeListArray if large else pa.ListArray
    return lists.from_arrays(pa.array(offsets), inner, type=kind.arrow)


def numpy_cells(array: Any) -> Any:
    """Return the values as a numpy array that owns its memory, if numpy has their type; else as a list."""
    pa = arrow_library("Arrow")
    tests = (pa.types.is_boolean, pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration)
    if not array.null_count and (is_number(pa, array.type) or any(test(array.type) for test in tests)):
        found = numbers_of(array)
        return found if found.flags.writeable else found.copy()
    return plain_cells(array)


def arrow_table(columns: Mapping[str, Any]) -> Any:
    """Build a table of these columns: Arrow arrays as they are, numpy arrays of any shape, and lists.

    Raises
    ------
    UsageError
        Arrow has no type for the values of a column.
    """
    pa = arrow_library('format("arrow")')
    found = {}
    for name, values in columns.items():
        try:
            found[name] = values if isinstance(values, pa.Array) else _arrow_of(pa, values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = f'format("arrow") has no type for the column {name!r}: {error}'
            raise UsageError(
                msg, hint="leave it out with columns(), or make numbers or text of it with map()"
            ) from None
    return pa.table(found)


def _arrow_of(pa: Any, values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        plain = [value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value for value in values]
        return pa.array(plain)
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for place, width in reversed(list(enumerate(values.shape))[1:]):
        if width:
            array = pa.FixedSizeListArray.from_arrays(array, width)
        else:  # Arrow has no fixed-size lists of width 0
            num_lists = int(np.prod(values.shape[:place]))
            array = pa.ListArray.from_arrays(pa.array(np.zeros(num_lists + 1, np.int32)), array)
    return array


def is_list(pa: Any, kind: Any) -> bool:
    """Return True if values are lists of any of Arrow's plain kinds."""
    tests: Iterable[Callable[[Any], bool]] = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_number(pa: Any, kind: Any) -> bool:
    """Return True if values are integers or floating numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def numbers_of(array: Any) -> NDArray[Any]:
    """Return the values of an array without nulls as numpy's: numbers in place, booleans and times through pyarrow.

    For the latter, pyarrow imports pandas where it is installed: 33 MiB and a third of a second for each process.
    """
    pa = arrow_library("Arrow")
    if not isinstance(array, pa.Array) or not is_number(pa, array.type) or not len(array):
        others: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return others
    dtype = number_type(array.type)
    numbers = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    numbers.flags.writeable = False
    return numbers


def number_type(kind: Any) -> np.dtype[Any]:
    """Return the numpy type of an Arrow number type."""
    name = str(kind)  # to_pandas_dtype() needs pandas before pyarrow 26
    return np.dtype(_FLOATS.get(name, name))


def _positions(pa: Any, numbers: NDArray[np.int64]) -> Any:
    """Wrap row numbers as an Arrow array, in place; `pa.array` would import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _list_value(array: Any, row: int) -> Any:
    """Return one list as an array, or as Python's value if it or one of its numbers is null."""
    value = array[row]
    inner = value.values
    if inner is None or inner.null_count:
        return value.as_py()
    return numbers_of(inner).copy()


def _widths(pa: Any, array: Any) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size)
    return np.diff(_offsets(pa, array))


def _offsets(pa: Any, array: Any) -> NDArray[Any]:
    """Return where the values of each row begin, and the last one ends; shape (rows + 1,)."""
    if is_list(pa, array.type):
        return numbers_of(array.offsets)
    wide = pa.types.is_large_binary(array.type)
    found = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return found[array.offset : array.offset + len(array) + 1]


def _common_width(pa: Any, array: Any) -> int | None:
    """Return the number of values, or bytes, per row if all rows have the same; else None."""
    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    if pa.types.is_fixed_size_binary(array.type):
        return int(array.type.byte_width)
    widths = np.diff(_offsets(pa, array))
    return int(widths[0]) if (widths == widths[0]).all() else None


def _data_buffer(array: Any) -> Any:
    return array.buffers()[-1]


def _first_byte(pa: Any, array: Any, width: int) -> int:
    if pa.types.is_fixed_size_binary(array.type):
        return int(array.offset) * width
    return int(_offsets(pa, array)[0])
