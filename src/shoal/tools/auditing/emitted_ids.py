"""Convert the ids or keys that a loader emitted to an array of sample numbers per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError


def as_epochs(ids: Any, epochs: int, keys: KeyTable | None = None) -> list[NDArray[np.int64]]:
    """Return the ids of each epoch, as views of an array.

    ``ids`` is an array of shape (N,) or (num_epochs, N), or an iterable of ids or of batches (arrays, tensors, lists).
    A flat stream has ``epochs`` of equal length. ``keys`` numbers the samples if ids are keys. Raises `UsageError` if
    there are no ids, they are not integers, or they cannot be cut into epochs.
    """
    if not isinstance(ids, np.ndarray) and hasattr(ids, "__array__"):  # for example a tensor
        ids = np.asarray(ids)
    if isinstance(ids, np.ndarray) and ids.ndim == 2:
        if epochs not in {1, len(ids)}:
            msg = f"the ids of {len(ids)} epochs were given, but epochs={epochs}"
            raise UsageError(msg, hint="an array of shape (num_epochs, N) needs no epochs=")
        return [as_stream(row, keys) for row in ids]
    stream = as_stream(ids, keys)
    if epochs < 1 or len(stream) % epochs:
        msg = f"{len(stream):,} ids cannot be cut into {epochs} epochs of one length"
        raise UsageError(msg, hint="give an array of shape (num_epochs, N), or audit the epochs one by one")
    return list(stream.reshape(epochs, -1))


def as_stream(ids: Any, keys: KeyTable | None = None) -> NDArray[np.int64]:
    """Return ids, or the ids of keys, as a flat array of integers."""
    array = ids if isinstance(ids, np.ndarray) else _gathered(iter(ids))
    if array.ndim != 1 or not len(array):
        raise UsageError(f"ids are a flat array with at least one of them; got shape {array.shape}")
    if keys is not None:
        return keys.look_up(array)
    if array.dtype.kind not in "iu":
        msg = f"sample ids are integers; got {array.dtype}"
        hint = "have the loader yield the number of each sample, from 0 in storage order"
        hint += "; keys need keys= of the dataset" if array.dtype.kind in "US" else ""
        raise UsageError(msg, hint=hint)
    return array if array.dtype == np.int64 else array.astype(np.int64)


def _gathered(items: Iterator[Any]) -> NDArray[Any]:
    first = next(items, None)
    if first is None:
        return np.zeros(0, dtype=np.int64)
    if np.ndim(first) == 0:
        return np.array(list(chain([first], items)))
    return np.concatenate([np.asarray(batch).reshape(-1) for batch in chain([first], items)])


@dataclass(frozen=True, slots=True, eq=False)
class KeyTable:
    """The sorted keys of a dataset, and the sample number of each key; both of shape (num_samples,)."""

    ordered: NDArray[Any]
    numbers: NDArray[np.int64]

    @staticmethod
    def of(keys: ArrayLike) -> KeyTable:
        """Build a table from the key of each sample in storage order, texts or integers, shape (num_samples,).

        Raises `UsageError` for other types and for equal keys. O(N log N).
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
            msg = f"{len(same):,} keys are not unique in the dataset: {key!r} is sample {first} and sample {second}"
            raise UsageError(msg, hint="give unique keys, or have the loader yield sample numbers")
        return KeyTable(ordered, numbers)

    def __len__(self) -> int:
        """Return the number of samples of the dataset."""
        return len(self.ordered)

    def look_up(self, delivered: NDArray[Any]) -> NDArray[np.int64]:
        """Return the sample numbers of keys, -1 for unknown keys; raise `UsageError` if all are unknown."""
        keys, ordered = _texts(delivered), self.ordered
        if keys.dtype.kind != ordered.dtype.kind:  # numbers on one side, their digits on the other
            return KeyTable.of(ordered[np.argsort(self.numbers)].astype(np.str_)).look_up(keys.astype(np.str_))
        at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        numbers = np.where(ordered[at] == keys, self.numbers[at], -1)
        if keys.size and not (numbers >= 0).any():
            msg = f"none of {keys.size:,} delivered keys is one of the dataset's: "
            msg += f"{str(keys.flat[0])!r} was delivered, but the dataset has {str(ordered[0])!r}"
            raise UsageError(msg, hint="keys are compared letter by letter, with directories and without suffix")
        return numbers


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    """Decode bytes to texts."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
