"""Features and types of columns as the first shard with samples declares them for all shards; no shard is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.formats.tables.arrow_types import plain_type
from shoal.formats.tables.table_rows import partition_fields
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple, field_named
from shoal.pipeline.stages.stage import Stage


def features_of(opened: Opened) -> dict[str, Any]:
    """Return the declared features; raises `UsageError` if the format or the shards have none."""
    features = declared_features(opened)
    if features is None:
        msg = f'decode("hf") needs the features that datasets keeps in shards; these {opened.index.format} have none'
        raise UsageError(msg, hint="save_to_disk(), to_parquet() and push_to_hub() write features")
    return features


def class_labels(opened: Opened) -> dict[str, Sequence[str]]:
    """Return the class names of each ClassLabel column; empty if there are no features."""
    return {
        name: feature["names"]
        for name, feature in (declared_features(opened) or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def declared_features(opened: Opened) -> dict[str, Any] | None:
    """Return the features that the first shard declares; None if there are none."""
    heads = opened.index.shard_heads
    return opened.format.features(heads[min(heads)]) if heads else None


StoredTypes = dict[str, Any] | tuple[Any, ...]
"""Arrow types by name, or by position if samples are tuples; None for a field without a schema."""


def stored_types(opened: Opened, stages: Sequence[Stage]) -> StoredTypes:
    """Return the types of fields after these stages.

    A function of `map` may put anything under a name: the caller must check that values still have the type.
    """
    heads = opened.index.shard_heads
    shard = min(heads, default=-1)
    schema = opened.format.schema(heads[shard]) if heads else None
    if schema is None:
        return {}
    types: dict[str, Any] = dict.fromkeys(partition_fields(opened.index.shard_names[shard]))
    types |= {field.name: plain_type(field.type) for field in schema}
    for stage in stages:
        if isinstance(stage, ToTuple):
            return tuple(_type_of(types, names) for names in stage.names)
        types = types_after(stage, types)
    return types


def types_after(stage: Stage, types: dict[str, Any]) -> dict[str, Any]:
    """Return the types of fields after a stage that selects or renames fields; unchanged after another stage."""
    if isinstance(stage, SelectColumns):
        return {names: _type_of(types, names) for names in stage.names}
    if isinstance(stage, Rename):
        used = {field_named(types, names) for names in stage.names.values()}
        kept = {name: kind for name, kind in types.items() if name not in used and name not in stage.names}
        return kept | {new: _type_of(types, names) for new, names in stage.names.items()}
    return types


def _type_of(types: dict[str, Any], names: str) -> Any:
    name = field_named(types, names)
    return None if name is None else types[name]
