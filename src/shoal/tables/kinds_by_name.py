"""Kinds of tables by scheme and suffix, and the formats of their files by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shoal.formats.shard_format import Format
from shoal.indexing.tables.snapshot_protocol import TableKind
from shoal.tables.delta_lake import DeltaLake
from shoal.tables.hub.hub_datasets import HubDatasets
from shoal.tables.hudi_tables import Hudi
from shoal.tables.iceberg.iceberg_tables import Iceberg
from shoal.tables.lance.lance_tables import LanceTables
from shoal.tables.lerobot.lerobot_datasets import LeRobot
from shoal.tables.table_parquet import TableParquet

TABLES: Mapping[str, Callable[[], TableKind]] = MappingProxyType(
    {
        "delta": DeltaLake,
        "iceberg": Iceberg,
        ".metadata.json": Iceberg,
        "hudi": Hudi,
        "lance": LanceTables,
        ".lance": LanceTables,
        "hf": HubDatasets,
        "lerobot": LeRobot,
    }
)
"""Makers of kinds by scheme, and by the suffix of their names."""

FORMATS: Mapping[str, Callable[..., Format]] = MappingProxyType({TableParquet.name: TableParquet})
"""Makers of the formats of tables' files."""
