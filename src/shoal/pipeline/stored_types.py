"""Features and types that the heads of shards declare for columns; the first shard stands for all, and none is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.formats.tables.arrow_types import plain_type
from shoal.formats.tables.table_rows import partition_fields
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple
from shoal.pipeline.stages.stage import Stage


def features_of(opened: Opened) -> dict[str, Any]:
    """Return the features of the first shard that has samples, taken to hold for all shards. Reads no shard.

    Raises
    ------
    UsageError
        The format has no features, or the shards declare none.
    """
    found = declared_features(opened)
    if found is None:
        msg = f'decode("hf") needs the features that datasets keeps in shards; these {opened.index.format} have none'
        raise UsageError(msg, hint="they are in what save_to_disk(), to_parquet() and push_to_hub() write")
    return found


def class_labels(opened: Opened) -> dict[str, Sequence[str]]:
    """Return the class names of each column whose feature is a ClassLabel; empty if there are no features."""
    return {
        name: feature["names"]
        for name, feature in (declared_features(opened) or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def declared_features(opened: Opened) -> dict[str, Any] | None:
    """Return the features of the first shard that has samples; None if it declares none."""
    heads = opened.index.shard_heads
    return opened.format.features(heads[min(heads)]) if heads else None


StoredTypes = dict[str, Any] | tuple[Any, ...]
"""Arrow types by name, or by place if samples are tuples; None for a field without a schema."""


def stored_types(opened: Opened, stages: Sequence[Stage]) -> StoredTypes:
    """Return the types of fields after these stages; the first shard stands for all. Reads no shard.

    A function given to `map` may put anything under a name: the caller must check that values still have the type.
    """
    heads = opened.index.shard_heads
    shard = min(heads, default=-1)
    schema = opened.format.schema(heads[shard]) if heads else None
    if schema is None:
        return {}
    constants = dict.fromkeys(partition_fields(opened.index.shard_names[shard]))
    types: StoredTypes = constants | {field.name: plain_type(field.type) for field in schema}
    for stage in stages:
        if isinstance(types, tuple):
            break
        if isinstance(stage, SelectColumns):
            types = {name: _type_of(types, name) for name in stage.names}
        elif isinstance(stage, ToTuple):
            types = tuple(_type_of(types, name) for name in stage.names)
        elif isinstance(stage, Rename):
            types = _renamed(types, stage)
    return types


def _type_of(types: dict[str, Any], names: str) -> Any:
    return next((types[name] for name in names.split(";") if name in types), None)


def _renamed(types: dict[str, Any], stage: Rename) -> dict[str, Any]:
    used = {next((name for name in names.split(";") if name in types), "") for names in stage.names.values()}
    kept = {name: kind for name, kind in types.items() if name not in used and name not in stage.names}
    return kept | {new: _type_of(types, names) for new, names in stage.names.items()}
