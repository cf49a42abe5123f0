"""Schemas of pyiceberg as columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shoal.formats.tables.arrow_types import arrow_library
from shoal.tables.table_columns import Stored, TableColumn, columns_of, constant_text, field_id


def iceberg_columns(schema: Any, mapping: Any) -> list[TableColumn]:
    """Return the columns of a schema; ``mapping`` names columns in files without ids, or is None."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415  # optional

    names: dict[int | None, tuple[str, ...]] = dict(_names(mapping or ()))

    def stored_as(field: Any) -> Stored:
        number = field_id(field)
        return Stored(number, names.get(number, (field.name,)) if mapping else (field.name,))

    defaults = dict(_defaults(schema.fields))
    return [_with_defaults(column, defaults) for column in columns_of(schema_to_pyarrow(schema), stored_as)]


def internal_scalar(value: Any, kind: Any) -> Any:
    """Return a value of Iceberg, in which dates and times are numbers, as an Arrow scalar."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415  # optional

    pa = arrow_library("Iceberg")
    arrow = schema_to_pyarrow(kind)
    arrow = getattr(arrow, "storage_type", arrow)
    if value is not None and isinstance(value, int) and pa.types.is_temporal(arrow):
        return pa.scalar(value, pa.int32() if arrow.bit_width == 32 else pa.int64()).cast(arrow)
    return pa.scalar(getattr(value, "bytes", value), arrow)


def _names(fields: Any) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the names of each column of a name mapping, by id."""
    for field in fields:
        if field.field_id is not None:
            yield field.field_id, tuple(field.names)
        yield from _names(field.fields)


def _defaults(fields: Any) -> Iterator[tuple[int, str | None]]:
    """Yield the value, for rows in older files, of each column that has one."""
    for field in fields:
        if (value := getattr(field, "initial_default", None)) is not None:
            yield field.field_id, constant_text(internal_scalar(value, field.field_type))
        yield from _defaults(getattr(field.field_type, "fields", ()))


def _with_defaults(column: TableColumn, defaults: Mapping[int, str | None]) -> TableColumn:
    inside = tuple(_with_defaults(part, defaults) for part in column.columns)
    number = column.stored.id
    return replace(column, columns=inside, default=None if number is None else defaults.get(number))
