"""The columns of an index, read from the samples of new shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.formats.column_paths import Column
from shoal.index.generations import TEXTS
from shoal.index.table import Index
from shoal.indexing.checksums import record_checksums
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.added_columns import COLUMN_SOURCES, add_columns
from shoal.reading.checks.record_checksums import RECORD_CRCS


def columns_as_in(opened: Opened, index: Index, *, progress: Callable[[int, int], None] | None = None) -> Index:
    """Return the index of ``opened``, new shards, with the columns of another index, of the same paths and types.

    A column without a recorded path, as of shards written by `shoal pack`, is the field of its name. Samples without a
    value get the default value of the column. Raises the errors of `scan_columns`; `UsageError`: a column has other
    types in the new shards.
    """
    sources: Mapping[str, Mapping[str, Any]] = index.metadata.get(COLUMN_SOURCES, {})
    texts = index.metadata.get(TEXTS, {})
    own = [name for name in index.columns if name != RECORD_CRCS]
    columns = [Column(name, sources.get(name, {}).get("asked", name)) for name in own]
    missing = {name: sources[name]["missing"] for name in own if "missing" in sources.get(name, {})}
    new = add_columns(opened, columns, missing=missing, progress=progress) if columns else opened.index
    arrays = dict(new.columns)
    for name in own:
        if (name in texts) != (name in new.metadata.get(TEXTS, {})):
            msg = f"the column {name!r} holds {'texts' if name in texts else 'numbers'} in the index, but "
            msg += f"{'numbers' if name in texts else 'texts'} in the new shards"
            raise UsageError(msg, hint="`shoal index --columns` without --append reads the column from all shards")
        if name not in texts:
            arrays[name] = _as(index.columns[name].dtype, arrays[name], name)
    if RECORD_CRCS in index.columns:
        crcs = record_checksums(new, opened.paths, store=opened.store)
        if crcs is None:
            msg = "the index has checksums of samples, but samples of the new shards have no known bytes"
            raise UsageError(msg, hint="`shoal index` without --append makes an index without these checksums")
        arrays[RECORD_CRCS] = crcs
    return replace(new, columns={name: arrays[name] for name in index.columns})


def _as(kind: Any, values: Any, name: str) -> Any:
    """Return values in the type of the known column; `UsageError` if a value would change."""
    converted = values.astype(kind)
    if values.dtype != kind and not (converted == values).all():
        msg = f"the column {name!r} is of {kind} in the index, but of {values.dtype} in the new shards"
        raise UsageError(msg, hint="`shoal index --columns` without --append reads the column from all shards")
    return converted
