"""Packing on this machine: inputs are listed, planned into shards, and packed by several processes."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.errors import SourceError, UsageError
from shoal.formats.metadata.splits import splits_in_names
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoders import encoder_named
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.table import Index
from shoal.pack.assemble_index import finish
from shoal.pack.column_values import Column, as_columns
from shoal.pack.destination import Output, check_prefix, names_of_shards
from shoal.pack.engines.jobs import Job, peak_bytes
from shoal.pack.engines.packing_progress import Progress, Tally
from shoal.pack.engines.running import made_shards, usable_processors
from shoal.pack.from_shards.global_mix import Mix
from shoal.pack.from_shards.schema_carry_over import options_of_first
from shoal.pack.inputs.balance import ClassCount, Repeats, balanced, oversampled
from shoal.pack.inputs.field_counts import FIELDS, counted_fields
from shoal.pack.inputs.listing import files_below
from shoal.pack.inputs.numbered_inputs import InputTable, file_inputs, grouped_name, name_of
from shoal.pack.inputs.path_tables import MANIFEST_SUFFIXES, manifest_inputs
from shoal.pack.inputs.required_fields import CLASS_FIELDS, chosen_files
from shoal.pack.inputs.saved_datasets import dataset_inputs, is_dataset_on_disk
from shoal.pack.inputs.tree_inputs import tree_inputs
from shoal.pack.shard_plan import PackPlan, plan_shards
from shoal.pack.unit import Named, Shard, Unreadable
from shoal.pack.writer import PackSummary, summary_of_finished
from shoal.storage.files.file_tree import FileTree
from shoal.storage.files.small_files import FileList, files_matching
from shoal.storage.index_cache.home import with_home
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.urls import scheme_of, without_secrets

_log = logging.getLogger("shoal")

_LEFT_OUT = "left_out"  # metadata key of the index: samples left out of each class
# Rough cost of packing; rows of tables take more than files of a tar.
_SAMPLE_SECONDS, _BYTE_SECONDS = 8e-6, 2e-9


@dataclass(frozen=True, slots=True)
class PackRequest:
    """Settings of a packing; all but ``num_workers`` affect the bytes that are written."""

    format: str
    shard_bytes: int
    columns: Sequence[str | Column] = ()
    prefix: str = "shard"
    extent_bytes: int = EXTENT_BYTES
    on_error: Literal["raise", "skip"] = "raise"
    shuffle: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    num_workers: int | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """Result of a packing, with the peak memory of all processes together.

    ``classes`` has the counts of each class if classes were repeated. ``num_workers`` is 0 if an earlier run had done
    everything.
    """

    summary: PackSummary
    num_inputs: int
    num_workers: int
    peak_bytes: int
    classes: tuple[ClassCount, ...] = ()


def inputs_of(
    source: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002  # the word of the public interface
    grouped: bool = False,
    labelled: bool | None = None,
    path_column: str | None = None,
    require: Sequence[str] = (),
    on_error: Literal["raise", "skip"] = "raise",
    num_workers: int | None = None,
) -> InputTable:
    """Return the inputs that a directory, a glob, a manifest or a Hugging Face ``save_to_disk`` dataset names.

    Raises
    ------
    SourceError
        The source is none of these, or not on this machine.
    UsageError
        As `file_inputs` and `manifest_inputs`.
    """
    text = local_path(os.fspath(source))
    if scheme_of(text):
        msg = f"{without_secrets(text)}: inputs are packed from files of this machine"
        hint = (
            "`shoal repack URL DST --format folder` packs files that lie elsewhere; shards it converts without --format"
        )
        raise SourceError(msg, hint=hint)
    path = Path(with_home(text)).absolute()
    if path.is_dir():
        if is_dataset_on_disk(str(path)):
            _refuse_for(path, "a dataset", grouped=grouped, labelled=labelled, path_column=path_column, require=require)
            return dataset_inputs(str(path), format=format)
        _refuse_for(path, "a directory", path_column=path_column)
        files = files_below(str(path), num_workers=num_workers or usable_processors())
        _warn_of_splits(path, files)
        return _inputs_in(files, format, grouped, labelled, require, on_error)
    if path.is_file():
        if path.name.lower().endswith(MANIFEST_SUFFIXES):
            _refuse_for(path, "a manifest", grouped=grouped, labelled=labelled, require=require)
            return manifest_inputs(str(path), format=format, path_column=path_column)
        msg = f"{path}: this is neither a directory nor a manifest ({', '.join(MANIFEST_SUFFIXES)})"
        raise SourceError(msg, hint="name the directory or a glob; shards are converted by `shoal repack`")
    if not glob.has_magic(str(path)):
        msg = f"{path}: there is nothing of that name"
        raise SourceError(msg, hint="name a directory, a glob, a manifest, or a dataset of save_to_disk")
    _refuse_for(path, "a glob", path_column=path_column)
    return _inputs_in(files_matching(str(path)), format, grouped, labelled, require, on_error)


def _warn_of_splits(path: Path, files: FileTree) -> None:
    """Warn if top-level splits (train, test) go into the same shards; deeper, such names may be any directories."""
    splits = splits_in_names(sorted({f"{name.split('/')[0]}/" for name in files.directories if name}))
    if splits is not None and splits.must_be_chosen:
        names = ", ".join(splits.parts)
        _log.warning("%s: the splits %s are packed together; to keep them apart, pack each directory", path, names)


def _refuse_for(
    path: Path,
    what: str,
    *,
    grouped: bool = False,
    labelled: bool | None = None,
    path_column: str | None = None,
    require: Sequence[str] = (),
) -> None:
    """Refuse options that would have no effect."""
    is_asked_for = (grouped, labelled, path_column is not None, require)
    options = dict(zip(("--group", "--label", "--path-column", "--require"), is_asked_for, strict=True))
    if asked := [name for name, is_asked in options.items() if is_asked]:
        msg = f"{path} is {what}, to which {', '.join(asked)} does not apply"
        raise UsageError(
            msg,
            hint="--group, --label and --require are for files of a directory or a glob, --path-column for manifests",
        )


def _inputs_in(
    files: FileTree,
    format: str,  # noqa: A002
    grouped: bool,  # noqa: FBT001
    labelled: bool | None,  # noqa: FBT001
    require: Sequence[str],
    on_error: str,
) -> InputTable:
    left_out: tuple[tuple[str, str], ...] = ()
    if require and len(files):
        named = grouped_name if grouped else name_of
        chosen = chosen_files(files.names(), require, named=named, grouped=grouped, skips=on_error == "skip")
        files, left_out = files.take(chosen.numbers), chosen.left_out
    if grouped:
        listed = FileList(files.root, files.names(), files.num_bytes, files.modified_ns)
        inputs: InputTable = file_inputs(listed, format=format, grouped=True, labelled=labelled, left_out=left_out)
    else:
        inputs = tree_inputs(files, format=format, labelled=labelled, left_out=left_out)
    if inputs.label_column() is None and (asked := [name for name in require if name in CLASS_FIELDS]):
        msg = f"--require {asked[0]} asks for classes, and there are no classes: not all files lie in directories"
        raise UsageError(msg, hint="--label names one that does not; a suffix in --require leaves out other files")
    return inputs


def repeats_of(
    inputs: InputTable, *, oversample: Mapping[str, Fraction | int], balance: str | None, key: str, seed: int
) -> Repeats | None:
    """Return how often each input is packed; None for once each.

    Raises
    ------
    UsageError
        Both ``oversample`` and ``balance`` are given, or inputs have no such classes.
    """
    if oversample and balance is not None:
        msg = "--oversample and --balance both say how often classes come"
        raise UsageError(msg, hint="give one of them")
    if balance is not None:
        return balanced(inputs.labels(balance), seed=seed)
    return oversampled(inputs.labels(key), oversample, seed=seed) if oversample else None


def bytes_of(inputs: InputTable, repeats: Repeats | None) -> int:
    """Return the approximate bytes of all samples in shards."""
    sizes = inputs.record_bytes()
    return int(sizes.sum() if repeats is None else (sizes * repeats.times).sum())


def pack_inputs(
    inputs: InputTable,
    url: str | os.PathLike[str],
    request: PackRequest,
    *,
    repeats: Repeats | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Pack inputs into shards with an index; shards that an earlier run of the same packing finished are kept.

    Memory: the table of inputs, the order of one shard, and the needs of `pack_shard` in each process.

    Raises
    ------
    UsageError
        The output already holds something else, or an input cannot be packed as requested.
    StorageError
        An input cannot be read, or a shard cannot be written.
    """
    check_prefix(request.prefix)
    if repeats is not None:
        inputs.refuse_copies(repeats.times)
    encoder = encoder_named(request.format, **request.options)
    columns = _columns(inputs, request.columns)
    asked = _asked(inputs, request, columns, repeats)
    digest = hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()
    out = Output(url, plan=digest, storage_options=storage_options)
    finished = out.begin(suffix=encoder.suffix, asked=asked, may_skip=request.on_error == "skip")
    if finished is not None:
        classes = _counted(repeats, finished.metadata.get(_LEFT_OUT))
        num_inputs = len(inputs) + len(inputs.left_out)
        return Packed(summary_of_finished(out.url, finished), num_inputs, 0, peak_bytes(), classes)
    try:
        mix = None
        if request.shuffle:
            mix = Mix(len(inputs) if repeats is None else repeats.num_samples, request.seed)
        plan = plan_shards(inputs.record_bytes(), shard_bytes=request.shard_bytes, repeats=repeats, mix=mix)
        names = names_of_shards(request.prefix, encoder.suffix, range(plan.num_shards))
        options = dict(request.options)
        if "schema" not in options:
            options = {**inputs.options(skips=request.on_error == "skip"), **options}
        options |= options_of_first(request.format, options, _one_by_one(inputs))
        shards = [
            Shard(name, request.format, options, columns, request.extent_bytes, request.on_error) for name in names
        ]
        workers = min(request.num_workers or _worth_workers(plan), plan.num_shards)
        return _made(inputs, plan, shards, out, workers, progress)
    finally:
        out.release()


def _one_by_one(inputs: InputTable) -> Iterator[Sample | Named | Unreadable]:
    for number in range(len(inputs)):
        yield from inputs.samples(np.array([number]), np.array([0]))


def _worth_workers(plan: PackPlan) -> int:
    """Return one process per processor, or fewer if some would have less than a second of work."""
    seconds = int(plan.cuts[-1]) * _SAMPLE_SECONDS + int(plan.shard_record_bytes.sum()) * _BYTE_SECONDS
    return max(1, min(usable_processors(), int(seconds)))


def _made(
    inputs: InputTable,
    plan: PackPlan,
    shards: Sequence[Shard],
    out: Output,
    workers: int,
    progress: Progress | None,
) -> Packed:
    """Make all shards and the index."""
    tally = Tally(plan.shard_record_bytes.tolist(), progress)
    made = made_shards(_jobs(inputs, plan, shards), out, num_workers=workers, tally=tally)
    left_out = _left_out(plan, made.parts)
    fields = counted_fields(inputs.field_sets(), plan, made.parts, name=inputs.key)
    about = {**inputs.about(), **({_LEFT_OUT: left_out} if any(left_out) else {})}
    if fields is not None:
        about[FIELDS] = fields.to_dict()
    index = finish(out, made.parts, about=about, skipped=inputs.left_out)
    summary = PackSummary(
        out.url, index.format, made.summaries, index.fingerprint, skipped_before=inputs.left_out, fields=fields
    )
    num_inputs = len(inputs) + len(inputs.left_out)
    return Packed(summary, num_inputs, workers, made.peak_bytes, _counted(plan.repeats, left_out))


def _left_out(plan: PackPlan, parts: Sequence[Index]) -> list[int]:
    """Count the samples of each class that were left out; empty if classes are not repeated."""
    if plan.repeats is None:
        return []
    counts = np.zeros(len(plan.repeats.classes), dtype=np.int64)
    for number, part in enumerate(parts):
        if places := part.metadata["skipped_places"]:
            inputs, _ = plan.inputs(number)
            counts += np.bincount(plan.repeats.class_of[inputs[places]], minlength=len(counts))
    found: list[int] = counts.tolist()
    return found


def _counted(repeats: Repeats | None, left_out: Sequence[int] | None) -> tuple[ClassCount, ...]:
    """Return the classes with the number of samples left out of each."""
    classes = () if repeats is None else repeats.classes
    if not left_out:
        return classes
    return tuple(replace(entry, num_left_out=number) for entry, number in zip(classes, left_out, strict=True))


def _jobs(inputs: InputTable, plan: PackPlan, shards: Sequence[Shard]) -> Iterator[Job]:
    for number, shard in enumerate(shards):
        chosen, copies = plan.inputs(number)
        yield Job(number, shard, inputs.samples(chosen, copies), len(chosen), int(plan.shard_record_bytes[number]))


def _columns(inputs: InputTable, asked: Sequence[str | Column]) -> tuple[Column, ...]:
    """Return the requested columns, at the paths that inputs know for them, plus the class if there is one."""
    columns = tuple(replace(column, path=inputs.column_path(column.path)) for column in as_columns(asked))
    label = inputs.label_column()
    if label is not None and all(column.name != "label" for column in columns):
        columns = (*columns, Column("label", label))
    return columns


def _asked(
    inputs: InputTable, request: PackRequest, columns: Sequence[Column], repeats: Repeats | None
) -> dict[str, Any]:
    """Return every setting that affects the output, so that an unfinished packing can be recognised."""
    counts = "" if repeats is None else hashlib.blake2b(repeats.times.tobytes(), digest_size=8).hexdigest()
    return {
        "inputs (names, sizes, times)": inputs.digest(),
        "num_inputs": len(inputs),
        "format": request.format,
        "shard_bytes": request.shard_bytes,
        "columns": [[column.name, column.path] for column in columns],
        "prefix": request.prefix,
        "extent_bytes": request.extent_bytes,
        "shuffle": request.shuffle,
        # A seed without an effect is left out.
        **({"seed": request.seed} if request.shuffle or repeats is not None else {}),
        "repeats": counts,
        "options": {name: repr(value) for name, value in request.options.items()},
    }
