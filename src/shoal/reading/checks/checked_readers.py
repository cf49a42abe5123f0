"""Readers of the shards in use, each of a shard that was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.indexing.open_source import Opened
from shoal.reading.remote.request_stats import RequestStats
from shoal.stats.counters import Counters
from shoal.storage.store import Reader

__all__ = ["ShardReader", "ShardReaders"]

_MOST_AT_HAND = 64


class ShardReader(NamedTuple):
    """What reads a shard, its name, and what the index keeps of its head."""

    reader: Reader
    name: str
    head: Mapping[str, Any]


class ShardReaders(dict[int, ShardReader]):
    """The reader of a shard by its number; a dict, since one is looked up for every read. Some are kept.

    Raises
    ------
    ShardError
        When a shard is first asked for: it is not the one that was indexed.
    """

    def __init__(self, opened: Opened, counters: Counters) -> None:
        super().__init__()
        self._opened, self._traffic = opened, RequestStats(counters)

    def __missing__(self, shard: int) -> ShardReader:
        opened = self._opened
        opened.check.check(shard, self._traffic)
        if len(self) >= getattr(opened.store, "most_readers", _MOST_AT_HAND):
            self.clear()
        index = opened.index
        reader = opened.store.reader(opened.paths[shard])
        known = self[shard] = ShardReader(reader, index.shard_names[shard], index.shard_heads.get(shard, {}))
        return known
