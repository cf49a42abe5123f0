"""The arrays of a batch while it is made: decoders write their values into rows, and collation takes whole arrays.

Otherwise each value is written twice, and every batch faults in zeroed pages of the system. For images of 256 x 256
that took a fifth of the time of decoding.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from operator import is_
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Allocate = Callable[..., NDArray[Any]]

_LEAST_REUSED_BYTES = 1 << 20  # the allocator keeps smaller memory itself
_MOST_FREE = 2
_UNMADE = object()  # is no value of a sample


class ReusedArrays:
    """A maker of arrays in memory of earlier arrays that nobody refers to any more; any thread may drop them.

    >>> make = ReusedArrays()
    >>> array = make((1 << 20,), np.uint8)
    >>> address, view = array.ctypes.data, array[7:]
    >>> del array
    >>> make((1 << 20,), np.uint8).ctypes.data == address
    False
    >>> del view
    >>> make((1 << 20,), np.uint8).ctypes.data == address
    True
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []
        self._used: dict[int, tuple[weakref.ref[Any], NDArray[np.uint8]]] = {}

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an array of any content."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if num_bytes < _LEAST_REUSED_BYTES:
            return np.empty(shape, dtype)
        memory = self._taken(num_bytes)
        # All views refer to this array: numpy skips arrays between a view and the last array, but no memoryview.
        flat: NDArray[Any] = np.frombuffer(memory.data, dtype)
        number = id(flat)
        self._used[number] = weakref.ref(flat, lambda _: self._let_go(number)), memory
        return flat.reshape(shape)

    def _taken(self, num_bytes: int) -> NDArray[np.uint8]:
        free = self._free
        while free:
            try:
                memory = free.pop()
            except IndexError:  # meanwhile, in another thread
                break
            if len(memory) == num_bytes:
                return memory
        return np.empty(num_bytes, np.uint8)

    def _let_go(self, number: int) -> None:
        _, memory = self._used.pop(number)
        if len(self._free) < _MOST_FREE:
            self._free.append(memory)


class _Column:
    """An array of a batch, and the values made of its rows."""

    __slots__ = ("array", "shape", "values")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.shape = array, array.shape[1:]
        self.values: list[Any] = [_UNMADE] * len(array)


class BatchRows:
    """The arrays of a batch of ``num_rows`` samples; decoders may fill rows of them in several threads.

    With ``fills`` false decoders get no rows: a function of the user might keep a row, which then changes with the
    batch. A call allocates an array of a shape and a type for collation.
    """

    __slots__ = ("_allocate", "_columns", "_gives_rows", "_lock", "num_rows")

    def __init__(self, num_rows: int, allocate: Allocate = np.empty, *, fills: bool = True) -> None:
        self.num_rows, self._allocate, self._gives_rows, self._lock = num_rows, allocate, fills, Lock()
        self._columns: dict[str, _Column] = {}

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an array of any content."""
        return self._allocate(shape, dtype)

    def next_from(self, first: int) -> NextRows | None:
        """Return the rows from ``first`` on; None if decoders get no rows."""
        return NextRows(self, first) if self._gives_rows else None

    def column(self, field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Column | None:
        """Return the array of a field, which the first call makes; None if its rows are of another kind."""
        if dtype.kind not in "biufc" or not dtype.isnative:
            return None
        with self._lock:
            column = self._columns.get(field)
            if column is None:
                column = self._columns[field] = _Column(self._allocate((self.num_rows, *shape), dtype))
        return column if column.shape == shape and column.array.dtype == dtype else None

    def shape_of(self, field: str) -> tuple[int, ...] | None:
        """Return the shape of a row of a field; None if it has no array yet."""
        column = self._columns.get(field)
        return None if column is None else column.shape

    def stacked(self, values: Sequence[Any]) -> NDArray[Any] | None:
        """Return the array whose rows became these values, all of them in order; None if they must be copied."""
        for column in self._columns.values():
            if len(values) == len(column.values) and all(map(is_, values, column.values)):
                return column.array
        return None


class NextRows:
    """The rows of a batch from one row on, for consecutive samples that one thread decodes."""

    __slots__ = ("_batch", "_first", "_num_decoded")

    def __init__(self, batch: BatchRows, first: int) -> None:
        self._batch, self._first = batch, first
        self._num_decoded: dict[str, int] = {}

    def decoded(self, field: str, decoder: Callable[[bytes], Any], data: Sequence[bytes]) -> list[Any]:
        """Return the values of a field of the next samples, in rows of the batch if the decoder can write there."""
        into = getattr(decoder, "into", None)
        if into is None:
            return list(map(decoder, data))
        first = self._first + self._num_decoded.get(field, 0)
        self._num_decoded[field] = first + len(data) - self._first
        rows = _FieldRows(self._batch, field, first, len(data))
        values: list[Any] = into(data, rows)
        rows.keep(values)
        return values


class _FieldRows:
    """The memory of some rows of one field; a value of another shape or type gets new memory."""

    __slots__ = ("_are_rows", "_batch", "_column", "_field", "_first", "_rows")

    def __init__(self, batch: BatchRows, field: str, first: int, num_rows: int) -> None:
        self._batch, self._field, self._first = batch, field, first
        self._are_rows = [False] * num_rows
        self._column: _Column | None = None

    @property
    def likely_shape(self) -> tuple[int, ...] | None:
        """The shape of earlier values of the batch; None if there are none."""
        return self._batch.shape_of(self._field)

    def __call__(self, number: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for the array of one value."""
        column, row = self._column, self._first + number
        if column is None or column.shape != shape or column.array.dtype != dtype:
            column = self._column = self._batch.column(self._field, shape, np.dtype(dtype))
        self._are_rows[number] = column is not None and row < self._batch.num_rows
        return column.array[row, ...] if column is not None and self._are_rows[number] else np.empty(shape, dtype)

    def all(self, shape: tuple[int, ...], dtype: Any) -> list[NDArray[Any]]:
        """Return memory for the arrays of all values."""
        column, num_rows = self._batch.column(self._field, shape, np.dtype(dtype)), len(self._are_rows)
        if column is None or self._first + num_rows > self._batch.num_rows or not shape:
            return [self(number, shape, dtype) for number in range(num_rows)]
        self._column, self._are_rows = column, [True] * num_rows
        return list(column.array[self._first : self._first + num_rows])

    def keep(self, values: list[Any]) -> None:
        """Note the values that were made in their rows."""
        column, first = self._column, self._first
        if column is None:
            return
        if all(self._are_rows):
            column.values[first : first + len(values)] = values
            return
        for number, (value, is_row) in enumerate(zip(values, self._are_rows, strict=True), first):
            if is_row:
                column.values[number] = value
