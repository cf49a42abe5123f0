"""The source of every position of a run with changing weights, at given positions, at once or gradually."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.mixture.integer_weights import integer_weights
from shoal.order.mixture.source_choice import MOST_POSITIONS, MOST_SOURCES, Choice, ConstantStage, PerRank
from shoal.order.seeds import check_seed, key

_RAMP_STEPS = 256
_MOST_MOVED = Fraction(3, 100)
"""A step of a ramp moves about this share of positions to another source."""


@dataclass(frozen=True, slots=True)
class Change:
    """Integer weights by name from position ``at`` on; a source without a name has weight 0.

    Weights move linearly over ``ramp`` positions, in up to 256 steps of whole blocks. ``before`` has counts by name at
    position ``at``, in place of the counts of earlier changes.
    """

    at: int
    weights: Mapping[str, int]
    ramp: int = 0
    before: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class SequenceChange:
    """Weights by name from sequence ``at`` of an epoch on, with a ramp in sequences.

    A position after the epoch's last sequence belongs to the next epoch.
    """

    epoch: int
    at: int
    weights: Mapping[str, int]
    ramp: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.epoch, self.at

    def steps(self, before: Mapping[str, int]) -> list[tuple[int, Mapping[str, int]]]:
        """Return the positions at which weights change, with the new weights; ``before`` are the earlier weights."""
        moves = -(-_moved(before, self.weights) // _MOST_MOVED)
        num_steps = min(_RAMP_STEPS, self.ramp, max(1, moves))
        borders = [self.ramp * number // num_steps for number in range(num_steps)] if num_steps else []
        return [*_along(before, self, [*borders, self.ramp]), (self.at + self.ramp, self.weights)]


class SourceSchedule:
    """Sources of positions, by number in the order of ``names``.

    A pure function of names, changes, choice and seed. It does not depend on the order of the names, nor on changes
    after the position. Counts and debts to sources continue from one change to the next.

    Parameters
    ----------
    names
        Names of the sources; at most 65,536.
    changes
        Changes in ascending order, the first at position 0. A change is valid until the next change; the next change
        may cut a ramp.
    epoch
        Length of an epoch with the exact number of samples of each source, until weights change: a multiple of the sum
        of the weights. None if counts may also be inexact at the ends of epochs.
    """

    def __init__(
        self,
        names: Sequence[str],
        changes: Sequence[Change],
        choice: Choice,
        *,
        seed: int = 0,
        epoch: int | None = None,
    ) -> None:
        if not 0 < len(names) <= MOST_SOURCES:
            raise UsageError(f"a mixture has 1 to {MOST_SOURCES} sources; got {len(names)}")
        self.names, self.changes, self.choice, self.seed = tuple(names), tuple(changes), choice, check_seed(seed)
        # Stages number sources by their sorted names, so that ties between equal weights do not depend on the listing.
        self._sorted = sorted(self.names)
        number_of = {name: number for number, name in enumerate(self.names)}
        self._number = np.array([number_of[name] for name in self._sorted], dtype=np.int64)
        self._sorted_number = np.argsort(self._number)
        steps = _steps(self.changes, choice.block * choice.run)
        self._starts, self._weights = [start for start, _ in steps], [weights for _, weights in steps]
        self._stages: dict[int, ConstantStage] = {}
        self._counts_before = {change.at: change.before for change in self.changes if change.before is not None}
        self._epoch = epoch if choice.run == 1 else None

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position; shape (num_sources,); 0.5 ms for 64 sources."""
        counts: NDArray[np.int64] = self._stage_at(position).counts(position)[self._sorted_number]
        return counts

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``; 30 ns per position for 64 sources."""
        parts = [np.zeros(0, dtype=np.int64)]
        while start < stop:
            number = self._number_at(start)
            end = min(stop, self._starts[number + 1]) if number + 1 < len(self._starts) else stop
            parts.append(self._stage(number).sources(start, end))
            start = end
        return self._number[np.concatenate(parts) if len(parts) > 2 else parts[-1]]

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source; None if the weight of the source is 0 or too small."""
        place = int(self._sorted_number[source])
        for stage_number in range(len(self._starts)):
            is_last = stage_number + 1 == len(self._starts)
            if is_last or int(self._stage(stage_number + 1).before[place]) > number:
                stage = self._stage(stage_number)
                return stage.position_of(place, number) if stage.weights[place] else None
        return None

    def first_position(self, is_met: Callable[[NDArray[np.int64]], Any]) -> int | None:
        """Return the first position, up to 2^62, with counts that meet a condition; None without such a position.

        The condition must be monotone: larger counts meet it as well. O(num_sources * log(position)), for a single
        condition on all sources.
        """
        end = 1
        while not is_met(self.counts(end)):
            end *= 2
            if end > MOST_POSITIONS:
                return None
        return bisect_left(range(end), True, lo=end // 2, key=lambda position: bool(is_met(self.counts(position))))

    def weights_at(self, position: int) -> dict[str, int]:
        """Return the integer weights by name in force at a position."""
        stage = self._stage_at(position)
        return {name: stage.weights[place] for name, place in zip(self.names, self._sorted_number, strict=True)}

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return place 0 for all positions if each rank has its own source; None if ranks get a part of each source."""
        return np.zeros(len(positions), dtype=np.uint64) if isinstance(self.choice, PerRank) else None

    @property
    def starts(self) -> Sequence[int]:
        """Start positions of constant weights, ascending."""
        return self._starts

    @property
    def borders(self) -> Sequence[int]:
        """Positions of changes, and positions after another 3 % of a ramp, ascending."""
        borders, ends = [], {end for change in self.changes for end in (change.at, change.at + change.ramp)}
        last = self._weights[0]
        for start, weights in zip(self._starts[1:], self._weights[1:], strict=True):
            if start in ends or _moved(last, weights) >= _MOST_MOVED:
                borders.append(start)
                last = weights
        return borders

    def expected(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the unrounded number of samples of each source at positions ``[start, stop)``."""
        counts = np.zeros(len(self.names))
        while start < stop:
            number = self._number_at(start)
            end = min(stop, self._starts[number + 1]) if number + 1 < len(self._starts) else stop
            weights = self._weights[number]
            shares = np.array([weights.get(name, 0) for name in self.names], dtype=np.float64)
            counts += shares * ((end - start) / shares.sum())
            start = end
        return counts

    def _number_at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _stage_at(self, position: int) -> ConstantStage:
        return self._stage(self._number_at(position))

    def _stage(self, number: int) -> ConstantStage:
        """Return a stage; a stage and the earlier stages for its counts are made on first use."""
        first = number
        while first and first not in self._stages and self._starts[first] not in self._counts_before:
            first -= 1
        for current in range(first, number + 1):
            if current in self._stages:
                continue
            start, earlier = self._starts[current], self._stages.get(current - 1)
            before, owed = np.zeros(len(self.names), dtype=np.int64), None
            if (counts := self._counts_before.get(start)) is not None:
                before = np.array([counts.get(name, 0) for name in self._sorted], dtype=np.int64)
            elif earlier is not None:
                before = earlier.counts(start)
                owed = earlier.owed(start, before)
            weights = [self._weights[current].get(name, 0) for name in self._sorted]
            epoch = None if current else self._epoch
            stage_key = key(self.seed, 0, "source", start)
            stage = ConstantStage(self.choice, weights, stage_key, start=start, before=before, owed=owed, epoch=epoch)
            self._stages[current] = stage  # a stage of another thread would be equal
        return self._stages[number]


def _steps(changes: Iterable[Change], block_positions: int) -> list[tuple[int, Mapping[str, int]]]:
    """Return the start positions of constant weights, with the weights: ramps as steps."""
    steps: list[tuple[int, Mapping[str, int]]] = []
    for change in changes:
        while steps and steps[-1][0] >= change.at:
            steps.pop()
        if (change.at == 0) != (not steps) or change.at < 0 or change.ramp < 0:
            raise UsageError(f"weights must change at ascending positions, beginning at 0; got a change at {change.at}")
        if change.ramp and steps:
            steps += _ramp(steps[-1][1], change, block_positions)
        steps.append((change.at + (change.ramp if steps else 0), change.weights))
    return steps


def _ramp(before: Mapping[str, int], change: Change, block_positions: int) -> list[tuple[int, Mapping[str, int]]]:
    """Return the steps of a ramp. Steps end at block borders: cut blocks would make counts less exact at every step."""
    num_blocks = change.ramp // block_positions
    num_steps = max(1, min(_RAMP_STEPS, num_blocks))
    borders = [num_blocks * number // num_steps * block_positions for number in range(num_steps)]
    return _along(before, change, [*borders, change.ramp])


def _along(
    before: Mapping[str, int], change: Change | SequenceChange, borders: list[int]
) -> list[tuple[int, Mapping[str, int]]]:
    """Return the positions and weights of the steps between these borders of a ramp."""
    first, last = _shares(before, change.weights)
    steps: list[tuple[int, Mapping[str, int]]] = []
    for start, end in pairwise(borders):
        done = Fraction(start + end, 2 * change.ramp)  # in the middle of the step
        weights = {name: first[name] + (last[name] - first[name]) * done for name in first}
        steps.append((change.at + start, integer_weights(weights)))
    return steps


def _shares(*sides: Mapping[str, int]) -> list[dict[str, Fraction]]:
    """Return the shares of all named sources at each of several weights."""
    names = dict.fromkeys(name for side in sides for name in side)
    return [{name: Fraction(side.get(name, 0), sum(side.values())) for name in names} for side in sides]


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> Fraction:
    """Return the share of positions with another source at other weights."""
    first, last = _shares(before, after)
    return sum((abs(last[name] - first[name]) for name in first), Fraction(0)) / 2
