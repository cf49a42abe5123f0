"""Borders of episodes: consecutive rows of one shard with the same value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.table import Index

_HINT = (
    "the rows of an episode must follow each other in one shard: `shoal repack --sort` or `shoal pack` in the order of "
    "episodes, or by= an array with another number for each part"
)


def shard_borders(index: Index) -> NDArray[np.int64]:
    """Return the first row of each shard that has rows, then the number of rows: each shard is an episode."""
    firsts = index.extent_first_sample[index.shard_first_extent]
    return np.unique(firsts).astype(np.int64)


def episode_borders(values: NDArray[Any], index: Index, *, name_of: Callable[[Any], str], by: str) -> NDArray[np.int64]:
    """Return the first row of each episode, then the number of rows; shape (num_episodes + 1,).

    ``values`` has the episode of each row, shape (num_rows,); ``name_of`` names a value in errors. Raises `UsageError`
    if the rows of an episode do not follow each other, or lie in two shards.
    """
    shards = shard_borders(index)
    is_first = np.zeros(len(values) + 1, dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:-1])
    is_first[shards] = True
    borders = np.flatnonzero(is_first)
    _check_once(values, borders, index, name_of=name_of, by=by)
    return borders


def _check_once(
    values: NDArray[Any], borders: NDArray[np.int64], index: Index, *, name_of: Callable[[Any], str], by: str
) -> None:
    """Raise `UsageError` if two runs of rows have the same value."""
    firsts = values[borders[:-1]]
    order = np.argsort(firsts, kind="stable")
    again = np.flatnonzero(firsts[order][1:] == firsts[order][:-1])
    if not len(again):
        return
    run, other = order[again[0]], order[again[0] + 1]
    num_twice = len(np.unique(firsts[order][again]))
    places = [_words(index, int(borders[each]), int(borders[each + 1])) for each in (run, other)]
    msg = f"the rows of the episode {name_of(firsts[run])} (by={by}) lie in two places: {places[0]}; and {places[1]}"
    msg += f"; {num_twice:,} episodes lie in several places" if num_twice > 1 else ""
    raise UsageError(msg, hint=_HINT)


def _words(index: Index, first: int, end: int) -> str:
    extent = int(np.searchsorted(index.extent_first_sample, first, side="right")) - 1
    return f"rows {first} to {end - 1} in {index.shard_names[int(index.extent_shard[extent])]}"
