"""Kinds of tables that ship with shoal, by scheme and by the suffix of their directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shoal.indexing.tables.snapshot_protocol import TableKind
from shoal.tables.hub_datasets import HubDatasets
from shoal.tables.lance_tables import LanceTables

TABLE_KINDS: Mapping[str, Callable[..., TableKind]] = MappingProxyType(
    {"hf": HubDatasets, "lance": LanceTables, ".lance": LanceTables}
)
