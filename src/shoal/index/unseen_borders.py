"""Borders of samples that an index took from another tool, and that nobody has compared with all of the shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ALL_SEEN", "BEHIND_BYTES", "BY_BORDERS", "is_by_borders", "may_be_cut", "told_of_borders"]

BY_BORDERS = "by_borders"
ALL_SEEN = "all seen"
BEHIND_BYTES = 3 * 512
"""With so many bytes behind some samples of a tar it shows whether the last one goes on there: three blocks."""


def is_by_borders(head: Mapping[str, Any]) -> bool:
    """Whether a shard was indexed by a foreign index."""
    return bool(head.get(BY_BORDERS))


def told_of_borders(head: Mapping[str, Any]) -> Any:
    """What the head of a shard that was indexed by a foreign index says of its borders."""
    return head.get(BY_BORDERS)


def may_be_cut(head: Mapping[str, Any]) -> bool:
    """Whether a shard was indexed by a foreign index of which some borders were not looked at."""
    return is_by_borders(head) and head[BY_BORDERS] != ALL_SEEN
