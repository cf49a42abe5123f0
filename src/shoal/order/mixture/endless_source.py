"""Sources of a mixture: a dataset repeated round after round, or a source whose samples come in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import distinct
from shoal.order.protocol import BoundOrder, Narrowing, first_between, innermost, node_and_lane


class EndlessSource(Protocol):
    """A source whose samples never end: sample ``k`` is the one at position ``k % num_samples`` of a round.

    Ids and chunks are numbered within the source.
    """

    @property
    def num_samples(self) -> int:
        """Samples of a round."""

    @property
    def num_ids(self) -> int:
        """Number of sample ids, of which a round need not have all."""

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""

    @property
    def reach(self) -> int:
        """Number of its samples from one use of a chunk to the next, about; 0 if unknown."""

    @property
    def shortest_round(self) -> int:
        """Number of its samples in which it, or one of its own sources, comes round soonest."""

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of samples ``[start, stop)`` and the chunk of each."""

    def axis(self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return where samples with these numbers and chunks lie on the axis along which ranks share a batch.

        An integer below 2^32; samples of a chunk lie together, and chunks that mix are spread over all of it.
        """

    def uses(self, sample_id: int, start: int, stop: int) -> Iterator[int]:
        """Yield those of the samples ``[start, stop)`` with this id, ascending."""


class RepeatedDataset:
    """A dataset as a source: each round in the order of the epoch of that number.

    Parameters
    ----------
    num_samples, num_ids, num_chunks, reach
        See `EndlessSource`.
    order_of
        The bound order of a round; it should keep the last two.
    span
        Positions of a round that are worth making at once, as few are used at a time; None for those of the order.
    has_one_id
        True if every round has the same single sample: its order is then made once, not for each position.
    """

    def __init__(
        self,
        num_samples: int,
        order_of: Callable[[int], BoundOrder],
        *,
        num_ids: int,
        num_chunks: int,
        reach: int = 0,
        span: int | None = None,
        has_one_id: bool = False,
    ) -> None:
        self.num_samples, self.num_ids, self.num_chunks, self.reach = num_samples, num_ids, num_chunks, reach
        self._order_of, self._span = order_of, span
        self._has_one_id = has_one_id
        self._narrowed: BoundOrder | None = None  # the last one: to ask what it is takes longer than to locate samples

    @property
    def shortest_round(self) -> int:
        """Samples of a round."""
        return self.num_samples

    def round(self, number: int) -> BoundOrder:
        """Return the order of a round."""
        order = self._order_of(number)
        if order is not self._narrowed:
            spanned = innermost(order)
            if self._span is not None and isinstance(spanned, Narrowing):
                spanned.narrow(self._span)
            self._narrowed = order
        return order

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of samples ``[start, stop)`` and the chunk of each."""
        if self._has_one_id:
            only_id, only_chunk = self.round(0).locate(0, 1)
            return np.repeat(only_id, stop - start), np.repeat(only_chunk, stop - start)
        ids, chunks = np.empty(stop - start, dtype=np.int64), np.empty(stop - start, dtype=np.int64)
        at = start
        while at < stop:
            number, first = divmod(at, self.num_samples)
            end = min(stop, at - first + self.num_samples)
            ids[at - start : end - start], chunks[at - start : end - start] = self.round(number).locate(
                first, first + end - at
            )
            at = end
        return ids, chunks

    def axis(self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the canonical node of each sample and the lane of its chunk as one fraction of 2^32."""
        rounds, offsets = np.divmod(numbers, self.num_samples)
        if self._has_one_id and self.num_chunks == 1:  # of several chunks, the lane of one differs by round
            rounds = np.zeros_like(rounds)
        found = np.empty(len(numbers), dtype=np.uint64)
        for number in distinct(rounds).tolist():
            mine, order = rounds == number, self.round(number)
            found[mine] = node_and_lane(order, offsets[mine], chunks[mine], bits=32)
        return found

    def uses(self, sample_id: int, start: int, stop: int) -> Iterator[int]:
        """Yield those of the samples ``[start, stop)`` with this id, ascending."""
        if self._has_one_id:
            yield from range(start, stop) if int(self.round(0).ids(0, 1)[0]) == sample_id else ()
            return
        for number in range(start // self.num_samples, -(-stop // self.num_samples)):
            begin = number * self.num_samples
            first, end = max(start - begin, 0), min(stop - begin, self.num_samples)
            while (offset := first_between(self.round(number), sample_id, first, end)) >= 0:
                yield begin + offset
                first = offset + 1


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
