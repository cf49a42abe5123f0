"""Schedules of sources: the interface that a mixture needs, and a schedule that restarts all sources in each epoch.

`SourceSchedule` is endless: a source continues from one epoch to the next. Choices of other libraries know one epoch at
a time, and the length of an epoch may depend on draws. `OneEpoch` is the schedule of such an epoch, and `EpochsInTurn`
the schedule of all epochs, with positions counted from epoch 0 on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class EpochOfSources(Protocol):
    """The source of every position of one epoch; sources by number."""

    @property
    def num_samples(self) -> int:
        """Positions of the epoch."""

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position."""

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``."""

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source; None if the epoch ends before this sample."""


class EpochChoice(ABC):
    """A choice that restarts all sources in each epoch, as in other libraries."""

    __slots__ = ()
    name: ClassVar[str]
    run: ClassVar[int] = 1
    world_size: int = 1

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """The arguments that states keep."""

    @property
    def varies(self) -> bool:
        """True if epochs differ in length."""
        return False

    def settled(self, names: Sequence[str]) -> Self:  # noqa: ARG002
        """Return the choice for sources with these names; raises `UsageError` if the names do not fit."""
        return self

    @abstractmethod
    def shares(self, lengths: Sequence[int]) -> Sequence[float]:
        """Return the share of each source while no source is used up."""

    def source_epoch(self, epoch: int) -> int:
        """Return the epoch of the sources in an epoch of the mixture."""
        return epoch

    @abstractmethod
    def of_epoch(self, lengths: Sequence[int], seed: int, epoch: int) -> EpochOfSources:
        """Return the source of every position of an epoch."""


class CountedSources(Protocol):
    """The source of every position of a mixture; sources by number in the order of ``names``."""

    names: tuple[str, ...]

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position."""

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``."""

    def weights_at(self, position: int) -> Mapping[str, int]:
        """Return the integer weights by name in force at a position."""


class Schedule(CountedSources, Protocol):
    """Sources of positions, with the borders and places that an order of samples needs."""

    @property
    def borders(self) -> Sequence[int]:
        """Positions of the changes of weights, ascending."""

    def position_of(self, source: int, number: int) -> int | None:
        """Return the position of sample ``number`` of a source; None if the sample never comes."""

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return the place of each position when ranks share a batch; None if ranks get a part of each source."""


class OneEpoch:
    """An epoch of sources by name; ``weights`` are valid until a source is used up.

    If ``ranks`` is above 1, rank ``r`` had every ``ranks``-th position, from position ``r`` on.
    """

    def __init__(self, epoch: EpochOfSources, weights: Mapping[str, int], ranks: int) -> None:
        self.names, self._epoch, self._weights, self._ranks = tuple(weights), epoch, weights, ranks
        self.counts, self.sources, self.position_of = epoch.counts, epoch.sources, epoch.position_of

    @property
    def num_samples(self) -> int:
        """Positions of the epoch."""
        return self._epoch.num_samples

    @property
    def borders(self) -> Sequence[int]:
        """No positions: weights stay the same."""
        return ()

    def weights_at(self, position: int) -> Mapping[str, int]:  # noqa: ARG002
        """Return the integer weights by name."""
        return self._weights

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return the rank that had each position; None if there was a single rank."""
        return None if self._ranks == 1 else (positions % self._ranks).astype(np.uint64)


class EpochsInTurn:
    """The epochs of a mixture as one endless schedule; a position needs the lengths of all earlier epochs."""

    def __init__(self, names: Sequence[str], of_epoch: Callable[[int], OneEpoch]) -> None:
        self.names, self._of_epoch = tuple(names), of_epoch
        self._begins, self._before = [0], [np.zeros(len(self.names), dtype=np.int64)]

    def begin(self, epoch: int) -> int:
        """Return the first position of an epoch."""
        while len(self._begins) <= epoch:
            self._add_epoch(len(self._begins) - 1)
        return self._begins[epoch]

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position."""
        epoch = self._epoch_at(position)
        return self._before[epoch] + self._of_epoch(epoch).counts(position - self._begins[epoch])

    def sources(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source of each position ``[start, stop)``."""
        parts = [np.zeros(0, dtype=np.int64)]
        while start < stop:
            epoch = self._epoch_at(start)
            first, end = self._begins[epoch], self.begin(epoch + 1)
            parts.append(self._of_epoch(epoch).sources(start - first, min(stop, end) - first))
            start = min(stop, end)
        return np.concatenate(parts)

    def weights_at(self, position: int) -> Mapping[str, int]:
        """Return the integer weights by name."""
        return self._of_epoch(0).weights_at(position)

    def _epoch_at(self, position: int) -> int:
        while self._begins[-1] <= position:
            self._add_epoch(len(self._begins) - 1)
        return bisect_right(self._begins, position) - 1

    def _add_epoch(self, epoch: int) -> None:
        added = self._of_epoch(epoch)
        num_samples = added.num_samples
        # Another thread may be faster: its results are equal, and its later results stay.
        self._before[epoch + 1 : epoch + 2] = [self._before[epoch] + added.counts(num_samples)]
        self._begins[epoch + 1 : epoch + 2] = [self._begins[epoch] + num_samples]
