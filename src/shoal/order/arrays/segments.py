"""Operations on many short ranges as one array, in place of Python loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def expand(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate the numbers of the ranges ``[begins[i], ends[i])``, and return them with the length of each range.

    Ranges that end before they begin are empty. ``np.repeat(values, lengths)`` spreads a value per range over its
    numbers at half the cost of indexing. O(total).

    >>> expand(np.array([5, 0, 9]), np.array([7, 0, 12]))
    (array([ 5,  6,  9, 10, 11]), array([2, 0, 3]))
    """
    lengths = np.maximum(ends - begins, 0)
    filled = np.cumsum(lengths)
    numbers = np.repeat(begins - (filled - lengths), lengths)
    numbers += np.arange(len(numbers))
    return numbers, lengths


def segment_sums(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the values of each range, laid out as `expand` does; shape (num_ranges,).

    >>> segment_sums(np.array([1, 2, 3, 4, 5]), np.array([2, 0, 3])).tolist()
    [3, 0, 12]
    """
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    ends = np.cumsum(lengths)
    found: NDArray[np.int64] = sums[ends] - sums[ends - lengths]
    return found
