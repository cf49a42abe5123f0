"""The arguments of `Dataset.windows`, checked: the rows of a window, and the episode of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text, with_type
from shoal.errors import UsageError
from shoal.formats.windows.row_offsets import EDGE, Pad, WindowShape
from shoal.order.protocol import as_whole, as_within

MOST_ROWS = 1 << 24
_EXAMPLE = 'offsets={"image": [-1, 0], "action": range(16)}'


def window_shape(length: Any, *, stride: Any, pad: Any, offsets: Any) -> WindowShape:
    """Return the rows of a window; raises `UsageError`, see `shoal.Dataset.windows`."""
    if (length is None) == (offsets is None):
        given = "neither" if length is None else "both"
        msg = f"windows() takes a length, or offsets by field; got {given}"
        raise UsageError(msg, hint=f"windows(16), or windows({_EXAMPLE})")
    every = as_within("windows(stride=)", stride, 1, MOST_ROWS)
    if offsets is None:
        return WindowShape(length=as_within("windows(length)", length, 1, MOST_ROWS), stride=every, pad=_pad(pad))
    if not isinstance(offsets, Mapping) or not offsets:
        msg = f"windows(offsets=) takes offsets by field; got {with_type(offsets)}"
        raise UsageError(msg, hint=_EXAMPLE)
    by_field = {_field(name): _offsets(name, some) for name, some in offsets.items()}
    return WindowShape(stride=every, pad=_pad(pad), offsets=by_field)


def _field(name: Any) -> str:
    return as_text("windows(offsets=) takes names of fields: each", name, hint=_EXAMPLE)


def _offsets(name: str, some: Any) -> tuple[int, ...]:
    """Return the offsets of a field, as integers."""
    if isinstance(some, str | bytes | Mapping) or not hasattr(some, "__iter__"):
        msg = f"windows(offsets=): the offsets of {name!r} are a list of integers; got {with_type(some)}"
        raise UsageError(msg, hint=_EXAMPLE)
    numbers = tuple(as_whole(f"an offset of {name!r}", offset) for offset in some)
    if not numbers or max(map(abs, numbers)) >= MOST_ROWS:
        msg = f"windows(offsets=): {name!r} has {'no offsets' if not numbers else 'offsets beyond 2**24 rows'}"
        raise UsageError(msg, hint=f"{_EXAMPLE}; leave out fields that need only the row itself")
    return numbers


def _pad(pad: Any) -> Pad:
    if pad is None or (isinstance(pad, str) and pad == EDGE):
        return pad
    if isinstance(pad, int | float | np.number) and not isinstance(pad, bool | np.bool_):
        return pad.item() if isinstance(pad, np.number) else pad
    msg = f"windows(pad=) takes None, 'edge' or a number; got {with_type(pad)}"
    raise UsageError(msg, hint='pad="edge" repeats the first or last row of an episode, pad=0 fills with zeros')


def given_episodes(by: Any, num_rows: int) -> tuple[NDArray[Any], list[str] | None]:
    """Return a number for the episode of each row, and the texts that they stand for, from an array by row."""
    values = np.asarray(by)
    if values.shape != (num_rows,) or values.dtype.kind not in "biuUO":
        what = f"an integer or text for each of {num_rows} rows by id"
        msg = f"windows(by=) takes a column of the index, or {what}; got {values.dtype} of shape {values.shape}"
        raise UsageError(msg, hint='by="episode_index", or by=None if each shard is an episode')
    if values.dtype.kind in "biu":
        return values, None
    if values.dtype.kind == "O" and not all(isinstance(value, str) for value in values.tolist()):
        raise UsageError("windows(by=): some episodes are neither integers nor texts", hint="give integers, or texts")
    texts, numbers = np.unique(values.astype("U"), return_inverse=True)
    return numbers.astype(np.int64), texts.tolist()
