"""Sample borders that an index took over from another tool, not yet verified against the whole shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BY_BORDERS = "by_borders"
ALL_SEEN = "all seen"
BEHIND_BYTES = 3 * 512
"""Bytes behind some samples of a tar that show whether the last one continues there: three blocks."""


def is_by_borders(head: Mapping[str, Any]) -> bool:
    """Return True if a shard was indexed by a foreign index."""
    return bool(head.get(BY_BORDERS))


def told_of_borders(head: Mapping[str, Any]) -> Any:
    """Return the entry on borders in the head of a shard that was indexed by a foreign index."""
    return head.get(BY_BORDERS)


def may_be_cut(head: Mapping[str, Any]) -> bool:
    """Return True if a shard was indexed by a foreign index and some borders were not verified."""
    return is_by_borders(head) and head[BY_BORDERS] != ALL_SEEN
