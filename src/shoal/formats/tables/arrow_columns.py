"""Columns of Arrow tables: as numpy arrays where they are numbers in memory, and gathered by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.field_columns import Kind
from shoal.formats.tables.arrow_types import (
    array_shape,
    arrow_library,
    is_list,
    is_number,
    is_number_list,
    leaf_type,
    number_type,
    plain_type,
)

# Slicing and joining single rows takes about 0.7 us each; taking from joined arrays copies all of them first.
_SLICE_SECONDS = 0.7e-6
_COPIED_BYTES_A_SECOND = 4e9
_MOST_STACKED_BYTES = 4096  # of a value: as rows of numpy, bytes are copied four times, and as cells once


def joined(column: Any) -> Any:
    """Join a chunked column into one array, resolving its dictionary; still chunked if too large for one array."""
    pa = arrow_library("Arrow")
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray) or not pa.types.is_dictionary(array.type):
        return array
    plain = plain_type(array.type)
    if plain != array.type.value_type:
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


def constant_column(value: str | None, num_rows: int) -> tuple[Kind, Any]:
    """Return a column of one repeated text, or of nulls."""
    pa = arrow_library("Arrow")
    return Kind("cells", arrow=pa.string()), pa.repeat(pa.scalar(value, pa.string()), num_rows)


def check_values(array: Any) -> None:
    """Raise `ValueError` if a value is invalid for its type, or lies outside of the array.

    A date in milliseconds that is no whole day, as some writers produce, counts as the day that it falls in.
    """
    array.validate(full=not arrow_library("Arrow").types.is_date64(array.type))


def stored_column(array: Any) -> tuple[Kind, Any]:
    """Return a column as a numpy array of its stored type, if its values have one shape and no nulls; else as cells.

    Raises `ValueError` if a value is invalid for its type.
    """
    types, kind, num_rows = arrow_library("Arrow").types, array.type, len(array)
    if not is_number(kind):
        check_values(array)
    if array.null_count or not num_rows:
        return Kind("cells", arrow=kind), array
    if is_number(kind) or types.is_boolean(kind):
        numbers = numbers_of(array)
        return Kind("number", numbers.dtype, (), kind), numbers
    if (shape := array_shape(kind)) and (tensors := rows_of_shape(array, shape)) is not None:
        return Kind("array", tensors.dtype, shape, kind), tensors
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    if is_bytes or is_number_list(kind):
        widths = list_widths(array)
        width = int(widths[0])
        if is_bytes and 0 < width <= _MOST_STACKED_BYTES and (widths == width).all():
            begin = array.offset * width if types.is_fixed_size_binary(kind) else int(offsets_of(array)[0])
            data = np.frombuffer(array.buffers()[-1], np.uint8)[begin : begin + width * num_rows]
            return Kind("bytes", data.dtype, (width,), kind), data.reshape(-1, width)
        if not is_bytes and (widths == width).all() and not (values := array.flatten()).null_count:
            rows = numbers_of(values).reshape(num_rows, width)
            return Kind("array", rows.dtype, (width,), kind), rows
    return Kind("cells", arrow=kind), array


def gathered_cells(arrays: Sequence[Any], which: NDArray[np.int64], rows: NDArray[np.int64]) -> Any:
    """Gather row ``rows[i]`` of array ``which[i]``, for each i, into a new array."""
    pa = arrow_library("Arrow")
    copying_seconds = sum(map(_num_bytes, arrays)) / _COPIED_BYTES_A_SECOND
    if copying_seconds < _SLICE_SECONDS * len(rows):
        starts = np.cumsum([0, *(len(array) for array in arrays)])
        numbers = np.ascontiguousarray(starts[which] + rows)
        # `pa.array` would import pandas
        wrapped = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
        try:
            return pa.concat_arrays(arrays).take(wrapped)
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


def arrow_array(kind: Kind, values: NDArray[Any]) -> Any:
    """Convert numpy rows to an array of the Arrow type they were stored in."""
    pa = arrow_library("Arrow")
    if kind.how == "number":
        return pa.array(values, kind.arrow)
    flat, width, num_rows = np.ascontiguousarray(values).reshape(-1), kind.shape[0], len(values)
    if pa.types.is_fixed_size_list(kind.arrow):
        return nested_lists(pa.array(flat, leaf_type(kind.arrow)), kind.arrow, num_rows)
    if kind.how == "bytes" and pa.types.is_fixed_size_binary(kind.arrow):
        return pa.Array.from_buffers(kind.arrow, num_rows, [None, pa.py_buffer(flat)])
    is_large = pa.types.is_large_list(kind.arrow) or pa.types.is_large_binary(kind.arrow)
    offsets = np.arange(num_rows + 1, dtype=np.int64 if is_large else np.int32) * width
    if kind.how == "bytes":
        return pa.Array.from_buffers(kind.arrow, num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(flat)])
    inner = pa.array(flat, kind.arrow.value_type)
    lists = pa.LargeListArray if is_large else pa.ListArray
    return lists.from_arrays(pa.array(offsets), inner, type=kind.arrow)


def nested_lists(values: Any, kind: Any, num_lists: int, *, validity: NDArray[np.bool_] | None = None) -> Any:
    """Cut an array of values into so many fixed-size lists of this type, in each other, without a copy.

    ``validity`` says which of the outermost lists are valid; all if it is None.
    """
    pa = arrow_library("Arrow")
    if not pa.types.is_fixed_size_list(kind):
        return values
    inner = nested_lists(values, kind.value_type, num_lists * kind.list_size)
    bits = None if validity is None else pa.py_buffer(np.packbits(validity, bitorder="little"))
    return pa.Array.from_buffers(kind, num_lists, [bits], children=[inner])


def rows_of_shape(array: Any, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return fixed-size lists in each other as numpy rows of this shape; None if anything in them is null."""
    values = array
    for _ in shape:
        if values.null_count:
            return None
        values = values.flatten()
    return None if values.null_count else numbers_of(values).reshape(len(array), *shape)


def arrow_table(columns: Mapping[str, Any]) -> Any:
    """Build a table of these columns: Arrow arrays as they are, numpy arrays of any shape, and lists.

    Raises `UsageError` if Arrow has no type for the values of a column, or columns have different numbers of rows.
    """
    pa = arrow_library('format("arrow")')
    found = {}
    for name, values in columns.items():
        try:
            found[name] = values if isinstance(values, pa.Array) else _array_of_any_shape(pa, values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = f'format("arrow") has no type for the column {name!r}: {error}'
            hint = "leave it out with columns(), or make numbers or text of it with map()"
            raise UsageError(msg, hint=hint) from None
    if len(set(map(len, found.values()))) > 1:
        rows = ", ".join(f"{name} {len(values)}" for name, values in found.items())
        msg = f'format("arrow") makes tables of columns of one length, and these have: {rows}'
        raise UsageError(msg, hint='leave out what has no row for each sample (as cu_seqlens), or format("numpy")')
    return pa.table(found)


def _array_of_any_shape(pa: Any, values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        plain = [value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value for value in values]
        return pa.array(plain)
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        if width := values.shape[axis]:
            array = pa.FixedSizeListArray.from_arrays(array, width)
        else:  # Arrow has no fixed-size lists of width 0
            num_lists = int(np.prod(values.shape[:axis]))
            array = pa.ListArray.from_arrays(pa.array(np.zeros(num_lists + 1, np.int32)), array)
    return array


def numbers_of(array: Any) -> NDArray[Any]:
    """Return the values of an array without nulls as numpy's: numbers as views, booleans and times through pyarrow.

    For the latter, pyarrow imports pandas where it is installed: 33 MiB and a third of a second for each process.
    """
    if not isinstance(array, arrow_library("Arrow").Array) or not is_number(array.type):
        others: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return others
    dtype = number_type(array.type)
    data = array.buffers()[1] if len(array) else b""  # of none there may be no buffer
    numbers = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize if len(array) else 0)
    numbers.flags.writeable = False
    return numbers


def list_widths(array: Any) -> NDArray[np.int64]:
    """Return the number of values of each list, or of bytes of each value; shape (rows,)."""
    types = arrow_library("Arrow").types
    if types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size)
    if types.is_fixed_size_binary(array.type):
        return np.full(len(array), array.type.byte_width)
    return np.diff(offsets_of(array))


def offsets_of(array: Any) -> NDArray[Any]:
    """Return where the values of each row begin, and the last one ends, of lists, text or bytes; shape (rows + 1,)."""
    if is_list(array.type):
        return numbers_of(array.offsets)
    types = arrow_library("Arrow").types
    if not len(array):  # perhaps without a buffer
        return np.zeros(1, dtype=np.int32)
    is_large = types.is_large_binary(array.type) or types.is_large_string(array.type)
    found = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    return found[array.offset : array.offset + len(array) + 1]
