"""HOW ARE SHARDS MADE? Samples in, shards and their index out."""

# Names are imported when they are first used, as in the face of the package: every process that makes shards begins by
# importing this file, and needs half of what is behind it.

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from shoal.pack.columns import Column
    from shoal.pack.fields import SampleFields
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


def __getattr__(name: str) -> _Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from shoal.pack import columns, fields, output, packing, repacking, sizing, unit, writer  # noqa: PLC0415

    rooms = (columns, fields, output, packing, repacking, sizing, unit, writer)
    found = {each: getattr(room, each) for room in rooms for each in room.__all__ if each in __all__}
    globals().update(found)
    return found[name]


def __dir__() -> list[str]:
    return sorted(__all__)
