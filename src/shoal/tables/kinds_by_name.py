"""Kinds of tables by scheme and suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shoal.indexing.tables.snapshot_protocol import TableKind
from shoal.tables.lerobot.lerobot_datasets import LeRobot

TABLES: Mapping[str, Callable[[], TableKind]] = MappingProxyType({LeRobot.name: LeRobot})
"""Makers of kinds by scheme, and by the suffix of their names."""
