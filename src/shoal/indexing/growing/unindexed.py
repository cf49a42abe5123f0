"""Shards that were found and have no index yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from shoal.figures import counted
from shoal.formats.folder.reader import Folder
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.indexing.index_making import IndexMaking
from shoal.indexing.indexing_estimate import IndexingEstimate, estimate_indexing
from shoal.indexing.opened_dataset import Opened
from shoal.storage.chunk_cache.chunk_cache import ChunkCache


@dataclass(frozen=True)
class Unindexed:
    """Shards without an index, and how it is made; ``open_with`` opens some of them with an index of those.

    ``cache`` is where this machine caches the bytes it reads.
    """

    making: IndexMaking
    open_with: Callable[[Index, Sequence[str], Format, str | None], Opened]
    cache: ChunkCache | None = None

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache, if there is one."""
        return (self.cache,)

    @cached_property
    def estimate(self) -> IndexingEstimate:
        """Estimate of what indexing the shards takes, from their listing and a few requests."""
        making = self.making
        return estimate_indexing(making.tasks(), store=making.store, format=making.format)

    @property
    def can_grow(self) -> bool:
        """True if something is read to index the shards, so that some can be indexed before others."""
        return not isinstance(self.making.format, Folder)

    @property
    def is_indexed(self) -> bool:
        """True if the index has been asked for, and was made."""
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
        """All shards with their index, which is built first."""
        return self.opened(*self.making.cached_or_made())

    def opened(self, index: Index, index_path: str | None, paths: Sequence[str] | None = None) -> Opened:
        """Return shards with an index of them: all, or those of ``paths``."""
        making = self.making
        of_index = making.what.source.paths if paths is None else paths
        return replace(self.open_with(index, of_index, making.format, index_path), cache=self.cache)
