"""The recipe of windows: the same windows of any rows, so that windows grow with their rows and are recovered."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StorageError, UsageError
from shoal.figures import counted
from shoal.formats.column_paths import as_columns
from shoal.formats.windows.row_offsets import WindowShape, WindowTable
from shoal.formats.windows.window_format import Windows
from shoal.index.table import Index
from shoal.indexing.generations.derived_versions import DerivedVersions
from shoal.indexing.index_files import bound_cache, load_index, save_index
from shoal.indexing.opened_dataset import Derivation, Opened
from shoal.indexing.windowing.episode_borders import episode_borders, shard_borders
from shoal.indexing.windowing.windowed_index import (
    EPISODES_TOO_SHORT,
    ROWS_IN_NO_WINDOW,
    windowed_index,
    windows_fingerprint,
)
from shoal.pipeline.collate import column_of as stacked
from shoal.pipeline.sample_columns.added_columns import opened_with_columns
from shoal.reading.checks.record_checksums import FRAMES, RECORD_CRCS
from shoal.storage.cache_directory import cache_directory, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.stream.choosing.index_columns import column_of, words_of_column
from shoal.stream.choosing.sample_groups import SHARD
from shoal.stream.derived.window_arguments import given_episodes

_log = logging.getLogger("shoal")

ANCHOR_ROW, EPISODE = "anchor_row", "episode"
"""Columns of an index of windows: the id of the anchor row, and the episode if it is not a column of the rows."""

_LARGE = 100_000  # extents and windows; a larger index is written to a file, which workers map


class _Episodes(NamedTuple):
    """Rows, the borders of their episodes, the name of the episode, and its number in each row.

    The number is None if each shard is an episode.
    """

    rows: Opened
    borders: NDArray[np.int64]
    name: str
    values: NDArray[Any] | None


@dataclass(frozen=True)
class WindowRecipe:
    """The `Recipe` of windows of one shape, with an episode for each value of a column, or for each shard."""

    shape: WindowShape
    by: str

    can_repeat = True

    @property
    def words(self) -> str:
        """The samples in words."""
        return f"windows of {self.shape} by {self.by}"

    def fingerprint(self, rows: Opened) -> str:
        """Return the fingerprint of the windows of some rows; "" if their column of episodes is not in the index."""
        if self.by != SHARD and as_columns([self.by])[0].name not in rows.index.columns:
            return ""
        return windows_fingerprint(rows.index, WindowTable(_episodes_by(rows, self.by).borders, self.shape))

    def made_of(self, rows: Opened) -> Opened:
        """Return the windows of some rows; a missing column of episodes is read from all rows once, and cached."""
        return _windowed(_episodes_by(rows, self.by), self)


@dataclass(frozen=True)
class WindowsOfArray:
    """The `Recipe` of windows whose episodes are an array, which has a value for each row that there was."""

    shape: WindowShape

    can_repeat = False

    @property
    def words(self) -> str:
        """The samples in words."""
        return f"windows of {self.shape} by an array of episodes"

    def fingerprint(self, rows: Opened) -> str:  # noqa: ARG002
        """Return "": the episodes of other rows are unknown."""
        return ""

    def made_of(self, rows: Opened) -> Opened:
        """Raise `UsageError`: the episodes of other rows are unknown."""
        msg = f"{self.words} cannot grow: the array has no episode for new rows ({rows.index.num_samples:,} rows now)"
        raise UsageError(msg, hint="by= a column of the index or a field of the rows, or by=None for shards")


def windows_of(rows: Opened, shape: WindowShape, by: Any) -> Opened:
    """Return the windows of some rows, by a column, by shard or by an array; see `shoal.Dataset.windows`."""
    if by is None or isinstance(by, str):
        return WindowRecipe(shape, SHARD if by is None else by).made_of(rows)
    values, words = given_episodes(by, rows.index.num_samples)
    return _windowed(_episodes(rows, EPISODE, values, words, by="the array"), WindowsOfArray(shape))


def _episodes_by(rows: Opened, by: str) -> _Episodes:
    if by == SHARD:
        return _Episodes(rows, shard_borders(rows.index), SHARD, None)
    (column,) = as_columns([by])
    if column.name not in rows.index.columns:
        _log.info("windows(by=%r): the column is read from all rows, and cached", by)
        rows = opened_with_columns(rows, [by])
    values, words = column_of(rows.index, column.name), words_of_column(rows.index, column.name)
    return _episodes(rows, column.name, values, words, by=column.name)


def _episodes(rows: Opened, name: str, values: NDArray[Any], words: Any, *, by: str) -> _Episodes:
    if values.dtype.kind == "f":
        msg = f"windows(by={by!r}): the column has real numbers, and episodes are integers or texts"
        raise UsageError(msg, hint="by= a column of integers or texts")

    def name_of(value: Any) -> str:
        return repr(value.item() if words is None else words[int(value)])

    return _Episodes(rows, episode_borders(values, rows.index, name_of=name_of, by=by), name, values)


def _windowed(cut: _Episodes, recipe: WindowRecipe | WindowsOfArray) -> Opened:
    """Return the dataset of windows."""
    rows, borders, name, episodes = cut
    table = WindowTable(borders, recipe.shape)
    if not table.num_windows:
        longest = int(np.diff(borders).max(initial=0))
        msg = f"no episode has a window of {recipe.shape}: the longest of {len(borders) - 1:,} episodes has "
        msg += f"{longest:,} rows"
        raise UsageError(msg, hint='a shorter window, pad="edge", or by= another column if episodes are longer')
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
    versions = DerivedVersions("" if rows.latest is None else f"{recipe.words} of {rows.latest.name}")
    return replace(
        rows,
        index=index,
        index_path=path,
        format=Windows(rows.format, rows.index, table, stacked),
        stored=None,
        past=versions,
        latest=versions,
        derivation=Derivation(rows, _words(table, index, name), recipe),
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
