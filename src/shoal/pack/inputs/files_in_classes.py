"""The files to pack that lie in directories of classes, and those beside them that are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import SourceError, StorageError
from shoal.formats.folder.class_directories import ClassDirectories, refuse_strays
from shoal.indexing.folder_classes import classes_of_folder
from shoal.pack.inputs.file_samples import name_of, unreadable_input
from shoal.pack.records.refusals import OUTSIDE
from shoal.storage.files.small_files import FileTree, read_small


def inside_classes(
    files: FileTree, *, labelled: bool | None, is_whole: bool, skips: bool
) -> tuple[FileTree, ClassDirectories | None, tuple[tuple[str, str], ...]]:
    """Return the files that lie in classes, the classes, and name and reason of each file outside of them.

    All files and no classes if ``labelled`` is False, or None and no file lies in a directory. The classes are those of
    `classes_of_folder`. Raises `SourceError` if a file outside is of the suffix of files in classes, unless ``skips``,
    or if ``labelled`` is True and there are no classes.
    """
    if labelled is False or not len(files):
        return files, None, ()
    classes = classes_of_folder(files.root, files.directories, is_whole=is_whole)
    if classes is None:
        if labelled:
            first = name_of(files.part(0, 1).names()[0])[0]
            msg = f"the sample {first!r} lies in no directory that could be its class"
            raise SourceError(msg, hint="labelled=False packs files without classes; or move it into a directory")
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
    """Return why the entries that were no files when they were listed cannot be read; raises that unless ``skips``.

    A link that leads nowhere may have been the directory of a class.
    """
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
