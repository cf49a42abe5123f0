"""Repacking: shards rewritten in another format or size, or mixed once; values stay the same, and order unless mixed.

The samples are read through the stream, so from any store and in any format it knows. Without mixing, each new shard
reads its own span of the source and several processes share the work. With mixing (Corgi^2), the samples come in the
order of one window shuffle, whose window is the memory it takes: afterwards neighbouring samples come from all over
that window, and similar samples of a chunk are spread thin.

References
----------
E. Livne et al., "Corgi^2: A Hybrid Offline-Online Approach To Storage-Aware Data Shuffling For SGD", 2023,
arXiv:2309.01640.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from shoal.errors import ShardError
from shoal.formats.column_paths import Column
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.shard_format import Format
from shoal.formats.writing.written_formats import TABLE_FORMATS, encoder_named
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.order.window.sizing_by_bytes import parse_bytes
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
    MIX_MEMORY_BYTES,
    RepackRequest,
    asked_of,
    format_like,
    order_of_source,
    reading_spec,
    record_bytes_of,
    refuse_partial,
    selection_of,
)
from shoal.pack.from_shards.repack_sources import can_be_imported, repack_source
from shoal.pack.from_shards.selection import Selection, copy_numbers
from shoal.pack.from_shards.span_reader import SpanReader
from shoal.pack.from_shards.span_units import SpanUnits
from shoal.pack.inputs.duplicates import Dedup
from shoal.pack.inputs.repeats import ClassCount, counted_classes
from shoal.pack.jobs.pack_job import JobEngine, PackJob, run_job
from shoal.pack.jobs.process_jobs import PackProgress, Progress
from shoal.pack.output.commit import PackSummary
from shoal.pack.output.destination import Output
from shoal.pack.output.output_names import check_prefix, names_of_shards, plan_of
from shoal.pack.shards.shard_plan import PackPlan, plan_shards
from shoal.pack.shards.shard_sizes import ShardSizing
from shoal.pack.shards.shard_writer import Shard
from shoal.pipeline.stages.tokenizing import tokenize_with
from shoal.processes.interpreters import usable_processors
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.sources.source import SourceLike
from shoal.stream.dataset import Dataset
from shoal.stream.index_columns import with_class_column

_log = logging.getLogger("shoal")

_SMALL_BYTES = 256 << 20  # below this, starting processes costs more than they save


@dataclass(frozen=True, slots=True)
class Repacked:
    """Result of a repacking: the new shards, and ``source``, the resolved order of the source that they follow now.

    ``peak_bytes`` is the peak memory of all processes together, and ``num_looked_at`` the number of samples read an
    extra time, before the packing itself, to find out the columns.
    """

    summary: PackSummary
    sizing: ShardSizing
    index: Index
    source: ResolvedOrder
    num_workers: int
    peak_bytes: int
    num_looked_at: int = 0
    classes: tuple[ClassCount, ...] = ()


def repack(
    source: SourceLike | Dataset,
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    mix: bool = False,
    seed: int = 0,
    memory: int | str = MIX_MEMORY_BYTES,
    decode: bool = False,
    tokenize: Any = None,
    text_field: str = "text",
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    extent_bytes: int | str = EXTENT_BYTES,
    dedup: Dedup | None = None,
    oversample: Mapping[str, Fraction | int] | None = None,
    oversample_key: str = CLASS_FIELD,
    balance: str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    num_workers: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    split: str | Sequence[str] | None = None,
    source_format: str | Format | None = None,
    index: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Repacked:
    """Make new shards from the samples of old ones; finished shards of a killed run are kept.

    Parameters
    ----------
    source, split, source_format, index, storage_options
        As for `shoal.open` (``source_format`` is its ``format``); the options apply to each side that is not a local
        file. Or a `Dataset` in stored order: its selected samples, after its `map`, `decode`, `rename`, `columns` and
        other stages. A killed run goes on if the functions have the same names and source code.
    url
        A directory or URL that holds no shards yet.
    format, prefix, columns, extent_bytes, options
        As for `Writer`; a format of None means that of the source (tar if the source is a folder of files). Columns of
        the source's index are kept, and the classes of a folder become the column ``cls``, as by `pack`.
    shard_bytes
        Bytes that the samples of a shard take in the source; None for the rule of `shard_sizing`.
    mix, seed, memory
        Mix the samples in a window of ``memory`` bytes, in one pass over the source; the same seed gives the same
        shards. Without mixing, the order is kept. A tar sample that directly follows another with the same key gets
        the key of a copy, ``000123~2``; the summary counts these.
    decode
        Decode fields by their suffix first (`Dataset.decode`), except images.
    tokenize, text_field
        A ``tokenizer.json`` of the `tokenizers` library, or a tokenizer as for `Dataset.tokenize`: the text of the
        field or path ``text_field`` is replaced by the field ``tokens``, an array of shape (num_tokens,) of uint16 (of
        int32 above 65,536 kinds), after ``decode``. Their number becomes a field and a column of the index,
        ``num_tokens``.
    dedup
        Leave out samples that equal an earlier one in stored order, which the summary counts; before classes are
        repeated. ``"key"``: of the same ``__key__``, or ``key`` where there is none. ``"content"``: all other fields
        are equal. Samples are read once more for it, before they are repacked; of keys of tars, the headers alone.
    oversample, oversample_key, balance
        As for `pack`, by a column of the source's index (`shoal index --columns`). Copies of a sample with a text as
        key get keys of their own, ``000123~2``.
    on_error
        ``"skip"`` leaves out samples that are damaged or that the format cannot hold; the summary lists them.
    num_workers
        Number of processes; None means one per processor, but a single one for less than 256 MiB, and when samples are
        mixed: each process would read a window of its own for each shard.

    Raises
    ------
    UsageError
        The output already holds something else, or the format cannot hold a sample.
    ShardError
        A sample of the source is damaged; `shoal verify` lists all that are.
    StorageError
        Something cannot be read or written.

    Examples
    --------
    >>> import tempfile, shoal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     samples = ({"text": f"document {i}"} for i in range(200))
    ...     old = shoal.pack.pack(samples, f"{directory}/old", format="jsonl")
    ...     new = shoal.pack.repack(old.url, f"{directory}/new", format="jsonl.gz", shard_bytes="2KiB", num_workers=1)
    ...     new.summary.num_samples, len(new.summary.shards), shoal.open(f"{directory}/new")[7]
    (200, 3, {'text': 'document 7'})
    """
    prepared = repack_source(
        source, url, split=split, index=index, source_format=source_format, storage_options=storage_options
    )
    request = RepackRequest(
        format=format, shard_bytes=None if shard_bytes is None else parse_bytes(shard_bytes, "shard_bytes"),
        extent_bytes=parse_bytes(extent_bytes, "extent_bytes"), columns=columns, prefix=prefix, seed=seed,
        oversample=oversample or {}, oversample_key=oversample_key, balance=balance, dedup=dedup, on_error=on_error,
        num_workers=num_workers, options=options or {}, mix=mix, memory_bytes=parse_bytes(memory, "memory"),
        decode=decode, tokenize=None if tokenize is None else tokenize_with(tokenize, field=text_field),
        selected=prepared.selected, stages=prepared.stages,
    )  # fmt: skip
    return repack_opened(prepared.opened, url, request, storage_options=prepared.output_options, progress=progress)


def plan_repack(
    source: SourceLike | Dataset,
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    mix: bool = False,
    seed: int = 0,
    memory: int | str = MIX_MEMORY_BYTES,
    decode: bool = False,
    tokenize: Any = None,
    text_field: str = "text",
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    extent_bytes: int | str = EXTENT_BYTES,
    dedup: Dedup | None = None,
    oversample: Mapping[str, Fraction | int] | None = None,
    oversample_key: str = CLASS_FIELD,
    balance: str | None = None,
    num_workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    split: str | Sequence[str] | None = None,
    source_format: str | Format | None = None,
    index: str | os.PathLike[str] | None = None,
) -> PackJob:
    """Plan the job that `repack` would do, as `plan` does for `pack`.

    Where the format needs to know all columns first, and the source does not tell them, the samples are read once while
    it is planned.

    Parameters
    ----------
    source, split, source_format, index, storage_options
        As for `repack`.
    url, format, shard_bytes, columns, prefix, extent_bytes, options
        As for `repack`.
    mix, seed, memory, decode, tokenize, text_field, dedup, oversample, oversample_key, balance, on_error
        As for `repack`. With ``mix``, each unit reads a window of its own. Every machine must find the tokenizer under
        this name.
    num_workers
        Processes of this machine that read the samples while it is planned, if they must be read.

    Returns
    -------
    PackJob
        Call ``run(i)`` for each ``i`` in ``range(job.num_units)``, then ``finish()``.

    Raises
    ------
    UsageError
        The destination already holds something else, or an argument cannot be carried out. Or its store cannot refuse
        to replace an object: fsspec's, and file systems without hard links.

    Examples
    --------
    >>> import tempfile, shoal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     samples = ({"text": f"document {i}"} for i in range(200))
    ...     old = shoal.pack.pack(samples, f"{directory}/old", format="jsonl")
    ...     job = shoal.pack.plan_repack(old.url, f"{directory}/new", shard_bytes="2KiB")
    ...     counts = [job.run(number).num_samples for number in range(job.num_units)]
    ...     counts, job.finish().num_samples
    ([69, 66, 65], 200)
    """
    prepared = repack_source(
        source, url, split=split, index=index, source_format=source_format, storage_options=storage_options
    )
    request = RepackRequest(
        format=format, shard_bytes=None if shard_bytes is None else parse_bytes(shard_bytes, "shard_bytes"),
        extent_bytes=parse_bytes(extent_bytes, "extent_bytes"), columns=columns, prefix=prefix, seed=seed,
        oversample=oversample or {}, oversample_key=oversample_key, balance=balance, dedup=dedup, on_error=on_error,
        num_workers=num_workers, options=options or {}, mix=mix, memory_bytes=parse_bytes(memory, "memory"),
        decode=decode, tokenize=None if tokenize is None else tokenize_with(tokenize, field=text_field),
        selected=prepared.selected, stages=prepared.stages,
    )  # fmt: skip
    job = plan_repacking(prepared.opened, url, request, storage_options=prepared.output_options, shared=True).job
    job.out.release()
    return job


def repack_opened(
    opened: Opened,
    url: str | os.PathLike[str],
    request: RepackRequest,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    engine: JobEngine | None = None,
) -> Repacked:
    """Repack a dataset that is already open, as `repack` does; an ``engine`` runs the units on a cluster."""
    if type(opened.format).__module__ == "__main__" and request.num_workers != 1:
        text = "shards are made in one process: the script itself defines %s; from a module of its own, several can "
        _log.warning(text + "import it", type(opened.format).__qualname__)
        request = replace(request, num_workers=1)
    elif request.stages and request.num_workers != 1 and not can_be_imported(request.stages):
        request = replace(request, num_workers=1)
    shared = engine is not None
    planned = plan_repacking(opened, url, request, storage_options=storage_options, progress=progress, shared=shared)
    job, units, source = planned.job, planned.job.units, planned.source
    try:
        workers = request.num_workers or (1 if request.mix else planned.num_workers)
        ran = run_job(job, num_workers=workers, progress=planned.tally, engine=engine)
    finally:
        if isinstance(units, SpanUnits):
            units.reader.close()
        job.out.release()
    peak = max(ran.peak_bytes, planned.peak_bytes)
    index = units if isinstance(units, Index) else job.out.index()
    classes = counted_classes(planned.selection.repeats, ran.metadata)
    sizing, num_looked_at = planned.sizing, planned.num_looked_at
    return Repacked(ran.summary, sizing, index, source, ran.num_workers, peak, num_looked_at, classes)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRepacking:
    """A job that repacks, and what was found out for it."""

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
    """Return the job that repacks, ``shared`` if engines may run it.

    On a local file system its ``out`` is locked, until it is released.
    """
    index = with_class_column(opened.index)
    of_classes = index is not opened.index
    opened = replace(opened, index=index)
    refuse_partial(opened)
    format_name = request.format or format_like(index)
    check_prefix(request.prefix)
    like = options_like(opened, format_name) if request.keeps_fields else {}
    if not request.stages:  # functions get samples as they do when these are read
        opened = with_files(opened, kept=None if "columns" in request.options else like.get("columns"))
        refuse_unheld(opened, format_name)
    options = {**like, **request.options}
    encoder = encoder_named(format_name, **options)
    columns = tuple(one for one in request.all_columns if not (of_classes and one.name == one.path == CLASS_FIELD))
    selection = selection_of(opened, request, progress)
    sizes = record_bytes_of(index)
    num_bytes = selection.num_bytes(sizes)
    sizing = request.sizing(num_bytes)
    asked = asked_of(index, request, selection, format_name, columns, sizing)
    source = order_of_source(index, request, selection)
    out = Output(url, plan=plan_of(asked), storage_options=storage_options)
    finished = out.begin(suffix=encoder.suffix, asked=asked, may_skip=request.skips, shared=shared)
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
        common = Shard("", format_name, options, columns, request.extent_bytes, request.on_error, "rename")
        named = suffixed_images(opened) if to_tar else {}
        reader = SpanReader(spec, needs_keys=to_tar, renamed=named)
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
    """Return the schema of all samples, read in stored order, whatever order they will be written in."""
    found = None
    if request.keeps_fields and request.dedup != "key":  # which may leave out all samples with a field
        # If a shard is damaged, the full inspection below reports the lost samples.
        with suppress(ShardError):
            found = schema_of_tars(opened)
    is_read = found is None
    if found is None:
        tokenize = None if request.tokenize is None else replace(request.tokenize, is_dry=True)
        as_stored = replace(request, mix=False, tokenize=tokenize)
        spec = reading_spec(opened, order_of_source(opened.index, as_stored, selection), as_stored)
        with closing(SpanReader(spec, needs_keys=False)) as reader:
            found = schema_of_all(
                reader,
                out,
                cuts=plan.cuts.tolist(),
                format_name=format_name,
                skips=request.skips,
                workers=min(workers, plan.num_shards),
                report=tally.report,
            )
    if not (is_read and found.num_looked_at):
        tally.skip_pass()
    return found
