"""Columns added to an index: a machine reads new columns from all samples once, and caches them with the index."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, StorageError, UsageError
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import options_of
from shoal.index.table import Index
from shoal.indexing.build import OPTIONS
from shoal.indexing.index_files import bound_cache, load_index, save_index
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.column_parts import RULE
from shoal.pipeline.sample_columns.column_scan import ScannedColumns, scan_columns
from shoal.pipeline.stored_types import class_labels
from shoal.storage.cache_directory import cache_directory, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.stat_many import stat_all

_log = logging.getLogger("shoal")

ColumnsLike = str | Sequence[str] | Mapping[str, Any]
"""Columns, each as ``name`` or ``name=path``; a mapping has a value for samples without one, or None, for each."""

COLUMN_SOURCES = "column_sources"
"""Metadata key of an index for the sources of columns: `ScannedColumns.sources`."""

_MOST_TEXT_BYTES = 12 << 20  # of all columns; they lie in the header of the index file, which may have 16 MiB
_TAKEN = ("shard", "bytes", "sample_bytes")  # fields of every index


def new_columns(index: Index, columns: Sequence[Column], missing: Mapping[str, Any]) -> list[Column]:
    """Return the columns that the index lacks; an index of a folder of classes has the class.

    Raises `UsageError` if the index has a column of that name from another path or with another value for missing ones,
    or if every index has a field of that name.
    """
    sources: Mapping[str, Any] = index.metadata.get(COLUMN_SOURCES, {})
    lacking = []
    for column in columns:
        name, source = column.name, sources.get(column.name, {})
        same = source.get("asked", name) == column.path and _is_same(missing.get(name), source.get("missing"))
        if name in _TAKEN or (name in index.columns and not same):
            origin = f", read from {source['path']!r}" if source else ""
            msg = f"the index has {name!r} already{origin}: nothing is read from {column.path!r} under this name"
            raise UsageError(msg, hint=f"NAME={column.path} gives the column another name")
        is_class = index.format == Folder.name and "classes" in index.metadata.get(OPTIONS, {})
        if name not in index.columns and not (is_class and name == column.path == CLASS_FIELD):
            lacking.append(column)
    return lacking


def _is_same(default: Any, stored: Any) -> bool:
    """Return True if a value for missing ones, perhaps as text, equals the stored value, or one of them is None."""
    if default is None or stored is None or str(default) == str(stored):
        return True
    try:
        return float(default) == float(stored)
    except ValueError:
        return False


def opened_with_columns(opened: Opened, names: ColumnsLike) -> Opened:
    """Return the dataset with columns in its index; new columns are read from all samples, or from the cache.

    One process of a machine reads the columns, and others wait. Raises the errors of `scan_columns`.
    """
    columns = as_columns(list(names) if isinstance(names, Mapping) else names)
    defaults = names.values() if isinstance(names, Mapping) else [None] * len(columns)
    missing = {column.name: value for column, value in zip(columns, defaults, strict=True) if value is not None}
    for name, value in missing.items():
        if not isinstance(value, bool | int | float | str):
            msg = f"index_columns: the value for samples without {name!r} is a {type(value).__name__}"
            raise UsageError(msg, hint="give a number, a boolean or a text; None means that there is no default value")
    lacking = new_columns(opened.index, columns, missing)
    if not lacking:
        return opened
    shards = [(info.path, info.num_bytes, info.version) for info in stat_all(opened.paths, opened.store)]
    read = [[column.name, column.path, missing.get(column.name)] for column in lacking]
    words = [RULE, opened.index.fingerprint, list(opened.index.columns), read, shards]
    words += [opened.format.name, options_of(opened.format)]
    key = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()
    directory, local = cache_directory(), LocalStore()
    path = str(Path(directory, "indexes", f"{key}.index"))
    with machine_lock(f"{path}.lock", what=f"reads columns of {len(shards)} shards") as signal_waiting:
        mark_used(path)
        try:
            if local.find(path) is not None:
                return replace(opened, index=load_index(path, store=local, trusted=True), index_path=path)
        except ShoalError as error:
            _log.warning("the cached columns cannot be used and are read again: %s", error.message)
        index = add_columns(opened, columns, missing=missing, progress=lambda *_: signal_waiting())
        try:
            save_index(index, path, store=local)
            bound_cache(directory)
        except StorageError as error:
            _log.warning("the columns cannot be kept, and are read again next time: %s", error.message)
            return replace(opened, index=index, index_path=None)  # workers cannot map the index from a file
    return replace(opened, index=index, index_path=path)


def add_columns(
    opened: Opened,
    columns: Sequence[Column],
    *,
    missing: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Return the index of a dataset with these columns; `scan_columns` reads new columns from all samples.

    The fingerprint stays: orders and states do not depend on columns.
    """
    index = opened.index
    names = [column.name for column in columns]
    if unknown := [name for name in missing or () if name not in names]:
        msg = f"a default is given for {unknown[0]!r}, which is not a requested column"
        raise UsageError(msg, hint=f"they are {', '.join(names)}")
    lacking = new_columns(index, columns, missing or {})
    if not lacking:
        return index
    defaults = {column.name: value for column in lacking if (value := (missing or {}).get(column.name)) is not None}
    return _with_columns(opened, scan_columns(opened, lacking, missing=defaults, progress=progress))


def _with_columns(opened: Opened, scanned: ScannedColumns) -> Index:
    """Return the index with the columns of a scan, and with the names of Hugging Face's classes."""
    index = opened.index
    metadata = dict(index.metadata)
    if scanned.texts:
        metadata["texts"] = {**metadata.get("texts", {}), **scanned.texts}
        _check_texts(metadata["texts"])
    labels, classes = class_labels(opened), metadata.get("classes") or {}
    named = {name: list(labels[path]) for name, source in scanned.sources.items() if (path := source["path"]) in labels}
    if named and isinstance(classes, Mapping):
        metadata["classes"] = {**classes, **named}
    metadata[COLUMN_SOURCES] = {**metadata.get(COLUMN_SOURCES, {}), **scanned.sources}
    return replace(index, columns={**index.columns, **scanned.arrays}, metadata=metadata)


def _check_texts(texts: Mapping[str, Sequence[str]]) -> None:
    num_bytes = {name: len(json.dumps(json.dumps(words))) for name, words in texts.items()}  # as in an index file
    if sum(num_bytes.values()) > _MOST_TEXT_BYTES:
        name = max(num_bytes, key=lambda name: num_bytes[name])
        size = f"{len(texts[name]):,} different texts, {num_bytes[name]:,} bytes in an index file"
        msg = f"the column {name!r} has {size}, which may hold {_MOST_TEXT_BYTES:,} of all columns"
        raise UsageError(msg, hint="number these texts in the shards, or leave the column out")
