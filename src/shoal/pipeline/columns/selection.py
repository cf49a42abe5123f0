"""Selection of the columns that are needed at all, and of stages that work on columns as they do on samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.formats.shard_format import ColumnarFormat
from shoal.indexing.open_source import Opened
from shoal.pipeline.stages import Rename, SelectColumns, Stage, ToTuple, WithIds


def gathers(stages: Sequence[Stage]) -> bool:
    """True if these stages do to the columns of a batch what they do to its samples."""
    return all(isinstance(stage, SelectColumns | Rename | ToTuple | WithIds) for stage in stages)


def with_chosen(opened: Opened, stages: Sequence[Stage]) -> Opened:
    """Restrict decoding to the fields that the first stage keeps, if the format supports it."""
    first = stages[0] if stages else None
    if not isinstance(first, SelectColumns | ToTuple) or not isinstance(opened.format, ColumnarFormat):
        return opened
    names = [name for names in first.names for name in names.split(";")]
    return replace(opened, format=opened.format.projected(names))
