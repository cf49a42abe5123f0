"""Sources drawn at random, with one random number per draw, until the sources are used up.

Such draws are sequential by nature. Draws are made in blocks, and the state of the generator and the counts are kept
for each block: so a position after a known block costs a block, and other positions cost all draws up to the position,
5 to 20 ns per draw. Draws need no data, even if the end of the epoch depends on the draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 18
"""Draws of a block."""
_BUCKETS = 1 << 16


class _Checkpoint(NamedTuple):
    """Start of a block: the earlier positions and draws of each source, and the state of the generator."""

    position: int
    drawn: NDArray[np.int64]
    state: Mapping[str, Any]
    is_end: bool


class _Emitted(NamedTuple):
    """Sources of the positions of a block of draws, the draws of each source after the block, and True at the end."""

    sources: NDArray[np.int32]
    drawn: NDArray[np.int64]
    is_end: bool


class SourceOfDraw:
    """The source of each number in [0, 1), by the cumulated probabilities of sources.

    ``side`` is an argument of `numpy.searchsorted`: a number equal to a cumulated probability belongs to the source
    before it ("left") or after it ("right"). About 3 ns per number, with a table of 65,536 intervals.
    """

    def __init__(self, cumulated: NDArray[np.float64], side: Any) -> None:
        self._cumulated, self._side = cumulated, side
        sources = cumulated.searchsorted(np.arange(_BUCKETS + 1) / _BUCKETS, side)
        # If both borders of an interval have the same source, all numbers in between have this source.
        self._of_bucket = np.where(sources[:-1] == sources[1:], sources[:-1], -1).astype(np.int32)

    def __call__(self, numbers: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return the source of each number, same shape."""
        sources = self._of_bucket[(numbers * _BUCKETS).astype(np.int32)]
        unsure = np.flatnonzero(sources < 0)
        exact = self._cumulated.searchsorted(numbers[unsure], self._side)
        sources[unsure] = np.minimum(exact, len(self._cumulated) - 1)  # rounded probabilities may end below 1
        return sources


class DrawnSources(ABC):
    """The sources of the positions of one epoch; a rule ends the epoch.

    Parameters
    ----------
    lengths
        Samples of each source, above 0.
    generator
        Generator of numbers in [0, 1), before its first number.
    """

    def __init__(self, lengths: Sequence[int], generator: np.random.Generator) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self._kind = type(generator.bit_generator)
        nothing = np.zeros(len(self.lengths), dtype=np.int64)
        self._checkpoints = [_Checkpoint(0, nothing, generator.bit_generator.state, is_end=False)]
        self._last: tuple[int, NDArray[np.int32]] | None = None

    @property
    def num_samples(self) -> int:
        """Number of positions of the epoch, from as many draws as needed."""
        while not self._checkpoints[-1].is_end:
            self._block(len(self._checkpoints) - 1)
        return self._checkpoints[-1].position

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position; shape (num_sources,)."""
        number = self._number_at(max(0, position - 1))
        before = self._checkpoints[number]
        some = self._block(number)[: position - before.position]
        return self._delivered(before.drawn) + np.bincount(some, minlength=len(self.lengths))

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``."""
        parts = [np.zeros(0, dtype=np.int32)]
        while start < stop:
            number = self._number_at(start)
            first = self._checkpoints[number].position
            parts.append(self._block(number)[start - first : stop - first])
            start += len(parts[-1])
        return np.concatenate(parts).astype(np.int64)

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source; None if the epoch ends before this sample."""

        def delivered(checkpoint: _Checkpoint) -> int:
            return int(self._delivered(checkpoint.drawn)[source])

        while delivered(self._checkpoints[-1]) <= number:
            if self._checkpoints[-1].is_end:
                return None
            self._block(len(self._checkpoints) - 1)
        block = bisect_right(self._checkpoints, number, key=delivered) - 1
        before = self._checkpoints[block]
        return before.position + int(np.flatnonzero(self._block(block) == source)[number - delivered(before)])

    @abstractmethod
    def _emitted(self, numbers: NDArray[np.float64], drawn: NDArray[np.int64]) -> _Emitted:
        """Return the sources of a block of numbers after ``drawn`` draws of each source."""

    def _delivered(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of each source after ``drawn`` draws of the source."""
        return drawn

    def _number_at(self, position: int) -> int:
        """Return the number of the block with a position; positions after the end are in the last block."""
        while (last := self._checkpoints[-1]).position <= position and not last.is_end:
            self._block(len(self._checkpoints) - 1)
        block = bisect_right(self._checkpoints, position, key=lambda checkpoint: checkpoint.position) - 1
        return min(block, len(self._checkpoints) - 2)

    def _block(self, number: int) -> NDArray[np.int32]:
        """Return the sources of the positions of a block with a known checkpoint, and make the next checkpoint."""
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        before = self._checkpoints[number]
        bits = self._kind(0)
        bits.state = dict(before.state)
        emitted = self._emitted(np.random.Generator(bits).random(BLOCK), before.drawn)
        if number + 1 == len(self._checkpoints):
            position = before.position + len(emitted.sources)
            # Another thread may be faster: its checkpoint is equal, and later checkpoints stay.
            self._checkpoints[number + 1 : number + 2] = [
                _Checkpoint(position, emitted.drawn, bits.state, emitted.is_end)
            ]
        self._last = number, emitted.sources
        return emitted.sources

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the sources of the last block."""
        return {**self.__dict__, "_last": None}


class WithRepeats(DrawnSources):
    """Every draw is a position; a used-up source starts again.

    Parameters
    ----------
    source_of
        The source of each number.
    waits_for_all
        True if the epoch ends after each source has ended once; False if the epoch ends after the first end.
    spare
        1 if a source ends only at an additional draw that is not a position; else 0.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        generator: np.random.Generator,
        source_of: SourceOfDraw,
        *,
        waits_for_all: bool,
        spare: int = 0,
    ) -> None:
        super().__init__(lengths, generator)
        self._source_of, self._waits_for_all, self._spare = source_of, waits_for_all, spare

    def _emitted(self, numbers: NDArray[np.float64], drawn: NDArray[np.int64]) -> _Emitted:
        sources, until = self._source_of(numbers), self.lengths + self._spare
        after = drawn + np.bincount(sources, minlength=len(drawn))
        ended = after >= until
        if not (ended.all() if self._waits_for_all else ended.any()):
            return _Emitted(sources, after, is_end=False)
        ends = [_nth(sources, source, int(until[source] - drawn[source])) for source in
                np.flatnonzero(ended & (drawn < until)).tolist()]  # fmt: skip
        sources = sources[: (max(ends) if self._waits_for_all else min(ends)) + 1 - self._spare]
        return _Emitted(sources, drawn + np.bincount(sources, minlength=len(drawn)), is_end=True)


class WithoutRepeats(DrawnSources):
    """Each sample appears once: draws of a used-up source are not positions."""

    def __init__(self, lengths: Sequence[int], generator: np.random.Generator, source_of: SourceOfDraw) -> None:
        super().__init__(lengths, generator)
        self._source_of = source_of

    @property
    def num_samples(self) -> int:
        """Number of positions of the epoch, without draws."""
        return int(self.lengths.sum())

    def _emitted(self, numbers: NDArray[np.float64], drawn: NDArray[np.int64]) -> _Emitted:
        sources = self._source_of(numbers)
        after = drawn + np.bincount(sources, minlength=len(drawn))
        kept = (drawn < self.lengths)[sources]
        for source in np.flatnonzero((drawn < self.lengths) & (after > self.lengths)).tolist():
            first = _nth(sources, source, int(self.lengths[source] - drawn[source]) + 1)
            kept[first:] &= sources[first:] != source
        return _Emitted(sources[kept], after, is_end=bool((after >= self.lengths).all()))

    def _delivered(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(drawn, self.lengths)


class Dropping(WithoutRepeats):
    """Each sample appears once: a used-up source is left out after its next draw.

    The other sources are drawn in the ratio of their ``weights``.
    """

    def __init__(self, lengths: Sequence[int], generator: np.random.Generator, weights: NDArray[np.float64]) -> None:
        self._weights = weights
        super().__init__(lengths, generator, cumulated_shares(self._weights))

    def _emitted(self, numbers: NDArray[np.float64], drawn: NDArray[np.int64]) -> _Emitted:
        parts = [np.zeros(0, dtype=np.int32)]
        while len(numbers) and not (drawn >= self.lengths).all():
            left = np.flatnonzero(drawn <= self.lengths).astype(np.int32)
            is_whole = len(left) == len(drawn)
            sources = left[(self._source_of if is_whole else cumulated_shares(self._weights[left]))(numbers)]
            after = drawn + np.bincount(sources, minlength=len(drawn))
            over = np.flatnonzero((after > self.lengths) & (drawn <= self.lengths)).tolist()
            end = min((_nth(sources, source, int(self.lengths[source] - drawn[source]) + 1) for source in over),
                      default=len(numbers))  # fmt: skip
            parts.append(sources[:end])
            drawn = drawn + np.bincount(sources[: end + 1], minlength=len(drawn))
            numbers = numbers[end + 1 :]
        return _Emitted(np.concatenate(parts), drawn, is_end=bool((drawn >= self.lengths).all()))


def cumulated_shares(weights: NDArray[np.float64]) -> SourceOfDraw:
    """Return the source of each number as in RandomMix; the first source if all weights are 0."""
    with np.errstate(invalid="ignore"):
        return SourceOfDraw((weights / np.sum(weights)).cumsum(), "left")


def _nth(sources: NDArray[np.int32], source: int, number: int) -> int:
    """Return the index of the ``number``-th draw of a source, from 1 on."""
    return int(np.flatnonzero(sources == source)[number - 1])
