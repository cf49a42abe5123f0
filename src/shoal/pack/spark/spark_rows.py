"""Rows of Spark as samples, and the types of their columns in shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from shoal.formats.rows.mds.encodings import encoding_for
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.column_kinds import kinds_of_rows, schema_of_kinds
from shoal.formats.tables.rows_to_columns import table_of_rows
from shoal.formats.writing.written_formats import TABLE_FORMATS
from shoal.indexing.opened_dataset import Opened
from shoal.pack.from_shards.new_schemas import options_like
from shoal.pack.partitions.partition_reader import PartitionReader

_VALUES: Mapping[str, Any] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "string": "",
    "binary": b"",
}

_FIRST_SAMPLES = 1000
_ROWS_AT_ONCE = 256


def arrow_schema_of(schema: Any) -> Any:
    """Return the pyarrow schema of a Spark schema; times are in UTC, in any time zone of the session."""
    arrow_library("a table of Spark")
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # optional

    return to_arrow_schema(schema)


def types_of(schema: Any, format_name: str) -> dict[str, Any]:
    """Return format options with the types of a Spark schema: a pyarrow schema for tables, encodings for MDS."""
    plain = format_name.partition(".")[0]
    if plain in TABLE_FORMATS:
        return {"schema": arrow_schema_of(schema)}
    if plain == "mds":
        return {"columns": {field.name: encoding_for(_VALUES.get(field.dataType.typeName())) for field in schema}}
    return {}


def samples_of(batches: Iterable[Any]) -> Iterator[Sample]:
    """Yield the rows of record batches."""
    for batch in batches:
        yield from batch.to_pylist()


def schema_of_dataset(opened: Opened, reader: PartitionReader) -> Any:
    """Return the Spark schema of a dataset's tables, or else of its first samples."""
    arrow_library("a table of Spark")
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # optional

    schema = options_like(opened, "parquet").get("schema")
    if schema is None:
        first = list(reader.samples(0, min(_FIRST_SAMPLES, reader.num_samples)))
        schema = schema_of_kinds(kinds_of_rows({}, first, first=0, format_name="Spark", skips=False))
    return from_arrow_schema(schema)


def batches_of(samples: Iterable[Sample], schema: Any, *, has_all_fields: bool) -> Iterator[Any]:
    """Yield samples as record batches of a pyarrow schema; if it lacks fields, they are left out."""
    rest = iter(samples)
    while rows := list(islice(rest, _ROWS_AT_ONCE)):
        if not has_all_fields:
            rows = [{name: row[name] for name in schema.names if name in row} for row in rows]
        yield from table_of_rows(rows, schema, format_name="Spark").to_batches()
