"""Rows of Spark as samples, and the types of their columns in shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.formats.mds.encodings import encoding_for
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.writing.written_formats import TABLE_FORMATS

_VALUES: Mapping[str, Any] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "string": "",
    "binary": b"",
}


def arrow_schema_of(schema: Any) -> Any:
    """Return the schema of pyarrow for one of Spark; moments are in UTC, whatever the time zone of the session."""
    arrow_library("a table of Spark")
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # optional

    return to_arrow_schema(schema)


def types_of(schema: Any, format_name: str) -> dict[str, Any]:
    """Return the options with which all shards of a format have the types of a schema of Spark.

    Tables take a schema of pyarrow, MDS an encoding for each column: ``int``, ``float64``, ``str``, ``bytes``, and
    ``json`` for what is none of these. Other formats need none.
    """
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
