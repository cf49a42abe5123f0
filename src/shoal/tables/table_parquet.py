"""Parquet files of a table: samples have the columns of one version of the table, whatever the file has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from shoal.errors import ShardError
from shoal.formats.field_columns import wanted_of
from shoal.formats.shard_format import ROW, Span
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.parquet import Parquet
from shoal.tables.stored_columns import column_as, has_ids, missing_column, repeated, stored_numbers
from shoal.tables.table_columns import TableColumn, column_of

CONSTANTS = "constants"
"""Key in the row of a file: values of columns that all its rows share, even if the file has the columns, too."""
ABSENT = "absent"
"""Key in the row of a file: values of columns that the file lacks."""

_HINT = "the table has a schema that its files do not have: read the table with the library that wrote it"


class TableParquet(Parquet):
    """The format of Parquet files of a table; a sample has exactly the ``columns`` of the table, in their order.

    ``columns`` are `TableColumn` as JSON. With ``by_id``, files with field ids are matched by these. Values of the
    log, such as partition values, are in the row of a file (see `shoal.formats.shard_format.ROW`), as texts of
    `constant_text` by column. Directories named ``column=value`` give no fields.
    """

    name = "table_parquet"
    suffixes = ()
    int96_unit = "us"  # as Delta Lake and Iceberg define timestamps

    def __init__(self, columns: Sequence[Mapping[str, Any]], *, by_id: bool = False) -> None:
        super().__init__()
        self.options = {"columns": [dict(column) for column in columns], "by_id": by_id}
        self.by_id = by_id
        self._wanted: tuple[str, ...] | None = None
        self.spilled_as = f"{self.name} {self._digest} None"

    @cached_property
    def _columns(self) -> tuple[TableColumn, ...]:
        return tuple(map(column_of, self.options["columns"]))

    @property
    def _digest(self) -> str:
        return hashlib.blake2b(json.dumps(self.options).encode(), digest_size=8).hexdigest()

    def projected(self, names: Sequence[str]) -> TableParquet:
        """Return a copy that decodes only these columns, if the table has all of them."""
        projected = TableParquet(**self.options)
        projected._wanted = tuple(names)
        projected.spilled_as = f"{self.name} {self._digest} {projected._wanted}"
        return projected

    def schema(self, head: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return the Arrow schema of the table."""
        return arrow_library("a table").schema([(column.name, column.arrow_type) for column in self._columns])

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG002
        """Return the names of the columns of the table."""
        return [column.name for column in self._columns]

    def features(self, head: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Return None: files of a table keep no features of the table."""
        return

    def constants(self, shard: str) -> dict[str, str | None]:  # noqa: ARG002
        """Return no field: values of partitions are columns of the table."""
        return {}

    def decoded_columns(self, schema: Any, span: Span) -> list[str]:
        """Return the names of the columns to decode of a file with this Arrow schema."""
        constants = span.head.get(ROW, {}).get(CONSTANTS, {})
        wanted = [column for column in self._wanted_columns() if column.name not in constants]
        return [schema.names[number] for number in self._numbers(wanted, schema) if number is not None]

    def shown(self, rows: Any, span: Span) -> Any:
        """Return decoded rows with the columns of the table; raises `ShardError` if a value does not fit."""
        pa = arrow_library("a table")
        row = span.head.get(ROW, {})
        columns = self._wanted_columns()
        numbers = self._numbers(columns, rows.schema)
        shown = {}
        for column, number in zip(columns, numbers, strict=True):
            try:
                if column.name in row.get(CONSTANTS, {}):
                    values = repeated(row[CONSTANTS][column.name], column, rows.num_rows)
                elif number is not None:
                    values = column_as(column, rows.column(number), by_id=self._is_by_id(rows.schema))
                elif column.name in row.get(ABSENT, {}):
                    values = repeated(row[ABSENT][column.name], column, rows.num_rows)
                else:
                    values = missing_column(column, rows.num_rows)
            except (pa.ArrowException, ValueError) as error:
                msg = f"the column {column.name!r} does not fit into the table's type {column.arrow_type}: {error}"
                raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=_HINT) from None
            shown[column.name] = values
        make = pa.RecordBatch if isinstance(rows, pa.RecordBatch) else pa.Table
        return make.from_arrays(list(shown.values()), names=list(shown))

    def _wanted_columns(self) -> list[TableColumn]:
        names = set(wanted_of([column.name for column in self._columns], self._wanted))
        return [column for column in self._columns if column.name in names]

    def _is_by_id(self, schema: Any) -> bool:
        return self.by_id and has_ids(schema)

    def _numbers(self, columns: Sequence[TableColumn], schema: Any) -> list[int | None]:
        return stored_numbers(columns, list(schema), by_id=self._is_by_id(schema))
