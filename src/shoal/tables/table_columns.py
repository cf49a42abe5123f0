"""Columns of a table as JSON: the options of a format, which an index keeps and workers receive.

A column of a table and a column of a file are the same if they have the same id, or if the file has one of the column's
names. The name that samples show may be another: tables rename columns without a new file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.formats.tables.arrow_types import arrow_library

ELEMENT, KEY, VALUE = "element", "key", "value"
"""Names of the columns inside lists and maps."""

_FIELD_ID = b"PARQUET:field_id"
_PARAMETERS = re.compile(r"(timestamp|duration|decimal\d*|fixed_size_binary)[\[(](.*)[\])]")


class Stored(NamedTuple):
    """The identity of a column in files: its id, and its names in files without ids."""

    id: int | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table: its name in samples, its type, and its identity in files.

    ``type`` is the name of an Arrow type, or "struct", "list" or "map" with ``columns`` inside. ``default`` is the
    value, as of `constant_text`, of rows in files without the column.
    """

    name: str
    type: str
    stored: Stored
    columns: tuple[TableColumn, ...] = ()
    default: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the column for `column_of`."""
        fields = {
            "name": self.name,
            "type": self.type,
            "id": self.stored.id,
            "names": list(self.stored.names),
            "columns": [column.as_json() for column in self.columns],
            "default": self.default,
        }
        return {name: value for name, value in fields.items() if value not in (None, [])}

    @property
    def arrow_type(self) -> Any:
        """The Arrow type of the values."""
        pa = arrow_library("a table")
        inside = [pa.field(column.name, column.arrow_type) for column in self.columns]
        if self.type == "struct":
            return pa.struct(inside)
        if self.type == "list":
            return pa.list_(inside[0])
        return pa.map_(inside[0].type, inside[1].type) if self.type == "map" else _plain_type(self.type)


def column_of(fields: Mapping[str, Any]) -> TableColumn:
    """Return a column from its JSON."""
    inside = tuple(map(column_of, fields.get("columns", ())))
    stored = Stored(fields.get("id"), tuple(fields.get("names", ())))
    return TableColumn(fields["name"], fields["type"], stored, inside, fields.get("default"))


def columns_of(schema: Any, stored_as: Callable[[Any], Stored]) -> tuple[TableColumn, ...]:
    """Return the columns of an Arrow schema; ``stored_as`` returns the identity of an Arrow field in files."""
    return tuple(_column(field, stored_as) for field in schema)


def field_id(field: Any) -> int | None:
    """Return the id of an Arrow field, which Parquet files and pyiceberg keep in its metadata; None without an id."""
    text = (field.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)


def constant_text(value: Any) -> str | None:
    """Return the value of an Arrow scalar as text for `constant`; None for a missing value."""
    pa = arrow_library("a table")
    if not value.is_valid:
        return None
    if _is_bytes(value.type):
        return base64.b64encode(value.as_py()).decode()
    if pa.types.is_time(value.type):
        value = value.cast(pa.int64() if value.type.bit_width == 64 else pa.int32())
    return str(value.cast(pa.string()).as_py())


def constant(text: str | None, kind: Any) -> Any:
    """Return the Arrow scalar of a text; see `constant_text`."""
    pa = arrow_library("a table")
    if text is None:
        return pa.scalar(None, kind)
    if _is_bytes(kind):
        return pa.scalar(base64.b64decode(text), kind)
    if pa.types.is_time(kind):
        return pa.scalar(int(text), pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    return pa.array([text], pa.string()).cast(kind)[0]


def all_columns(columns: Sequence[TableColumn]) -> Iterator[TableColumn]:
    """Yield columns, and the columns inside them."""
    for column in columns:
        yield column
        yield from all_columns(column.columns)


def _column(field: Any, stored_as: Callable[[Any], Stored]) -> TableColumn:
    types, kind = arrow_library("a table").types, field.type
    if types.is_struct(kind):
        return TableColumn(field.name, "struct", stored_as(field), columns_of(kind, stored_as))
    if types.is_map(kind):
        inside = tuple(
            _column(part.with_name(name), stored_as) for part, name in ((kind.key_field, KEY), (kind.item_field, VALUE))
        )
        return TableColumn(field.name, "map", stored_as(field), inside)
    if types.is_list(kind) or types.is_large_list(kind):
        inside = (_column(kind.value_field.with_name(ELEMENT), stored_as),)
        return TableColumn(field.name, "list", stored_as(field), inside)
    return TableColumn(field.name, _name_of(kind), stored_as(field))


def _name_of(kind: Any) -> str:
    """Return the name of a type; values of an extension type are values of its storage, and sizes of offsets differ."""
    kind = getattr(kind, "storage_type", kind)
    name = str(kind)
    for plain in ("string", "binary"):
        if name in (f"large_{plain}", f"{plain}_view"):
            return plain
    return name


def _plain_type(name: str) -> Any:
    pa = arrow_library("a table")
    match = _PARAMETERS.fullmatch(name)
    if match is None:
        return pa.type_for_alias(name)
    kind, parameters = match[1], match[2].split(", ")
    if kind == "timestamp":
        return pa.timestamp(parameters[0], *(text.removeprefix("tz=") for text in parameters[1:]))
    if kind == "duration":
        return pa.duration(parameters[0])
    make = {"fixed_size_binary": pa.binary}.get(kind) or getattr(pa, "decimal128" if kind == "decimal" else kind)
    return make(*map(int, parameters))


def _is_bytes(kind: Any) -> bool:
    types = arrow_library("a table").types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))
