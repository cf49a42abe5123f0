"""`shoal.pack.pack` and `shoal.pack.plan`: everything that can be packed, done here or planned for engines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, Literal

import numpy as np

from shoal.errors import UsageError
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.shard_format import Sample
from shoal.formats.writing.written_formats import encoder_named
from shoal.pack.from_shards.new_schemas import options_of_first
from shoal.pack.from_shards.repack_sources import keeps_stored_order
from shoal.pack.from_shards.repacking import repack
from shoal.pack.inputs.duplicates import Dedup
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.inputs.input_table import InputTable
from shoal.pack.inputs.repeats import LEFT_OUT, ClassCount, Repeats, counted_classes, requested_repeats
from shoal.pack.inputs.sample_fields import counted_fields, lacking_in
from shoal.pack.jobs.pack_job import JobEngine, PackJob, Units, run_job
from shoal.pack.jobs.process_jobs import Progress, useful_workers
from shoal.pack.output.commit import Committed, PackSummary, commit_groups
from shoal.pack.output.destination import Output
from shoal.pack.output.output_names import check_apart, check_prefix, names_of_shards, plan_of
from shoal.pack.output.part_groups import PartGroup
from shoal.pack.requests import PackRequest
from shoal.pack.shards.shard_plan import Mix, PackPlan, plan_shards
from shoal.pack.shards.shard_sizes import ShardSizing
from shoal.pack.shards.shard_writer import Shard, Unreadable
from shoal.pack.writer import Writer
from shoal.stream.dataset import Dataset

# Rough cost of packing; rows of tables take more than files of a tar.
_SAMPLE_SECONDS, _BYTE_SECONDS = 8e-6, 2e-9


def pack(
    source: str | os.PathLike[str] | Iterable[Sample],
    url: str | os.PathLike[str],
    *,
    format: str = "tar",  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    num_readers: int = 1,
    extent_bytes: int | str | None = None,
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    shuffle: bool = False,
    seed: int = 0,
    oversample: Mapping[str, Fraction | int] | None = None,
    oversample_key: str = CLASS_FIELD,
    balance: str | None = None,
    grouped: bool = False,
    labelled: bool | None = None,
    path_column: str | None = None,
    require: Sequence[str] = (),
    dedup: Dedup | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    num_workers: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Pack files, rows or samples from code into shards with an index; finished shards of a killed run are kept.

    Parameters
    ----------
    source
        A directory of files, a glob, a manifest, or a dataset of Hugging Face's ``save_to_disk``. Or any iterable of
        samples: a `Writer` writes them in its order, and the parameters below about order, repeats, inputs and
        processes do not apply. A `Dataset` in stored order is packed as by `repack`, in several processes.
    url
        A directory or URL that holds no shards yet.
    format, shard_bytes, columns, prefix, extent_bytes, options
        As for `Writer`. If ``shard_bytes`` is None, `shard_sizing` chooses it for ``num_readers`` readers. If
        ``extent_bytes`` is None, extents have 64 KiB, and double with the data above 655 GB, as in `shoal index`.
    shuffle, seed
        Shuffle all samples globally; the same seed gives the same shards, with any number of processes.
    oversample, oversample_key, balance
        Repetition factor of each class, by ``cls``, the class, or another column; or the column to balance by.
    grouped
        Join files whose names differ only after the first dot into one sample.
    labelled
        Take the first directory of a file as its class; None does so if all files lie in a directory.
    path_column
        The column of paths in a manifest.
    require
        Required fields of every sample, by the suffixes of files, and ``"cls"`` for its class; ``"jpg;png"`` means
        either. If samples lack a field, packing fails or leaves them out, depending on ``on_error``.
    dedup
        Leave out inputs that equal an earlier input, before classes are repeated; the summary counts them. ``"key"``:
        files with the same sample key, otherwise an error. ``"content"``: inputs whose fields, without the key, are
        all equal, class and columns of a manifest included. All files that share their size are read before packing.
    on_error
        ``"skip"`` leaves out inputs that cannot be read or written, or lack a required field; the summary lists them.
    num_workers
        Number of processes; None means one per processor, or fewer for small inputs.

    Returns
    -------
    PackSummary
        Shards with their digests, and the skipped inputs.

    Raises
    ------
    UsageError
        The output already holds something else, or an argument cannot be met.
    StorageError
        An input cannot be read, or a shard cannot be written.

    Examples
    --------
    >>> samples = ({"text": f"document {number}"} for number in range(1000))
    >>> summary = shoal.pack.pack(samples, "packed", format="jsonl", shard_bytes="8KiB")
    >>> len(summary.shards), shoal.open("packed")[999]
    (3, {'text': 'document 999'})
    """
    request = PackRequest.of(
        format=format, shard_bytes=shard_bytes, num_readers=num_readers, extent_bytes=extent_bytes, columns=columns,
        prefix=prefix, seed=seed, oversample=oversample, oversample_key=oversample_key, balance=balance, dedup=dedup,
        on_error=on_error, num_workers=num_workers, options=options, shuffle=shuffle, grouped=grouped,
        labelled=labelled, path_column=path_column, require=require,
    )  # fmt: skip
    if not isinstance(source, str | os.PathLike):
        return _pack_iterable(source, url, request, storage_options=storage_options, progress=progress)
    check_apart(source, url)
    inputs = inputs_of(source, request)
    return pack_inputs(inputs, url, request, storage_options=storage_options, progress=progress).summary


def plan(
    source: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    format: str = "tar",  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    num_readers: int = 1,
    extent_bytes: int | str | None = None,
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    shuffle: bool = False,
    seed: int = 0,
    oversample: Mapping[str, Fraction | int] | None = None,
    oversample_key: str = CLASS_FIELD,
    balance: str | None = None,
    grouped: bool = False,
    labelled: bool | None = None,
    path_column: str | None = None,
    require: Sequence[str] = (),
    dedup: Dedup | None = None,
    num_workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackJob:
    """Plan the packing of `pack` as a job: its units run anywhere, and one call commits them.

    `pack` with the same arguments makes the same shards and index. Planning lists the inputs with their sizes, and the
    destination records which job may write there. Planning again, also after the job has finished, gives the same job.
    All other parameters are those of `pack`.

    Parameters
    ----------
    source
        A directory of files, a glob, a manifest, or a dataset of ``save_to_disk``; every machine must find it under
        this name.
    num_workers
        Processes of this machine that list the inputs, and read them if ``dedup="content"``; None means one per
        processor.

    Returns
    -------
    PackJob
        Call ``run(i)`` for each ``i`` in ``range(job.num_units)``, then ``finish()``. The pickled job has the names and
        sizes of all inputs.

    Raises
    ------
    UsageError
        The destination already holds something else; an argument cannot be met; or its store cannot refuse to
        replace an object, as stores of fsspec and file systems without hard links.

    Examples
    --------
    >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB", shuffle=True, seed=0)
    >>> [job.run(number).num_samples for number in reversed(range(job.num_units))]
    [50, 50, 50, 50]
    >>> job.finish().num_samples
    200
    """
    request = PackRequest.of(
        format=format, shard_bytes=shard_bytes, num_readers=num_readers, extent_bytes=extent_bytes, columns=columns,
        prefix=prefix, seed=seed, oversample=oversample, oversample_key=oversample_key, balance=balance, dedup=dedup,
        on_error=on_error, num_workers=num_workers, options=options, shuffle=shuffle, grouped=grouped,
        labelled=labelled, path_column=path_column, require=require,
    )  # fmt: skip
    check_apart(source, url)
    inputs = inputs_of(source, request)
    job = plan_inputs(inputs, url, request, storage_options=storage_options, shared=True).job
    job.out.release()
    return job


def _pack_iterable(
    source: Any,
    url: str | os.PathLike[str],
    request: PackRequest,
    *,
    storage_options: Mapping[str, Any] | None,
    progress: Progress | None,
) -> PackSummary:
    """Pack samples from code in their order; a `Dataset` in stored order goes to `repack`."""
    shards: dict[str, Any] = {
        "format": request.format, "shard_bytes": request.shard_bytes, "columns": request.columns,
        "prefix": request.prefix, "extent_bytes": request.extent_bytes, "options": request.options,
        "storage_options": storage_options,
    }  # fmt: skip
    is_stored = isinstance(source, Dataset) and keeps_stored_order(source)
    if is_stored and not (request.require or request.shuffle or request.oversample):
        return repack(
            source, url, dedup=request.dedup, balance=request.balance, on_error=request.on_error,
            num_workers=request.num_workers, progress=progress, **shards,
        ).summary  # fmt: skip
    if not isinstance(source, Iterable):
        msg = f"the source is neither a path nor an iterable of samples: {source!r:.80}"
        raise UsageError(msg, hint="pass a generator of dicts, for instance")
    if any((request.shuffle, request.oversample, request.balance is not None, request.grouped, request.path_column,
            request.dedup, request.skips)):  # fmt: skip
        msg = "samples from code are packed once each, in the order in which they come"
        raise UsageError(
            msg, hint="shuffle or select them first; `shoal repack` mixes shards, and can leave out samples"
        )
    with Writer(url, **{**shards, "extent_bytes": request.index_extent_bytes}) as writer:
        for number, sample in enumerate(source):
            if missing := lacking_in(sample, request.require):
                msg = f"sample {number} lacks required fields: {', '.join(missing)}"
                raise UsageError(msg, hint=f"it has {', '.join(map(str, sample))}")
            writer.write(sample)
    return writer.close()


@dataclass(frozen=True, slots=True)
class Packed:
    """Result of a packing; ``peak_bytes`` covers all processes; ``num_workers`` is 0 if nothing was left to do."""

    summary: PackSummary
    sizing: ShardSizing
    num_inputs: int
    num_workers: int
    peak_bytes: int
    classes: tuple[ClassCount, ...] = ()


def pack_inputs(
    inputs: InputTable,
    url: str | os.PathLike[str],
    request: PackRequest,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    engine: JobEngine | None = None,
) -> Packed:
    """Pack inputs into shards with an index, by an ``engine`` or in processes of this machine that report ``progress``.

    Memory: the table of inputs, the order of one shard, and the memory of `pack_shard` in each process.
    """
    planned = plan_inputs(inputs, url, request, storage_options=storage_options, shared=engine is not None)
    job, units = planned.job, planned.job.units
    try:
        several = request.num_workers or (
            useful_workers(_seconds_of(units.plan)) if isinstance(units, InputUnits) else 1
        )
        ran = run_job(job, num_workers=several, progress=progress, engine=engine)
    finally:
        job.out.release()
    classes = counted_classes(planned.repeats, ran.committed.metadata)
    num_inputs = len(inputs) + len(inputs.left_out) + (inputs.duplicates.num_samples if inputs.duplicates else 0)
    return Packed(ran.committed.summary, planned.sizing, num_inputs, ran.num_workers, ran.peak_bytes, classes)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPacking:
    """A job that packs inputs, the bytes of its shards, and the repeats of inputs, None if no input is repeated."""

    job: PackJob
    sizing: ShardSizing
    repeats: Repeats | None


def plan_inputs(
    inputs: InputTable,
    url: str | os.PathLike[str],
    request: PackRequest,
    *,
    storage_options: Mapping[str, Any] | None = None,
    shared: bool = False,
) -> PlannedPacking:
    """Return the job that packs inputs, ``shared`` if engines may run it; a local ``out`` is locked until released."""
    check_prefix(request.prefix)
    repeats, sizes = requested_repeats(inputs.labels, request), inputs.record_bytes()
    if repeats is not None:
        inputs.refuse_copies(repeats.times)
    num_bytes = int(sizes.sum() if repeats is None else (sizes * repeats.times).sum())
    sizing, request = request.sizing(num_bytes), request.with_extents(num_bytes)
    encoder = encoder_named(request.format, **request.options)
    columns = _columns(inputs, request.columns)
    settings = _settings(inputs, request, columns, repeats, sizing)
    out = Output(url, plan=plan_of(settings), storage_options=storage_options)
    finished = out.begin(suffix=encoder.suffix, settings=settings, may_skip=request.skips, shared=shared)
    if finished is not None:
        return PlannedPacking(PackJob(out, finished), sizing, repeats)
    try:
        mix = Mix(len(inputs) if repeats is None else repeats.num_samples, request.seed) if request.shuffle else None
        plan = plan_shards(sizes, shard_bytes=sizing.shard_bytes, repeats=repeats, mix=mix)
        options = {**({} if "schema" in request.options else inputs.options(skips=request.skips)), **request.options}
        one_by_one = chain.from_iterable(inputs.samples(np.array([i]), np.array([0])) for i in range(len(inputs)))
        options |= options_of_first(request.format, options, one_by_one)
        names = names_of_shards(request.prefix, encoder.suffix, range(plan.num_shards))
        common = Shard("", request.format, options, columns, request.index_extent_bytes, request.on_error)
        return PlannedPacking(PackJob(out, InputUnits(plan, names, common, inputs)), sizing, repeats)
    except BaseException:
        out.release()
        raise


@dataclass(frozen=True, slots=True, eq=False)
class InputUnits(Units):
    """Units of a packing of inputs."""

    inputs: InputTable

    def samples(self, number: int) -> Iterable[Sample | Unreadable]:
        """Return the samples of the inputs of one unit."""
        return self.inputs.samples(*self.plan.inputs(number))

    def commit(self, out: Output, groups: Sequence[PartGroup]) -> Committed:
        """Join the parts, count classes and fields, and write the index."""
        inputs = self.inputs
        skipped = self.plan.skipped_inputs([places for group in groups for places in group.metadata["skipped_places"]])
        left_out = [] if self.plan.repeats is None else self.plan.repeats.counted(skipped)
        about = {
            **({"classes": inputs.classes} if inputs.classes else {}),
            **({LEFT_OUT: left_out} if any(left_out) else {}),
        }
        fields = counted_fields(inputs.field_sets(), self.plan, skipped, name=inputs.key)
        return commit_groups(
            out, groups, about=about, skipped=inputs.left_out, fields=fields, duplicates=inputs.duplicates
        )


def _seconds_of(plan: PackPlan) -> float:
    return int(plan.cuts[-1]) * _SAMPLE_SECONDS + int(plan.shard_record_bytes.sum()) * _BYTE_SECONDS


def _columns(inputs: InputTable, requested: Sequence[str | Column]) -> tuple[Column, ...]:
    """Return the requested columns with their paths in samples, and the class of classified inputs."""
    columns = [Column(name, inputs.column_path(path)) for name, path in map(astuple, as_columns(requested))]
    if inputs.label is not None and all(column.name != CLASS_FIELD for column in columns):
        columns.append(Column(CLASS_FIELD, CLASS_FIELD))
    return tuple(columns)


def _settings(
    inputs: InputTable, request: PackRequest, columns: Sequence[Column], repeats: Repeats | None, sizing: ShardSizing
) -> dict[str, Any]:
    counts = "" if repeats is None else hashlib.blake2b(repeats.times.tobytes(), digest_size=8).hexdigest()
    return {
        "inputs (names, sizes, times)": inputs.digest(),
        **({} if inputs.duplicates is None else {"dedup": inputs.duplicates.by}),
        "num_inputs": len(inputs),
        **request.settings(request.format, columns, sizing),
        "shuffle": request.shuffle,
        # A seed without an effect is left out.
        **({"seed": request.seed} if request.shuffle or repeats is not None else {}),
        "repeats": counts,
    }
