"""The arithmetic of windows: from the borders of episodes to anchor rows, and from anchors to rows and padded places.

Numpy alone, without bytes and formats: frames of a video are found by the same functions as rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pad = str | int | float | None
"""How places outside of an episode are filled: not at all (None), by the nearest row ("edge"), or by a number."""

EDGE = "edge"


class Places(NamedTuple):
    """The rows of some windows, and the places that lie outside of the episode; both of shape (num_windows, width).

    The row of a padded place is the nearest row of the episode.
    """

    rows: NDArray[np.int64]
    is_pad: NDArray[np.bool_]


def places(
    anchors: NDArray[np.int64], first_rows: NDArray[np.int64], end_rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> Places:
    """Return the row at each offset from each anchor, inside of the episode ``[first_row, end_row)`` of the anchor.

    ``anchors``, ``first_rows`` and ``end_rows`` have shape (num_windows,), ``offsets`` has shape (width,).

    >>> rows, is_pad = places(np.array([5, 6]), np.array([5, 5]), np.array([8, 8]), np.array([-1, 0, 1]))
    >>> rows.tolist(), is_pad.tolist()
    ([[5, 5, 6], [5, 6, 7]], [[True, False, False], [False, False, False]])
    """
    rows = anchors[:, None] + offsets
    inside = np.clip(rows, first_rows[:, None], end_rows[:, None] - 1)
    return Places(inside, rows != inside)


@dataclass(frozen=True, slots=True)
class WindowShape:
    """The rows of a window, relative to its anchor row.

    Plain windows have ``length`` rows from the anchor on. Otherwise ``offsets`` has the offsets of some fields by name;
    all other fields have the value of the anchor row. Every ``stride``-th row of an episode is an anchor, if the window
    lies in the episode; with ``pad``, also if it does not.

    >>> shape = WindowShape(offsets={"image": (-1, 0), "action": (0, 1, 2)})
    >>> shape.before, shape.after
    (1, 2)
    """

    length: int = 1
    stride: int = 1
    pad: Pad = None
    offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def before(self) -> int:
        """The number of rows before the anchor that a window may have."""
        return max([0, *(-offset for some in self.offsets.values() for offset in some)])

    @property
    def after(self) -> int:
        """The number of rows after the anchor that a window may have."""
        return max([self.length - 1, *(offset for some in self.offsets.values() for offset in some)])

    @property
    def is_padded(self) -> bool:
        """True if windows may reach beyond their episode."""
        return self.pad is not None

    @property
    def rows_used(self) -> int:
        """Upper bound on the number of rows that a window takes values from."""
        return max(self.length, len({0, *(offset for some in self.offsets.values() for offset in some)}))

    def to_dict(self) -> dict[str, Any]:
        """Return the shape as JSON."""
        offsets = {name: list(some) for name, some in self.offsets.items()}
        return {"length": self.length, "stride": self.stride, "pad": self.pad, "offsets": offsets}

    def __str__(self) -> str:
        """Return the shape in words."""
        rows = f"{self.length} rows" if not self.offsets else f"rows at offsets {-self.before} to {self.after}"
        every = "" if self.stride == 1 else f", every {self.stride} rows"
        return rows + every + ("" if self.pad is None else f", pad={self.pad!r}")


@dataclass(frozen=True, eq=False)
class WindowTable:
    """The windows of all episodes, numbered in the order of their anchor rows.

    Episode ``e`` has the rows ``[borders[e], borders[e + 1])``; ``borders`` has shape (num_episodes + 1,), int64. All
    methods take and return arrays; a number is found in O(log num_episodes).

    >>> table = WindowTable(np.array([0, 5, 7]), WindowShape(length=3))
    >>> table.num_windows, table.anchors(np.arange(3)).tolist()
    (3, [0, 1, 2])
    """

    borders: NDArray[np.int64]
    shape: WindowShape

    @cached_property
    def first_window(self) -> NDArray[np.int64]:
        """The first window of each episode, then the number of windows; shape (num_episodes + 1,)."""
        firsts = np.zeros(len(self.borders), dtype=np.int64)
        np.cumsum(self._counts(), out=firsts[1:])
        return firsts

    @property
    def num_windows(self) -> int:
        """Number of windows of all episodes."""
        return int(self.first_window[-1])

    def _counts(self) -> NDArray[np.int64]:
        shape, lengths = self.shape, np.diff(self.borders)
        room = lengths if shape.is_padded else lengths - shape.before - shape.after
        counts: NDArray[np.int64] = np.maximum(room + shape.stride - 1, 0) // shape.stride
        return counts

    @property
    def _lead(self) -> int:
        """The number of rows of an episode before its first anchor."""
        return 0 if self.shape.is_padded else self.shape.before

    def episodes(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the episode of each window."""
        return np.searchsorted(self.first_window, windows, side="right") - 1

    def anchors(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the anchor row of each window."""
        episodes = self.episodes(windows)
        inside = windows - self.first_window[episodes]
        anchors: NDArray[np.int64] = self.borders[episodes] + self._lead + inside * self.shape.stride
        return anchors

    def episode_rows(self, windows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the end row of the episode of each window."""
        episodes = self.episodes(windows)
        return self.borders[episodes], self.borders[episodes + 1]

    def row_ranges(self, windows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row that each window may have, and the row behind the last; both ascend with the windows."""
        anchors, (first_rows, end_rows) = self.anchors(windows), self.episode_rows(windows)
        firsts = np.maximum(anchors - self.shape.before, first_rows)
        return firsts, np.minimum(anchors + self.shape.after + 1, end_rows)

    def windows_before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the windows whose first row lies before each of some rows."""
        episodes = np.clip(np.searchsorted(self.borders, rows, side="left") - 1, 0, max(len(self.borders) - 2, 0))
        first_rows, first_windows = self.borders[episodes], self.first_window[episodes]
        # The first row of window j is max(first_row, anchor_j - before).
        room = rows + self.shape.before - first_rows - self._lead
        inside = np.where(rows > first_rows, -(-room // self.shape.stride), 0)
        counts: NDArray[np.int64] = first_windows + np.clip(inside, 0, self.first_window[episodes + 1] - first_windows)
        return counts

    def num_rows_covered(self) -> int:
        """Count the rows from the first to the last row of some window."""
        shape = self.shape
        if shape.stride > shape.before + shape.after:  # no two windows of an episode share a row
            first, end = self.row_ranges(np.arange(self.num_windows))
            return int((end - first).sum())
        filled = np.flatnonzero(np.diff(self.first_window))
        first, _ = self.row_ranges(self.first_window[filled])
        _, end = self.row_ranges(self.first_window[filled + 1] - 1)
        return int((end - first).sum())
