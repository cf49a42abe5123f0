"""The columns of the units in use, one after another in memory, so that the rows of a batch are gathered at once.

Every unit is copied into a table as it arrives, because the rows of a batch come from about as many units as the batch
has samples. A copy out of one array costs 0.2 us per row of 4 KiB; out of an array per unit, three times as much, plus
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.compiled_cutting import take_rows
from shoal.formats.field_columns import Columns, Kinds, UnitWindows, as_samples, values_of
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_columns import gathered_cells, joined_cells
from shoal.formats.tables.arrow_types import is_binary
from shoal.formats.tables.arrow_values import gathered_values, getter_of, value_in

_GROWTH = 8  # a full table grows by this fraction of its size
_LEAST_ROWS = 64


class Table:
    """Rows of columns with these names and kinds, stored in spans; the number of the first row identifies a span.

    ``num_rows`` is the expected number of rows in use at a time. ``layout`` is the type of a record if the columns are
    fields of unparsed records. ``keeps_arrow`` gathers rows of bytes and text as Arrow arrays, else as lists with one
    copy of each value.
    """

    def __init__(self, kinds: Kinds, *, num_rows: int, layout: Any = None, keeps_arrow: bool = True) -> None:
        self.kinds = kinds
        self.as_lists = [not keeps_arrow and kind.how == "cells" and is_binary(kind.arrow) for _, kind in kinds]
        self.has_cells = any(kind.stays_in_unit for _, kind in kinds)
        # With spare room, which takes no memory until it is written: growing costs 5 ms for 16 MiB.
        self._capacity = max(num_rows + num_rows // _GROWTH, _LEAST_ROWS)
        self._end = 0  # the first row that was never used
        self._free: dict[int, list[int]] = {}  # first rows of free spans, by their length
        self.arrays: list[Any] = []
        self._layout = layout
        self._records = np.empty(self._capacity if layout is not None else 0, layout)
        self._bytes = memoryview(b"")
        self._lay_out()
        self.cells: list[dict[int, Any]] = [{} for _ in kinds]

    def _lay_out(self) -> None:
        if self._layout is not None:
            self.arrays = [self._records[name] for name, _ in self.kinds]
            self._bytes = self._records.view(np.uint8).data
        elif not self.arrays:
            self.arrays = [
                None if kind.stays_in_unit else np.empty((self._capacity, *kind.shape), kind.dtype)
                for _, kind in self.kinds
            ]

    def has_layout(self, layout: Any) -> bool:
        """True if the table stores unparsed records of this layout."""
        return self._layout is not None and bool(self._layout == layout)

    def memory(self, first: int, num_rows: int) -> memoryview:
        """Return the memory for the bytes of unparsed records in reserved rows; `reserve` may move it."""
        size = self._layout.itemsize
        return self._bytes[first * size : (first + num_rows) * size]

    def put(self, columns: Columns, num_rows: int) -> int:
        """Store these rows; return the number of the first."""
        first = self.reserve(num_rows)
        parts = zip(self.arrays, self.cells, columns.arrays, self.as_lists, strict=True)
        for array, cells, values, as_list in parts:
            if array is None:
                cells[first] = getter_of(values) if as_list else values
            else:
                array[first : first + num_rows] = values
        return first

    def drop(self, first: int, num_rows: int) -> None:
        """Free rows that were reserved, or stored by `put`."""
        self._free.setdefault(num_rows, []).append(first)
        if self.has_cells:
            for cells in self.cells:
                cells.pop(first, None)

    def rows(self, num_rows: int, allocate: Callable[..., NDArray[Any]] = np.empty) -> Rows:
        """Return memory for this many gathered rows; ``allocate`` makes an array of a shape and a type."""
        return Rows(self, num_rows, allocate)

    def sample(self, first: int, number: int) -> Sample:
        """Return row ``number`` of the span at ``first`` as a sample."""
        sample: Sample = {}
        for (name, kind), array, cells in zip(self.kinds, self.arrays, self.cells, strict=True):
            values, row = (cells[first], number) if array is None else (array, first + number)
            sample[name] = values(row) if callable(values) else value_in(kind, values, row)
        return sample

    def samples(self, rows: NDArray[np.int64], firsts: NDArray[np.int64] | None) -> list[Sample]:
        """Return rows as samples; ``firsts`` are the first rows of their units, if there are cells."""
        numbers, cells, columns = rows.tolist(), _Cells.of(rows, firsts), []
        for number, ((_, kind), array) in enumerate(zip(self.kinds, self.arrays, strict=True)):
            if array is not None:
                columns.append(values_of(kind, array, numbers))
                continue
            units = [self.cells[number][first] for first in cells.distinct]
            getters = units if self.as_lists[number] else [partial(value_in, kind, unit) for unit in units]
            columns.append(gathered_values(getters, cells.which, cells.rows))
        return as_samples([name for name, _ in self.kinds], columns)

    def place_of(self, number: int) -> tuple[Any, int, int]:
        """Return the memory of a column, the byte where its first row begins, and the bytes from row to row."""
        array = self.arrays[number]
        if self._layout is None:
            return array.view(np.uint8), 0, array.strides[0]
        return self._bytes, self._layout.fields[self.kinds[number][0]][1], self._layout.itemsize

    def reserve(self, num_rows: int) -> int:
        """Reserve rows; return the number of the first."""
        if fitting := self._free.get(num_rows):
            return fitting.pop()
        if self._end + num_rows > self._capacity:
            if (first := self._joined_free(num_rows)) is not None:
                return first
            self._grow(self._end + num_rows)
        first = self._end
        self._end += num_rows
        return first

    def _joined_free(self, num_rows: int) -> int | None:
        """Join adjacent free spans, and take rows from the smallest span that fits; None if no span fits."""
        spans: list[list[int]] = []
        for first, length in sorted((first, length) for length, firsts in self._free.items() for first in firsts):
            if spans and sum(spans[-1]) == first:
                spans[-1][1] += length
            else:
                spans.append([first, length])
        self._free = {}
        enough = [span for span in spans if span[1] >= num_rows]
        taken = min(enough, key=lambda span: span[1], default=None)
        for span in spans:
            first, length = span if span is not taken else (span[0] + num_rows, span[1] - num_rows)
            if length:
                self._free.setdefault(length, []).append(first)
        return None if taken is None else taken[0]

    def _grow(self, num_rows: int) -> None:
        self._capacity = max(num_rows, self._capacity + self._capacity // _GROWTH)
        # In place if the system can: a copy would briefly take the memory of the window twice.
        if self._layout is not None:
            self.arrays, self._bytes = [], memoryview(b"")  # views of memory that may move
            self._records.resize(self._capacity, refcheck=False)
            self._lay_out()
            return
        for array in self.arrays:
            if array is not None:
                array.resize((self._capacity, *array.shape[1:]), refcheck=False)


class _Cells(NamedTuple):
    """The cells of some rows: the first rows of their units, the unit of each row, and its row in the unit."""

    distinct: list[int]
    which: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, rows: NDArray[np.int64], firsts: NDArray[np.int64] | None) -> _Cells:
        """Find the cells of rows; in a tenth of the time of `np.unique` for a batch."""
        places: dict[int, int] = {}
        which = [] if firsts is None else [places.setdefault(first, len(places)) for first in firsts.tolist()]
        return cls([*places], np.array(which, dtype=np.int64), rows if firsts is None else rows - firsts)


def _write_windows(windows: NDArray[Any], units: list[UnitWindows], cells: _Cells) -> None:
    writers = [unit.write for unit in units]
    for window, which, row in zip(windows, cells.which.tolist(), cells.rows.tolist(), strict=True):
        writers[which](row, window)


class Rows:
    """Rows gathered from a table, in memory of their own; they may be gathered in parts."""

    def __init__(self, table: Table, num_rows: int, allocate: Callable[..., NDArray[Any]] = np.empty) -> None:
        self.table = table
        self._may_replace = allocate is np.empty
        self._arrays: list[Any] = [
            None if kind.how == "cells" else allocate((num_rows, *kind.shape), kind.dtype) for _, kind in table.kinds
        ]
        self._cells: list[list[Any]] = [[] for _ in table.arrays]

    def gather(self, at: int, rows: NDArray[np.int64], firsts: NDArray[np.int64] | None) -> None:
        """Write these rows of the table at ``at``; ``firsts`` are the first rows of their units, if it has cells."""
        cells = _Cells.of(rows, firsts)
        for number, array in enumerate(self._arrays):
            if self.table.arrays[number] is not None:
                self._take(number, at, rows)
                continue
            units = [self.table.cells[number][first] for first in cells.distinct]
            if array is not None:
                _write_windows(array[at : at + len(rows)], units, cells)
            elif self.table.as_lists[number]:
                self._cells[number] += gathered_values(units, cells.which, cells.rows)
            else:
                self._cells[number].append(gathered_cells(units, cells.which, cells.rows))

    def _take(self, number: int, at: int, rows: NDArray[np.int64]) -> None:
        source, target = self.table.arrays[number], self._arrays[number]
        if take_rows is not None and target.itemsize and rows.flags.c_contiguous:
            part = target[at : at + len(rows)]
            if part.flags.c_contiguous and take_rows(*self.table.place_of(number), rows, part.view(np.uint8)):
                return
        if source.flags.c_contiguous:
            # mode="clip", since with mode="raise" numpy writes to a buffer first; the caller knows the rows exist.
            source.take(rows, axis=0, out=target[at : at + len(rows)], mode="clip")
        elif len(rows) == len(target) and self._may_replace:  # a field of records: take() would copy the whole field
            self._arrays[number] = source[rows]
        else:
            target[at : at + len(rows)] = source[rows]

    def arrays(self) -> list[Any]:
        """Return the columns after all rows are gathered: arrays, and lists of bytes and text."""
        columns = zip(self._arrays, self._cells, self.table.as_lists, strict=True)
        return [
            cells if as_list else joined_cells(cells) if array is None else array for array, cells, as_list in columns
        ]

    def samples(self, num_rows: int) -> Iterator[Sample]:
        """Yield the first rows as samples."""
        arrays = self.arrays()
        for row in range(num_rows):
            yield {
                name: array[row] if isinstance(array, list) else value_in(kind, array, row)
                for (name, kind), array in zip(self.table.kinds, arrays, strict=True)
            }
