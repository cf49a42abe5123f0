"""Shards that were found and have no index yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from shoal.figures import counted
from shoal.formats.folder.reader import Folder
from shoal.formats.shard_format import Format
from shoal.index.assembly import joined
from shoal.index.table import Index
from shoal.indexing.build import index_of_tasks
from shoal.indexing.index_making import IndexMaking
from shoal.indexing.indexing_estimate import IndexingEstimate, estimate_indexing
from shoal.indexing.opened_dataset import Opened
from shoal.storage.chunk_cache.chunk_cache import ChunkCache


@dataclass(frozen=True)
class Unindexed:
    """Shards without an index, and the description of how to index them; ``open_with`` opens some indexed shards."""

    making: IndexMaking
    open_with: Callable[[Index, Sequence[str], Format, str | None], Opened]
    cache: ChunkCache | None = None

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache, if there is one."""
        return (self.cache,)

    stored = None  # no split is known before the index
    depth = 0  # nothing is joined

    def words(self, num_samples: Callable[[], str]) -> str:
        """Return the number of shards and their format, and the number of samples once the index is made."""
        return self.whole.words(num_samples) if self.is_indexed else f"{self.summary}, not indexed yet"

    @property
    def indexes(self) -> dict[str, None]:
        """The name of the only source, with None: it has no index yet."""
        return {"": None}

    @cached_property
    def estimate(self) -> IndexingEstimate:
        """Estimated cost of indexing the shards, from their listing and a few requests."""
        making = self.making
        return estimate_indexing(making.tasks(), store=making.store, format=making.format)

    @property
    def can_grow(self) -> bool:
        """True if indexing reads the shards, so that some can be indexed before others."""
        return not isinstance(self.making.format, Folder)

    @property
    def is_indexed(self) -> bool:
        """True if the index was made."""
        return "whole" in self.__dict__

    @property
    def summary(self) -> str:
        """Number and format of the shards, for messages."""
        return counted(len(self.making.infos), f"{self.making.format.name} shard")

    @property
    def identity(self) -> str:
        """Name of the dataset among the caches of this machine."""
        return PurePath(self.making.path).stem

    @cached_property
    def whole(self) -> Opened:
        """All shards with their index, which is built on first use."""
        return self.opened(*self.making.cached_or_made())

    def beginning(self, num_samples: int) -> Opened:
        """Return the first shards with at least ``num_samples``, and an index of these shards that is not cached.

        Their samples have the same ids as among all shards. Each scan takes twice as many shards as the scan before.
        Raises the errors of `build_index`.
        """
        making, tasks = self.making, self.making.tasks()
        parts: list[Index] = []
        first = num_indexed = 0
        while first < len(tasks) and num_indexed < num_samples:
            some = tasks[first : 2 * first + 1]
            part = index_of_tasks(
                some, store=making.store, format=making.format, progress=making.progress,
                source_name=making.what.source.typed, extent_bytes=making.extent_bytes, keeps_scans=False,
                rows=making.what.rows,
            )  # fmt: skip
            parts.append(part)
            first, num_indexed = first + len(some), num_indexed + part.num_samples
        index = joined(parts, metadata=parts[0].metadata)
        return self.opened(index, None, making.what.source.paths[:first])

    def opened(self, index: Index, index_path: str | None, paths: Sequence[str] | None = None) -> Opened:
        """Return shards with their index: all, or the shards of ``paths``."""
        making = self.making
        of_index = making.what.source.paths if paths is None else paths
        return replace(self.open_with(index, of_index, making.format, index_path), cache=self.cache)
