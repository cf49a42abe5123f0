"""Units of a repacking: each new shard has a span of the samples of the source, with the columns of its index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.index.table import Index
from shoal.pack.destination import Output
from shoal.pack.from_shards.span_reader import SAMPLE, SpanReader, SpanSamples
from shoal.pack.jobs import ShardJob
from shoal.pack.packed_dataset import PackSummary, finish
from shoal.pack.shard_plan import PackPlan
from shoal.pack.shard_writer import Shard, summary_of
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import ResolvedOrder


@dataclass(frozen=True, slots=True, eq=False)
class SpanUnits:
    """Units of a repacking: each new shard has a span of the samples of ``source``."""

    reader: SpanReader
    plan: PackPlan
    common: Shard
    names: Sequence[str]
    source: ResolvedOrder

    def __len__(self) -> int:
        return len(self.names)

    def unit(self, number: int) -> ShardJob:
        """Return a unit that reads its own span."""
        first, stop = self.plan.cuts[number : number + 2].tolist()
        shard = replace(self.common, name=self.names[number])
        return ShardJob(number, shard, SpanSamples(self.reader, first, stop), stop - first)

    def commit(self, out: Output, parts: Sequence[Index]) -> tuple[Index, PackSummary]:
        """Join the parts with the columns of the source, and write the index."""
        index = self.source.index
        ids = self.source.epoch(0).ids(0, index.num_samples)
        shards = tuple(map(summary_of, parts))
        spans = pairwise(self.plan.cuts.tolist())
        parts = [_with_columns(part, index, ids[slice(*span)]) for part, span in zip(parts, spans, strict=True)]
        joined = finish(out, parts, about=_classes(index, [column.name for column in self.common.columns]))
        return joined, PackSummary(out.url, joined.format, shards, joined.fingerprint)


def _classes(source: Index, asked: Sequence[str]) -> dict[str, Any]:
    """Return the class names of those source columns that are carried over."""
    found = source.metadata.get("classes")
    if not isinstance(found, Mapping):
        return {"classes": found} if found and "label" in source.columns and "label" not in asked else {}
    kept = {name: names for name, names in found.items() if name not in asked}
    return {"classes": kept} if kept else {}


def _with_columns(part: Index, source: Index, ids: NDArray[np.int64]) -> Index:
    """Return one shard's part of the index with the columns of the source; requested columns take precedence.

    Record checksums are not carried over: they belong to other bytes.
    """
    if not (names := [name for name in source.columns if name != RECORD_CRCS and name not in part.columns]):
        return part
    skipped = [int(str(name).removeprefix(SAMPLE)) for name, _ in part.metadata["skipped"]]
    kept = ids[~np.isin(ids, skipped)]
    words = source.metadata.get("texts", {})
    texts = {name: words[name] for name in names if name in words} | dict(part.metadata["texts"])
    carried = {name: source.columns[name][kept] for name in names}
    return replace(part, columns={**carried, **part.columns}, metadata={**part.metadata, "texts": texts})
