"""The two shuffle buffers of ``datasets`` in index space: the ids of samples in the order of emission.

numpy draws bounded integers with rejection, so earlier draws cannot be skipped. The generator's state is kept after
every 2^18 samples or so, less than 1 kB each, and a seek draws from the last kept state on.
"""

from __future__ import annotations

from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.reservoir import Reservoir
from shoal.peers.huggingface.turns import ShardTurns

_DRAWN_AT_ONCE = 1000
"""Slots in a block of draws of the original; the original draws the last block as a whole, too."""

_SAMPLES_A_STATE = 1 << 18


class ShuffleBuffer(Protocol):
    """A buffer for all samples of a worker."""

    def left(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the ids of the emitted samples ``[first, end)``; cheap from the end of the last call on."""

    def earliest(self, sample: int) -> int:
        """Return the smallest possible index of a sample among the emitted samples."""

    def left_when(self, arrived: int) -> tuple[int, int]:
        """Return the fewest and the most samples that can have left, just after a sample left and ``arrived`` came."""


class ReservoirBuffer:
    """A full buffer in which each arriving sample replaces a random sample (`datasets` to 5.0)."""

    def __init__(self, turns: ShardTurns, buffer_size: int, generator: np.random.Generator) -> None:
        self._slots = min(buffer_size, turns.num_samples)
        self._steps = turns.num_samples - self._slots
        self._draws = SlotDraws(generator, self._slots)
        self._reservoir = Reservoir(self._slots, self._draws.slots, turns.arriving, turns.ids)
        self._last: NDArray[np.int64] | None = None

    def left(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the ids of the samples that leave as numbers ``[first, end)``."""
        samples = self._reservoir.left(min(first, self._steps), min(end, self._steps))
        if end <= self._steps:
            return samples
        if self._last is None:
            drawn = -(-self._steps // _DRAWN_AT_ONCE) * _DRAWN_AT_ONCE
            self._last = self._reservoir.contents(self._steps)
            self._draws.generator_after(drawn).shuffle(self._last)
        return np.concatenate([samples, self._last[max(first - self._steps, 0) : end - self._steps]])

    def earliest(self, sample: int) -> int:
        """Return the smallest possible index of a sample among the emitted samples."""
        return max(0, sample - self._slots)

    def left_when(self, arrived: int) -> tuple[int, int]:
        """Return the minimum and maximum number of emitted samples: a full buffer emits one sample per arrival."""
        left = max(0, arrived - self._slots)
        return left, left + (self._slots if left == self._steps and arrived else 0)


class SlotDraws:
    """Random slots, drawn in turn by a generator, in any order."""

    def __init__(self, generator: np.random.Generator, slots: int) -> None:
        self._generator, self._slots, self._at = generator, slots, 0
        self._states = [generator.bit_generator.state]

    def slots(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the draws ``[first, end)``; cheap from the end of the last call on."""
        self._go_to(first)
        return self._draw(end)

    def generator_after(self, draws: int) -> np.random.Generator:
        """Return the generator after ``draws`` draws."""
        self._go_to(draws)
        return made_of(self._generator.bit_generator.state)

    def _go_to(self, draw: int) -> None:
        saved = min(draw // _SAMPLES_A_STATE, len(self._states) - 1)
        if not saved * _SAMPLES_A_STATE <= self._at <= draw:
            self._generator, self._at = made_of(self._states[saved]), saved * _SAMPLES_A_STATE
        while self._at < draw:
            self._draw(min(draw, self._at + _SAMPLES_A_STATE))

    def _draw(self, end: int) -> NDArray[np.int64]:
        parts = []
        while self._at < end:
            number, rest = divmod(self._at, _SAMPLES_A_STATE)
            if not rest and number == len(self._states):
                self._states.append(self._generator.bit_generator.state)
            stop = min(end, (number + 1) * _SAMPLES_A_STATE)
            parts.append(self._generator.integers(0, self._slots, size=stop - self._at))
            self._at = stop
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *parts])


class BlockBuffer:
    """A buffer that is shuffled whenever full, and then keeps half of its size (`datasets` from 5.1).

    A flush leaves the kept samples right before the next arrivals. So in index space nothing moves: the buffer is a
    window onto all samples in the order of arrival. Each flush shuffles its window in place; the window begins with the
    kept samples of the last flush.
    """

    def __init__(self, turns: ShardTurns, buffer_size: int, generator: np.random.Generator) -> None:
        self._turns, self._generator, self._size = turns, generator, buffer_size
        self._flushes = Flushes(turns.num_samples, turns.chunk_size, turns.short_chunks(), buffer_size)
        self._flushes_a_state = max(1, _SAMPLES_A_STATE // buffer_size)
        self._states = [generator.bit_generator.state]
        # The next flush, and the kept samples of the last flush: a cache.
        self._flush, self._kept = 0, np.zeros(0, dtype=np.int64)
        # The last emitted samples, and their first number.
        self._recent, self._recent_first = np.zeros(0, dtype=np.int64), 0

    def left(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the ids of the samples that leave as numbers ``[first, end)``."""
        recent_end = self._recent_first + len(self._recent)
        parts = []
        if self._recent_first <= first < recent_end:
            parts.append(self._recent[first - self._recent_first : end - self._recent_first])
            first = min(recent_end, end)
        if first < end:
            flush, last = self._flushes.flush_of(first), self._flushes.flush_of(end - 1)
            if flush != self._flush:
                self._seek(flush)
            self._recent_first = int(self._flushes.begins(flush))
            self._recent = self._run(last + 1)
            parts.append(self._recent[first - self._recent_first : end - self._recent_first])
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def earliest(self, sample: int) -> int:
        """Return the smallest possible index of a sample among the emitted samples."""
        return max(0, sample - self._size)

    def left_when(self, arrived: int) -> tuple[int, int]:
        """Return the minimum and maximum number of emitted samples: a flush emits its samples one by one."""
        if not arrived:
            return 0, 0
        flush = self._flushes.flush_at(arrived)
        return int(self._flushes.begins(flush)) + 1, int(self._flushes.begins(flush + 1))

    def _seek(self, flush: int) -> None:
        """Go to a flush; its kept samples depend on a few earlier flushes: a sample stays with probability 1/2."""
        back = 24 + self._size.bit_length()
        while True:
            known = max(0, flush - back)
            saved = min(known // self._flushes_a_state, len(self._states) - 1)
            self._generator = made_of(self._states[saved])
            self._flush, self._kept = saved * self._flushes_a_state, np.zeros(0, dtype=np.int64)
            while self._flush < flush:
                if self._flush == known:
                    self._kept = np.full(self._flushes.kept_before(known), -1, dtype=np.int64)
                end = (self._flush // self._flushes_a_state + 1) * self._flushes_a_state
                self._run(min(end, known if self._flush < known else flush), with_ids=self._flush >= known)
            if not (self._kept < 0).any():
                return
            back *= 2

    def _run(self, end: int, *, with_ids: bool = True) -> NDArray[np.int64]:
        """Make the flushes from the next flush up to ``end``; return the emitted samples if ``with_ids``."""
        flushes = np.arange(self._flush, end)
        begins, ends = self._flushes.begins(flushes), self._flushes.ends(flushes)
        first = int(begins[0])
        if with_ids:
            arrived = self._turns.arriving(first + len(self._kept), int(ends[-1]))
            window = np.concatenate([self._kept, arrived])
        else:
            window = np.empty(int(ends[-1]) - first, dtype=np.int64)
        shuffle = self._generator.shuffle
        number = self._flush
        for begin, stop in zip((begins - first).tolist(), (ends - first).tolist(), strict=True):
            if not number % self._flushes_a_state and number // self._flushes_a_state == len(self._states):
                self._states.append(self._generator.bit_generator.state)
            shuffle(window[begin:stop])
            number += 1
        leaving = int(self._flushes.begins(end)) - first
        self._flush, self._kept = end, window[leaving:].copy()
        return window[:leaving]


def made_of(state: Any) -> np.random.Generator:
    """Return a generator with this state."""
    bits = np.random.PCG64()
    bits.state = state
    return np.random.Generator(bits)


class Flushes:
    """The flushes of a buffer of arriving chunks; all chunks have one size, except for a few shorter chunks.

    The buffer is flushed when it has ``buffer_size`` samples or more, and keeps ``buffer_size // 2``; a last flush
    empties it. Between short chunks, distances of flushes are equal: O(number of short chunks) memory and time to make.

    Parameters
    ----------
    num_samples
        Samples of all chunks.
    chunk_size
        Samples of a chunk.
    short
        Numbers of shorter chunks, ascending, and the samples of each shorter chunk.
    buffer_size
        Size of the buffer.

    Notes
    -----
    A flush is a window onto the samples in the order of arrival: `begins` to `ends`. The flush emits the samples before
    the next window.
    """

    def __init__(self, num_samples: int, chunk_size: int, short: list[tuple[int, int]], buffer_size: int) -> None:
        self._num_samples, self._keep = num_samples, buffer_size // 2
        runs = _runs(num_samples, chunk_size, short, buffer_size)
        # For each run of equally distant flushes: the number of the first flush, its end, the distance of flushes.
        self._first, self._end, self._distance = np.array(runs, dtype=np.int64).T
        self._last = int(self._first[-1])
        if int(self.ends(self._last - 1)) - self._keep == num_samples and self._last:
            self._last -= 1  # no samples remain for a flush at the end

    def __len__(self) -> int:
        return self._last + 1

    @overload
    def ends(self, flushes: int) -> np.int64: ...
    @overload
    def ends(self, flushes: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def ends(self, flushes: int | NDArray[np.int64]) -> np.int64 | NDArray[np.int64]:
        """Return the number of samples arrived before flushes; 0 for flush -1."""
        run = np.maximum(np.searchsorted(self._first, flushes, side="right") - 1, 0)
        ends = self._end[run] + (flushes - self._first[run]) * self._distance[run]
        return np.where(np.asarray(flushes) < 0, 0, ends)[()]

    @overload
    def begins(self, flushes: int) -> np.int64: ...
    @overload
    def begins(self, flushes: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def begins(self, flushes: int | NDArray[np.int64]) -> np.int64 | NDArray[np.int64]:
        """Return the number of samples emitted before flushes; all samples after the last flush."""
        begins = np.maximum(self.ends(flushes - 1) - self._keep, 0)
        return np.where(np.asarray(flushes) > self._last, self._num_samples, begins)[()]

    def kept_before(self, flush: int) -> int:
        """Return the number of samples that the last flush kept."""
        return int(self.ends(flush - 1) - self.begins(flush))

    def flush_at(self, arrived: int) -> int:
        """Return the first flush after the arrival of ``arrived`` samples."""
        return self.flush_of(arrived - 1 - self._keep)

    def flush_of(self, number: int) -> int:
        """Return the flush that emits the sample with a number."""
        # Flush f emits the samples up to ends(f) - keep: find the first flush that ends after number + keep.
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
    """Return the first flush, its end and the distance for each run of flushes; the last run is the end."""
    lacking = sum(chunk_size - samples for _, samples in short)
    num_chunks = (num_samples + lacking) // chunk_size
    borders = iter([*short, (num_chunks, 0)])
    border, samples = next(borders)
    chunk = arrived = flush = 0
    needed = buffer_size
    runs = []
    while chunk < num_chunks:
        regular = -(-needed // chunk_size)
        count = (border - chunk) // regular if flush else min(1, (border - chunk) // regular)
        if count:
            runs.append((flush, arrived + regular * chunk_size, regular * chunk_size))
            chunk, arrived = chunk + count * regular, arrived + count * regular * chunk_size
        else:
            waiting = 0
            while waiting < needed and chunk < num_chunks:
                whole = min(-(-(needed - waiting) // chunk_size), border - chunk)
                chunk, waiting = chunk + whole, waiting + whole * chunk_size
                if waiting < needed and chunk < num_chunks:  # the next chunk is short
                    chunk, waiting = chunk + 1, waiting + samples
                    border, samples = next(borders)
            arrived += waiting
            if waiting < needed:
                break
            count = 1
            runs.append((flush, arrived, 0))
        flush += count
        needed = buffer_size - buffer_size // 2
    return [*runs, (flush, num_samples, 0)]
