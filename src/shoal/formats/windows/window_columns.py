"""The windows of one field as a column: rows stay in their unit, and a window is copied when a batch takes it.

A column of whole windows would repeat each row once for every window that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.field_columns import Kind
from shoal.formats.windows.row_offsets import EDGE, Pad, places


class Anchors(NamedTuple):
    """The anchor rows of some windows, and the rows ``[first, end)`` of their episodes; each of shape (num_windows,).

    Rows are counted from the first row of the extents.
    """

    anchors: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    end_rows: NDArray[np.int64]

    def one(self, number: int) -> Anchors:
        """Return the anchor of one window."""
        return Anchors(*(rows[number : number + 1] for rows in self))


class FieldWindows:
    """The values of a field at some offsets from anchor rows, taken window by window from an array of rows."""

    def __init__(self, name: str, rows: NDArray[Any], at: Anchors, offsets: Sequence[int], pad: Pad) -> None:
        self._name, self._rows, self._at, self._pad = name, rows, at, pad
        self._offsets = np.array(offsets, dtype=np.int64)
        is_run = bool((np.diff(self._offsets) == 1).all())
        least, most = int(self._offsets.min()), int(self._offsets.max())
        inside = (at.anchors + least >= at.first_rows) & (at.anchors + most < at.end_rows)
        # The first row of a window of consecutive rows without padding; -1 for others, which take ten times longer.
        self._starts = np.where(inside, at.anchors + least, -1).tolist() if is_run else [-1] * len(inside)

    @property
    def kind(self) -> Kind:
        """The kind of the column."""
        return Kind("windows", self._rows.dtype, (len(self._offsets), *self._rows.shape[1:]))

    def write(self, number: int, window: NDArray[Any]) -> None:
        """Write window ``number`` into an array of shape (num_offsets, ...)."""
        if (start := self._starts[number]) >= 0:
            window[...] = self._rows[start : start + len(window)]
            return
        rows, is_pad = (each[0] for each in places(*self._at.one(number), self._offsets))
        window[...] = self._rows[rows]
        if self._pad is not None and self._pad != EDGE and is_pad.any():
            window[is_pad] = filling(self._pad, self._rows.dtype, self._name)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return window ``number``."""
        window = np.empty((len(self._offsets), *self._rows.shape[1:]), self._rows.dtype)
        self.write(number, window)
        return window


class MaskWindows:
    """The masks of windows: true for places outside of the episode."""

    def __init__(self, at: Anchors, offsets: Sequence[int]) -> None:
        self._at, self._offsets = at, np.array(offsets, dtype=np.int64)
        first, end = at.first_rows - self._offsets.min(), at.end_rows - self._offsets.max()
        self._is_inside = ((at.anchors >= first) & (at.anchors < end)).tolist()

    @property
    def kind(self) -> Kind:
        """The kind of the column."""
        return Kind("windows", np.dtype(np.bool_), self._offsets.shape)

    def write(self, number: int, window: NDArray[np.bool_]) -> None:
        """Write the mask of window ``number`` into an array of shape (num_offsets,)."""
        window[...] = False if self._is_inside[number] else self[number]

    def __getitem__(self, number: int) -> NDArray[np.bool_]:
        """Return the mask of window ``number``."""
        mask: NDArray[np.bool_] = places(*self._at.one(number), self._offsets).is_pad[0]
        return mask


def filling(pad: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Return the padding of a field as a number of its type; raises `UsageError` if the type has no such number.

    >>> filling(-1, np.dtype("i2"), "action"), filling(0.1, np.dtype("f4"), "action")
    (array(-1, dtype=int16), array(0.1, dtype=float32))
    """
    with np.errstate(all="ignore"):
        try:
            value = np.array(pad).astype(dtype)
            fits = bool(value == pad) or (dtype.kind in "fc" and bool(np.isclose(value, pad, equal_nan=True)))
        except (ValueError, TypeError, OverflowError):
            fits = False
    if not fits:
        msg = f"windows(pad={pad!r}): the field {name!r} is of type {dtype}, which has no such number"
        raise UsageError(msg, hint='give a number that all stacked fields can hold, or pad="edge"')
    return value
