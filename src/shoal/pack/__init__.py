"""HOW ARE SHARDS MADE? Samples in, shards and their index out."""

from __future__ import annotations

from shoal.pack.columns import Column
from shoal.pack.output import Output
from shoal.pack.packing import pack
from shoal.pack.repacking import Repacked, repack
from shoal.pack.sizing import ShardSizing, shard_sizing
from shoal.pack.unit import Shard, ShardSummary, Unreadable, pack_shard
from shoal.pack.writer import PackSummary, Writer

__all__ = [
    "Column",
    "Output",
    "PackSummary",
    "Repacked",
    "Shard",
    "ShardSizing",
    "ShardSummary",
    "Unreadable",
    "Writer",
    "pack",
    "pack_shard",
    "repack",
    "shard_sizing",
]
