"""Columns: one field of consecutive samples as an array in memory, and its conversion to sample values.

Batches gather columns at once; other values are built sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Kind(NamedTuple):
    """The kind of values in a column; columns of one kind can be concatenated.

    ``how`` is "array" for numpy arrays and numpy numbers, "number" for Python numbers if Python has their type, "bytes"
    for bytes of one length, each with the type and shape of a row in memory; "cells", for Arrow arrays of anything; or
    "windows", for arrays of one type and shape that are made of other rows when a batch takes them (`UnitWindows`).
    ``arrow`` is the Arrow type, if there is one.
    """

    how: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    arrow: Any = None

    @property
    def stays_in_unit(self) -> bool:
        """True if the values of a unit are kept as they are, and copied only into batches."""
        return self.how in ("cells", "windows")

    @property
    def in_memory(self) -> Kind:
        """The kind, reduced to its effect on batches and samples of Python and numpy values.

        >>> Kind("number", np.dtype("i4"), arrow="int32").in_memory == Kind("array", np.dtype("i4")).in_memory
        True
        """
        if self.how == "cells":
            return self
        is_scalar = self.how == "number" and not is_python_type(self.dtype)
        return Kind("array" if is_scalar else self.how, self.dtype, self.shape)


Kinds = tuple[tuple[str, Kind], ...]
"""Names and kinds of some columns."""


class UnitWindows(Protocol):
    """A column of "windows": arrays of one type and shape, each made when it is needed."""

    def write(self, number: int, window: NDArray[Any], /) -> None:
        """Write value ``number`` into an array of its shape."""
        ...

    def __getitem__(self, number: int, /) -> NDArray[Any]:
        """Return value ``number``."""
        ...


class Columns(NamedTuple):
    """The fields of some samples: names and kinds, and for each an array with one row per sample.

    Arrays may be views of the parsed bytes; columns of "cells" are Arrow arrays, columns of "windows" `UnitWindows`.
    """

    kinds: Kinds
    arrays: tuple[Any, ...]

    def by_name(self) -> dict[str, Any]:
        """Return the array of each field."""
        return {name: array for (name, _), array in zip(self.kinds, self.arrays, strict=True)}


class Record(NamedTuple):
    """The common layout of a shard's samples: bytes of one length, with fields at fixed offsets.

    ``layout`` is their numpy record type, and ``kinds`` the selected fields.
    """

    layout: Any
    kinds: Kinds


def wanted_of(known: Sequence[str], wanted: Sequence[str] | None) -> Sequence[str]:
    """Return the fields to decode: the wanted ones if all of them exist, else all.

    If all fields are decoded, the error for a missing field lists them.

    >>> wanted_of(["a", "b", "c"], ["c", "a"]), wanted_of(["a", "b"], ["c"])
    (['a', 'c'], ['a', 'b'])
    """
    if wanted is None or any(name not in known for name in wanted):
        return known
    return [name for name in known if name in wanted]


def value_of(kind: Kind, array: NDArray[Any], row: int) -> Any:
    """Return the value in one row of an array of this kind (except "cells"); the value owns its bytes.

    >>> value_of(Kind("number"), np.array([7], np.int16), 0).dtype, value_of(Kind("number"), np.array([7]), 0)
    (dtype('int16'), 7)
    """
    if kind.how == "bytes":
        return array[row].tobytes()
    value = array[row]
    if kind.how == "number" and is_python_type(value.dtype):
        return value.item()
    return value.astype(value.dtype.newbyteorder("="))


def values_of(kind: Kind, array: NDArray[Any], rows: Sequence[int]) -> list[Any]:
    """Return `value_of` of each of some rows.

    >>> values_of(Kind("number"), np.array([7, 8, 9]), [2, 0])
    [9, 7]
    """
    if kind.how == "bytes":
        return [array[row].tobytes() for row in rows]
    native = array.dtype.newbyteorder("=")
    if array.ndim > 1 and array.dtype == native:
        return [array[row].copy() for row in rows]
    if array.ndim > 1:
        return [array[row].astype(native) for row in rows]
    values = array[rows].astype(native, copy=False)
    return list(values.tolist() if kind.how == "number" and is_python_type(native) else values)


def as_samples(names: Sequence[str], columns: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """Return a dict for each row of some columns.

    >>> as_samples(["a", "b"], [[1, 2], [3, 4]])
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    """
    if len(names) == 1:
        (name,), (column,) = names, columns
        return [{name: value} for value in column]
    if len(names) == 2:  # most tokens: half of the time of what follows
        first, second = names
        return [{first: a, second: b} for a, b in zip(*columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def is_python_type(dtype: np.dtype[Any]) -> bool:
    """Return True if numpy arrays of Python's own values have this type: int64, float64, bool.

    A number of any other type stays a numpy number in samples, so that a batch of samples has its column's type.

    >>> is_python_type(np.dtype(np.int64)), is_python_type(np.dtype(np.int32))
    (True, False)
    """
    return dtype.kind == "b" or (dtype.kind in "if" and dtype.itemsize == 8)


def bytes_of_rows(array: NDArray[np.uint8]) -> Sequence[bytes]:
    """Return each row as bytes."""
    whole, width = array.tobytes(), array.shape[1]
    return [whole[at : at + width] for at in range(0, len(whole), width)] if width else [b""] * len(array)
