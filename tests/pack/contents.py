"""What lies in an output, to be compared: all bytes, and of an index all but when its shards were written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from shoal.index.index_file import decode
from shoal.index.table import Index
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import relative


def contents_of(url: str | Path) -> dict[str, Any]:
    """Names and contents of everything below ``url``, hidden files too."""
    store = open_store(str(url))
    found: dict[str, Any] = {}
    for info in store.list(str(url)):
        data = bytes(store.read_range(info.path, 0, info.num_bytes))
        name = relative(info.path, str(url))
        found[name] = _known(decode(data)) if name.endswith(".index") else data
    return found


def _known(index: Index) -> dict[str, Any]:
    known = {entry.name: getattr(index, entry.name) for entry in fields(index) if entry.name != "shard_versions"}
    known["columns"] = {name: (column.dtype.str, column.tolist()) for name, column in index.columns.items()}
    known["shard_names"] = list(index.shard_names)
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in known.items()}


def record_of(out: Path, shard: str) -> Path:
    """The file in which an unfinished packing records that a shard is finished."""
    (record,) = (out / ".shoal-pack").glob(f"{shard}.*.part")
    return record
