"""Sorting by several small keys at once, with equal results on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def order_by(*columns: tuple[NDArray[Any], int]) -> NDArray[np.int64]:
    """Return the indices that sort rows by the first column, then the second, ..., then by row number.

    Each column comes with the number of bits that hold all of its values (not negative). Columns and row number are
    packed into one word and sorted as words if they fit, which is three times as fast as sorting indices; the result
    is the same either way, and no two words are equal, so it does not depend on the sorting algorithm.

    >>> order_by((np.array([1, 0, 1, 0]), 1), (np.array([0, 5, 0, 2]), 3)).tolist()
    [3, 1, 0, 2]
    """
    num_rows = len(columns[0][0])
    number_bits = max(1, num_rows.bit_length())
    if sum(bits for _, bits in columns) + number_bits > 64:
        return np.lexsort([values for values, _ in reversed(columns)])  # stable
    words = columns[0][0].astype(np.uint64)
    for values, bits in columns[1:]:
        words <<= np.uint64(bits)
        words |= values.astype(np.uint64, copy=False)
    words <<= np.uint64(number_bits)
    words |= np.arange(num_rows, dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << number_bits) - 1)
    return words.astype(np.int64)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values of a one-dimensional array, sorted; O(n log n).

    Equals ``np.unique``, whose first call in a process imports masked arrays for 15 ms: a tenth of a short epoch.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
