"""The classes of a folder of files: the directories beside each other, of all splits, empty ones included."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from posixpath import basename, dirname

from shoal.errors import SourceError
from shoal.formats.folder.class_directories import (
    KIND_OF_SPLIT,
    ClassDirectories,
    class_directory,
    directory_of_split,
    kind_in,
    lie_below_splits,
)
from shoal.storage.files.scandir import directories_in
from shoal.storage.storage_errors import os_failure
from shoal.storage.urls import join, scheme_of

_log = logging.getLogger("shoal")


def classes_of_folder(
    root: str, names: Iterable[str], *, is_whole: bool, split_names: Collection[str] = ()
) -> ClassDirectories | None:
    """Return the classes of the files of these names below ``root``; None if no file lies in a directory.

    If ``is_whole``, the directory was asked for, and not some files by their names: then all directories beside the
    classes count, those without files, too, and so do the classes of the splits beside a split (``train/cat``,
    ``val/cat``), so that a class has one number in all splits. ``split_names`` are the names of the files of all splits
    where one was chosen. A store has no empty directories, and is not listed again: its splits are numbered together
    only by ``split_names``.
    """
    directories = {f"{dirname(name)}/" for name in names}
    below_splits = lie_below_splits(directories)
    own = {class_directory(directory, below_splits=below_splits) for directory in directories} - {""}
    if not own:
        return None
    if split_names and lie_below_splits(all_directories := {f"{dirname(name)}/" for name in split_names}):
        own |= {class_directory(directory, below_splits=True) for directory in all_directories} - {""}
    if is_whole and not scheme_of(root):
        for place in _places(root, directories, below_splits=below_splits, are_chosen=bool(split_names)):
            own.update(_directories_in(place))
    elif is_whole and not split_names and basename(root).lower() in KIND_OF_SPLIT:
        text = "%s: classes are numbered among those of this split; split=%r of the directory above numbers all splits"
        _log.warning(text, root, basename(root))
    return ClassDirectories(tuple(sorted(own)), below_splits)


def given_classes(root: str, names: Iterable[str], classes: tuple[str, ...]) -> ClassDirectories:
    """Return the classes that the user gave; raises `SourceError` if a file lies in the directory of another one."""
    below_splits = lie_below_splits({f"{dirname(name)}/" for name in names})
    there = {class_directory(name, below_splits=below_splits) for name in names} - {""}
    if unknown := sorted(there.difference(classes)):
        msg = f"{root}: the class {unknown[0]!r} is none of the {len(classes)} that classes= lists"
        raise SourceError(msg, hint="add it to the list, or name the files of the other classes by a glob")
    return ClassDirectories(classes, below_splits)


def _places(root: str, directories: Iterable[str], *, below_splits: bool, are_chosen: bool) -> list[str]:
    """Return the directories of this machine whose directories are classes."""
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
        beside = [each for each in _directories_in(holder) if are_chosen or each.lower() in KIND_OF_SPLIT]
        return [join(holder, each) for each in beside if kind_in(each)]
    return [root]


def _directories_in(path: str) -> list[str]:
    try:
        return directories_in(path)
    except OSError as error:
        raise os_failure(error, path, verb="list") from error
