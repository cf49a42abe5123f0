"""Packing: samples in, shards and their index out."""

# HOW ARE SHARDS MADE?
#
# Names are imported on first use, as in the top-level package: every process that makes shards starts by importing this
# file, and needs only half of the modules behind it.

from __future__ import annotations as _annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from shoal.pack.column_values import Column
    from shoal.pack.destination import Output
    from shoal.pack.from_shards.repacking import Repacked, repack
    from shoal.pack.inputs.field_counts import SampleFields
    from shoal.pack.packing import pack
    from shoal.pack.shard_sizes import ShardSizing, shard_sizing
    from shoal.pack.unit import Shard, ShardSummary, Unreadable, pack_shard
    from shoal.pack.writer import PackSummary, Writer

__all__ = [
    "Column",
    "Output",
    "PackSummary",
    "Repacked",
    "SampleFields",
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


_WHERE = {
    "Column": "shoal.pack.column_values",
    "Output": "shoal.pack.destination",
    "PackSummary": "shoal.pack.writer",
    "Repacked": "shoal.pack.from_shards.repacking",
    "SampleFields": "shoal.pack.inputs.field_counts",
    "Shard": "shoal.pack.unit",
    "ShardSizing": "shoal.pack.shard_sizes",
    "ShardSummary": "shoal.pack.unit",
    "Unreadable": "shoal.pack.unit",
    "Writer": "shoal.pack.writer",
    "pack": "shoal.pack.packing",
    "pack_shard": "shoal.pack.unit",
    "repack": "shoal.pack.from_shards.repacking",
    "shard_sizing": "shoal.pack.shard_sizes",
}


def __getattr__(name: str) -> _Any:
    if name not in _WHERE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(_import_module(_WHERE[name]), name)  # looked up once
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
