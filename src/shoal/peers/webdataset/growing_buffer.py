"""WebDataset's shuffle, computed in index space.

The buffer begins with ``initial`` samples and takes two for each that it emits, until it has ``bufsize``; then one for
one, and at the end none. A step picks a place at random, emits its sample, and fills the place with the sample at the
last place, which came last. So until the stream ends, the sample at a place follows from the last step that picked the
place: it is that step's newest sample, or the first that came to the place. While the buffer is emptied, the sample at
the last place depends on the steps before; that is a shuffle of Fisher and Yates, from the end.

References
----------
``_shuffle`` and ``pick`` in ``webdataset/filters.py`` of WebDataset 1.0.2.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shoal.peers.mersenne_twister import MersenneWords
from shoal.peers.transpositions import exchanged
from shoal.peers.webdataset.python_integers import PythonIntegers

_TILE_BITS = 14
_TILE = 1 << _TILE_BITS


class GrowingBuffer:
    """The arrival emitted at each step, for a stream of ``length`` samples; None for an endless stream.

    Memory: 8 bytes per sample of the buffer, and 8 bytes per 2^14 steps up to the furthest step. A call takes 40 ns per
    step if it starts at the end of the last call; a seek goes back about ``bufsize log(bufsize)`` steps, and skips new
    words.
    """

    def __init__(self, length: int | None, bufsize: int, initial: int, words: MersenneWords) -> None:
        length = 1 << 62 if length is None else length
        self._length, self._size = length, max(1, bufsize)
        # Samples arrive in pairs as long as there is room, so the first step finds an even number of samples, or all.
        self._first = min(self._size, max(2, -(-min(initial, bufsize) // 2) * 2))
        self._full = self._size - self._first  # the first step with a full buffer
        # The first step with fewer samples than in an endless stream.
        self._ended = max(0, (length - self._first) // 2 + 1, length - self._size + 1)
        self._grown = min(self._full, self._ended)
        self._integers = PythonIntegers(words)
        self._block_words: list[int] = []  # the first word of each block of steps of the full buffer
        self._block = -1, np.zeros(0, dtype=np.int64)
        self._at, self._contents = -1, np.zeros(0, dtype=np.int64)  # the arrival at each place before a step

    def arrivals(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers, in the order of arrival, of the samples that the steps ``[start, stop)`` emit."""
        arrivals = np.empty(stop - start, dtype=np.int64)
        at = start
        while at < stop:
            if at >= self._ended:
                arrivals[at - start :] = self._last[at - self._ended : stop - self._ended]
                break
            end = min(stop, self._piece(at)[1])
            arrivals[at - start : end - start] = self._emitted(at, end)
            at = end
        return arrivals

    def steps(self, arrivals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the step that emits each arrival, by a scan from the first possible step: O(length)."""
        by_arrival = np.argsort(arrivals)
        ordered = arrivals[by_arrival]
        steps = np.full(len(arrivals), -1, dtype=np.int64)
        missing, at = len(arrivals), max(0, int(arrivals.min(initial=self._length)) - self._size)
        while missing and at < self._length:
            end = min(at + _TILE, self._length)
            emitted = self.arrivals(at, end)
            places = np.minimum(np.searchsorted(ordered, emitted), len(ordered) - 1)
            hits = np.flatnonzero(ordered[places] == emitted)
            steps[by_arrival[places[hits]]] = at + hits
            missing, at = missing - len(hits), end
        return steps

    def _piece(self, step: int) -> tuple[int, int]:
        """Return the range of steps drawn together with a step: of the growing buffer, or of a block."""
        if step < self._grown:
            begin = step - step % _TILE
            return begin, min(begin + _TILE, self._grown)
        number = (step - self._full) // _TILE
        return self._full + number * _TILE, min(self._full + (number + 1) * _TILE, self._ended)

    def _picks(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the place picked by each step of a piece."""
        if start < self._grown:
            return self._growing[start:stop]
        first = self._piece(start)[0]
        number = (first - self._full) // _TILE
        if self._block[0] != number:
            _ = self._growing  # draws the words before the blocks
            for block in range(min(number, len(self._block_words) - 1), number + 1):
                self._integers.seek(self._block_words[block])
                begin = self._full + block * _TILE
                self._block = block, self._integers.equal(min(_TILE, self._ended - begin), self._size)
                if block + 1 == len(self._block_words):
                    self._block_words.append(self._integers.next_word)
        return self._block[1][start - first : stop - first]

    @cached_property
    def _growing(self) -> NDArray[np.int64]:
        """Places picked by the steps of the growing buffer."""
        self._integers.seek(0)
        picks = self._integers.ramp(self._grown, self._first, 1)
        self._block_words.append(self._integers.next_word)
        return picks

    def _emitted(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the arrivals emitted by the steps of a piece, and update the contents of the buffer."""
        contents, picks = self._contents_before(start), self._picks(start, stop)
        if start < self._grown:
            inner = np.flatnonzero(picks < np.arange(start, stop) + self._first - 1)
            emitted = self._newest(start, stop)
            if len(inner):
                emitted[inner] = _exchanged(contents, picks[inner], emitted[inner])
        else:  # the sample at the last place is never used
            newest = self._newest(start, stop)
            emitted = _exchanged(contents, picks, newest)
            last = picks == self._size - 1
            emitted[last] = newest[last]
        self._at = stop
        return emitted

    def _newest(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the newest sample in the buffer before each step; this sample is at the last place."""
        steps = np.arange(start, stop)
        return steps + np.minimum(steps + self._first, self._size) - 1

    def _contents_before(self, step: int) -> NDArray[np.int64]:
        """Return the sample at each place of the buffer before a step; the result is kept for the next call."""
        if self._at == step:
            return self._contents
        contents = np.full(self._size, -1, dtype=np.int64)
        missing, end = self._size - 1, step
        while missing and end > 0:  # backwards: the last arrival at a place counts
            begin = self._piece(end - 1)[0]
            picks, newest = self._picks(begin, end), self._newest(begin, end)
            if begin < self._grown:
                inner = picks < np.arange(begin, end) + self._first - 1
                picks, newest = picks[inner], newest[inner]
            latest = np.full(self._size, -1, dtype=np.int64)
            latest[picks] = newest
            new = (contents < 0) & (latest >= 0)
            contents[new] = latest[new]
            missing, end = missing - int(np.count_nonzero(new[:-1])), begin
        places = np.arange(self._size)
        first = np.where(places < self._first - 1, places, 2 * places - self._first + 2)  # the first arrival
        contents = np.where(contents < 0, first, contents)
        self._at, self._contents = step, contents
        return contents

    @cached_property
    def _last(self) -> NDArray[np.int64]:
        """Arrivals emitted by the last steps; these steps empty the buffer."""
        size = self._length - self._ended
        contents = self._contents_before(self._ended)
        _ = self._growing
        if self._ended > self._full:
            self._picks(self._ended - 1, self._ended)
        self._integers.seek(self._block_words[-1])
        partners = size - 1 - self._integers.ramp(size, size, -1)
        last: NDArray[np.int64] = contents[size - 1 - exchanged(size, lambda start, stop: partners[start:stop])]
        return last


def _exchanged(contents: NDArray[np.int64], places: NDArray[np.int64], newest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace the contents of each place in turn by an arrival; at most 2^14 times."""
    taken = contents[places]
    words = (places << _TILE_BITS) + np.arange(len(places))
    words.sort()
    sorted_places, steps = words >> _TILE_BITS, words & (_TILE - 1)
    again = np.flatnonzero(sorted_places[1:] == sorted_places[:-1])
    taken[steps[again + 1]] = newest[steps[again]]
    contents[places] = newest  # the last of several values stays
    return taken
