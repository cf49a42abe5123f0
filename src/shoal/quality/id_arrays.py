"""Ids emitted by any loader, as one array per epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.quality.keyed_samples import KeyTable


def as_epochs(ids: Any, epochs: int, keys: KeyTable | None = None) -> list[NDArray[np.int64]]:
    """Return the ids of each epoch; views if an array is given.

    Parameters
    ----------
    ids
        An array of shape (N,), or (num_epochs, N); or an iterable of ids, or of batches of ids (arrays, tensors,
        lists).
    epochs
        Number of epochs of equal length in a flat stream, one after the other.
    keys
        Table that numbers the ids, if they are keys.

    Raises
    ------
    UsageError
        If there are no ids, they are not integers, or they cannot be cut into epochs.
    """
    if not isinstance(ids, np.ndarray) and hasattr(ids, "__array__"):  # for example a tensor
        ids = np.asarray(ids)
    if isinstance(ids, np.ndarray) and ids.ndim == 2:
        if epochs not in {1, len(ids)}:
            msg = f"the ids of {len(ids)} epochs were given, and epochs={epochs}"
            raise UsageError(msg, hint="an array of shape (num_epochs, N) says itself how many there are")
        return [as_stream(row, keys) for row in ids]
    stream = as_stream(ids, keys)
    if epochs < 1 or len(stream) % epochs:
        msg = f"{len(stream):,} ids cannot be cut into {epochs} epochs of one length"
        raise UsageError(msg, hint="give an array of shape (num_epochs, N), or audit the epochs one by one")
    return list(stream.reshape(epochs, -1))


def as_stream(ids: Any, keys: KeyTable | None = None) -> NDArray[np.int64]:
    """Return ids, or the ids of the samples with these keys, as one flat array of integers."""
    array = ids if isinstance(ids, np.ndarray) else _gathered(iter(ids))
    if array.ndim != 1 or not len(array):
        msg = f"ids are a flat array with at least one of them; got shape {array.shape}"
        raise UsageError(msg)
    if keys is not None:
        return keys.look_up(array)
    if array.dtype.kind not in "iu":
        msg = f"sample ids are integers; got {array.dtype}"
        hint = "have the loader yield the number of each sample, from 0 in storage order"
        raise UsageError(
            msg, hint=f"{hint}; keys need keys=, those of the dataset" if array.dtype.kind in "US" else hint
        )
    return array if array.dtype == np.int64 else array.astype(np.int64)


def _gathered(items: Iterator[Any]) -> NDArray[Any]:
    first = next(items, None)
    if first is None:
        return np.zeros(0, dtype=np.int64)
    if np.ndim(first) == 0:
        return np.array(list(chain([first], items)))
    return np.concatenate([np.asarray(batch).reshape(-1) for batch in _chained(first, items)])


def _chained(first: Any, items: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from items
