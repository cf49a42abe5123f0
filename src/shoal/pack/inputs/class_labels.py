"""Class labels of packed files: numbers for the names of their directories, and the field that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError


def is_tar(format_name: str) -> bool:
    """Return True for tar shards, compressed or not."""
    return format_name.partition(".")[0] == "tar"


def class_field(format_name: str) -> str:
    """Return the field of a sample that holds its class."""
    return "cls" if is_tar(format_name) else "label"


def class_codes(
    directories: Sequence[str], *, labelled: bool | None, key_in: Callable[[int], str]
) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    """Return the class of each directory, the first part of its path, as a code; and the names of the classes.

    None if ``labelled`` is False, or None and a directory is "". Raises `UsageError` if it is True then, with the key
    that ``key_in`` returns for the number of such a directory.
    """
    found = [directory.partition("/")[0] for directory in directories]
    if labelled is False or (labelled is None and "" in found):
        return None, ()
    if "" in found:
        msg = f"the sample {key_in(found.index(''))!r} lies in no directory that could be its class"
        raise UsageError(msg, hint="leave out labels with --no-label, or move it into a directory")
    classes = tuple(sorted(set(found)))
    codes = {name: code for code, name in enumerate(classes)}
    return np.array([codes[name] for name in found], dtype=np.int32), classes


def labels_of(
    key: str, codes: NDArray[np.int32] | None, classes: Sequence[str], others: Iterable[str] = ()
) -> list[str]:
    """Return the class of each input; `UsageError` if ``key`` means another value, or there are no classes."""
    if codes is not None and key in ("label", "class", "cls"):
        return [classes[code] for code in codes.tolist()]
    known = ", ".join([*others, *(["label"] if codes is not None else [])]) or "nothing but their names"
    msg = f"the inputs have no {key!r}; they have {known}"
    raise UsageError(msg, hint="classes are the directories in which files lie, or columns of a manifest")
