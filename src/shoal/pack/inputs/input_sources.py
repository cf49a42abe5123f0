"""Inputs of a source: files of a directory or a glob, a manifest, a saved dataset."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.errors import SourceError, StorageError, UsageError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories, refuse_strays
from shoal.formats.metadata.splits import splits_in_names
from shoal.indexing.described_folder import classes_of_folder
from shoal.pack.inputs.dedup_pass import without_equal_contents
from shoal.pack.inputs.duplicates import check_dedup
from shoal.pack.inputs.file_inputs import MANIFEST_SUFFIXES, file_inputs, manifest_inputs
from shoal.pack.inputs.file_samples import grouped_name, name_of, unreadable_input
from shoal.pack.inputs.input_table import InputTable
from shoal.pack.inputs.listing import files_below
from shoal.pack.inputs.sample_fields import chosen_files
from shoal.pack.inputs.saved_datasets import dataset_inputs, is_dataset_on_disk
from shoal.pack.inputs.tree_inputs import tree_inputs
from shoal.pack.jobs.process_jobs import Progress
from shoal.pack.output.refusals import OUTSIDE
from shoal.pack.requests import PackRequest
from shoal.processes.interpreters import usable_processors
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.small_files import FileList, FileTree, glob_files, read_small
from shoal.storage.sources.local_patterns import as_glob, fixed_directory, local_path
from shoal.storage.urls import scheme_of, without_secrets

_log = logging.getLogger("shoal")


def inputs_of(source: str | os.PathLike[str], request: PackRequest, *, progress: Progress | None = None) -> InputTable:
    """Return the inputs of a directory, a glob, a manifest or a Hugging Face ``save_to_disk`` dataset.

    ``request.dedup`` leaves out inputs that equal an earlier input; comparing contents reads all inputs, and
    reports ``progress``. Raises `SourceError` if the source is of another kind or on another machine; `UsageError` if
    an argument does not apply, or as `file_inputs` and `manifest_inputs` do.
    """
    check_dedup(request.dedup)
    inputs = _inputs_of(source, request)
    if request.dedup == "content":
        return without_equal_contents(inputs, skips=request.skips, num_workers=request.num_workers, progress=progress)
    return inputs


def _inputs_of(source: str | os.PathLike[str], request: PackRequest) -> InputTable:
    text = local_path(os.fspath(source))
    if scheme_of(text):
        msg = f"{without_secrets(text)}: inputs are packed from files of this machine"
        hint = "`shoal repack URL DST --format folder` packs files that lie elsewhere; shards without it"
        raise SourceError(msg, hint=hint)
    path = Path(expand_home(text)).absolute()
    grouped, require, distinct = request.grouped, request.require, request.dedup == "key"
    of_files = {"grouped=": grouped, "labelled=": request.labelled, "require=": require}
    of_manifests = {"path_column=": request.path_column is not None}
    if path.is_dir() and is_dataset_on_disk(str(path)):
        _refuse_for(f"{path} is a dataset", {**of_files, **of_manifests})
        if distinct:
            msg = f"{path} is a dataset, whose rows have no keys but their numbers"
            raise UsageError(msg, hint='dedup="content" finds duplicates')
        return dataset_inputs(str(path), format=request.format)
    if path.is_file() and path.name.lower().endswith(MANIFEST_SUFFIXES):
        _refuse_for(f"{path} is a manifest", of_files)
        return manifest_inputs(str(path), format=request.format, path_column=request.path_column, distinct=distinct)
    if path.is_file():
        msg = f"{path}: this is neither a directory nor a manifest ({', '.join(MANIFEST_SUFFIXES)})"
        raise SourceError(msg, hint="name the directory or a glob; shards are converted by `shoal repack`")
    if path.is_dir():
        _refuse_for(f"{path} is a directory", of_manifests)
        files = files_below(str(path), num_workers=request.num_workers or usable_processors())
        # Only at the top: deeper, such names may be any directories.
        splits = splits_in_names(sorted({f"{name.split('/')[0]}/" for name in files.directories if name}))
        if splits is not None and splits.must_be_chosen:
            text = "%s: the splits %s are packed together; to keep them apart, pack each directory"
            _log.warning(text, path, ", ".join(splits.parts))
    elif glob.has_magic(str(path)):
        _refuse_for(f"{path} is a glob", of_manifests)
        files = glob_files(as_glob(str(path)), root=fixed_directory(str(path)))
    else:
        msg = f"{path}: no such file or directory"
        raise SourceError(msg, hint="name a directory, a glob, a manifest, or a dataset of save_to_disk")
    left_out: tuple[tuple[str, str], ...] = ()
    if require and len(files):
        named = grouped_name if grouped else name_of
        numbers, left_out = chosen_files(files.names(), require, named=named, grouped=grouped, skips=request.skips)
        files = files.take(numbers)
    files, classes, outside = _inside_classes(
        files, labelled=request.labelled, is_whole=path.is_dir(), skips=request.skips
    )
    if classes is None and CLASS_FIELD in require:
        msg = f"require={CLASS_FIELD!r} asks for classes, but there are no classes: no file lies in a directory"
        raise UsageError(msg, hint="leave out require=, or name the directory above the classes")
    left_out += outside
    if not grouped:
        return tree_inputs(files, format=request.format, classes=classes, left_out=left_out, distinct=distinct)
    listed = FileList(files.root, files.names(), files.num_bytes, files.modified_ns)
    return file_inputs(
        listed, format=request.format, grouped=True, classes=classes, left_out=left_out, distinct=distinct
    )


def _inside_classes(
    files: FileTree, *, labelled: bool | None, is_whole: bool, skips: bool
) -> tuple[FileTree, ClassDirectories | None, tuple[tuple[str, str], ...]]:
    """Return the files in classes, the classes (of `classes_of_folder`), and name and reason of each file outside.

    All files and no classes if ``labelled`` is False, or None and no file lies in a directory. Raises `SourceError` if
    a file outside has the suffix of files in classes, unless ``skips``, or ``labelled`` is True without classes.
    """
    if labelled is False or not len(files):
        return files, None, ()
    classes = classes_of_folder(files.root, files.directories, is_whole=is_whole)
    if classes is None:
        if labelled:
            first = name_of(files.part(0, 1).names()[0])[0]
            msg = f"the sample {first!r} lies in no directory that could be its class"
            raise SourceError(msg, hint="set labelled=False to pack without classes; or move the file into a directory")
        return files, None, ()
    is_inside = np.repeat(np.array(classes.numbers_of(files.directories)) >= 0, np.diff(files.first_file))
    if bool(is_inside.all()):
        return files, classes, ()
    names = files.names()
    lost = _lost(files, names, skips=skips)
    kinds = [name_of(name)[1] for name in names]
    outside = [(names[number], kinds[number]) for number in np.flatnonzero(~is_inside).tolist()]
    if not skips:
        hint = "move them; labelled=False packs all files without classes, on_error='skip' leaves them out"
        inside = {kinds[number] for number in np.flatnonzero(is_inside).tolist()}
        refuse_strays(outside, set(kinds) if labelled else inside, root=files.root, hint=hint)
    return files.take(np.flatnonzero(is_inside)), classes, tuple((name, lost.get(name, OUTSIDE)) for name, _ in outside)


def _lost(files: FileTree, names: Sequence[str], *, skips: bool) -> dict[str, str]:
    """Return why listed entries are unreadable, or raise unless ``skips``: a broken link may have been a class."""
    reasons = {}
    for number in np.flatnonzero(files.num_bytes < 0).tolist():
        path = f"{files.root}/{names[number]}"
        try:
            read_small(path, -1, 0)
        except StorageError as error:
            if not skips:
                raise
            reasons[names[number]] = unreadable_input(names[number], path, error).reason
    return reasons


def _refuse_for(what: str, options: Mapping[str, object]) -> None:
    """Refuse options that would have no effect."""
    if names := [name for name, is_set in options.items() if is_set]:
        msg = f"{what}, but {', '.join(names)} does not apply to it"
        hint = "grouped=, labelled= and require= are for files of a directory or a glob, path_column= for manifests"
        raise UsageError(msg, hint=hint)
