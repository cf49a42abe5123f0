"""Features that Hugging Face ``datasets`` declares for the columns of a dataset, from the heads of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import SchemaFormat
from shoal.indexing.open_source import Opened


def features_of(opened: Opened) -> dict[str, Any]:
    """Return the features of the first shard that has samples, taken to hold for all shards. Reads no shard.

    Raises
    ------
    UsageError
        The format has no features, or the shards declare none.
    """
    found = _found(opened)
    if found is None:
        msg = f'decode("hf") needs the features that datasets keeps in shards; these {opened.index.format} have none'
        raise UsageError(msg, hint="they are in what save_to_disk(), to_parquet() and push_to_hub() write")
    return found


def class_labels(opened: Opened) -> dict[str, Sequence[str]]:
    """Return the class names of each column whose feature is a ClassLabel; empty if there are no features."""
    return {
        name: feature["names"]
        for name, feature in (_found(opened) or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def _found(opened: Opened) -> dict[str, Any] | None:
    if not isinstance(opened.format, SchemaFormat):
        return None
    heads = opened.index.shard_heads
    return opened.format.features(heads[min(heads)]) if heads else None
