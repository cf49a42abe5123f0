"""The protocol of tables: a kind of table turns a request for a version into a snapshot, the files of that version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, SourceError
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.order.arrays.index_ranges import Runs
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import Store

SNAPSHOT = "snapshot"
"""Key of the version of a table in the metadata of an index."""


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """The wanted version of a table, and the wanted files of it.

    ``version`` is a number, or the name of a tag, branch or revision; ``timestamp`` a time in ISO 8601: the version
    that was current then. With neither, the current version. ``predicate`` leaves out files by their statistics.
    """

    version: int | str | None = None
    timestamp: str | None = None
    predicate: Any = None

    def refuse_for(self, source: str) -> None:
        """Raise `SourceError` if a version is wanted of shards that are no table."""
        arguments = {"version": self.version, "timestamp": self.timestamp, "predicate": self.predicate}
        if given := [name for name, value in arguments.items() if value is not None]:
            msg = f"{source}: {given[0]}= is for tables with versions, but this source is plain shards"
            raise SourceError(msg, hint=f"leave out {given[0]}=, or open the directory of a table")


CURRENT = WantedVersion()
"""The current version, and all its files."""


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A table, by directory or URL, and what is wanted of it; ``store`` reads the files of the directory."""

    root: str
    store: Store
    wanted: WantedVersion
    split: str | Sequence[str] | None
    storage_options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table: the files in their order, and which of their rows belong to the version.

    ``version`` identifies the version in an index, a state and an error: a few JSON values that the kind of table
    accepts again. ``rows`` are facts about files by name, as JSON: partition values, for example. The head of a shard
    keeps the facts under ``"row"``, so that `Format.parse` finds them in its span. ``deleted`` are the numbers of
    deleted rows by name of file, ascending int64; only files with deleted rows are named.
    """

    source: Source
    format: Format
    version: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deleted: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

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
            msg = f"{path} is the index of {known or 'plain shards'}, but {self.source.typed} is {dict(self.version)}"
            raise IndexFileError(msg, hint="open the version of the index (version=), or leave out index=")


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
