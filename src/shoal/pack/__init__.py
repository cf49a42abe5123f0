"""Packing: samples in, shards and their index out."""

# HOW ARE SHARDS MADE?
#
# Names are imported on first use, as in the top-level package: every process that makes shards starts by importing this
# file, and needs only half of the modules behind it.

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.formats.column_paths import Column
    from shoal.pack.from_shards.repacking import Repacked, plan_repack, repack
    from shoal.pack.inputs.duplicates import Duplicates
    from shoal.pack.inputs.sample_fields import SampleFields
    from shoal.pack.jobs.pack_job import PackJob
    from shoal.pack.output.cleaning import Cleaned, clean
    from shoal.pack.output.commit import PackSummary
    from shoal.pack.output.destination import Output
    from shoal.pack.packing import pack, plan
    from shoal.pack.shards.shard_sizes import ShardSizing, shard_sizing
    from shoal.pack.shards.shard_writer import Shard, ShardSummary, Unreadable, pack_shard
    from shoal.pack.writer import Writer

__all__ = [
    "Cleaned",
    "Column",
    "Duplicates",
    "Output",
    "PackJob",
    "PackSummary",
    "Repacked",
    "SampleFields",
    "Shard",
    "ShardSizing",
    "ShardSummary",
    "Unreadable",
    "Writer",
    "clean",
    "pack",
    "pack_shard",
    "plan",
    "plan_repack",
    "repack",
    "shard_sizing",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "shoal.formats.column_paths": "Column",
        "shoal.pack.output.cleaning": "Cleaned clean",
        "shoal.pack.output.destination": "Output",
        "shoal.pack.from_shards.repacking": "Repacked plan_repack repack",
        "shoal.pack.inputs.duplicates": "Duplicates",
        "shoal.pack.inputs.sample_fields": "SampleFields",
        "shoal.pack.jobs.pack_job": "PackJob",
        "shoal.pack.packing": "pack plan",
        "shoal.pack.shards.shard_sizes": "ShardSizing shard_sizing",
        "shoal.pack.shards.shard_writer": "Shard ShardSummary Unreadable pack_shard",
        "shoal.pack.output.commit": "PackSummary",
        "shoal.pack.spark": "",
        "shoal.pack.ray": "",
        "shoal.pack.writer": "Writer",
    },
)
