"""Which columns are wanted at all, and what can be done to columns as it is to samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.formats.shard_format import ColumnarFormat
from shoal.indexing.open_source import Opened
from shoal.pipeline.stages import Rename, SelectColumns, Stage, ToTuple, WithIds

__all__ = ["gathers", "with_chosen"]


def gathers(stages: Sequence[Stage]) -> bool:
    """Whether these stages do to the columns of a batch what they do to its samples."""
    return all(isinstance(stage, SelectColumns | Rename | ToTuple | WithIds) for stage in stages)


def with_chosen(opened: Opened, stages: Sequence[Stage]) -> Opened:
    """The same dataset, of whose samples only the fields are decoded that the first stage leaves, where it can be."""
    first = stages[0] if stages else None
    if not isinstance(first, SelectColumns | ToTuple) or not isinstance(opened.format, ColumnarFormat):
        return opened
    names = [name for names in first.names for name in names.split(";")]
    return replace(opened, format=opened.format.projected(names))
