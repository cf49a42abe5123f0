"""The columns of an index in another index: values of known shards are copied, new shards are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.column_paths import Column
from shoal.index.assembly import subset
from shoal.index.index_generations import TEXTS, appended
from shoal.index.table import Index
from shoal.indexing.checksums import record_checksums
from shoal.indexing.generations.subset_of_shards import with_shards
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.added_columns import COLUMN_SOURCES, add_columns
from shoal.reading.checks.record_checksums import RECORD_CRCS


def columns_as_in(opened: Opened, index: Index, *, progress: Callable[[int, int], None] | None = None) -> Index:
    """Return the index of ``opened`` with the columns of another index, of the same paths and types.

    Values of shards that are in both are copied; only the other shards are read. A column without a recorded path, as
    of shards written by `shoal pack`, is the field of its name. Samples without a value get the default value of the
    column. Raises the errors of `scan_columns`; `UsageError`: a column has other types in the new shards.
    """
    known = _shards_in_both(opened.index, index)
    if not known:
        return _read_columns(opened, index, progress)
    new = [number for number in range(opened.index.num_shards) if number not in known]
    whole = subset(index, [*known.values()])
    if new:
        whole = appended(whole, _read_columns(with_shards(opened, new), index, progress))
    whole = subset(whole, np.argsort([*known, *new]).tolist())
    metadata = dict(opened.index.metadata)
    for key in (TEXTS, COLUMN_SOURCES, "classes"):
        if key in whole.metadata:
            metadata[key] = {**metadata.get(key, {}), **whole.metadata[key]}
    return replace(opened.index, columns={**opened.index.columns, **whole.columns}, metadata=metadata)


def _shards_in_both(index: Index, other: Index) -> dict[int, int]:
    """Return the number in ``other`` of each shard of an index that is the same there, by number."""
    numbers = {name: number for number, name in enumerate(other.shard_names)}
    pairs = [(number, numbers[name]) for number, name in enumerate(index.shard_names) if name in numbers]
    return {number: there for number, there in pairs if _identity(index, number) == _identity(other, there)}


def _identity(index: Index, shard: int) -> tuple[Any, ...]:
    """Return the fields of a shard in an index, without columns: equal fields are the same samples."""
    rows = slice(*index.shard_first_extent[shard : shard + 2].tolist())
    cut = (index.extent_num_samples[rows].tobytes(), index.extent_layout_crc[rows].tobytes())
    return int(index.shard_bytes[shard]), index.shard_versions[shard], index.shard_heads.get(shard), cut


def _read_columns(opened: Opened, index: Index, progress: Callable[[int, int], None] | None) -> Index:
    """Return the index of ``opened`` with the columns of another index, read from all samples."""
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
            raise UsageError(
                msg, hint="`shoal index --columns` reads the column from all shards; `shoal index --append` does not"
            )
        if name not in texts:
            arrays[name] = _as(index.columns[name].dtype, arrays[name], name)
    if RECORD_CRCS in index.columns:
        crcs = record_checksums(new, opened.paths, store=opened.store)
        if crcs is None:
            msg = "the index has checksums of samples, but samples of the new shards have no known bytes"
            raise UsageError(
                msg, hint="`shoal index` makes an index without these checksums; `shoal index --append` does not"
            )
        arrays[RECORD_CRCS] = crcs
    return replace(new, columns={name: arrays[name] for name in index.columns})


def _as(kind: Any, values: Any, name: str) -> Any:
    """Return values in the type of the known column; `UsageError` if a value would change."""
    converted = values.astype(kind)
    if values.dtype != kind and not (converted == values).all():
        msg = f"the column {name!r} is of {kind} in the index, but of {values.dtype} in the new shards"
        raise UsageError(
            msg, hint="`shoal index --columns` reads the column from all shards; `shoal index --append` does not"
        )
    return converted
