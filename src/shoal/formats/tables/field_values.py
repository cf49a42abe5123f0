"""Values of a whole Arrow column as arrays: numbers, codes of texts, and lengths, without a Python object for each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Kind
from shoal.formats.tables.arrow_columns import list_widths, numbers_of
from shoal.formats.tables.arrow_types import arrow_library, is_list, is_number
from shoal.formats.tables.arrow_values import plain_cells


class FieldValues(NamedTuple):
    """The values of a field: numbers, or codes into ``words``, and a mask of the rows without a value.

    Arrays have shape (rows,); ``missing`` is None if no value is.
    """

    values: NDArray[Any]
    missing: NDArray[np.bool_] | None = None
    words: list[str] | None = None


def field_values(kind: Kind, column: Any) -> FieldValues | None:
    """Return the numbers or texts of a column; None if it holds anything else.

    >>> field_values(Kind("number", np.dtype("i4")), np.array([1, 2], "i4")).values.tolist()
    [1, 2]
    """
    if kind.how != "cells":
        is_flat = kind.how != "bytes" and int(np.prod(kind.shape)) == 1
        return FieldValues(column.reshape(len(column))) if is_flat else None
    pa = arrow_library("Arrow")
    types, arrow = pa.types, column.type
    missing = _missing(column)
    if types.is_null(arrow):
        return FieldValues(np.zeros(len(column), np.int64), missing)
    if types.is_string(arrow) or types.is_large_string(arrow):
        found = column.dictionary_encode()
        return FieldValues(numbers_of(found.indices.fill_null(0)), missing, found.dictionary.to_pylist())
    if is_number(arrow) or types.is_boolean(arrow):
        filled = column.fill_null(not types.is_boolean(arrow) and 0)
        return FieldValues(numbers_of(filled), missing)
    return None


def field_lengths(kind: Kind, column: Any) -> FieldValues | None:
    """Return the lengths of lists, of bytes, and of texts in characters; None if values have no length.

    >>> field_lengths(Kind("array", np.dtype("i4"), (3,)), np.zeros((2, 3), "i4")).values.tolist()
    [3, 3]
    """
    if kind.how != "cells":
        return FieldValues(np.full(len(column), kind.shape[0])) if kind.shape else None
    types, arrow = arrow_library("Arrow").types, column.type
    if types.is_string(arrow) or types.is_large_string(arrow):
        import pyarrow.compute as pc  # noqa: PLC0415  # optional, and slow to import

        return FieldValues(numbers_of(pc.utf8_length(column).fill_null(0)), _missing(column))
    is_bytes = types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow)
    if is_bytes or is_list(arrow):
        return FieldValues(list_widths(column), _missing(column))
    return None


def inner_column(column: Any, path: str) -> Any | None:
    """Return the column at a path inside a column of structs, whose names may contain dots; None if there is none.

    A row without a struct has no value inside of it.
    """
    pa = arrow_library("Arrow")
    if not isinstance(column, pa.Array) or not pa.types.is_struct(column.type):
        return None
    if column.type.get_field_index(path) >= 0:
        import pyarrow.compute as pc  # noqa: PLC0415  # optional, and slow to import

        return pc.struct_field(column, column.type.get_field_index(path))
    for cut in (at for at, letter in enumerate(path) if letter == "."):
        inside = inner_column(column, path[:cut])
        if inside is not None and (found := inner_column(inside, path[cut + 1 :])) is not None:
            return found
    return None


def cells_as_list(kind: Kind, column: Any) -> list[Any] | None:
    """Return the values of a column of cells as samples have them; None for other columns."""
    return plain_cells(column) if kind.how == "cells" else None


def _missing(column: Any) -> NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    mask: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return mask
