"""Directories of tables with a log: some files no longer belong to the table, or do not yet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from shoal.errors import SourceError

_LOG_DIRECTORIES = ("_delta_log", ".hoodie", "_spark_metadata", "_temporary")
_PARTITION_OF_HUDI = ".hoodie_partition_metadata"
# Files in the description of a LeRobot dataset (v3.0, v2.1); the rows are elsewhere, and frames in videos.
_DESCRIBED_EPISODES = ("/meta/episodes/chunk-000/file-000.parquet", "/meta/episodes_stats.jsonl")


class LoggedTableError(SourceError):
    """A directory is a table of ``kind``, in the directory ``root``; its log says which files are valid."""

    def __init__(self, msg: str, *, hint: str, kind: str, root: str) -> None:
        super().__init__(msg, hint=hint)
        self.kind, self.root = kind, root


class _Table(NamedTuple):
    """A table: the directory of its files, its kind by name and in words, and the call that lists the current files."""

    root: str
    kind: str
    words: str
    how: str


def refuse_table(path: str, directory: str) -> None:
    """Refuse a path in the log of a table; paths of directories end with "/".

    Raises `SourceError`: the names below ``directory`` do not show which files are valid.
    """
    if (table := _table_of(path, directory)) is None:
        return
    if not table.words:
        msg = f"{directory}: Spark has not finished writing this table: {path}"
        raise SourceError(msg, hint="wait for Spark, or write the table again; or give a list of the files")
    msg = f"{directory}: this is {table.words} ({path}), and its log decides which files are valid"
    hint = f"open the list of files that {table.how} gives"
    root = table.root.rstrip("/")
    if table.kind:
        hint = "shoal.open() reads a version of it, and so does `shoal info --table-version`; the list of "
        hint += f"files that {table.how} gives may have rows that the version has deleted"
    if table.kind and root != directory.rstrip("/"):
        hint = f"open the table itself: {root}"
    raise LoggedTableError(msg, hint=hint, kind=table.kind, root=root)


def refuse_tables_of(files: Iterable[str], below: Iterable[str], directory: str) -> None:
    """Refuse files of a table whose log is among the paths ``below`` the directory; raises as `refuse_table`."""
    tables = {table.root: path for path in below if (table := _table_of(path, directory)) is not None}
    folders = {path.rpartition("/")[0] + "/" for path in files} if tables else set()
    for root, path in tables.items():
        if any(folder.startswith(root) for folder in folders):
            refuse_table(path, directory)


def refuse_partition(directory: str) -> None:
    """Refuse a local partition (``column=value``) of a table, whose log lies above; raises as `refuse_table`."""
    folder = directory
    while "=" in os.path.basename(folder):
        folder = os.path.dirname(folder)
        for path in logs_beside((), folder):
            refuse_table(path, folder)


def logs_beside(files: Iterable[str], directory: str) -> Iterator[str]:
    """Yield the paths of logs of tables in the local directories of these files, up to ``directory``.

    A few system calls for each directory, and one for a partition (``column=value``), which holds no log.
    """
    folders: set[str] = {directory}
    for path in files:
        folder = os.path.dirname(path)
        while folder not in folders and len(folder) > len(directory):
            folders.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(folders):
        if os.path.lexists(partition := os.path.join(folder, _PARTITION_OF_HUDI)):
            yield partition
        if folder != directory and "=" in os.path.basename(folder):
            continue
        for name in _LOG_DIRECTORIES:
            if os.path.isdir(log := os.path.join(folder, name)):
                yield os.path.join(log, "")
        if os.path.isdir(metadata := os.path.join(folder, "metadata")):
            with suppress(OSError):  # a glob also skips unreadable directories
                yield from (os.path.join(metadata, name) for name in os.listdir(metadata))


def _table_of(path: str, directory: str) -> _Table | None:
    """Return the table of a log that has this path; its words are empty while Spark writes it."""
    below = f"/{path[len(directory) :]}"
    if "/_delta_log/" in below:
        mark, kind, words = "/_delta_log/", "delta", "a Delta Lake table"
        how = 'deltalake.DeltaTable("...").file_uris()'
    elif below.endswith(".metadata.json") and "/metadata/" in below:
        mark, kind, words = "/metadata/", "iceberg", "an Iceberg table"
        how = "the plan of a scan with pyiceberg"
    elif "/.hoodie" in below:  # of the table, and of each partition
        how = 'hudi.HudiTableBuilder.from_base_uri("...").build().get_file_slices()'
        mark, kind, words = "/.hoodie", "hudi", "a Hudi table"
    elif "/_spark_metadata/" in below:
        mark, kind, words = "/_spark_metadata/", "", "the output of a streaming query of Spark"
        how = 'spark.read.parquet("...").inputFiles()'
    elif f"/{below.lstrip('/')}" in _DESCRIBED_EPISODES:  # of the directory itself alone
        mark, kind, words, how = "/meta/", "lerobot", "a LeRobot dataset", 'shoal.open("lerobot://...")'
    elif "/_temporary/" in below:
        mark, kind, words, how = "/_temporary/", "", "", ""
    else:
        return None
    return _Table(path[: len(directory) + below.index(mark)].rstrip("/") + "/", kind, words, how)
