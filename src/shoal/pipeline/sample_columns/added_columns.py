"""Columns added to an index: which of those asked for are new, and the index with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.formats.column_paths import Column
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.folder.reader import Folder
from shoal.index.table import Index
from shoal.indexing.build import OPTIONS
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.column_scan import ScannedColumns, scan_columns
from shoal.pipeline.stored_types import class_labels

COLUMN_SOURCES = "column_sources"
"""Metadata key of an index for where the values of columns were found: `ScannedColumns.found`."""

_MOST_TEXT_BYTES = 12 << 20  # of all columns; they lie in the header of the index file, which may have 16 MiB
_TAKEN = ("shard", "bytes", "sample_bytes")  # what every index knows of a sample


def new_columns(index: Index, columns: Sequence[Column], missing: Mapping[str, Any]) -> list[Column]:
    """Return those of these columns that the index does not have; the class of a folder of classes is one it has.

    Raises `UsageError`: a column of that name is there and was read from another path, or with another value for
    missing ones; or the name belongs to what every index knows.
    """
    sources: Mapping[str, Any] = index.metadata.get(COLUMN_SOURCES, {})
    found = []
    for column in columns:
        name, about = column.name, sources.get(column.name, {})
        same = about.get("asked", name) == column.path and _is_same(missing.get(name), about.get("missing"))
        if name in _TAKEN or (name in index.columns and not same):
            made = f", read from {about['path']!r}" if about else ""
            msg = f"the index has {name!r} already{made}: nothing is read from {column.path!r} under this name"
            raise UsageError(msg, hint=f"NAME={column.path} gives the column another name")
        is_class = index.format == Folder.name and "classes" in index.metadata.get(OPTIONS, {})
        if name not in index.columns and not (is_class and name == column.path == CLASS_FIELD):
            found.append(column)
    return found


def _is_same(given: Any, stored: Any) -> bool:
    """Return True if a value for missing ones, perhaps as text, is the one in the index, or none was needed."""
    if given is None or stored is None or str(given) == str(stored):
        return True
    try:
        return float(given) == float(stored)
    except ValueError:
        return False


def add_columns(
    opened: Opened,
    columns: Sequence[Column],
    *,
    missing: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Return the index of a dataset with these columns, those that it lacks read from all samples (`scan_columns`).

    The fingerprint stays: orders and states do not depend on columns.
    """
    index = opened.index
    names = [column.name for column in columns]
    if unknown := [name for name in missing or () if name not in names]:
        msg = f"a value for missing ones is given for {unknown[0]!r}, which is none of the columns asked for"
        raise UsageError(msg, hint=f"they are {', '.join(names)}")
    wanted = new_columns(index, columns, missing or {})
    if not wanted:
        return index
    defaults = {column.name: value for column in wanted if (value := (missing or {}).get(column.name)) is not None}
    return with_columns(opened, scan_columns(opened, wanted, missing=defaults, progress=progress))


def with_columns(opened: Opened, scanned: ScannedColumns) -> Index:
    """Return the index with the columns of a scan; names of Hugging Face's classes come with them.

    Raises `UsageError`: the texts are too many for the header of an index file.
    """
    index = opened.index
    metadata = dict(index.metadata)
    if scanned.texts:
        metadata["texts"] = {**metadata.get("texts", {}), **scanned.texts}
        _check_texts(metadata["texts"])
    labels, classes = class_labels(opened), metadata.get("classes") or {}
    named = {name: list(labels[path]) for name, about in scanned.found.items() if (path := about["path"]) in labels}
    if named and isinstance(classes, Mapping):
        metadata["classes"] = {**classes, **named}
    metadata[COLUMN_SOURCES] = {**metadata.get(COLUMN_SOURCES, {}), **scanned.found}
    return replace(index, columns={**index.columns, **scanned.arrays}, metadata=metadata)


def _check_texts(texts: Mapping[str, Sequence[str]]) -> None:
    num_bytes = {name: len(json.dumps(json.dumps(words))) for name, words in texts.items()}  # as in an index file
    if sum(num_bytes.values()) > _MOST_TEXT_BYTES:
        name = max(num_bytes, key=lambda name: num_bytes[name])
        what = f"{len(texts[name]):,} different texts, {num_bytes[name]:,} bytes in an index file"
        msg = f"the column {name!r} has {what}, which may hold {_MOST_TEXT_BYTES:,} of all columns"
        raise UsageError(msg, hint="number these texts in the shards, or leave the column out")
