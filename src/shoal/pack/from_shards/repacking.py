"""Repacking: shards rewritten in another format or size, or mixed once; values stay the same, and order unless mixed.

The stream reads the samples, from any store and in any format that it knows. Without mixing, each new shard reads its
own span of the source, and several processes share the work. With mixing (Corgi^2), the samples have the order of one
window shuffle, whose window is its memory. Neighbouring samples then come from the whole window, and similar samples of
a chunk lie far apart.

References
----------
E. Livne et al., "Corgi^2: A Hybrid Offline-Online Approach To Storage-Aware Data Shuffling For SGD", 2023,
arXiv:2309.01640.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from shoal.formats.column_paths import Column
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.pack.from_shards.repack_plan import SpanUnits, plan_repacking
from shoal.pack.from_shards.repack_settings import MIX_MEMORY_BYTES, RepackRequest
from shoal.pack.from_shards.repack_sources import RepackSource, can_be_imported, repack_source
from shoal.pack.inputs.duplicates import Dedup
from shoal.pack.inputs.repeats import ClassCount, counted_classes
from shoal.pack.jobs.pack_job import JobEngine, PackJob, run_job
from shoal.pack.jobs.process_jobs import Progress
from shoal.pack.output.commit import PackSummary
from shoal.pack.shards.shard_sizes import ShardSizing
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.sources.source import SourceLike
from shoal.stream.dataset import Dataset

_log = logging.getLogger("shoal")


@dataclass(frozen=True, slots=True)
class Repacked:
    """Result of a repacking: the new shards, and ``source``, the resolved order of the source samples in these shards.

    ``peak_bytes`` is the peak memory of all processes together. ``num_looked_at`` samples were read an extra time
    before the packing, to determine the columns.

    Examples
    --------
    >>> repacked = shoal.pack.repack("data", "mixed", format="jsonl", decode=True, mix=True, num_workers=1)
    >>> repacked.summary.num_samples, repacked.summary.format
    (200, 'jsonl')
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
    extent_bytes: int | str | None = None,
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
        As for `shoal.open` (``source_format`` is its ``format``); the options apply to source and destination, except
        local files. Or a `Dataset` in stored order: its selected samples, after its `map`, `decode`, `rename`,
        `columns` and other stages. A killed run continues if the functions have the same names and source code.
    url
        A directory or URL that holds no shards yet.
    format, prefix, columns, extent_bytes, options
        As for `Writer`; a format of None means the format of the source (tar for a folder of files). Columns of the
        source's index are kept, and the classes of a folder become the column ``cls``, as in `pack`. Extents also are
        as in `pack`.
    shard_bytes
        Bytes of a shard's samples in the source; None for the rule of `shard_sizing`.
    mix, seed, memory
        Mix the samples in a window of ``memory`` bytes, in one pass over the source; the same seed gives the same
        shards. Without mixing, the order is kept. A tar sample that directly follows a sample with the same key gets
        the key of a copy, ``000123~2``; the summary counts such samples.
    decode
        Decode fields by their suffix first (`Dataset.decode`), except images.
    tokenize, text_field
        A ``tokenizer.json`` of the `tokenizers` library, or a tokenizer as for `Dataset.tokenize`. After ``decode``,
        the field ``tokens`` replaces the text of the field or path ``text_field``: an array of shape (num_tokens,) of
        uint16, or of int32 above 65,536 kinds. The number of tokens becomes a field and a column of the index,
        ``num_tokens``.
    dedup
        Leave out samples that equal an earlier sample in stored order, before classes are repeated; the summary counts
        them. ``"key"``: the same ``__key__``, or ``key`` in samples without it. ``"content"``: all other fields are
        equal. An extra pass reads the samples, or only the headers of tars for their keys.
    oversample, oversample_key, balance
        As for `pack`, by a column of the source's index (`shoal index --columns`). A copy gets a key of its own,
        ``000123~2``, if the key of its sample is a text.
    on_error
        ``"skip"`` leaves out samples that are damaged or that the format cannot hold; the summary lists them.
    num_workers
        Number of processes; None means one per processor. Below 256 MiB it means one, and for ``mix``, too: each
        process would read its own window for each shard.

    Raises
    ------
    UsageError
        The output already holds something else, or the format cannot hold a sample.
    ShardError
        A sample of the source is damaged; `shoal verify` lists all damaged samples.
    StorageError
        Something cannot be read or written.

    Examples
    --------
    >>> new = shoal.pack.repack("web", "packed", format="jsonl.gz", shard_bytes="1KiB", mix=True, seed=0, num_workers=1)
    >>> new.summary.num_samples, len(new.summary.shards), shoal.open("packed")[7]
    (90, 2, {'text': 'web 82'})
    """
    prepared, request = _prepared(
        source, url, split=split, index=index, source_format=source_format, storage_options=storage_options,
        tokenize=tokenize, text_field=text_field, format=format, shard_bytes=shard_bytes, extent_bytes=extent_bytes,
        columns=columns, prefix=prefix, seed=seed, oversample=oversample, oversample_key=oversample_key,
        balance=balance, dedup=dedup, on_error=on_error, num_workers=num_workers, options=options, mix=mix,
        memory_bytes=memory, decode=decode,
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
    extent_bytes: int | str | None = None,
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
    """Plan the repacking of `repack` as a job, as `plan` does for `pack`.

    If the format needs all columns in advance, and the source does not list its columns, planning reads all samples.
    All other parameters are those of `repack`.

    Parameters
    ----------
    mix
        As for `repack`; each unit reads its own window.
    tokenize
        As for `repack`; every machine must find the tokenizer under this name.
    num_workers
        Processes of this machine that read samples, if the plan needs the samples.

    Returns
    -------
    PackJob
        Call ``run(i)`` for each ``i`` in ``range(job.num_units)``, then ``finish()``.

    Raises
    ------
    UsageError
        The destination already holds something else; an argument cannot be met; or its store cannot refuse to
        replace an object, as stores of fsspec and file systems without hard links.

    Examples
    --------
    >>> job = shoal.pack.plan_repack("web", "packed", format="mds", shard_bytes="1KiB")
    >>> [job.run(number).num_samples for number in range(job.num_units)]
    [46, 44]
    >>> job.finish().num_samples
    90
    """
    prepared, request = _prepared(
        source, url, split=split, index=index, source_format=source_format, storage_options=storage_options,
        tokenize=tokenize, text_field=text_field, format=format, shard_bytes=shard_bytes, extent_bytes=extent_bytes,
        columns=columns, prefix=prefix, seed=seed, oversample=oversample, oversample_key=oversample_key,
        balance=balance, dedup=dedup, on_error=on_error, num_workers=num_workers, options=options, mix=mix,
        memory_bytes=memory, decode=decode,
    )  # fmt: skip
    job = plan_repacking(prepared.opened, url, request, storage_options=prepared.output_options, shared=True).job
    job.out.release()
    return job


def _prepared(
    source: SourceLike | Dataset,
    url: str | os.PathLike[str],
    *,
    split: str | Sequence[str] | None,
    index: str | os.PathLike[str] | None,
    source_format: str | Format | None,
    storage_options: Mapping[str, Any] | None,
    tokenize: Any,
    text_field: str,
    **arguments: Any,
) -> tuple[RepackSource, RepackRequest]:
    """Open the source, and return it with the request; ``arguments`` are the fields of the request."""
    prepared = repack_source(
        source, url, split=split, index=index, source_format=source_format, storage_options=storage_options
    )
    tokens = None if tokenize is None else tokenize_with(tokenize, field=text_field)
    request = RepackRequest.of(tokenize=tokens, selected=prepared.selected, stages=prepared.stages, **arguments)
    return prepared, request


def repack_opened(
    opened: Opened,
    url: str | os.PathLike[str],
    request: RepackRequest,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    engine: JobEngine | None = None,
) -> Repacked:
    """Repack an open dataset; an ``engine`` runs the units on a cluster."""
    if type(opened.format).__module__ == "__main__" and request.num_workers != 1:
        text = "shards are made in one process: the script itself defines %s; from a module of its own, several can "
        _log.warning(text + "import it", type(opened.format).__qualname__)
        request = replace(request, num_workers=1)
    elif request.stages and request.num_workers != 1 and not can_be_imported(request.stages):
        request = replace(request, num_workers=1)
    shared = engine is not None
    planned = plan_repacking(opened, url, request, storage_options=storage_options, progress=progress, shared=shared)
    job, units = planned.job, planned.job.units
    try:
        workers = request.num_workers or (1 if request.mix else planned.num_workers)
        ran = run_job(job, num_workers=workers, progress=planned.tally, engine=engine)
    finally:
        if isinstance(units, SpanUnits):
            units.reader.close()
        job.out.release()
    return Repacked(
        ran.committed.summary,
        planned.sizing,
        units if isinstance(units, Index) else job.out.index(),
        planned.source,
        ran.num_workers,
        max(ran.peak_bytes, planned.peak_bytes),
        planned.num_looked_at,
        counted_classes(planned.selection.repeats, ran.committed.metadata),
    )
