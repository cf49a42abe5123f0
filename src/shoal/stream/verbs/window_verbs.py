"""The method of a dataset that makes samples of consecutive rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from shoal.stream.derived.window_arguments import window_shape
from shoal.stream.derived.windowed_spec import windowed_spec
from shoal.stream.verbs.stage_verbs import StageVerbs


class WindowVerbs(StageVerbs):
    """Methods of `Dataset` that make other samples of stored ones."""

    def windows(
        self,
        length: int | None = None,
        *,
        stride: int = 1,
        by: Any = "episode_index",
        pad: str | float | None = None,
        offsets: Mapping[str, Iterable[int]] | None = None,
    ) -> Self:
        """Make samples of consecutive rows: windows of a time series, a recording or the episodes of a robot.

        A window is a sample: ids number the windows in the order of storage, and order, splits, columns, states and
        certificates speak of windows. A window never crosses the border of an episode. Fields of numbers and of
        arrays of one shape are stacked, shape (length, ...); other fields are lists. ``__key__`` names the anchor
        row, the first row of a plain window. Columns of the index have the value of the anchor row, whose id is the
        column ``anchor_row``. Call `windows` first, on stored rows; of selected rows, windows have only selected ones.

        Parameters
        ----------
        length
            Number of rows of a window.
        stride
            Rows from one anchor row to the next, within an episode.
        by
            The episode of each row: a column of the index, a field (read from all rows once, and cached), or an array
            by sample id. None if each shard is one episode. The rows of an episode follow each other in one shard.
        pad
            None: only windows that lie in their episode; the text of the dataset counts the rows in no window.
            "edge": every ``stride``-th row is an anchor, and places outside of the episode repeat its first or last
            row. A number: such places hold this number (None in lists). Padded windows have the boolean field
            ``is_pad``, shape (length,).
        offsets
            Instead of ``length``: the rows of some fields, relative to the anchor row, such as
            ``{"image": [-1, 0], "action": range(16)}``. Each such field is stacked, shape (num_offsets, ...), and
            with ``pad`` its mask is the field ``<name>_is_pad``. Other fields have the value of the anchor row.

        Raises
        ------
        UsageError
            Another method that orders, changes or groups samples was called before, an episode lies in two places, or
            no episode is as long as a window.

        Examples
        --------
        >>> pairs = ds.windows(2, by=None)
        >>> pairs
        <shoal.Dataset: 196 samples of 4 tar shards, windows of 2 rows in 4 episodes by shard>
        >>> pairs[122]
        {'__key__': 'dog/004', 'txt': [b'dog 4', b'dog 5'], 'cls': [b'1', b'1']}
        """
        shape = window_shape(length, stride=stride, pad=pad, offsets=offsets)
        return type(self)(windowed_spec(self.stream.spec, shape, by))
