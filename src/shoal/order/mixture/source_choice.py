"""Choices of the source of each position, between two changes of weights.

Positions are cut into blocks. At the borders of blocks a `CountTree` counts the sources; inside, a key
permutes the sources. Without the permutation, ranks that take every eighth position could get all samples of one source
and no samples of other sources (in a simulation of eight equal sources 700 % too many; 10 % with the permutation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.mixture.count_tree import MOST_SPREAD, OWED_UNIT, CountTree
from shoal.order.protocol import as_whole
from shoal.order.seeds import draws

_EVEN_BLOCK = 64
_RANDOM_BLOCK = 1 << 16
_SOURCE_BITS = 16
MOST_SOURCES = 1 << _SOURCE_BITS
MOST_POSITIONS = 1 << 62
"""Positions of a mixture are below this."""


@dataclass(frozen=True, slots=True)
class Even:
    """Every 64 positions have their sources in proportion, in random order: the default.

    At the end of each 64 positions a count is off by about one sample, in between by a few samples.

    Examples
    --------
    >>> sources = {"web": shoal.open("web"), "code": shoal.open("code")}
    >>> shoal.mix(sources, weights={"web": 3, "code": 1}, choice=shoal.mixing.Even()).source_of(range(16))
    array([0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0])
    """

    name: ClassVar[str] = "even"
    block: ClassVar[int] = _EVEN_BLOCK
    run: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Random:
    """The source of each position is drawn at random, as in loaders that draw a source for each sample.

    Sources are drawn without replacement: every 65,536 positions have their sources in proportion. So the counts in a
    batch vary as if each sample were drawn independently (1 % less for a batch of 655), yet counts cannot drift, and
    seeking takes milliseconds.

    Examples
    --------
    >>> sources = {"web": shoal.open("web"), "code": shoal.open("code")}
    >>> shoal.mix(sources, weights={"web": 3, "code": 1}, choice=shoal.mixing.Random()).source_of(range(16))
    array([0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    """

    name: ClassVar[str] = "random"
    block: ClassVar[int] = _RANDOM_BLOCK
    run: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class _InRuns:
    """Each run of ``samples`` consecutive positions comes from a single source."""

    block: ClassVar[int] = _EVEN_BLOCK
    samples: int

    def __post_init__(self) -> None:
        what = f"{type(self).__name__}(samples)"
        number = as_whole(what, self.samples)
        if not 1 <= number < 1 << 31:
            raise UsageError(f"{what} must be the size of a batch, from 1 to 2**31 - 1; got {number}")
        object.__setattr__(self, "samples", number)

    @property
    def run(self) -> int:
        """Number of consecutive positions from one source."""
        return self.samples


@dataclass(frozen=True, slots=True)
class PerBatch(_InRuns):
    """Each global batch comes from a single source.

    Parameters
    ----------
    samples
        Samples of a global batch, over all ranks.

    Examples
    --------
    >>> sources = {"web": shoal.open("web"), "code": shoal.open("code")}
    >>> shoal.mix(sources, weights={"web": 3, "code": 1}, choice=shoal.mixing.PerBatch(4)).source_of(range(16))
    array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    """

    name: ClassVar[str] = "batch"


@dataclass(frozen=True, slots=True)
class PerRank(_InRuns):
    """Each batch of a rank comes from a single source; batches of other ranks come from other sources.

    Parameters
    ----------
    samples
        Samples in the batch of one rank. The order does not depend on the real batch size or world size; with other
        sizes, batches hold parts of several runs.

    Examples
    --------
    >>> sources = {"web": shoal.open("web"), "code": shoal.open("code")}
    >>> shoal.mix(sources, weights={"web": 3, "code": 1}, choice=shoal.mixing.PerRank(4)).source_of(range(16))
    array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    """

    name: ClassVar[str] = "rank"


Choice = Even | Random | PerBatch | PerRank
CHOICES: dict[str, Any] = {choice.name: choice for choice in (Even, Random, PerBatch, PerRank)}


class ConstantStage:
    """The sources of positions from ``start`` on, while weights stay the same.

    ``weights``, ``before`` (the counts at ``start``) and ``owed`` (the excess of weights over counts up to ``start``,
    in samples times `OWED_UNIT`) are in the order of the sources. With an ``epoch``, a number of positions, all
    multiples of ``epoch`` are borders of blocks, and blocks have at most the choice's number of positions.
    """

    def __init__(
        self,
        choice: Choice,
        weights: Sequence[int],
        key: int,
        *,
        start: int,
        before: NDArray[np.int64],
        owed: Sequence[int] | None = None,
        epoch: int | None = None,
    ) -> None:
        self.start, self.weights, self._owed = start, tuple(weights), tuple(owed or [0] * len(weights))
        self.before, self._key, self._run = before, key, choice.run
        # Block b begins at unit b * length // count: blocks of equal length, or of two lengths that differ by one.
        self._length, self._count = (choice.block, 1) if epoch is None else (epoch, -(-epoch // choice.block))
        self._most_together = max(1, MOST_SPREAD // 2 // choice.block)
        self.tree = CountTree(weights, [debt // self._run for debt in self._owed])

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position; O(num_sources + block)."""
        unit, begun = divmod(position - self.start, self._run)
        first = self._border(block := self._block_of(unit))
        counts = self.before + self.tree.at(first) * self._run
        if unit > first or begun:
            units = self._blocks(block, 1)
            counts += np.bincount(units[: unit - first], minlength=len(counts)) * self._run
            counts[units[unit - first]] += begun
        return counts

    def owed(self, position: int, counts: NDArray[np.int64]) -> list[int]:
        """Return, by source, the share of its weight minus its ``counts`` before a position, times `OWED_UNIT`."""
        length, total = (position - self.start) * OWED_UNIT, sum(self.weights)
        rows = zip(self._owed, self.weights, (counts - self.before).tolist(), strict=True)
        return [owed + length * weight // total - number * OWED_UNIT for owed, weight, number in rows]

    def sources(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the source of each position ``[begin, end)``; 25 ns each, 50 ns for blocks of 65,536."""
        if end <= begin:
            return np.zeros(0, dtype=np.int64)
        first = self._block_of((begin - self.start) // self._run)
        blocks = range(first, self._block_of((end - 1 - self.start) // self._run) + 1, self._most_together)
        parts = [self._blocks(block, min(self._most_together, blocks.stop - block)) for block in blocks]
        units = parts[0] if len(parts) == 1 else np.concatenate(parts)
        low, high = (begin - self.start) // self._run, (end - 1 - self.start) // self._run + 1
        units = units[low - self._border(first) : high - self._border(first)]
        if self._run == 1:
            return units
        times = np.full(len(units), self._run)  # only parts of the first and last runs are in the range
        times[0] -= begin - self.start - low * self._run
        times[-1] -= high * self._run - (end - self.start)
        return np.repeat(units, times)

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source in this stage; None for positions from 2^62 on.

        O(num_sources + block).
        """
        unit, inside = divmod(number - int(self.before[source]), self._run)
        if self.start + (near := self.tree.unit_of(source, unit)) * self._run >= MOST_POSITIONS:
            return None
        block = self._block_of(near)
        nth = unit - int(self.tree.at(self._border(block))[source])
        place = np.flatnonzero(self._blocks(block, 1) == source)[nth]
        return self.start + (self._border(block) + int(place)) * self._run + inside

    def _border(self, block: int) -> int:
        """Return the first unit of a block."""
        return block * self._length // self._count

    def _block_of(self, unit: int) -> int:
        """Return the block that holds a unit."""
        return ((unit + 1) * self._count - 1) // self._length

    def _blocks(self, first: int, num: int) -> NDArray[np.int64]:
        """Return the sources of the units of whole blocks."""
        begin, rest = self._border(first), first * self._length % self._count
        borders = (rest + np.arange(num + 1, dtype=np.int64) * self._length) // self._count
        counts, lengths = self.tree.beyond(begin, borders), np.diff(borders)
        words = draws(self._key, np.arange(begin, begin + int(borders[-1]), dtype=np.uint64))
        words &= np.uint64(~(MOST_SOURCES - 1) & (2**64 - 1))
        per_block = np.diff(counts, axis=1).T
        words |= np.repeat(np.tile(np.arange(len(counts), dtype=np.uint64), num), per_block.ravel())
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            rows = words.reshape(num, longest)
            rows.sort(axis=1)  # the number of the source breaks ties, one in 2^37 blocks
        else:
            is_unit = np.arange(longest) < lengths[:, None]
            rows = np.full((num, longest), np.uint64(2**64 - 1))  # filler that sorts last
            rows[is_unit] = words
            rows.sort(axis=1)
            rows = rows[is_unit]
        rows &= np.uint64(MOST_SOURCES - 1)
        return rows.ravel().astype(np.int64)
