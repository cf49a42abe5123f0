"""Class labels of packed files: numbers for the names of their directories, and the field that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories


def is_tar(format_name: str) -> bool:
    """Return True for tar shards, compressed or not."""
    return format_name.partition(".")[0] == "tar"


def class_codes(directories: Sequence[str], classes: ClassDirectories | None) -> NDArray[np.int32] | None:
    """Return the class of each directory, which is empty or ends with a slash, as a code; None without classes."""
    return None if classes is None else np.array(classes.numbers_of(directories), dtype=np.int32)


def labels_of(
    key: str, codes: NDArray[np.int32] | None, classes: Sequence[str], others: Iterable[str] = ()
) -> list[str]:
    """Return the class of each input; `UsageError` if ``key`` means another value, or there are no classes."""
    if codes is not None and key == CLASS_FIELD:
        return [classes[code] for code in codes.tolist()]
    known = ", ".join([*others, *([CLASS_FIELD] if codes is not None else [])]) or "nothing but their names"
    msg = f"the inputs have no {key!r}; they have {known}"
    raise UsageError(msg, hint="classes are the directories in which files lie, or columns of a manifest")
