"""Description of a folder of single files: their classes, and their rows in tables.

Classes are all sibling directories, in all splits, even empty ones.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from posixpath import basename, dirname, splitext
from typing import Any

from shoal.errors import SourceError
from shoal.formats.folder.class_directories import (
    KIND_OF_SPLIT,
    ClassDirectories,
    class_directory,
    directory_of_split,
    kind_in,
    lie_below_splits,
    refuse_strays,
)
from shoal.formats.folder.reader import METADATA_NAMES, Folder, metadata_rows
from shoal.indexing.manifests_beside import Described, read_whole, with_paths
from shoal.storage.files.scandir import directories_in
from shoal.storage.sources.source import Source
from shoal.storage.storage_errors import os_failure
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join, relative, scheme_of

_log = logging.getLogger("shoal")


def described_files(source: Source, format: Folder, store: Store) -> Described:  # noqa: A002
    """Return the single files of a folder, with their classes, and the rows of the tables among them.

    Raises `SourceError`: a table is unusable, or does not list exactly the existing files.
    """
    tables = [path for path in source.paths if basename(path) in METADATA_NAMES]
    source = with_paths(source, [path for path in source.paths if basename(path) not in METADATA_NAMES])
    rows: dict[str, Mapping[str, Any]] = {}
    for path in tables:
        data = read_whole(store.stat(path), store)
        table_rows = metadata_rows(data, name=relative(path, source.root), path=path)
        format.check_rows(table_rows, path=path)
        rows |= table_rows
    names = set(source.names)
    if tables and (absent := rows.keys() - names):
        msg = f"{tables[0]} lists {len(absent)} files that are not there; the first is {min(absent)}"
        raise SourceError(msg, hint="copy them too, or take their rows out; file_name is relative to the table")
    if tables and (silent := names - rows.keys()):
        msg = f"{tables[0]} has no rows for {len(silent)} of {len(names)} files; the first is {min(silent)}"
        raise SourceError(msg, hint="add them, or take the table away")
    classes = _classes(source, format, has_rows=bool(tables))
    kept = source if classes is None else _inside_classes(source, classes)
    return Described(kept, format.with_classes(classes), rows=rows)


def _classes(source: Source, format: Folder, *, has_rows: bool) -> ClassDirectories | None:  # noqa: A002
    """Return the classes of a folder; None if samples get no labels, or no file lies in a directory."""
    if format.labels is False or (format.labels is None and has_rows):
        return None
    if format.classes is not None:
        return given_classes(source.root, source.names, format.classes)
    is_whole = source.complete or bool(source.split_names)
    classes = classes_of_folder(source.root, source.names, is_whole=is_whole, split_names=source.split_names)
    if classes is None and format.labels:
        msg = f"{source.root}: no file lies in a class directory; the first is {source.names[0]}"
        raise SourceError(msg, hint="open the parent of the directories of classes, or leave out labels=True")
    return classes


def _inside_classes(source: Source, classes: ClassDirectories) -> Source:
    """Return the source without the files outside of the classes, and log these files. Raises as `refuse_strays`."""
    numbers = classes.numbers_of(source.names)
    if -1 not in numbers:
        return source
    kinds = [splitext(name)[1].lower() for name in source.names]
    outside = [pair for pair, number in zip(zip(source.names, kinds, strict=True), numbers, strict=True) if number < 0]
    hint = "move them, or give Folder(labels=False) as format= for samples without classes"
    inside = {kind for kind, number in zip(kinds, numbers, strict=True) if number >= 0}
    refuse_strays(outside, inside, root=source.root, hint=hint)
    counts = ", ".join(f"{count:,} x {kind or 'no suffix'}" for kind, count in Counter(k for _, k in outside).items())
    _log.warning("%s: files outside of the classes are left out: %s", source.root, counts)
    pairs = zip(source.paths, numbers, strict=True)
    return with_paths(source, [path for path, number in pairs if number >= 0])


def classes_of_folder(
    root: str, names: Iterable[str], *, is_whole: bool, split_names: Collection[str] = ()
) -> ClassDirectories | None:
    """Return the classes of the files of these names below ``root``; None if no file lies in a directory.

    If ``is_whole``, the user named a directory and not files. Then all directories beside the classes count, even empty
    ones, and so do the classes of other splits (``train/cat``, ``val/cat``): a class has one number in all splits.
    ``split_names`` are the names of the files of all splits if the user chose one. A store has no empty directories,
    and is not listed again: only ``split_names`` number its splits together.
    """
    directories = {f"{dirname(name)}/" for name in names}
    below_splits = lie_below_splits(directories)
    own = {class_directory(directory, below_splits=below_splits) for directory in directories} - {""}
    if not own:
        return None
    if split_names and lie_below_splits(all_directories := {f"{dirname(name)}/" for name in split_names}):
        own |= {class_directory(directory, below_splits=True) for directory in all_directories} - {""}
    if is_whole and not scheme_of(root):
        for parent in _class_parents(root, directories, below_splits=below_splits, are_chosen=bool(split_names)):
            own.update(_directories_in(parent))
    elif is_whole and not split_names and basename(root).lower() in KIND_OF_SPLIT:
        text = "%s: classes are numbered within this split; split=%r of the directory above numbers all splits"
        _log.warning(text, root, basename(root))
    return ClassDirectories(tuple(sorted(own)), below_splits)


def given_classes(root: str, names: Iterable[str], classes: tuple[str, ...]) -> ClassDirectories:
    """Return the classes that the user gave; raises `SourceError` if a file lies in the directory of another class."""
    below_splits = lie_below_splits({f"{dirname(name)}/" for name in names})
    used = {class_directory(name, below_splits=below_splits) for name in names} - {""}
    if unknown := sorted(used.difference(classes)):
        msg = f"{root}: the class {unknown[0]!r} is not one of the {len(classes)} in classes="
        raise SourceError(msg, hint="add the class to classes=, or name the files of the other classes by a glob")
    return ClassDirectories(classes, below_splits)


def _class_parents(root: str, directories: Iterable[str], *, below_splits: bool, are_chosen: bool) -> list[str]:
    """Return the local directories whose directories are classes."""
    if below_splits:
        holders = {dirname(split) for directory in directories if (split := directory_of_split(directory))}
        return [
            join(join(root, holder), name)
            for holder in sorted(holders)
            for name in _directories_in(join(root, holder))
            if kind_in(name)
        ]
    name, holder = basename(root), dirname(root)
    if kind_in(name) and (are_chosen or name.lower() in KIND_OF_SPLIT):
        beside = [split for split in _directories_in(holder) if are_chosen or split.lower() in KIND_OF_SPLIT]
        return [join(holder, split) for split in beside if kind_in(split)]
    return [root]


def _directories_in(path: str) -> list[str]:
    try:
        return directories_in(path)
    except OSError as error:
        raise os_failure(error, path, verb="list") from error
