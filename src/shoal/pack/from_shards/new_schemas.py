"""Column types and encodings that new shards take over from the old ones, as values alone do not determine them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shoal.errors import UsageError
from shoal.formats.compressed.reader import Compressed
from shoal.formats.mds.encodings import array_of, files_of, is_list, is_written
from shoal.formats.mds.reader import Mds
from shoal.formats.mds.writer import MdsEncoder
from shoal.formats.shard_format import Format, Sample, SchemaFormat
from shoal.formats.tables.column_kinds import ColumnKind, ColumnKinds, joined_kinds, schema_of_kinds
from shoal.formats.tables.pyarrow_library import arrow_library
from shoal.formats.tables.rows import partition_fields
from shoal.formats.tar.reader import Tar
from shoal.formats.writing.written_formats import TABLE_FORMATS, options_of_shard
from shoal.indexing.open_source import Opened
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import reading_one
from shoal.pack.destination import Output
from shoal.pack.from_shards.span_reader import SpanReader, SpanSamples
from shoal.pack.jobs import CameTo, Looked, SchemaLook, done_jobs, peak_bytes
from shoal.pack.shard_writer import Named, Unreadable

_SUFFIXES = {"jpeg": "jpg", "png": "png", "pil": "png"}
_KEPT_METADATA = b"huggingface"  # meanings of columns; other metadata describes the old files


def options_like(opened: Opened, format_name: str) -> dict[str, Any]:
    """Return format options that give shards made from ``opened`` the same column types; empty if there are none.

    From tables to tables that is a schema: a 32-bit number stays one, and a column without values in some shard still
    has a type. From MDS to MDS these are the encodings, if all shards have the same. O(shards): heads are in the index.
    """
    source, target = (name.partition(".")[0] for name in (opened.index.format, format_name))
    heads = [head for _, head in sorted(opened.index.shard_heads.items())]
    if source in TABLE_FORMATS and target in TABLE_FORMATS and isinstance(opened.format, SchemaFormat):
        schema = _schema(map(opened.format.schema, heads), opened)
        return {} if schema is None else {"schema": schema}
    if source == target == "mds" and heads:
        options = [options_of_shard(opened.index.format, head) for head in heads]
        return options[0] if all(other == options[0] for other in options) else {}
    if source == "mds" and target in TABLE_FORMATS and heads:
        columns = [options_of_shard(opened.index.format, head)["columns"] for head in heads]
        schema = _schema_of_mds(columns[0]) if all(other == columns[0] for other in columns) else None
        return {} if schema is None else {"schema": schema}
    return {}


def options_of_first(
    format_name: str, options: Mapping[str, Any], samples: Iterable[Sample | Named | Unreadable]
) -> dict[str, Any]:
    """Return options that make all shards follow the first sample, for formats that need it.

    MDS shards share one description of their columns; without it each would take its own from its first sample.
    Unreadable samples are passed over.
    """
    if format_name.partition(".")[0] != "mds" or "columns" in options:
        return {}
    for given in samples:
        if not isinstance(given, Unreadable):
            encoder = MdsEncoder()
            with suppress(UsageError):  # raised again when it is written
                encoder.record(given.sample if isinstance(given, Named) else given)
            return {} if encoder.columns is None else {"columns": encoder.columns}
    return {}


def with_files(opened: Opened, *, kept: Mapping[str, str] | None = None) -> Opened:
    """Return the dataset with images as the bytes of their files, so that they are written exactly as stored.

    ``kept`` are the encodings of MDS columns that are written unchanged: those merely copied from shard to shard are
    not even decoded.
    """
    stored = {encoding for encoding in (kept or {}).values() if not is_written(encoding)}
    return replace(opened, format=_with_files(opened.format, stored))


def _with_files(format: Format, stored: Collection[str]) -> Format:  # noqa: A002
    if isinstance(format, Mds):
        return format.with_files(stored)
    if isinstance(format, Compressed):
        return Compressed(_with_files(format.inner, stored), format.codec, limit_bytes=format.limit_bytes)
    return format


def refuse_unheld(opened: Opened, format_name: str) -> None:
    """Check before anything is read that the format can hold every column of MDS shards.

    Raises
    ------
    UsageError
        It cannot: lists of images in tar, JSON Lines or TFRecord shards; any image or bytes in JSON Lines.
    """
    target = format_name.partition(".")[0]
    if target in ("mds", *TABLE_FORMATS):
        return
    for name, encoding in _encodings(opened).items():
        if is_list(encoding):
            msg = f"the column {name!r} is {encoding}, and {target} shards do not hold lists of images"
            raise UsageError(msg, hint="mds, parquet and arrow shards do (--to, or format= in Python)")
        if target == "jsonl" and (encoding == "bytes" or files_of(encoding) is not None):
            msg = f"the column {name!r} is {encoding}, and JSON holds no bytes"
            raise UsageError(msg, hint="mds, parquet, arrow, tar and tfrecord shards do (--to, or format= in Python)")


def _encodings(opened: Opened) -> dict[str, str]:
    """Return the encoding of each column that any MDS shard has."""
    heads = [head for _, head in sorted(opened.index.shard_heads.items())]
    found: dict[str, str] = {}
    for head in heads:
        found |= options_of_shard(opened.index.format, head).get("columns", {})
    return found


def suffixed_images(opened: Opened) -> dict[str, str]:
    """Return new names for image columns, with suffixes that tell the type of a tar member."""
    found: dict[str, str] = {}
    for name, encoding in _encodings(opened).items():
        suffix = _SUFFIXES.get(encoding)
        if suffix is not None and name.rpartition(".")[2].lower() not in ("jpg", "jpeg", "png"):
            found[name] = f"{name}.{suffix}"
    return found


def _schema(schemas: Iterable[Any], opened: Opened) -> Any:
    """Return one schema for the rows of all shards; None if they have none in common, or rows do not determine it."""
    pa = arrow_library("Arrow")
    different = list({schema.serialize().to_pybytes(): schema for schema in schemas}.values())
    try:
        schema = pa.unify_schemas([schema.remove_metadata() for schema in different])
        fields = [pa.field(field.name, _plain(pa, field.type), field.nullable) for field in schema]
    except (pa.ArrowException, ValueError, TypeError):
        return None
    chosen = getattr(opened.format, "columns", None)
    fields = [field for field in fields if chosen is None or field.name in chosen]
    constants = dict.fromkeys(name for shard in opened.index.shard_names for name in partition_fields(shard))
    names = {field.name for field in fields}
    fields += [pa.field(name, pa.string()) for name in constants if name not in names]
    kept = (different[0].metadata or {}).get(_KEPT_METADATA) if different else None
    return pa.schema(fields, metadata=None if kept is None else {_KEPT_METADATA: kept})


def _schema_of_mds(columns: Mapping[str, str]) -> Any:
    """Return the schema of rows with these encodings; None if only values determine their types."""
    pa = arrow_library("Parquet")
    known = {"str": pa.string(), "bytes": pa.binary(), "str_float": pa.float64()}
    fields = []
    for name, encoding in columns.items():
        array = array_of(encoding)
        if array is not None and len(array[1]) < 2:
            kind = pa.from_numpy_dtype(array[0].newbyteorder("="))
            kind = pa.list_(kind) if array[1] else kind
        elif files_of(encoding) is not None:
            kind = pa.list_(pa.binary()) if is_list(encoding) else pa.binary()
        else:
            kind = known.get(encoding)
        if kind is None:
            return None
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _plain(pa: Any, kind: Any) -> Any:
    """Return the type with which rows are written: dictionaries and views become their values.

    Raises
    ------
    ValueError
        Values in a row do not tell how the type was stored.
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) or types.is_union(kind):
        msg = f"{kind} is more than its values"
        raise ValueError(msg)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(pa, kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(pa, field.type), field.nullable) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(pa, kind.key_type), _plain(pa, kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain(pa, kind.value_type), kind.list_size)
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(_plain(pa, kind.value_type))
    if types.is_nested(kind):
        return pa.list_(_plain(pa, kind.value_type))
    return kind


_NOTE = "schema"


@dataclass(frozen=True, slots=True)
class Schema:
    """A pyarrow schema, the number of samples inspected for it, and the peak memory of all processes together."""

    schema: Any
    num_looked_at: int
    peak_bytes: int


def schema_of_all(
    reader: SpanReader,
    out: Output,
    *,
    cuts: list[int],
    format_name: str,
    skips: bool,
    workers: int,
    came_to: CameTo,
) -> Schema:
    """Return the schema that holds all samples of ``reader``.

    No sample is inspected if an earlier run of the same packing did so. ``cuts``, from 0 to the number of samples,
    are the borders of jobs; with ``skips``, samples that are damaged or do not fit the columns of earlier ones are
    ignored. Memory: 1 MiB of samples for each of the ``workers``, and the names.

    Raises
    ------
    UsageError
        No columns hold all samples; the error tells from which sample on they do not fit the earlier ones.
    ShardError
        A sample is damaged.
    """
    pa = arrow_library(format_name)
    known = out.noted(_NOTE)
    if known is not None:
        return Schema(pa.ipc.read_schema(pa.py_buffer(known)), 0, 0)
    found: dict[int, Looked] = {}
    peaks: dict[int, int] = {}
    looks = _looks(reader, cuts, format_name, skips=skips)
    for looked in done_jobs(looks, out, num_workers=workers, came_to=came_to):
        found[looked.number] = looked
        peaks[looked.process] = looked.peak_bytes
        came_to(looked.number, 1.0)
    kinds: ColumnKinds = {}
    for number in range(len(cuts) - 1):
        kinds = joined_kinds(kinds, found[number].kinds, skips=skips)
    schema = schema_of_kinds(kinds)
    out.note(_NOTE, schema.serialize().to_pybytes())
    peaks[os.getpid()] = peak_bytes()
    return Schema(schema, cuts[-1], sum(peaks.values()))


def schema_of_tars(opened: Opened) -> Schema | None:
    """Return the schema of all samples of tars as stored, from the names of their members: no payload is read.

    None if the shards are not tars.

    Raises
    ------
    UsageError
        There are more fields than a table may have columns.
    ShardError
        A shard is damaged.
    """
    index, tar = opened.index, opened.format
    if not isinstance(tar, Tar):
        return None
    pa, costs = arrow_library("a table"), ReadCosts()
    kinds: dict[str, ColumnKind] = {"__key__": ColumnKind(pa.string())}
    for name, path, num_bytes in zip(index.shard_names, opened.paths, index.shard_bytes.tolist(), strict=True):
        with reading_one(opened.store, path, num_bytes, costs=costs) as read:
            kinds |= dict.fromkeys(tar.fields(read, num_bytes, shard=name), ColumnKind(pa.binary()))
    return Schema(schema_of_kinds(joined_kinds({}, kinds, skips=False)), index.num_samples, peak_bytes())


def _looks(reader: SpanReader, cuts: list[int], format_name: str, *, skips: bool) -> Iterator[SchemaLook]:
    for number, (first, stop) in enumerate(pairwise(cuts)):
        yield SchemaLook(number, SpanSamples(reader, first, stop), stop - first, first, format_name, skips)
