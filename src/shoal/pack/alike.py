"""What new shards take over from the old ones: types of columns, encodings, which their values alone do not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.pack.unit import Named, Unreadable
from shoal.shards.arrow_library import arrow_library
from shoal.shards.arrow_rows import partition_fields
from shoal.shards.compressed import Compressed
from shoal.shards.mds import Mds
from shoal.shards.protocol import Format, Sample
from shoal.shards.writing.encoders import TABLE_FORMATS, options_of_shard
from shoal.shards.writing.mds import MdsEncoder
from shoal.shards.writing.mds_values import is_written
from shoal.stream.indexing.opening import Opened

__all__ = ["options_like", "options_of_first", "suffixed_images", "with_files"]

_SUFFIXES = {"jpeg": "jpg", "png": "png"}
_KEPT_METADATA = b"huggingface"  # what columns mean; other metadata tell of files that were


def options_like(opened: Opened, format_name: str) -> dict[str, Any]:
    """The options of a format by which shards made of ``opened`` have columns of the same types; else none.

    From tables to tables that is a schema: a number of 32 bits stays one, and a column without a value in one shard
    has a type all the same. From MDS to MDS these are the encodings, where all shards have the same. O(shards): heads
    are in the index.
    """
    source, target = (name.partition(".")[0] for name in (opened.index.format, format_name))
    heads = [head for _, head in sorted(opened.index.shard_heads.items())]
    if source in TABLE_FORMATS and target in TABLE_FORMATS and hasattr(opened.format, "schema"):
        schema = _schema(map(opened.format.schema, heads), opened)
        return {} if schema is None else {"schema": schema}
    if source == target == "mds" and heads:
        options = [options_of_shard(opened.index.format, head) for head in heads]
        if all(other == options[0] for other in options) and all(map(is_written, options[0]["columns"].values())):
            return options[0]
    return {}


def options_of_first(
    format_name: str, options: Mapping[str, Any], samples: Iterable[Sample | Named | Unreadable]
) -> dict[str, Any]:
    """The options by which all shards are written as the first sample would have it, where a format asks that.

    Shards of MDS have one description of their columns; each would take it from its own first sample. Samples that
    cannot be read are passed over.
    """
    if format_name.partition(".")[0] != "mds" or "columns" in options:
        return {}
    for given in samples:
        if not isinstance(given, Unreadable):
            encoder = MdsEncoder()
            with suppress(UsageError):  # said again when it is written
                encoder.record(given.sample if isinstance(given, Named) else given)
            return {} if encoder.columns is None else {"columns": encoder.columns}
    return {}


def with_files(opened: Opened) -> Opened:
    """The same dataset, of which images are the bytes of their files: what is written is what was stored."""
    return replace(opened, format=_with_files(opened.format))


def _with_files(format: Format) -> Format:  # noqa: A002
    if isinstance(format, Mds):
        return format.with_files()
    if isinstance(format, Compressed):
        return Compressed(_with_files(format.inner), format.codec, limit_bytes=format.limit_bytes)
    return format


def suffixed_images(opened: Opened) -> dict[str, str]:
    """Other names for columns that hold files of images, by which the members of a tar say what they are."""
    heads = [head for _, head in sorted(opened.index.shard_heads.items())][:1]
    columns = {name: kind for head in heads for name, kind in options_of_shard(opened.index.format, head).items()}
    found: dict[str, str] = {}
    for name, encoding in columns.get("columns", {}).items():
        suffix = _SUFFIXES.get(encoding)
        if suffix is not None and name.rpartition(".")[2].lower() not in ("jpg", "jpeg", "png"):
            found[name] = f"{name}.{suffix}"
    return found


def _schema(schemas: Iterable[Any], opened: Opened) -> Any:
    """One schema for the rows of all shards; None where they have none in common, or one that rows do not tell."""
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


def _plain(pa: Any, kind: Any) -> Any:
    """A type as rows are written with it: dictionaries and views are their values.

    Raises
    ------
    ValueError
        What a row has of it does not say how it was stored.
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
