"""Columns: one field of consecutive samples, as it lies in memory, and what a value of it is to a sample.

What can be gathered at once for a batch is told apart here from what has to be made sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "Kind", "Record", "bytes_of_rows", "is_python_type", "value_of", "wanted_of"]


class Kind(NamedTuple):
    """What a column holds; two columns of one kind can lie one behind the other.

    ``how`` is "array" where values are arrays or numbers of numpy, "number" where they are numbers that are Python's
    if Python has their type, "bytes" where they are bytes of one length, each of these with the type and shape that a
    row has in memory; or "cells", for Arrow's arrays of anything. ``arrow`` is the Arrow type, where there is one.
    """

    how: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    arrow: Any = None


class Columns(NamedTuple):
    """The fields of some samples: names and kinds, and for each an array with a row for every sample.

    Arrays may be views of the bytes they came in; those of "cells" are Arrow's.
    """

    kinds: tuple[tuple[str, Kind], ...]
    arrays: tuple[Any, ...]

    def by_name(self) -> dict[str, Any]:
        """The array of each field."""
        return {name: array for (name, _), array in zip(self.kinds, self.arrays, strict=True)}


class Record(NamedTuple):
    """What all samples of a shard are: bytes of one length, in which the fields have fixed places.

    ``layout`` is their type as a record of numpy's, and ``kinds`` the fields wanted of it.
    """

    layout: Any
    kinds: tuple[tuple[str, Kind], ...]


def wanted_of(known: Sequence[str], wanted: Sequence[str] | None) -> Sequence[str]:
    """The fields to decode of those there are: the wanted ones if all of them are there, else all.

    So that a field that is missing is told beside all that there are.

    >>> wanted_of(["a", "b", "c"], ["c", "a"]), wanted_of(["a", "b"], ["c"])
    (['a', 'c'], ['a', 'b'])
    """
    if wanted is None or any(name not in known for name in wanted):
        return known
    return [name for name in known if name in wanted]


def value_of(kind: Kind, array: NDArray[Any], row: int) -> Any:
    """What a sample has for a row of an array of this kind, which is not "cells"; it owns its bytes.

    >>> value_of(Kind("number"), np.array([7], np.int16), 0).dtype, value_of(Kind("number"), np.array([7]), 0)
    (dtype('int16'), 7)
    """
    if kind.how == "bytes":
        return array[row].tobytes()
    value = array[row]
    if kind.how == "number" and is_python_type(value.dtype):
        return value.item()
    return value.astype(value.dtype.newbyteorder("="))


def is_python_type(dtype: np.dtype[Any]) -> bool:
    """Whether Python's own values have this type once numpy makes an array of them: int64, float64, truth values.

    A number of any other type is numpy's in samples, so that a batch of samples has the type that its column has.

    >>> is_python_type(np.dtype(np.int64)), is_python_type(np.dtype(np.int32))
    (True, False)
    """
    return dtype.kind == "b" or (dtype.kind in "if" and dtype.itemsize == 8)


def bytes_of_rows(array: NDArray[np.uint8]) -> Sequence[bytes]:
    """Each row as bytes."""
    whole, width = array.tobytes(), array.shape[1]
    return [whole[at : at + width] for at in range(0, len(whole), width)] if width else [b""] * len(array)
