"""The windows that begin in some consecutive extents: samples by number, and columns of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.field_columns import Columns, Kind
from shoal.formats.shard_format import Records, Sample
from shoal.formats.windows.row_fields import (
    ABSENT,
    Field,
    RowFields,
    Stack,
    columns_in,
    each_row,
    fields_of_columns,
    fields_of_rows,
    owned,
)
from shoal.formats.windows.row_offsets import EDGE, Pad, Places, WindowShape, places
from shoal.formats.windows.window_columns import Anchors, FieldWindows, MaskWindows, filling

IS_PAD = "is_pad"
"""Field of padded plain windows: true for places outside of the episode."""


def mask_name(field: str) -> str:
    """Return the name of the mask of a field with offsets: true for places outside of the episode."""
    return f"{field}_{IS_PAD}"


class WindowRecords:
    """Windows as samples by number; rows are decoded once, as soon as a second window is needed.

    ``stack`` makes one value of the values of a field.
    """

    def __init__(self, rows: Records, at: Anchors, shape: WindowShape, stack: Stack) -> None:
        self._rows, self._at, self._shape, self._stack = rows, at, shape, stack
        self._is_first = len(at.anchors) > 1

    def __len__(self) -> int:
        return len(self._at.anchors)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return zeros: shards are compared with the index of their rows."""
        return np.zeros(len(self), dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Return window ``number``; raises the `ShardError` of the first damaged row among its rows."""
        at = self._at.one(number)
        if self._is_first and "_decoded" not in vars(self):
            self._is_first = False  # perhaps no other window is needed
            return WindowRecords(self._rows, at, self._shape, self._stack).sample(0)
        return _OneWindow(self._decoded, at, self._shape, self._stack).sample()

    def columns(self) -> Columns | None:
        """Return the fields of all windows as columns; None if a row is damaged, or windows of a field are lists."""
        fields, offsets, pad = self._decoded, self._shape.offsets, self._shape.pad
        if fields.errors:
            return None  # a window without the damaged row is sound
        columns: dict[str, tuple[Kind, Any]] = {}
        for name, field in fields.fields.items():
            some = range(self._shape.length) if not offsets else offsets.get(name)
            if some is None or _names_row(name):
                column = fields.column(name, self._at.anchors)
            else:
                column = _column(name, field, self._at, some, pad)
            if column is None:
                return None
            columns[name] = column
        for mask, some in self._masks():
            _refuse_taken(columns, mask)
            windows = MaskWindows(self._at, some)
            columns[mask] = windows.kind, windows
        kinds = tuple((name, kind) for name, (kind, _) in columns.items())
        return Columns(kinds, tuple(array for _, array in columns.values()))

    def _masks(self) -> list[tuple[str, Any]]:
        """Return the name and the offsets of each mask."""
        shape, known = self._shape, self._decoded.fields
        if not shape.is_padded:
            return []
        if not shape.offsets:
            return [(IS_PAD, range(shape.length))]
        return [(mask_name(name), some) for name, some in shape.offsets.items() if name in known]

    @cached_property
    def _decoded(self) -> RowFields:
        """The fields of the rows of these windows."""
        columns = columns_in(self._rows)
        if columns is not None:
            return fields_of_columns(columns)
        return fields_of_rows(each_row(self._rows, self._rows_used().tolist()), len(self._rows))

    def _rows_used(self) -> NDArray[np.int64]:
        """Return the rows that some window has, in order."""
        used = np.zeros(len(self._rows), dtype=np.bool_)
        for offset in {*range(self._shape.length)}.union(*self._shape.offsets.values()):
            used[np.clip(self._at.anchors + offset, self._at.first_rows, self._at.end_rows - 1)] = True
        return np.flatnonzero(used)


class _OneWindow:
    """The values of one window."""

    def __init__(self, fields: RowFields, at: Anchors, shape: WindowShape, stack: Stack) -> None:
        self._fields, self._at, self._shape, self._stack = fields, at, shape, stack

    def sample(self) -> Sample:
        """Return the window; raises the error of a damaged row."""
        offsets = self._shape.offsets
        plain = None if offsets else places(*self._at, np.arange(self._shape.length))
        some = {name: places(*self._at, np.array(each)) for name, each in offsets.items()}
        self._refuse_damaged([*some.values()] if plain is None else [plain])
        sample: Sample = {}
        for name in self._fields.fields:
            at = None if _names_row(name) else plain or some.get(name)
            value = (
                self._fields.value(name, int(self._at.anchors[0]))
                if at is None
                else self._values(name, at.rows[0], at.is_pad[0])
            )
            if value is not ABSENT:
                sample[name] = value
        if self._shape.is_padded:
            masks = {IS_PAD: plain} if plain is not None else {mask_name(name): some[name] for name in some}
            for mask, each in masks.items():
                if plain is not None or mask.removesuffix(f"_{IS_PAD}") in sample:
                    _refuse_taken(sample, mask)
                    sample[mask] = each.is_pad[0]
        return sample

    def _refuse_damaged(self, used: list[Places]) -> None:
        """Raise the error of the first damaged row of this window."""
        if errors := self._fields.errors:
            rows = {int(self._at.anchors[0]), *(row for each in used for row in each.rows[0].tolist())}
            if damaged := sorted(rows & errors.keys()):
                raise errors[damaged[0]]

    def _values(self, name: str, rows: NDArray[np.int64], is_pad: NDArray[np.bool_]) -> Any:
        """Return the values of a field at some rows as one array if they can be stacked, else as a list."""
        field, pad = self._fields.fields[name], self._shape.pad
        fills = pad is not None and pad != EDGE and bool(is_pad.any())
        if isinstance(field, np.ndarray):
            values = field[rows]
            if fills:
                values[is_pad] = filling(pad, field.dtype, name)
            return values
        listed = [field(row) for row in rows.tolist()]
        if all(value is ABSENT for value in listed):
            return ABSENT
        listed = [None if value is ABSENT else owned(value) for value in listed]
        return self._stack(_filled(listed, is_pad, pad, name) if fills else listed)


def _column(name: str, field: Field, at: Anchors, offsets: Sequence[int], pad: Pad) -> tuple[Kind, Any] | None:
    """Return the windows of a field as a column; None if they are lists."""
    if not isinstance(field, np.ndarray):
        return None
    windows = FieldWindows(name, field, at, offsets, pad)
    return windows.kind, windows


def _names_row(name: str) -> bool:
    """Return True for a field that names its row, like ``__key__``: a window has the name of its anchor row."""
    return name.startswith("__") and name.endswith("__")


def _refuse_taken(sample: Mapping[str, Any], mask: str) -> None:
    if mask in sample:
        msg = f"the rows have a field {mask!r}, but padded windows mark their padded places in this field"
        raise UsageError(msg, hint="write the rows with another name for the field, or leave out pad=")


def _filled(values: list[Any], is_pad: NDArray[np.bool_], pad: Any, name: str) -> list[Any]:
    """Return a list of values with padded places filled: arrays and numbers with the number, others with None."""
    filled = []
    for value, padded in zip(values, is_pad.tolist(), strict=True):
        if not padded:
            filled.append(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            filled.append(np.full_like(value, filling(pad, value.dtype, name)))
        elif isinstance(value, int | float | np.number):
            number = filling(pad, np.asarray(value).dtype, name)
            filled.append(number[()] if isinstance(value, np.number) else number.item())
        else:
            filled.append(None)
    return filled
