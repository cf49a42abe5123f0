"""Column types and encodings that new shards take over from old shards, since values alone do not determine them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.formats.compressed.reader import Compressed
from shoal.formats.rows.mds.encodings import array_of, files_of, is_list, is_written
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.rows.mds.writer import MdsEncoder
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.shard_format import Format, Sample
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.column_kinds import ColumnKind, joined_kinds, schema_of_kinds
from shoal.formats.tables.parquet import Parquet
from shoal.formats.tables.table_rows import partition_fields
from shoal.formats.writing.written_formats import TABLE_FORMATS, options_of_shard
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import reading_one
from shoal.pack.from_shards.span_reader import SpanReader, SpanSamples
from shoal.pack.jobs.process_jobs import ColumnsJob, JobProgress, peak_bytes, run_jobs
from shoal.pack.output.destination import Output
from shoal.pack.shards.shard_writer import Named, Unreadable

_SUFFIXES = {"jpeg": "jpg", "png": "png", "pil": "png"}
_KEPT_METADATA = b"huggingface"  # meanings of columns; other metadata describes the old files


def options_like(opened: Opened, format_name: str) -> dict[str, Any]:
    """Return format options that keep the column types of ``opened`` in new shards; empty if there are none.

    Tables get a schema: 32-bit numbers stay 32-bit, and a column without values in a shard still has a type. MDS shards
    get the encodings of MDS shards, if all shards have the same. O(shards): heads are in the index.
    """
    source, target = (name.partition(".")[0] for name in (opened.index.format, format_name))
    schema = None
    if source in TABLE_FORMATS and target in TABLE_FORMATS:
        heads = [head for _, head in sorted(opened.index.shard_heads.items())]
        schema = _schema_of_tables(map(opened.format.schema, heads), opened)
    elif source == "mds" and opened.index.shard_heads:
        first, *others = _options_of_shards(opened)
        if any(other != first for other in others):
            return {}
        if target == "mds":
            return first
        schema = _schema_of_mds(first["columns"]) if target in TABLE_FORMATS else None
    return {} if schema is None else {"schema": schema}


def options_of_first(
    format_name: str, options: Mapping[str, Any], samples: Iterable[Sample | Named | Unreadable]
) -> dict[str, Any]:
    """Return options that make all MDS shards follow the first readable sample; other formats need none.

    MDS shards share one description of their columns; otherwise, the first sample of each shard would decide.
    """
    if format_name.partition(".")[0] != "mds" or "columns" in options:
        return {}
    for entry in samples:
        if not isinstance(entry, Unreadable):
            encoder = MdsEncoder()
            with suppress(UsageError):  # raised again when it is written
                encoder.record(entry.sample if isinstance(entry, Named) else entry)
            return {} if encoder.columns is None else {"columns": encoder.columns}
    return {}


def with_files(opened: Opened, *, kept: Mapping[str, str] | None = None) -> Opened:
    """Return the dataset with images as the bytes of their files; ``kept`` has encodings of copied MDS columns."""
    # Copied columns that shoal does not write are not even decoded.
    stored = {encoding for encoding in (kept or {}).values() if not is_written(encoding)}
    return replace(opened, format=_with_files(opened.format, stored))


def _with_files(format: Format, stored: Collection[str]) -> Format:  # noqa: A002
    if isinstance(format, Mds):
        return format.with_files(stored)
    if isinstance(format, Compressed):
        return Compressed(_with_files(format.inner, stored), format.codec, limit_bytes=format.limit_bytes)
    return format


def refuse_unheld(opened: Opened, format_name: str) -> None:
    """Raise `UsageError` before anything is read if the format cannot hold a column of MDS shards.

    Tar, JSON Lines and TFRecord shards hold no lists of images, and JSON Lines no images or bytes.
    """
    target = format_name.partition(".")[0]
    if target in ("mds", *TABLE_FORMATS):
        return
    for name, encoding in _encodings(opened).items():
        if is_list(encoding):
            msg = f"the column {name!r} is {encoding}, but {target} shards do not hold lists of images"
            raise UsageError(msg, hint='format="mds", "parquet" or "arrow" can hold lists of images')
        if target == "jsonl" and (encoding == "bytes" or files_of(encoding) is not None):
            msg = f"the column {name!r} is {encoding}, but JSON holds no bytes"
            raise UsageError(msg, hint='format="mds", "parquet", "arrow", "tar" or "tfrecord" can hold bytes')


def suffixed_images(opened: Opened) -> dict[str, str]:
    """Return new names for image columns, with suffixes that tell the type of a tar member."""
    return {
        name: f"{name}.{_SUFFIXES[encoding]}"
        for name, encoding in _encodings(opened).items()
        if encoding in _SUFFIXES and name.rpartition(".")[2].lower() not in ("jpg", "jpeg", "png")
    }


def _encodings(opened: Opened) -> dict[str, str]:
    """Return the encoding of each column of any MDS shard."""
    return {
        name: encoding
        for options in _options_of_shards(opened)
        for name, encoding in options.get("columns", {}).items()
    }


def _options_of_shards(opened: Opened) -> list[dict[str, Any]]:
    index = opened.index
    return [options_of_shard(index.format, head) for _, head in sorted(index.shard_heads.items())]


def _schema_of_tables(schemas: Iterable[Any], opened: Opened) -> Any:
    """Return one schema for the rows of all shards; None if there is none, or rows do not determine it."""
    pa = arrow_library("Arrow")
    different = list({schema.serialize().to_pybytes(): schema for schema in schemas}.values())
    try:
        schema = pa.unify_schemas([schema.remove_metadata() for schema in different])
        fields = [pa.field(field.name, _plain(pa, field.type), field.nullable) for field in schema]
    except (pa.ArrowException, ValueError, TypeError):
        return None
    chosen = opened.format.columns if isinstance(opened.format, Parquet) else None
    fields = [field for field in fields if chosen is None or field.name in chosen]
    constants = dict.fromkeys(name for shard in opened.index.shard_names for name in partition_fields(shard))
    names = {field.name for field in fields}
    fields += [pa.field(name, pa.string()) for name in constants if name not in names]
    kept = (different[0].metadata or {}).get(_KEPT_METADATA) if different else None
    return pa.schema(fields, metadata=None if kept is None else {_KEPT_METADATA: kept})


def _schema_of_mds(columns: Mapping[str, str]) -> Any:
    """Return the schema of rows with these encodings; None if only values determine the types."""
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
    """Return the type of written rows; `ValueError` if values do not determine the stored type."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) or types.is_union(kind):
        raise ValueError(f"{kind} is more than its values")
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


class Schema(NamedTuple):
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
    report: JobProgress,
) -> Schema:
    """Return the schema of all samples of ``reader``, inspected unless an earlier run of this packing did so.

    ``cuts``, from 0 to the number of samples, are the borders of jobs; ``skips`` ignores samples that are damaged or do
    not fit earlier columns. Memory: 1 MiB of samples for each of the ``workers``, and the names. Raises `UsageError`
    with the number of the first sample that does not fit, and `ShardError` if a sample is damaged.
    """
    pa = arrow_library(format_name)
    known = out.journal.noted(_NOTE)
    if known is not None:
        return Schema(pa.ipc.read_schema(pa.py_buffer(known)), 0, 0)
    jobs = (
        ColumnsJob(number, SpanSamples(reader, first, stop), stop - first, first, format_name, skips)
        for number, (first, stop) in enumerate(pairwise(cuts))
    )
    kinds, peak = run_jobs(jobs, out, num_workers=workers, report=report)
    schema = schema_of_kinds(reduce(partial(joined_kinds, skips=skips), kinds, {}))
    out.journal.note(_NOTE, schema.serialize().to_pybytes())
    return Schema(schema, cuts[-1], peak)


def schema_of_tars(opened: Opened) -> Schema | None:
    """Return the schema of all samples of tars, from the names of their members; None if the shards are not tars.

    Raises `UsageError` if there are more fields than a table may have columns, and `ShardError` if a shard is damaged.
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
