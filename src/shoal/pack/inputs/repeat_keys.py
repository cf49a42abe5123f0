"""Keys of samples that are packed more than once."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError

MARK = "~"
_COPY = re.compile(r"(.*)~([1-9][0-9]*)", re.DOTALL)


def copy_of(key: str, copy: int) -> str:
    """Return the key of a copy, so that no two samples of a dataset share one.

    >>> copy_of("cats/001", 0), copy_of("cats/001", 1)
    ('cats/001', 'cats/001~2')
    """
    return f"{key}{MARK}{copy + 1}" if copy else key


def refuse_copies(keys: Sequence[str], times: NDArray[np.int64]) -> None:
    """Check that no copy gets the key of another input; ``times``, shape (num_inputs,), is how often each is packed.

    Raises
    ------
    UsageError
        A copy would get the key of another input.
    """
    alike = [found for key in keys if MARK in key and (found := _COPY.fullmatch(key))]
    if not alike:
        return
    numbers = {key: number for number, key in enumerate(keys)}
    for found in alike:
        number = numbers.get(found[1])
        if number is not None and 2 <= int(found[2]) <= times[number]:
            twice = f"{found[1]!r} is packed {times[number]} times"
            msg = f"{twice}, and a copy would be {found[0]!r}, which there is already"
            raise UsageError(msg, hint="rename one of them")
