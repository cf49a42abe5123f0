"""Sources of a mixture: a dataset repeated round after round, or a source with renumbered samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import distinct
from shoal.order.protocol import BoundOrder, first_between, narrow, node_and_lane


class EndlessSource(Protocol):
    """A source without end: sample ``k`` is at position ``k % num_samples`` of a round.

    Ids and chunks are numbered within the source.
    """

    @property
    def num_samples(self) -> int:
        """Samples of a round."""

    @property
    def num_ids(self) -> int:
        """Number of sample ids; a round may lack some ids."""

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""

    @property
    def reach(self) -> int:
        """Approximate number of samples from one use of a chunk to the next; 0 if unknown."""

    @property
    def shortest_round(self) -> int:
        """Samples of the shortest round, of this source or of its own sources."""

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of samples ``[start, stop)`` and the chunk of each."""

    def axis(self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the coordinate of each sample, from its number and chunk; ranks divide a batch along this axis.

        Coordinates are below 2^32. Samples of a chunk are neighbours; chunks that mix spread over the whole axis.
        """

    def uses(self, sample_id: int, start: int, stop: int) -> Iterator[int]:
        """Yield the numbers in ``[start, stop)`` of samples with this id, ascending."""


class RepeatedDataset:
    """A dataset as a source: each round has the order of the epoch with its number.

    Parameters
    ----------
    num_samples, num_ids, num_chunks, reach
        See `EndlessSource`.
    order_of
        Returns the bound order of a round; it should cache the last two orders.
    span
        Positions of a round to compute at once if few positions are used at a time; None for the span of the order.
    has_one_id
        True if every round has the same single sample: the order is then bound once, not for each position.
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
        self._narrowed: BoundOrder | None = None  # the last order: checking its type takes longer than locating samples

    @property
    def shortest_round(self) -> int:
        """Samples of a round."""
        return self.num_samples

    def round(self, number: int) -> BoundOrder:
        """Return the order of a round."""
        order = self._order_of(number)
        if order is not self._narrowed:
            if self._span is not None:
                narrow(order, self._span)
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
        """Return the canonical node of each sample and the lane of its chunk, combined in a fraction of 2^32."""
        rounds, offsets = np.divmod(numbers, self.num_samples)
        if self._has_one_id and self.num_chunks == 1:  # with several chunks, the lane of a chunk differs by round
            rounds = np.zeros_like(rounds)
        axis = np.empty(len(numbers), dtype=np.uint64)
        for number in distinct(rounds).tolist():
            rows, order = rounds == number, self.round(number)
            axis[rows] = node_and_lane(order, offsets[rows], chunks[rows], bits=32)
        return axis

    def uses(self, sample_id: int, start: int, stop: int) -> Iterator[int]:
        """Yield the numbers in ``[start, stop)`` of samples with this id, ascending."""
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
    """A new order of a source: sample ``numbers[i]`` comes as sample ``first + i``; other samples keep their numbers.

    Sequences hold documents from all over a block. If weights change within a block, each source continues with the
    remaining documents of the block, and then with the documents after the block: every document comes once, and
    counts are right at once.
    """

    first: int
    numbers: NDArray[np.int64]

    @property
    def stop(self) -> int:
        """First number after the renumbered samples."""
        return self.first + len(self.numbers)

    def apply(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the original number of each sample, same shape."""
        originals, inside = samples.copy(), (samples >= self.first) & (samples < self.stop)
        originals[inside] = self.numbers[samples[inside] - self.first]
        return originals

    def followed_by(self, first: int, left: NDArray[np.int64]) -> Renumbering:
        """Return the renumbering with ``left[i]`` as sample ``first + i``; later samples keep their numbers."""
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
        """Return the place of each sample on the axis along which ranks share a batch."""
        return self._source.axis(self._renumbering.apply(numbers), chunks)

    def uses(self, sample_id: int, start: int, stop: int) -> Iterator[int]:
        """Yield the numbers in ``[start, stop)`` of samples with this id, ascending."""
        first, end, originals = self._renumbering.first, self._renumbering.stop, self._renumbering.numbers
        low, high = start, stop
        if len(originals):
            low, high = min(start, int(originals.min())), max(stop, int(originals.max()) + 1)
        number_of = {original: first + row for row, original in enumerate(originals.tolist())}
        numbers = []
        for original in self._source.uses(sample_id, low, high):
            is_used = original in number_of or not first <= original < end
            number = number_of.get(original, original)
            if is_used and start <= number < stop:
                numbers.append(number)
        yield from sorted(numbers)
