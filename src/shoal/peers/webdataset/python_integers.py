"""Bounded integers of Python's `random`, many at a time.

``randrange(bound)`` takes the upper ``bound.bit_length()`` bits of a word until the bits are below the bound. So the
word of an integer depends on all earlier integers, and if bounds change from integer to integer, the rejected words
change, too. Over a stretch of words the bounds change little: a guess of the number of accepted earlier words is right
for nearly all words, and after a few rounds for all words.

References
----------
``Random._randbelow_with_getrandbits`` in ``Lib/random.py``, the same since Python 3.2.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.peers.mersenne_twister import MersenneWords

_BLOCK = 1 << 14


def python_random(seed: Any) -> random.Random:
    """Return the generator of WebDataset for a seed."""
    return random.Random(seed)  # noqa: S311  # the numbers of WebDataset, good or not


def words_of(seed: Any) -> MersenneWords:
    """Return the words of the generator of a seed."""
    *key, position = python_random(seed).getstate()[1]
    return MersenneWords(key, position)


class PythonIntegers:
    """Integers drawn one after another from words, with bounds below 2^32; the next begins at `next_word`."""

    def __init__(self, words: MersenneWords, next_word: int = 0) -> None:
        self._words, self.next_word = words, next_word
        self._read = np.zeros(0, dtype=np.uint32)  # words read ahead from `next_word` on

    def seek(self, word: int) -> None:
        """Continue with the integer that begins at a word."""
        if word != self.next_word:
            self.next_word, self._read = word, np.zeros(0, dtype=np.uint32)

    def equal(self, count: int, bound: int) -> NDArray[np.int64]:
        """Draw integers below a single bound; 10 ns per integer."""
        return self._drawn(count, bound, 0)

    def ramp(self, count: int, bound: int, step: int) -> NDArray[np.int64]:
        """Draw an integer below ``bound``, an integer below ``bound + step``, and so on; ``step`` is 1 or -1."""
        parts = [np.zeros(0, dtype=np.int64)]
        while count:
            bits = bound.bit_length()
            same_bits = (1 << bits) - bound if step > 0 else bound - (1 << (bits - 1)) + 1
            part = min(count, same_bits, max(16, 1 << max(0, bits - 3)))
            parts.append(self._drawn(part, bound, step))
            count, bound = count - part, bound + part * step
        return np.concatenate(parts)

    def _drawn(self, count: int, bound: int, step: int) -> NDArray[np.int64]:
        """Draw integers; all bounds have the same number of bits."""
        integers = np.empty(count, dtype=np.int64)
        bits, done = bound.bit_length(), 0
        while done < count:
            number = min(count - done, _BLOCK)
            likely = (number << bits) // max(1, bound + step * done)
            words = self._peek(likely + likely // 16 + 16)
            values = (words >> np.uint32(32 - bits)).astype(np.int64)
            taken = _accepted(values, bound + step * done, step)[:number]
            integers[done : done + len(taken)] = values[taken]
            done += len(taken)
            used = int(taken[-1]) + 1 if len(taken) == number else len(words)
            self.next_word, self._read = self.next_word + used, words[used:]
        return integers

    def _peek(self, count: int) -> NDArray[np.uint32]:
        """Return at least ``count`` words from `next_word` on."""
        if (missing := count - len(self._read)) > 0:
            end = self.next_word + len(self._read)
            self._read = np.concatenate([self._read, self._words.words(end, end + missing)])
        return self._read


def _accepted(values: NDArray[np.int64], bound: int, step: int) -> NDArray[np.int64]:
    """Return the indices of values below their bound: ``bound``, plus ``step`` for each earlier accepted value."""
    accepted = values < bound
    while step:
        before: NDArray[np.int64] = np.cumsum(accepted) - accepted
        better = values < bound + step * before
        if np.array_equal(better, accepted):
            break
        accepted = better
    return np.flatnonzero(accepted)
