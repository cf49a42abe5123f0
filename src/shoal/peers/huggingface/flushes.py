"""Flushes of the block buffer: arithmetic on the sizes of the chunks that arrive."""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray


class Flushes:
    """The flushes of a buffer into which chunks of samples come, all of one size but for a few that are shorter.

    The buffer is flushed when it has ``buffer_size`` samples or more, and keeps ``buffer_size // 2``; a last flush
    empties it. Between short chunks flushes are equally far apart: O(number of short chunks) memory and time to make.

    Parameters
    ----------
    num_samples
        Samples of all chunks.
    chunk_size
        Samples of a chunk.
    short
        Numbers of shorter chunks, ascending, and the samples of each.
    buffer_size
        Size of the buffer.

    Notes
    -----
    A flush is a window onto the samples as they arrive: `begins` to `ends`. Up to where the next window begins its
    samples leave.
    """

    def __init__(self, num_samples: int, chunk_size: int, short: list[tuple[int, int]], buffer_size: int) -> None:
        self._num_samples, self._keep = num_samples, buffer_size // 2
        runs = _runs(num_samples, chunk_size, short, buffer_size)
        # Of each run of equally distant flushes: the number of the first, where it ends, the distance to the next.
        self._first, self._end, self._distance = np.array(runs, dtype=np.int64).T
        self._last = int(self._first[-1])
        if int(self.ends(self._last - 1)) - self._keep == num_samples and self._last:
            self._last -= 1  # nothing is left for a flush at the end

    def __len__(self) -> int:
        return self._last + 1

    @overload
    def ends(self, flushes: int) -> np.int64: ...
    @overload
    def ends(self, flushes: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def ends(self, flushes: int | NDArray[np.int64]) -> np.int64 | NDArray[np.int64]:
        """Return how many samples have arrived when flushes happen; 0 before the first, -1."""
        run = np.maximum(np.searchsorted(self._first, flushes, side="right") - 1, 0)
        ends = self._end[run] + (flushes - self._first[run]) * self._distance[run]
        return np.where(np.asarray(flushes) < 0, 0, ends)[()]

    @overload
    def begins(self, flushes: int) -> np.int64: ...
    @overload
    def begins(self, flushes: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def begins(self, flushes: int | NDArray[np.int64]) -> np.int64 | NDArray[np.int64]:
        """Return how many samples have left when flushes happen; all of them after the last."""
        begins = np.maximum(self.ends(flushes - 1) - self._keep, 0)
        return np.where(np.asarray(flushes) > self._last, self._num_samples, begins)[()]

    def kept_before(self, flush: int) -> int:
        """Return how many samples the flush before kept."""
        return int(self.ends(flush - 1) - self.begins(flush))

    def that_happens_at(self, arrived: int) -> int:
        """Return the first flush that happens when so many samples have arrived, or later."""
        return self.that_emits(arrived - 1 - self._keep)

    def that_emits(self, number: int) -> int:
        """Return the flush by which the sample with a number leaves."""
        # Flush f lets the samples up to ends(f) - keep go: the first whose end is beyond number + keep, or the last.
        reached = number + self._keep
        run = int(np.searchsorted(self._end, reached, side="right")) - 1
        if run < 0:
            return 0
        passed = (reached - int(self._end[run])) // int(self._distance[run]) if self._distance[run] else 0
        following = int(self._first[run + 1]) - 1 if run + 1 < len(self._first) else self._last
        return min(int(self._first[run]) + min(passed, following - int(self._first[run])) + 1, self._last)


def _runs(
    num_samples: int, chunk_size: int, short: list[tuple[int, int]], buffer_size: int
) -> list[tuple[int, int, int]]:
    """Return the first flush, its end and the distance of each run of flushes; the last is that at the end."""
    lacking = sum(chunk_size - samples for _, samples in short)
    num_chunks = (num_samples + lacking) // chunk_size
    borders = iter([*short, (num_chunks, 0)])
    border, samples = next(borders)
    chunk = arrived = flush = 0
    wanted = buffer_size
    runs = []
    while chunk < num_chunks:
        regular = -(-wanted // chunk_size)
        count = (border - chunk) // regular if flush else min(1, (border - chunk) // regular)
        if count:
            runs.append((flush, arrived + regular * chunk_size, regular * chunk_size))
            chunk, arrived = chunk + count * regular, arrived + count * regular * chunk_size
        else:
            waiting = 0
            while waiting < wanted and chunk < num_chunks:
                whole = min(-(-(wanted - waiting) // chunk_size), border - chunk)
                chunk, waiting = chunk + whole, waiting + whole * chunk_size
                if waiting < wanted and chunk < num_chunks:  # the next chunk is short
                    chunk, waiting = chunk + 1, waiting + samples
                    border, samples = next(borders)
            arrived += waiting
            if waiting < wanted:
                break
            count = 1
            runs.append((flush, arrived, 0))
        flush += count
        wanted = buffer_size - buffer_size // 2
    return [*runs, (flush, num_samples, 0)]
