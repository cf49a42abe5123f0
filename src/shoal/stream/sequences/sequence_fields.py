"""The fields of the sequences of a dataset: fields that were asked for, and fields that its stages add."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.pipeline.sequence_arrays import DOCUMENT_IDS, SOURCE_IDS, SequenceFields
from shoal.pipeline.stages.stage import Stage, each_stage
from shoal.pipeline.stages.with_ids import WithIds
from shoal.reading.resolved_epochs import Source


def fields_of(fields: SequenceFields, source: Source, stages: Sequence[Stage]) -> SequenceFields:
    """Return the fields of sequences whose documents are read from a source, and go through these stages.

    After `with_ids` sequences have the ids of their documents. Raises `UsageError` for ``source_ids`` of a dataset that
    has no sources.
    """
    if _adds_ids(stages) and DOCUMENT_IDS not in fields.extras:
        fields = replace(fields, extras=(*fields.extras, DOCUMENT_IDS))
    if SOURCE_IDS not in fields.extras:
        return fields
    if not source.depth:
        msg = f"pack_sequences(extras=[{SOURCE_IDS!r}]) tells the sources of a mixture, and this is one dataset"
        raise UsageError(msg, hint="shoal.mix({...}).pack_sequences(...)")
    return replace(fields, first_ids=_first_of_sources(source.whole))


def _adds_ids(stages: Sequence[Stage]) -> bool:
    """Return True if samples get their ids, also by a stage of a source of a mixture."""
    return any(isinstance(stage, WithIds) for stage in each_stage(stages))


def _first_of_sources(opened: OpenedDataset) -> tuple[int, ...]:
    """Return the first sample id of each source; a nested mixture is one, and its datasets follow one another."""
    sizes = [part.index.num_samples for part in opened.parts]
    starts = zip(opened.indexes, itertools.accumulate(sizes, initial=0), strict=False)
    first: dict[str, int] = {}
    for name, start in starts:
        first.setdefault(name.partition("/")[0], start)
    return tuple(first.values())
