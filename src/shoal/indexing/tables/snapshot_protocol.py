"""The protocol of tables: a kind of table turns a request for a version into a snapshot, the files of that version."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, SourceError, StorageError
from shoal.formats.shard_format import Format
from shoal.index.assembly import SNAPSHOT
from shoal.index.table import Index
from shoal.order.arrays.index_ranges import Runs
from shoal.storage.cache_directory import expand_home
from shoal.storage.retry import with_retries
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.source import Source
from shoal.storage.storage_errors import is_missing
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.storage.urls import scheme_of, without_secrets


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """The wanted version of a table, and the wanted files of it.

    ``version`` is a number, the name of a tag, branch or revision, or the version of a `Snapshot`; ``timestamp`` a time
    in ISO 8601: the version that was current then. With neither, the current version. ``predicate`` leaves out files by
    their statistics.
    """

    version: int | str | Mapping[str, Any] | None = None
    timestamp: str | None = None
    predicate: Any = None

    @property
    def never_moves(self) -> bool:
        """True if the version is a number or a time: a branch moves on, and so does the current version."""
        version = self.version
        is_name = version is None or (isinstance(version, str) and not version.isdecimal())
        return self.timestamp is not None or not is_name

    def refuse_for(self, source: str) -> None:
        """Raise `SourceError` if a version is wanted of shards that are no table."""
        arguments = {"version": self.version, "timestamp": self.timestamp, "predicate": self.predicate}
        if given := [name for name, value in arguments.items() if value is not None]:
            msg = f"{source}: {given[0]}= is for tables with versions, but this source is plain shards"
            raise SourceError(msg, hint=f"leave out {given[0]}=, or open the directory of a table")


CURRENT = WantedVersion()
"""The current version, and all its files."""


@dataclass(frozen=True)
class TableRequest:
    """A table, by directory or URL, and the wanted version."""

    root: str
    wanted: WantedVersion
    split: str | Sequence[str] | None
    storage_options: Mapping[str, Any]

    @cached_property
    def store(self) -> Store:
        """The store that reads the files of the directory; made when it is needed, as a catalog has no directory."""
        return with_retries(open_store(self.root, self.storage_options), self.storage_options)

    @property
    def directory(self) -> str:
        """The root as an absolute path or a URL; of no use if the root is a name in a catalog."""
        path = local_path(self.root)
        return path if scheme_of(path) else str(Path(expand_home(path)).absolute())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table: the files in their order, and which of their rows belong to the version.

    ``version`` identifies the version in an index, a state and an error: a few JSON values that the kind of table
    accepts again. ``rows`` are facts about files by name, as JSON: partition values, for example. The head of a shard
    keeps the facts under ``"row"``, so that `Format.parse` finds them in its span. ``deleted`` are the numbers of
    deleted rows by name of file, ascending int64; only files with deleted rows are named. ``storage_options`` are the
    options of the store of the files; None for the options of the request. ``store`` reads the files, if the store of
    their paths does not: a shard may be joined from many objects, for example. The store is pickled for workers.
    """

    source: Source
    format: Format
    version: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deleted: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    storage_options: Mapping[str, Any] | None = None
    store: Store | None = None

    def rows_left(self, index: Index) -> Runs | None:
        """Return the samples of an index that the version has; None for all. O(samples) if some are deleted."""
        if not self.deleted:
            return None
        is_left = np.ones(index.num_samples, dtype=np.bool_)
        first_samples = index.extent_first_sample[index.shard_first_extent]
        for number, name in enumerate(index.shard_names):
            if (deleted := self.deleted.get(name)) is not None:
                is_left[first_samples[number] + deleted] = False
        return Runs.of(is_left, index.num_samples)

    def check_index(self, index: Index, path: str) -> None:
        """Raise `IndexFileError` if an index was made for another version."""
        known = index.metadata.get(SNAPSHOT)
        if known != self.version:
            indexed = version_text(known) if known else "plain shards"
            msg = f"{path} is the index of {indexed}, but {self.source.typed} is {version_text(self.version)}"
            raise IndexFileError(msg, hint="open the version of the index (version=), or leave out index=")


def missing_file(error: StorageError, path: str, version: Any) -> StorageError:
    """Return the error for a file of a version of a table: it names the version if the file does not exist."""
    if not version or not (is_missing(error) or (not scheme_of(path) and not Path(path).exists())):
        return error
    msg = f"{without_secrets(path)}: this file of the table's version {version_text(version)} does not exist any more"
    hint = "a later clean-up of the table (VACUUM, expire_snapshots) has removed it: open a newer version, or restore "
    missing = StorageError(msg, hint=f"{hint}the file; keep files for longer than a run takes")
    missing.errno = errno.ENOENT
    return missing


def version_text(version: Any) -> str:
    """Return a version of a table in a few words.

    >>> version_text({"delta": 12})
    'delta 12'
    """
    return ", ".join(f"{name} {value}" for name, value in version.items()) if isinstance(version, Mapping) else version


class TableKind(Protocol):
    """A kind of table. A package registers a maker of it in the entry points ``shoal.tables``.

    The name of an entry point is the scheme of its tables (``delta://``); an entry point named by a suffix with its dot
    (``.lance``) serves directories with this suffix. A kind whose scheme also names plain files has a method
    ``claims(source: str) -> bool``, true for tables, and gets the whole name.
    """

    name: str

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve a version of a table to its files.

        Raises `SourceError`: there is no table, no such version, or the table has a feature that shoal cannot read.
        """
        ...
