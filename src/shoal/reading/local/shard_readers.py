"""Readers of the shards in use, each opened after its shard was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.indexing.open_source import Opened
from shoal.reading.remote.request_stats import RequestStats
from shoal.stats.counters import Counters
from shoal.storage.store import Reader

_MOST_AT_HAND = 64


class ShardReader(NamedTuple):
    """The reader of a shard, its name, and the head that the index keeps of it."""

    reader: Reader
    name: str
    head: Mapping[str, Any]


class ShardReaders(dict[int, ShardReader]):
    """Cache of readers by shard number; a dict, since every read looks one up. Bounded in size.

    Raises
    ------
    ShardError
        On the first lookup of a shard: it is not the one that was indexed.
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
