"""Columns of Arrow tables as numpy arrays, and columns gathered by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.field_columns import Kind
from shoal.formats.tables.arrow_types import (
    array_shape,
    arrow_library,
    is_bytes,
    is_list,
    is_number,
    is_number_list,
    is_text,
    leaf_type,
    number_type,
    plain_type,
)

# Slicing and joining single rows takes about 0.7 us each; taking from joined arrays copies all of them first.
_SLICE_SECONDS = 0.7e-6
_COPIED_BYTES_A_SECOND = 4e9
_MOST_STACKED_BYTES = 4096  # of a value: as rows of numpy, bytes are copied four times, and as cells once


class FieldValues(NamedTuple):
    """The values of a field, shape (rows,): numbers, or codes into ``words``; ``missing`` marks rows without a value.

    ``missing`` is None if every row has a value.
    """

    values: NDArray[Any]
    missing: NDArray[np.bool_] | None = None
    words: list[str] | None = None


def field_values(kind: Kind, column: Any) -> FieldValues | None:
    """Return the numbers or texts of a column; None if the column holds other values.

    >>> field_values(Kind("number", np.dtype("i4")), np.array([1, 2], "i4")).values.tolist()
    [1, 2]
    """
    if kind.how != "cells":
        is_flat = kind.how != "bytes" and int(np.prod(kind.shape)) == 1
        return FieldValues(column.reshape(len(column))) if is_flat else None
    types, arrow = arrow_library("Arrow").types, column.type
    missing = _missing(column)
    if types.is_null(arrow):
        return FieldValues(np.zeros(len(column), np.int64), missing)
    if is_text(arrow):
        coded = column.dictionary_encode()
        return FieldValues(numbers_of(coded.indices.fill_null(0)), missing, coded.dictionary.to_pylist())
    if is_number(arrow) or types.is_boolean(arrow):
        return FieldValues(numbers_of(column.fill_null(not types.is_boolean(arrow) and 0)), missing)
    return None


def field_lengths(kind: Kind, column: Any) -> FieldValues | None:
    """Return the lengths of lists, of bytes, and of texts in characters; None if values have no length.

    >>> field_lengths(Kind("array", np.dtype("i4"), (3,)), np.zeros((2, 3), "i4")).values.tolist()
    [3, 3]
    """
    if kind.how != "cells":
        return FieldValues(np.full(len(column), kind.shape[0])) if kind.shape else None
    if is_text(column.type):
        import pyarrow.compute as pc  # noqa: PLC0415  # optional, and slow to import

        return FieldValues(numbers_of(pc.utf8_length(column).fill_null(0)), _missing(column))
    has_length = is_bytes(column.type) or is_list(column.type)
    return FieldValues(list_widths(column), _missing(column)) if has_length else None


def _missing(column: Any) -> NDArray[np.bool_] | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def inner_column(column: Any, path: str) -> Any | None:
    """Return the column at a path inside a column of structs, or None; names may contain dots.

    A row without a struct has no value in the inner column.
    """
    pa = arrow_library("Arrow")
    if not isinstance(column, pa.Array) or not pa.types.is_struct(column.type):
        return None
    if column.type.get_field_index(path) >= 0:
        import pyarrow.compute as pc  # noqa: PLC0415  # optional, and slow to import

        return pc.struct_field(column, column.type.get_field_index(path))
    for cut in (at for at, letter in enumerate(path) if letter == "."):
        outer = inner_column(column, path[:cut])
        if outer is not None and (inner := inner_column(outer, path[cut + 1 :])) is not None:
            return inner
    return None


def joined(column: Any) -> Any:
    """Join the chunks of a column and resolve its dictionary; a column too large for one array stays chunked."""
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

    A date in milliseconds that is not a whole day, as some writers produce, counts as the day that it falls in.
    """
    array.validate(full=not arrow_library("Arrow").types.is_date64(array.type))


def stored_column(array: Any) -> tuple[Kind, Any]:
    """Return a column as a numpy array of its stored type if values have one shape and no nulls, else as cells.

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
    if is_bytes(kind) or is_number_list(kind):
        widths = list_widths(array)
        width, is_even = int(widths[0]), (widths == widths[0]).all()
        if is_bytes(kind) and 0 < width <= _MOST_STACKED_BYTES and is_even:
            begin = array.offset * width if types.is_fixed_size_binary(kind) else int(offsets_of(array)[0])
            data = np.frombuffer(array.buffers()[-1], np.uint8)[begin : begin + width * num_rows]
            return Kind("bytes", data.dtype, (width,), kind), data.reshape(-1, width)
        if not is_bytes(kind) and is_even and not (values := array.flatten()).null_count:
            rows = numbers_of(values).reshape(num_rows, width)
            return Kind("array", rows.dtype, (width,), kind), rows
    return Kind("cells", arrow=kind), array


def gathered_cells(arrays: Sequence[Any], which: NDArray[np.int64], rows: NDArray[np.int64]) -> Any:
    """Gather row ``rows[i]`` of array ``which[i]``, for each i, into a new array."""
    pa = arrow_library("Arrow")
    copying_seconds = sum(map(_num_bytes, arrays)) / _COPIED_BYTES_A_SECOND
    if copying_seconds < _SLICE_SECONDS * len(rows):
        starts = np.cumsum([0, *(len(array) for array in arrays)])
        try:
            return pa.concat_arrays(arrays).take(index_array(starts[which] + rows))
        except pa.ArrowNotImplementedError:
            pass  # it cannot take values of views
    pairs = zip(which.tolist(), rows.tolist(), strict=True)
    return pa.concat_arrays([arrays[number].slice(row, 1) for number, row in pairs])


def index_array(numbers: NDArray[np.int64]) -> Any:
    """Return numbers as a flat Arrow array; `pa.array` would import pandas."""
    pa, flat = arrow_library("Arrow"), np.ascontiguousarray(numbers).reshape(-1)
    return pa.Array.from_buffers(pa.int64(), len(flat), [None, pa.py_buffer(flat)])


def _num_bytes(array: Any) -> int:
    """Return the size of an array; the size of its whole buffers if pyarrow cannot size views (as in 23)."""
    try:
        return int(array.nbytes)
    except TypeError:
        return int(array.get_total_buffer_size())


def joined_cells(parts: Sequence[Any]) -> Any:
    """Join parts of a column into one array."""
    return parts[0] if len(parts) == 1 else arrow_library("Arrow").concat_arrays(parts)


def arrow_array(kind: Kind, values: NDArray[Any]) -> Any:
    """Convert numpy rows to an array of the Arrow type in which the column was stored."""
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
    lists = pa.LargeListArray if is_large else pa.ListArray
    return lists.from_arrays(pa.array(offsets), pa.array(flat, kind.arrow.value_type), type=kind.arrow)


def nested_lists(values: Any, kind: Any, num_lists: int, *, validity: NDArray[np.bool_] | None = None) -> Any:
    """Cut an array of values into ``num_lists`` fixed-size lists of this nested type, without a copy.

    ``validity`` marks the outermost lists that are valid; None means all.
    """
    pa = arrow_library("Arrow")
    if not pa.types.is_fixed_size_list(kind):
        return values
    inner = nested_lists(values, kind.value_type, num_lists * kind.list_size)
    bits = None if validity is None else pa.py_buffer(np.packbits(validity, bitorder="little"))
    return pa.Array.from_buffers(kind, num_lists, [bits], children=[inner])


def rows_of_shape(array: Any, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return nested fixed-size lists as numpy rows of this shape; None if they contain a null."""
    values = array
    for _ in shape:
        if values.null_count:
            return None
        values = values.flatten()
    return None if values.null_count else numbers_of(values).reshape(len(array), *shape)


def arrow_table(columns: Mapping[str, Any]) -> Any:
    """Build a table of Arrow arrays, numpy arrays of any shape, and lists.

    Raises `UsageError` if Arrow has no type for the values of a column, or columns have different numbers of rows.
    """
    pa = arrow_library('format("arrow")')
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = values if isinstance(values, pa.Array) else _array_of_any_shape(pa, values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = f'format("arrow") has no type for the column {name!r}: {error}'
            hint = "leave it out with columns(), or convert it to numbers or text with map()"
            raise UsageError(msg, hint=hint) from None
    if len(set(map(len, arrays.values()))) > 1:
        rows = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        msg = f'format("arrow") makes tables with columns of one length, but the columns have: {rows}'
        raise UsageError(msg, hint='leave out fields without a row per sample (as cu_seqlens), or format("numpy")')
    return pa.table(arrays)


def _array_of_any_shape(pa: Any, values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return pa.array(
            [value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value for value in values]
        )
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        if width := values.shape[axis]:
            array = pa.FixedSizeListArray.from_arrays(array, width)
        else:  # Arrow has no fixed-size lists of width 0
            num_lists = int(np.prod(values.shape[:axis]))
            array = pa.ListArray.from_arrays(pa.array(np.zeros(num_lists + 1, np.int32)), array)
    return array


def numbers_of(array: Any) -> NDArray[Any]:
    """Return an array without nulls as numpy values: numbers as views, booleans and times through pyarrow.

    For booleans and times, pyarrow imports pandas if it is installed: 33 MiB and a third of a second per process.
    """
    if not isinstance(array, arrow_library("Arrow").Array) or not is_number(array.type):
        converted: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return converted
    dtype = number_type(array.type)
    data = array.buffers()[1] if len(array) else b""  # an empty array may have no buffer
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
    """Return where each row of lists, text or bytes begins, and where the last one ends; shape (rows + 1,)."""
    if is_list(array.type):
        return numbers_of(array.offsets)
    types = arrow_library("Arrow").types
    if not len(array):  # perhaps without a buffer
        return np.zeros(1, dtype=np.int32)
    is_large = types.is_large_binary(array.type) or types.is_large_string(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]
