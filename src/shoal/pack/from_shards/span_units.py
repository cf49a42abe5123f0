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
from shoal.pack.from_shards.selection import Selection
from shoal.pack.from_shards.span_reader import SpanReader, SpanSamples
from shoal.pack.inputs.duplicates import DUPLICATES
from shoal.pack.inputs.repeats import LEFT_OUT
from shoal.pack.jobs import ShardJob
from shoal.pack.packed_dataset import PackSummary, finish
from shoal.pack.shard_plan import PackPlan
from shoal.pack.shard_writer import Shard, summary_of
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import ResolvedOrder


@dataclass(frozen=True, slots=True, eq=False)
class SpanUnits:
    """Units of a repacking: each new shard has a span of the samples of ``source``.

    ``copies``, shape (num_samples,), is None if no sample comes twice.
    """

    reader: SpanReader
    plan: PackPlan
    common: Shard
    names: Sequence[str]
    source: ResolvedOrder
    selection: Selection
    copies: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def unit(self, number: int) -> ShardJob:
        """Return a unit that reads its own span."""
        first, stop = self.plan.cuts[number : number + 2].tolist()
        shard = replace(self.common, name=self.names[number])
        copies = None if self.copies is None else self.copies[first:stop]
        return ShardJob(number, shard, SpanSamples(self.reader, first, stop, copies), stop - first)

    def commit(self, out: Output, parts: Sequence[Index]) -> tuple[Index, PackSummary]:
        """Join the parts with the columns of the source, and write the index."""
        index, duplicates = self.source.index, self.selection.duplicates
        ids = self.source.epoch(0).ids(0, self.source.num_samples)
        shards = tuple(map(summary_of, parts))
        spans = [ids[slice(*span)] for span in pairwise(self.plan.cuts.tolist())]
        left_out = self._left_out(parts, spans)
        about = {
            **_classes(index, [column.name for column in self.common.columns]),
            **({LEFT_OUT: left_out} if any(left_out) else {}),
            **({} if duplicates is None else {DUPLICATES: duplicates.to_dict()}),
        }
        parts = [_with_columns(part, index, span) for part, span in zip(parts, spans, strict=True)]
        joined = finish(out, parts, about=about)
        return joined, PackSummary(out.url, joined.format, shards, joined.fingerprint, duplicates=duplicates)

    def _left_out(self, parts: Sequence[Index], spans: Sequence[NDArray[np.int64]]) -> list[int]:
        """Count the samples of each class that were left out; empty if classes are not repeated."""
        if self.selection.repeats is None:
            return []
        ids = [span[part.metadata["skipped_places"]] for part, span in zip(parts, spans, strict=True)]
        classes = self.selection.classes_of(np.concatenate(ids).astype(np.int64))
        counts: list[int] = np.bincount(classes, minlength=len(self.selection.repeats.classes)).tolist()
        return counts


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
    kept = np.delete(ids, part.metadata["skipped_places"])
    words = source.metadata.get("texts", {})
    texts = {name: words[name] for name in names if name in words} | dict(part.metadata["texts"])
    carried = {name: source.columns[name][kept] for name in names}
    return replace(part, columns={**carried, **part.columns}, metadata={**part.metadata, "texts": texts})
