"""Samples by key instead of number, for audits of loaders that yield keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class KeyTable:
    """The keys of a dataset in sorted order, and the number of each key's sample; both of shape (num_samples,)."""

    ordered: NDArray[Any]
    numbers: NDArray[np.int64]

    @staticmethod
    def of(keys: ArrayLike) -> KeyTable:
        """Build a table from the key of each sample in storage order, texts or integers, shape (num_samples,).

        O(N log N).

        Raises
        ------
        UsageError
            If they are neither, or two samples share a key, so that it identifies neither of them.
        """
        array = np.asarray(keys)
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "USiu":
            msg = f"keys has the key of each sample in storage order; got {array.dtype} of shape {array.shape}"
            raise UsageError(msg, hint="an array of texts or of integers, one for each sample")
        array = _texts(array)
        numbers = np.argsort(array, kind="stable")
        ordered = array[numbers]
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(same):
            first, second = numbers[same[0]], numbers[same[0] + 1]
            key = str(ordered[same[0]])
            msg = f"{len(same):,} keys come again in the dataset: {key!r} is sample {first} and {second}"
            raise UsageError(msg, hint="keys that name one sample each, or have the loader yield sample numbers")
        return KeyTable(ordered, numbers)

    def __len__(self) -> int:
        """Return the number of samples of the dataset."""
        return len(self.ordered)

    def look_up(self, delivered: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers of the samples with these keys, -1 for keys not in the dataset; same shape.

        Raises
        ------
        UsageError
            If none of the keys is in the dataset.
        """
        given, ordered = _texts(delivered), self.ordered
        if given.dtype.kind != ordered.dtype.kind:  # one side has numbers, the other their digits as text
            return KeyTable.of(ordered[np.argsort(self.numbers)].astype(np.str_)).look_up(given.astype(np.str_))
        places = np.minimum(np.searchsorted(ordered, given), len(ordered) - 1)
        found = np.where(ordered[places] == given, self.numbers[places], -1)
        if given.size and not (found >= 0).any():
            msg = f"none of {given.size:,} delivered keys is one of the dataset's: "
            msg += f"{str(given.flat[0])!r} was delivered, and the dataset has {str(ordered[0])!r}"
            raise UsageError(msg, hint="keys are compared letter by letter, with directories and without suffix")
        return found


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    """Decode bytes to texts; leave integers and texts unchanged."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
