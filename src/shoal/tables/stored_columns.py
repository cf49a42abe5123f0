"""Columns of a file as the columns of a table: found by id or name, cast, and put into the order of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.formats.tables.arrow_types import arrow_library
from shoal.tables.table_columns import TableColumn, constant, field_id

_TEXTS = ("string", "large_string", "string_view")
_BYTES = ("binary", "large_binary", "binary_view")


def has_ids(fields: Iterable[Any]) -> bool:
    """Return True if a field of a file, or a field inside it, has an id."""
    return any(field_id(field) is not None or has_ids(_inside(field.type)) for field in fields)


def stored_numbers(columns: Sequence[TableColumn], fields: Sequence[Any], *, by_id: bool) -> list[int | None]:
    """Return the number of the file's field for each column of the table; None if the file lacks the column."""
    if by_id:
        numbers = {field_id(field): number for number, field in enumerate(fields)}
        return [None if column.stored.id is None else numbers.get(column.stored.id) for column in columns]
    names = {field.name: number for number, field in enumerate(fields)}
    return [next((names[name] for name in column.stored.names if name in names), None) for column in columns]


def column_as(column: TableColumn, values: Any, *, by_id: bool) -> Any:
    """Return stored values, an array or a chunked array, as values of a table's column.

    Raises pyarrow's errors if a value does not fit into the type of the column.
    """
    pa = arrow_library("a table")
    if not isinstance(values, pa.ChunkedArray):
        return _array_as(column, values, by_id=by_id)
    if _is_as(column, values.type, by_id=by_id):
        return values
    chunks = [_array_as(column, chunk, by_id=by_id) for chunk in values.chunks]
    return pa.chunked_array(chunks, None if chunks else column.arrow_type)


def missing_column(column: TableColumn, num_rows: int) -> Any:
    """Return the values of rows whose file lacks the column."""
    return repeated(column.default, column, num_rows)


def repeated(text: str | None, column: TableColumn, num_rows: int) -> Any:
    """Return one value, as of `constant_text`, for all rows of a file."""
    pa = arrow_library("a table")
    if text is None:
        return pa.nulls(num_rows, column.arrow_type)
    return pa.repeat(constant(text, column.arrow_type), num_rows)


def _array_as(column: TableColumn, array: Any, *, by_id: bool) -> Any:
    pa = arrow_library("a table")
    types, kind = pa.types, array.type
    if _is_as(column, kind, by_id=by_id):
        return array
    if types.is_dictionary(kind):
        return _array_as(column, array.dictionary_decode(), by_id=by_id)
    if column.type == "struct" and types.is_struct(kind):
        parts = _parts_as(column.columns, array, by_id=by_id)
        return pa.StructArray.from_arrays(parts, [part.name for part in column.columns], mask=array.is_null())
    if column.type == "list" and (types.is_list(kind) or types.is_large_list(kind)):
        values = _array_as(column.columns[0], array.values, by_id=by_id)
        make = pa.LargeListArray if types.is_large_list(kind) else pa.ListArray
        return make.from_arrays(_offsets(array), values)
    if column.type == "map" and types.is_map(kind):
        keys, items = (
            _array_as(part, values, by_id=by_id)
            for part, values in zip(column.columns, (array.keys, array.items), strict=True)
        )
        return pa.MapArray.from_arrays(_offsets(array), keys, items)
    return array.cast(column.arrow_type)


def _parts_as(columns: Sequence[TableColumn], array: Any, *, by_id: bool) -> list[Any]:
    numbers = stored_numbers(columns, _inside(array.type), by_id=by_id)
    return [
        missing_column(column, len(array)) if number is None else _array_as(column, array.field(number), by_id=by_id)
        for column, number in zip(columns, numbers, strict=True)
    ]


def _offsets(array: Any) -> Any:
    """Return the offsets of lists in a new array, which says by itself which lists are missing."""
    pa = arrow_library("a table")
    offsets = array.offsets
    if not array.null_count:
        return offsets
    is_missing = np.append(array.is_null().to_numpy(zero_copy_only=False), False)  # the end of the last
    return pa.array(offsets.to_numpy(), offsets.type, mask=is_missing)


def _is_as(column: TableColumn, kind: Any, *, by_id: bool) -> bool:
    """Return True if values of a stored type need no change."""
    inside = _inside(kind)
    if column.type == "struct":
        return (
            arrow_library("a table").types.is_struct(kind)
            and [field.name for field in inside] == [part.name for part in column.columns]
            and stored_numbers(column.columns, inside, by_id=by_id) == list(range(len(inside)))
            and _are_as(column, inside, by_id=by_id)
        )
    if column.type in ("list", "map"):
        return bool(inside) and str(kind).startswith(column.type) and _are_as(column, inside, by_id=by_id)
    name = str(kind)
    return name == column.type or any(name in same and column.type in same for same in (_TEXTS, _BYTES))


def _are_as(column: TableColumn, fields: Sequence[Any], *, by_id: bool) -> bool:
    return all(_is_as(part, field.type, by_id=by_id) for part, field in zip(column.columns, fields, strict=True))


def _inside(kind: Any) -> list[Any]:
    """Return the fields inside a stored type: of a struct, or the values of lists and maps."""
    types = arrow_library("a table").types
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if types.is_struct(kind):
        return list(kind)
    return [kind.value_field] if types.is_list(kind) or types.is_large_list(kind) else []


def texts_in(row: Mapping[str, Any], name: str) -> dict[str, str | None]:
    """Return constants of a file by column, from its row in a table: under the key ``name``."""
    return dict(row.get(name, {}))
