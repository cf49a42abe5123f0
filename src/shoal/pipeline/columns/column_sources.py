"""The datasets behind gathered batches: one dataset, or all sources of a mixture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.formats.field_columns import Columns, Kind, Kinds, Record
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.stages.by_source import FillMissing
from shoal.pipeline.stages.chosen_fields import SelectColumns, ToTuple
from shoal.pipeline.stages.stage import Stage
from shoal.reading.fetcher import Due, Fetcher


def gathers(stages: Sequence[Stage]) -> bool:
    """True if these stages process the columns of a batch like samples."""
    return all(stage.takes_columns for stage in stages)


def with_chosen(opened: Opened, stages: Sequence[Stage]) -> Opened:
    """Restrict decoding to the fields that the first stage keeps, if the format supports it."""
    first = stages[0] if stages else None
    if not isinstance(first, SelectColumns | ToTuple) or not opened.format.has_columns:
        return opened
    names = [name for names in first.names for name in names.split(";")]
    return replace(opened, format=opened.format.projected(names))


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """One of several datasets; units and samples are numbered one dataset after another.

    The ``stages`` of the dataset select, rename or fill columns. The stages run on each unit, so each dataset has the
    columns that its samples have after the stages. A unit that lacks a column has no columns.
    """

    fetch: Fetcher
    num_units: int
    first_unit: int = 0
    first_sample: int = 0
    stages: tuple[Stage, ...] = ()

    @property
    def unit_rows(self) -> float:
        """Mean number of samples in a unit."""
        return self.fetch.opened.index.num_samples / max(1, self.num_units)

    def due(self, units: list[int]) -> list[Due]:
        """Return the reads of the first units to take, as `Fetcher.due` does; ``units`` may end in other datasets."""
        first, end = self.first_unit, self.first_unit + self.num_units
        return self.fetch.due([unit - first for unit in itertools.takewhile(lambda unit: first <= unit < end, units)])

    def release(self, unit: int) -> None:
        """Release a unit that was taken."""
        self.fetch.release(unit - self.first_unit)

    def record(self, shard: int) -> Record | None:
        """Return the layout of the samples of a shard; None if they have no common length."""
        opened = self.fetch.opened
        head, name = opened.index.shard_heads.get(shard, {}), opened.index.shard_names[shard]
        record = opened.format.record(head, shard=name)
        if record is None or not self.stages:
            return record
        fields = self._staged({name: (kind, record.layout.fields[name]) for name, kind in record.kinds})
        if fields is None:
            return None
        layout = np.dtype({
            "names": list(fields),
            "formats": [dtype for _, (dtype, *_) in fields.values()],
            "offsets": [offset for _, (_, offset, *_) in fields.values()],
            "itemsize": record.layout.itemsize,
        })  # fmt: skip
        return Record(layout, _kinds(fields))

    def columns(self, columns: Columns) -> Columns | None:
        """Return the columns of a unit after the stages; None if one is missing."""
        if not self.stages:
            return columns
        pairs = zip(columns.kinds, columns.arrays, strict=True)
        fields = self._staged({name: (kind, array) for (name, kind), array in pairs})
        return None if fields is None else Columns(_kinds(fields), tuple(array for _, array in fields.values()))

    def sample(self, sample: Any) -> Any:
        """Return a sample after the stages."""
        for stage in self.stages:
            sample = stage(sample, -1)
        return sample

    def _staged(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        for stage in self.stages:
            if isinstance(stage, FillMissing) and not stage.values.keys() <= fields.keys():
                return None
            fields = stage(fields, -1)
        return fields


def _kinds(fields: dict[str, tuple[Kind, Any]]) -> Kinds:
    return tuple((name, kind) for name, (kind, _) in fields.items())
