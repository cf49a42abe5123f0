"""Columns of datasets that are opened with some: read once by this machine, and cached with the index."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, StorageError, UsageError
from shoal.formats.column_paths import as_columns
from shoal.formats.format_registry import options_of
from shoal.indexing.index_files import bound_cache, load_index, save_index
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.added_columns import add_columns, new_columns
from shoal.storage.cache_directory import cache_directory, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.stat_many import stat_all

_log = logging.getLogger("shoal")

_RULE = 1  # incremented when columns get other values than before

ColumnsLike = str | Sequence[str] | Mapping[str, Any]
"""Columns, each as ``name`` or ``name=path``; a mapping has for each the value for samples without one, or None."""


def opened_with_columns(opened: Opened, asked: ColumnsLike) -> Opened:
    """Return the dataset with columns in its index; those that it lacks are read from all samples, or from the cache.

    One process of a machine reads them, and others wait for it. Raises what
    `shoal.pipeline.sample_columns.column_scan.scan_columns` raises.
    """
    columns = as_columns(list(asked) if isinstance(asked, Mapping) else asked)
    given = asked.values() if isinstance(asked, Mapping) else [None] * len(columns)
    missing = {column.name: value for column, value in zip(columns, given, strict=True) if value is not None}
    for name, value in missing.items():
        if not isinstance(value, bool | int | float | str):
            msg = f"index_columns: the value for samples without {name!r} is a {type(value).__name__}"
            raise UsageError(msg, hint="numbers, booleans and texts go into the index; None is none")
    wanted = new_columns(opened.index, columns, missing)
    if not wanted:
        return opened
    shards = [(info.path, info.num_bytes, info.version) for info in stat_all(opened.paths, opened.store)]
    asked_for = [[column.name, column.path, missing.get(column.name)] for column in wanted]
    words = [_RULE, opened.index.fingerprint, list(opened.index.columns), asked_for, shards]
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
            return replace(opened, index=index, index_path=None)  # no file has it, for workers to map
    return replace(opened, index=index, index_path=path)
