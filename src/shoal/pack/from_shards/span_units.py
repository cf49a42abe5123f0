"""Units of a repacking: each new shard has a span of the samples of the source, with the columns of its index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.index.table import Index
from shoal.pack.from_shards.selection import Selection
from shoal.pack.from_shards.span_reader import SpanReader, SpanSamples
from shoal.pack.inputs.duplicates import DUPLICATES
from shoal.pack.inputs.repeats import LEFT_OUT
from shoal.pack.jobs.pack_job import Units
from shoal.pack.output.commit import Committed, PackSummary, finish_groups
from shoal.pack.output.destination import Output
from shoal.pack.output.part_groups import PartGroup
from shoal.pipeline.stages.tokenizing import TOKENIZERS
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import ResolvedOrder


@dataclass(frozen=True, slots=True, eq=False)
class SpanUnits(Units):
    """Units of a repacking: each new shard has a span of the samples of ``source``.

    ``copies``, shape (num_samples,), is None if no sample comes twice.
    """

    reader: SpanReader
    source: ResolvedOrder
    selection: Selection
    copies: NDArray[np.int32] | None = None

    def given(self, number: int) -> SpanSamples:
        """Return the samples of the span of one unit."""
        first, stop = self.plan.cuts[number : number + 2].tolist()
        return SpanSamples(self.reader, first, stop, None if self.copies is None else self.copies[first:stop])

    def completed(self, first: int, parts: Sequence[Index]) -> Sequence[Index]:
        """Return the parts with the columns of the source."""
        cuts = self.plan.cuts[first : first + len(parts) + 1]
        ids = self.source.epoch(0).ids(int(cuts[0]), int(cuts[-1]))
        spans = pairwise((cuts - cuts[0]).tolist())
        index = self.source.index
        return [_with_columns(part, index, ids[slice(*span)]) for part, span in zip(parts, spans, strict=True)]

    def commit(self, out: Output, groups: Sequence[PartGroup]) -> tuple[Committed, PackSummary]:
        """Join the parts, and write the index."""
        duplicates = self.selection.duplicates
        places = [places for group in groups for places in group.metadata["skipped_places"]]
        epoch, spans = self.source.epoch(0), pairwise(self.plan.cuts.tolist())
        ids = [epoch.ids(*span)[list(own)] for own, span in zip(places, spans, strict=True) if own]
        left_out = self.selection.counted(np.concatenate([np.zeros(0, np.int64), *ids]))
        about = {
            **_classes(self.source.index, [column.name for column in self.common.columns]),
            **({LEFT_OUT: left_out} if any(left_out) else {}),
            **({TOKENIZERS: list(self.reader.tokenizers)} if self.reader.tokenizers else {}),
            **({} if duplicates is None else {DUPLICATES: duplicates.to_dict()}),
        }
        made = finish_groups(out, groups, about=about)
        return made, PackSummary(out.url, made.format, made.shards, made.fingerprint, duplicates=duplicates)


def _classes(source: Index, asked: Sequence[str]) -> dict[str, Any]:
    """Return the class names of those source columns that are carried over."""
    found = source.metadata.get("classes")
    if not isinstance(found, Mapping):
        return {"classes": found} if found and CLASS_FIELD in source.columns and CLASS_FIELD not in asked else {}
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
