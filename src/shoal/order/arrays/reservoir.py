"""Shuffle buffers in index space: the sample that each step emits, without holding a buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_TILE_BITS = 16
_TILE = 1 << _TILE_BITS


class Reservoir:
    """A buffer in which every step picks a slot, emits the sample in the slot, and puts the next sample into the slot.

    Samples are numbered in the order of arrival: the first ``slots`` samples fill the buffer, and step ``t`` inserts
    sample ``slots + t``. So a step emits the sample of the last earlier step with the same slot, or the slot's first
    sample. The buffer returns names of samples; names may differ from numbers.

    Parameters
    ----------
    slots
        Slots of the buffer, fewer than 2^32.
    picked
        Returns the slots that steps ``[first, end)`` pick, up to 2^16 steps at a time.
    arriving
        Returns the names of the samples with numbers ``[first, end)``.
    names
        Returns the names of samples with any numbers.
    """

    def __init__(
        self,
        slots: int,
        picked: Callable[[int, int], NDArray[np.int64]],
        arriving: Callable[[int, int], NDArray[np.int64]],
        names: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    ) -> None:
        self._slots, self._picked, self._arriving, self._names = slots, picked, arriving, names
        # The contents before step `_at`: a cache, because any step can be computed from scratch.
        self._at, self._contents = 0, arriving(0, slots)

    def left(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the samples that steps ``[first, end)`` emit; O(slots log slots) after a seek."""
        parts = [self._tile(step, min(step + _TILE, end)) for step in range(first, end, _TILE)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def contents(self, step: int) -> NDArray[np.int64]:
        """Return the sample in each slot before a step; shape (slots,)."""
        if self._at == step:
            return self._contents.copy()
        contents = np.full(self._slots, -1, dtype=np.int64)
        missing, end = self._slots, step
        while missing and end > 0:  # backwards: the last sample inserted before the step counts
            begin = max(0, end - _TILE)
            latest = np.full(self._slots, -1, dtype=np.int64)
            latest[self._picked(begin, end)] = self._slots + np.arange(begin, end)
            new = (contents < 0) & (latest >= 0)
            contents[new] = latest[new]
            missing -= int(np.count_nonzero(new))
            end = begin
        untouched = contents < 0
        contents[untouched] = np.flatnonzero(untouched)
        return self._names(contents)

    def _tile(self, first: int, end: int) -> NDArray[np.int64]:
        contents = self.contents(first)
        picked, arriving = self._picked(first, end), self._arriving(self._slots + first, self._slots + end)
        # Sorting words of slot and step is several times as fast as a stable argsort of slots.
        words = (picked << _TILE_BITS) + np.arange(end - first)
        words.sort()
        slots = words >> _TILE_BITS
        again = np.flatnonzero(slots[1:] == slots[:-1])  # the next step with this slot is in the same tile
        words &= _TILE - 1
        left = contents[picked]
        left[words[again + 1]] = arriving[words[again]]
        contents[picked] = arriving  # the last of several samples for a slot stays
        self._at, self._contents = end, contents
        return left


def found_by_scan(
    left: Callable[[int, int], NDArray[np.int64]], samples: NDArray[np.int64], begin: int, end: int
) -> NDArray[np.int64]:
    """Return the place of each sample in a sequence, -1 if not in ``[begin, end)``; stop when all places are known.

    ``left(first, end)`` returns a part of the sequence; the sequence has no repeats.
    """
    distinct, back = np.unique(samples, return_inverse=True)
    places = np.full(len(distinct), -1, dtype=np.int64)
    missing = len(distinct)
    for first in range(begin, end, _TILE):
        if not missing:
            break
        tile = left(first, min(first + _TILE, end))
        rows = np.minimum(np.searchsorted(distinct, tile), len(distinct) - 1)
        hits = np.flatnonzero(distinct[rows] == tile)
        places[rows[hits]] = first + hits
        missing -= len(hits)
    return places[back]
