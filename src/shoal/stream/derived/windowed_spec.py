"""`Dataset.windows`: a dataset of rows becomes a dataset whose samples are windows of these rows."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StorageError, UsageError
from shoal.figures import counted
from shoal.formats.column_paths import as_columns
from shoal.formats.folder.reader import Folder
from shoal.formats.windows.row_offsets import WindowShape, WindowTable
from shoal.formats.windows.window_format import Windows
from shoal.index.table import Index
from shoal.indexing.index_files import bound_cache, load_index, save_index
from shoal.indexing.opened_dataset import Derivation, Opened
from shoal.indexing.windowing.episode_borders import episode_borders, shard_borders
from shoal.indexing.windowing.windowed_index import EPISODES_TOO_SHORT, ROWS_IN_NO_WINDOW, windowed_index
from shoal.order.arrays.index_ranges import Runs
from shoal.pipeline.collate import column_of as stacked
from shoal.pipeline.sample_columns.added_columns import opened_with_columns
from shoal.reading.checks.record_checksums import FRAMES, RECORD_CRCS
from shoal.storage.cache_directory import cache_directory, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.stream.choosing.index_columns import column_of, words_of_column
from shoal.stream.choosing.sample_groups import SHARD
from shoal.stream.dataset_spec import CHOSEN, DatasetSpec, Refusal
from shoal.stream.derived.window_arguments import given_episodes
from shoal.stream.generations.followed_source import refuse_followed

_log = logging.getLogger("shoal")

ANCHOR_ROW, EPISODE = "anchor_row", "episode"
"""Columns of an index of windows: the id of the anchor row, and the episode if it is not a column of the rows."""

_LARGE = 100_000  # extents and windows; a larger index is written to a file, which workers map

_STORED_ROWS = (
    Refusal(
        lambda spec, _: spec.request is not None,
        "{verb} makes samples of stored rows, but was called after shuffle()",
        "put {verb} before shuffle(), which then shuffles windows",
    ),
    Refusal(
        lambda spec, _: spec.stages and repr(spec.stages[0]),
        "{verb} makes samples of stored rows, but was called after {earlier}",
        "put {verb} first: map(), decode() and others then get whole windows",
    ),
    Refusal(
        lambda spec, _: spec.opened.one("windows()").derivation is not None,
        "{verb} makes samples of stored rows, but the samples of this dataset are windows already",
        "call {verb} once, on the dataset of rows",
    ),
)


def windowed_spec(spec: DatasetSpec, shape: WindowShape, by: Any) -> DatasetSpec:
    """Return the description of the windows of a dataset of rows; raises `UsageError`, see `shoal.Dataset.windows`."""
    refuse_followed(spec, "windows()")
    rows = spec.opened.one("windows()")
    _check_rows(rows)
    spec.refuse("windows()", (*CHOSEN, *_STORED_ROWS))
    _check_fields(rows, shape)
    rows, borders, name, episodes = _with_episodes(rows, by)
    table = WindowTable(borders, shape)
    if not table.num_windows:
        longest = int(np.diff(borders).max(initial=0))
        msg = f"no episode has a window of {shape}: the longest of {len(borders) - 1:,} episodes has {longest:,} rows"
        raise UsageError(msg, hint='a shorter window, pad="edge", or by= another column if episodes are longer')
    opened = _windowed(rows, table, name, episodes)
    stored = None if spec.stored is None else _whole(spec.stored, table)
    if stored is not None and not len(stored):
        msg = f"no window of {shape} has only rows that were selected before"
        raise UsageError(msg, hint="select whole episodes, or put select() behind windows()")
    _log.info("windows(%s): %s", shape, opened.derivation.words if opened.derivation else "")
    return replace(spec, source=opened, stored=stored, grows=False)


def _check_rows(rows: Opened) -> None:
    if isinstance(rows.format, Folder) or rows.index.format == Folder.name:
        msg = "windows() takes consecutive rows of a shard, but in a folder each file is a shard of its own"
        raise UsageError(msg, hint="`shoal pack` the folder; files of an episode then follow each other in a shard")
    if rows.companions:
        msg = "windows() takes rows of one dataset, but join() has put rows of another beside them"
        raise UsageError(msg, hint="put join() behind windows(): it then joins windows, by a column of the anchor row")


def _check_fields(rows: Opened, shape: WindowShape) -> None:
    """Raise `UsageError` for offsets of a field that no row has, as far as the head of a shard tells."""
    heads = rows.index.shard_heads
    known = rows.format.field_names(heads[min(heads)] if heads else {})
    if known is None:
        return
    if unknown := [name for name in shape.offsets if name not in known and "=" not in rows.index.shard_names[0]]:
        msg = f"windows(offsets=): there is no field {unknown[0]!r}; the rows have {', '.join(map(repr, known))}"
        raise UsageError(msg, hint="name fields of the rows")


def _with_episodes(rows: Opened, by: Any) -> tuple[Opened, NDArray[np.int64], str, NDArray[Any] | None]:
    """Return the rows, the borders of their episodes, the name of the episode, and its number in each row.

    A missing column is read from all rows once, and cached. The number is None if each shard is an episode.
    """
    if by is None or (isinstance(by, str) and by == SHARD):
        return rows, shard_borders(rows.index), SHARD, None
    if isinstance(by, str):
        (column,) = as_columns([by])
        if column.name not in rows.index.columns:
            _log.info("windows(by=%r): the column is read from all rows, and cached", by)
            rows = opened_with_columns(rows, [by])
        name, values, words = column.name, column_of(rows.index, column.name), words_of_column(rows.index, column.name)
    else:
        values, words = given_episodes(by, rows.index.num_samples)
        name = EPISODE
    if values.dtype.kind == "f":
        msg = f"windows(by={by!r}): the column has real numbers, and episodes are integers or texts"
        raise UsageError(msg, hint="by= a column of integers or texts")

    def name_of(value: Any) -> str:
        return repr(value.item() if words is None else words[int(value)])

    borders = episode_borders(values, rows.index, name_of=name_of, by=name if isinstance(by, str) else "the array")
    return rows, borders, name, values


def _windowed(rows: Opened, table: WindowTable, name: str, episodes: NDArray[Any] | None) -> Opened:
    """Return the dataset of windows."""
    anchors = table.anchors(np.arange(table.num_windows))
    columns = {each: column[anchors] for each, column in rows.index.columns.items() if each != RECORD_CRCS}
    if ANCHOR_ROW in columns:
        msg = f"the rows have a column {ANCHOR_ROW!r} in their index, which windows() gives another meaning"
        raise UsageError(msg, hint=f"index_columns=['row={ANCHOR_ROW}'] gives the column another name")
    columns[ANCHOR_ROW] = anchors
    if episodes is not None and name not in columns:
        columns[name] = episodes[anchors]
    index = windowed_index(rows.index, table, columns)
    index = replace(index, metadata={key: value for key, value in index.metadata.items() if key != FRAMES})
    index, path = _kept(index)
    return replace(
        rows,
        index=index,
        index_path=path,
        format=Windows(rows.format, rows.index, table, stacked),
        stored=None,
        past=None,
        latest=None,
        derivation=Derivation(rows, _words(table, index, name)),
    )


def _words(table: WindowTable, index: Index, name: str) -> str:
    words = f"windows of {table.shape} in {counted(len(table.borders) - 1, 'episode')} by {name}"
    if left_out := index.notes[ROWS_IN_NO_WINDOW]:
        short = index.notes[EPISODES_TOO_SHORT]
        words += f" ({left_out:,} of {int(table.borders[-1]):,} rows are in no window"
        words += f", {counted(short, 'episode')} too short)" if short else ")"
    return words


def _kept(index: Index) -> tuple[Index, str | None]:
    """Return the index, mapped from a file in the cache if it is large: workers map the file, too."""
    if index.num_extents + index.num_samples < _LARGE:
        return index, None
    digests = [[name, str(column.dtype), crc32(np.ascontiguousarray(column).view(np.uint8).data)]
               for name, column in index.columns.items()]  # fmt: skip
    words = [index.fingerprint, list(index.shard_versions), digests, index.extent_checksum is not None]
    key = hashlib.blake2b(json.dumps(words).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    directory, local = cache_directory(), LocalStore()
    path = str(Path(directory, "indexes", f"{key}.index"))
    try:
        mark_used(path)
        save_index(index, path, store=local)
        bound_cache(directory)
        return load_index(path, store=local, trusted=True), path
    except StorageError as error:
        _log.warning("the index of windows cannot be kept, and each worker holds its own: %s", error.message)
        return index, None


def _whole(stored: Runs, table: WindowTable) -> Runs:
    """Return the windows all of whose rows are among the stored ones."""
    firsts, ends = table.row_ranges(np.arange(table.num_windows))
    # Runs are maximal, so all rows of a window lie in one run.
    run = np.maximum(np.searchsorted(stored.starts, firsts, side="right") - 1, 0)
    inside = (stored.starts[run] <= firsts) & (ends <= stored.stops[run]) if len(stored.starts) else np.zeros(0, bool)
    return Runs.of(inside, table.num_windows)
