"""The job of a repacking: each new shard has a span of the source's samples, and its part of the source's columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.writing.written_formats import TABLE_FORMATS, encoder_named
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.pack.from_shards.new_schemas import (
    Schema,
    options_like,
    options_of_first,
    refuse_unheld,
    schema_of_all,
    schema_of_tars,
    suffixed_images,
    with_files,
)
from shoal.pack.from_shards.repack_settings import (
    RepackRequest,
    Selection,
    copy_numbers,
    format_like,
    order_of_source,
    reading_spec,
    record_bytes_of,
    refuse_partial,
    selection_of,
    settings_of,
)
from shoal.pack.from_shards.span_reader import SpanReader, SpanSamples
from shoal.pack.inputs.repeats import LEFT_OUT
from shoal.pack.jobs.pack_job import PackJob, Units
from shoal.pack.jobs.process_jobs import PackProgress, Progress
from shoal.pack.output.commit import Committed, commit_groups
from shoal.pack.output.destination import Output
from shoal.pack.output.output_names import check_prefix, names_of_shards, plan_of
from shoal.pack.output.part_groups import PartGroup
from shoal.pack.shards.shard_plan import PackPlan, plan_shards
from shoal.pack.shards.shard_sizes import ShardSizing
from shoal.pack.shards.shard_writer import Shard
from shoal.pipeline.stages.tokens.tokenizing import TOKENIZERS
from shoal.processes.interpreters import usable_processors
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.choosing.index_columns import with_class_column

_SMALL_BYTES = 256 << 20  # below this, starting processes costs more than they save


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRepacking:
    """A job that repacks, and the facts that were determined for it."""

    job: PackJob
    source: ResolvedOrder
    sizing: ShardSizing
    selection: Selection
    tally: PackProgress | None = None
    num_workers: int = 1
    num_looked_at: int = 0
    peak_bytes: int = 0


def plan_repacking(
    opened: Opened,
    url: str | os.PathLike[str],
    request: RepackRequest,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    shared: bool = False,
) -> PlannedRepacking:
    """Return the job of a repacking; its local ``out`` stays locked until released.

    ``shared`` is True if engines may run the job.
    """
    index = with_class_column(opened.index)
    has_classes = index is not opened.index
    opened = replace(opened, index=index)
    refuse_partial(opened)
    format_name = request.format or format_like(index)
    check_prefix(request.prefix)
    like = options_like(opened, format_name) if request.keeps_fields else {}
    if not request.stages:  # functions get samples as streams do
        opened = with_files(opened, kept=None if "columns" in request.options else like.get("columns"))
        refuse_unheld(opened, format_name)
    options = {**like, **request.options}
    encoder = encoder_named(format_name, **options)
    columns = tuple(
        column for column in request.all_columns if not (has_classes and column.name == column.path == CLASS_FIELD)
    )
    selection = selection_of(opened, request, progress)
    sizes = record_bytes_of(index)
    num_bytes = selection.num_bytes(sizes)
    sizing, request = request.sizing(num_bytes), request.with_extents(num_bytes)
    settings = settings_of(index, request, selection, format_name, columns, sizing)
    source = order_of_source(index, request, selection)
    out = Output(url, plan=plan_of(settings), storage_options=storage_options)
    finished = out.begin(suffix=encoder.suffix, settings=settings, may_skip=request.skips, shared=shared)
    if finished is not None:
        return PlannedRepacking(PackJob(out, finished), source, sizing, selection)
    try:
        ids = source.epoch(0).ids(0, source.num_samples)
        plan = plan_shards(sizes[ids], shard_bytes=sizing.shard_bytes)
        spec, to_tar = reading_spec(opened, source, request), format_name.partition(".")[0] == "tar"
        needs_schema = format_name in TABLE_FORMATS and "schema" not in options
        tally = PackProgress(plan.shard_record_bytes.tolist(), progress, num_passes=2 if needs_schema else 1)
        several = request.num_workers or (1 if num_bytes < _SMALL_BYTES else usable_processors())
        num_looked_at, peak = 0, 0
        if needs_schema:
            options["schema"], num_looked_at, peak = _schema(
                opened, request, selection, format_name, out, plan, several, tally
            )
        with closing(SpanReader(spec, needs_keys=to_tar, continues=False)) as alone:
            options |= options_of_first(format_name, options, alone.one_by_one(source.num_samples))
        names = names_of_shards(request.prefix, encoder.suffix, range(plan.num_shards))
        # In many datasets keys restart in each shard.
        common = Shard("", format_name, options, columns, request.index_extent_bytes, request.on_error, "rename")
        reader = SpanReader(spec, needs_keys=to_tar, renamed=suffixed_images(opened) if to_tar else {})
        copies = None if selection.repeats is None else copy_numbers(ids)
        units = SpanUnits(plan, names, common, reader, source, selection, copies)
        return PlannedRepacking(PackJob(out, units), source, sizing, selection, tally, several, num_looked_at, peak)
    except BaseException:
        out.release()
        raise


def _schema(
    opened: Opened,
    request: RepackRequest,
    selection: Selection,
    format_name: str,
    out: Output,
    plan: PackPlan,
    workers: int,
    tally: PackProgress,
) -> Schema:
    """Return the schema of all samples, read in stored order in any case."""
    if request.keeps_fields and request.dedup != "key":  # dedup by key may leave out all samples with a field
        # If a shard is damaged, the full inspection below reports the lost samples.
        with suppress(ShardError):
            if (schema := schema_of_tars(opened)) is not None:
                tally.skip_pass()
                return schema
    tokenize = None if request.tokenize is None else replace(request.tokenize, is_dry=True)
    as_stored = replace(request, mix=False, tokenize=tokenize)
    spec = reading_spec(opened, order_of_source(opened.index, as_stored, selection), as_stored)
    with closing(SpanReader(spec, needs_keys=False)) as reader:
        schema = schema_of_all(
            reader,
            out,
            cuts=plan.cuts.tolist(),
            format_name=format_name,
            skips=request.skips,
            workers=min(workers, plan.num_shards),
            report=tally.report,
        )
    if not schema.num_looked_at:
        tally.skip_pass()
    return schema


@dataclass(frozen=True, slots=True, eq=False)
class SpanUnits(Units):
    """Units of a repacking: spans of the samples of ``source``; ``copies`` has copy numbers, None without repeats."""

    reader: SpanReader
    source: ResolvedOrder
    selection: Selection
    copies: NDArray[np.int32] | None = None

    def samples(self, number: int) -> SpanSamples:
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

    def commit(self, out: Output, groups: Sequence[PartGroup]) -> Committed:
        """Join the parts, and write the index."""
        places = [places for group in groups for places in group.metadata["skipped_places"]]
        epoch, spans = self.source.epoch(0), pairwise(self.plan.cuts.tolist())
        ids = [epoch.ids(*span)[list(own)] for own, span in zip(places, spans, strict=True) if own]
        left_out = self.selection.counted(np.concatenate([np.zeros(0, np.int64), *ids]))
        about = {
            **_classes(self.source.index, [column.name for column in self.common.columns]),
            **({LEFT_OUT: left_out} if any(left_out) else {}),
            **({TOKENIZERS: list(self.reader.tokenizers)} if self.reader.tokenizers else {}),
        }
        return commit_groups(out, groups, about=about, duplicates=self.selection.duplicates)


def _classes(source: Index, requested: Sequence[str]) -> dict[str, Any]:
    """Return the class names of the source's columns, except requested columns."""
    classes = source.metadata.get("classes")
    if not isinstance(classes, Mapping):
        is_kept = classes and CLASS_FIELD in source.columns and CLASS_FIELD not in requested
        return {"classes": classes} if is_kept else {}
    kept = {name: names for name, names in classes.items() if name not in requested}
    return {"classes": kept} if kept else {}


def _with_columns(part: Index, source: Index, ids: NDArray[np.int64]) -> Index:
    """Return a part of the index with the source's columns, except record checksums and requested columns."""
    if not (names := [name for name in source.columns if name != RECORD_CRCS and name not in part.columns]):
        return part
    kept = np.delete(ids, part.metadata["skipped_places"])
    words = source.metadata.get("texts", {})
    texts = {name: words[name] for name in names if name in words} | dict(part.metadata["texts"])
    carried = {name: source.columns[name][kept] for name in names}
    return replace(part, columns={**carried, **part.columns}, metadata={**part.metadata, "texts": texts})
