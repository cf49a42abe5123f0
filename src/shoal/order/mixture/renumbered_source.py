"""A source of a mixture whose samples come in another order in one stretch.

Sequences hold documents from all over a block. If weights change within it, each source goes on with the documents that
the block has left, and then with those behind the block: every document comes once, and counts are right at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.order.mixture.endless_source import EndlessSource


@dataclass(frozen=True, eq=False, slots=True)
class Renumbering:
    """Sample ``first + i`` of a source is in truth its sample ``numbers[i]``; others keep their numbers."""

    first: int
    numbers: NDArray[np.int64]

    @property
    def stop(self) -> int:
        """The number from which samples keep theirs."""
        return self.first + len(self.numbers)

    def apply(self, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in truth of each sample, same shape."""
        found, inside = wanted.copy(), (wanted >= self.first) & (wanted < self.stop)
        found[inside] = self.numbers[wanted[inside] - self.first]
        return found

    def followed_by(self, first: int, left: NDArray[np.int64]) -> Renumbering:
        """Return the renumbering by which sample ``first + i`` is what ``left[i]`` was; later ones stay."""
        behind = np.arange(first + len(left), max(self.stop, first + len(left)))
        return Renumbering(first, self.apply(np.concatenate([left, behind])))


AS_IT_IS = Renumbering(0, np.zeros(0, dtype=np.int64))
"""Every sample keeps its number."""


class RenumberedSource:
    """A source of a mixture, renumbered."""

    def __init__(self, source: EndlessSource, renumbering: Renumbering) -> None:
        self._source, self._renumbering = source, renumbering
        self.num_samples, self.num_ids, self.num_chunks = source.num_samples, source.num_ids, source.num_chunks
        self.reach, self.shortest_round = source.reach, source.shortest_round

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of samples ``[start, stop)`` and the chunk of each."""
        first, end = max(start, self._renumbering.first), min(stop, self._renumbering.stop)
        if first >= end:
            return self._source.locate(start, stop)
        numbers = self._renumbering.apply(np.arange(start, stop))
        low, high = int(numbers.min()), int(numbers.max()) + 1
        ids, chunks = self._source.locate(low, high)
        return ids[numbers - low], chunks[numbers - low]

    def axis(self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return where samples lie on the axis along which ranks share a batch."""
        return self._source.axis(self._renumbering.apply(numbers), chunks)

    def uses(self, sample_id: int, start: int, stop: int) -> Iterator[int]:
        """Yield those of the samples ``[start, stop)`` with this id, ascending."""
        inside = self._renumbering.numbers
        low, high = (
            (start, stop) if not len(inside) else (min(start, int(inside.min())), max(stop, int(inside.max()) + 1))
        )
        by_truth = {number: self._renumbering.first + place for place, number in enumerate(inside.tolist())}
        found = []
        for number in self._source.uses(sample_id, low, high):
            place = by_truth.get(number, number)
            if (number in by_truth or number < self._renumbering.first or number >= self._renumbering.stop) and (
                start <= place < stop
            ):
                found.append(place)
        yield from sorted(found)
