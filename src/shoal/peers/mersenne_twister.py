"""The 32-bit words of the Mersenne twister, the source of Python's `random` and of torch's CPU generator.

numpy has the same generator, so any range of words is made without a Python loop; 2 ns per word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY_WORDS = 624
_MARK = 1 << 20  # words between kept states; 2.5 KB per state
_SEARCHED_AT_ONCE = KEY_WORDS << 10
_MOST_SEARCHED = 1 << 33  # takes half a minute


class MersenneWords:
    """The words of one generator, in any order; going back costs at most 2^20 words.

    Parameters
    ----------
    key, position
        The generator's state of 624 words, and the number of used outputs: 624 after seeding.

    References
    ----------
    M. Matsumoto, T. Nishimura, "Mersenne twister", 1998; ``mt19937_seed`` is their ``init_genrand``.
    """

    def __init__(self, key: Any, position: int) -> None:
        self._bits = np.random.MT19937(0)
        self._rng = np.random.Generator(self._bits)
        words = np.asarray(key, dtype=np.uint32)
        self._bits.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": position}}
        self._at = 0
        self._marks = [self._bits.state]

    @staticmethod
    def seeded(seed: int) -> MersenneWords:
        """Return the words of ``init_genrand(seed)``; only the lower 32 bits of the seed count, as in torch.

        >>> MersenneWords.seeded(5489).words(0, 2).tolist()
        [3499211612, 581869302]
        """
        _, key, position, *_ = np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=True)
        return MersenneWords(key, int(position))

    def words(self, start: int, stop: int) -> NDArray[np.uint32]:
        """Return the words ``[start, stop)``, shape (stop - start,)."""
        self._seek(start)
        return self._next(stop - start)

    def state_at(self, word: int) -> tuple[NDArray[np.uint32], int]:
        """Return the key and position of the generator before ``word``."""
        self._seek(word)
        state = self._bits.state["state"]
        return state["key"].copy(), int(state["pos"])

    def _seek(self, word: int) -> None:
        mark = min(word // _MARK, len(self._marks) - 1)
        if word < self._at or mark * _MARK > self._at:
            self._bits.state, self._at = self._marks[mark], mark * _MARK
        while self._at < word:
            self._next(min(word - self._at, _MARK))

    def _next(self, count: int) -> NDArray[np.uint32]:
        words = np.empty(count, dtype=np.uint32)
        done = 0
        while done < count:
            step = min(count - done, _MARK - self._at % _MARK)
            words[done : done + step] = self._rng.integers(0, 1 << 32, size=step, dtype=np.uint32)
            done, self._at = done + step, self._at + step
            if self._at == len(self._marks) * _MARK:
                self._marks.append(self._bits.state)
        return words


_PASSED: dict[int, tuple[int, NDArray[np.uint32], int]] = {}
_MOST_PASSED = 16


def words_after(seed: int, passed: int) -> MersenneWords:
    """Return the words of a seed after the first ``passed`` words; skipping costs 2 ns per word.

    The last state of a few seeds is kept, so the next epoch of a generator costs only its own words.
    """
    seed &= 0xFFFFFFFF
    known = _PASSED.get(seed)
    if known is None or known[0] > passed:
        words, skipped = MersenneWords.seeded(seed), passed
    else:
        words, skipped = MersenneWords(*known[1:]), passed - known[0]
    state = words.state_at(skipped)
    if len(_PASSED) >= _MOST_PASSED:
        _PASSED.clear()
    _PASSED[seed] = passed, *state
    return MersenneWords(*state)


def words_passed(seed: int, key: NDArray[np.uint32], position: int, most: int = _MOST_SEARCHED) -> int | None:
    """Return the number of words of a seed before a generator's state; None after ``most`` words."""
    words = MersenneWords.seeded(seed)
    if position == KEY_WORDS and np.array_equal(words.state_at(0)[0], key):
        return 0
    state_words = MersenneWords(key, 0).words(0, KEY_WORDS)
    for first in range(0, most, _SEARCHED_AT_ONCE):
        blocks = words.words(first, first + _SEARCHED_AT_ONCE).reshape(-1, KEY_WORDS)
        for block in np.flatnonzero(blocks[:, 0] == state_words[0]).tolist():
            if np.array_equal(blocks[block], state_words):
                return int(first + block * KEY_WORDS + position)
    return None
