"""The orders of segments, one after the other: a prefix of the segments has the first positions of all of them.

A segment is a range of sample ids and of chunks whose positions are the same range as its ids. Its order knows nothing
of the others, so what is at a position does not change when segments follow.

Ranks share a batch as the segment's own order would have them do it. In a batch at a border between segments, samples
of both are spread over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.order.arrays.vectorized import order_by
from shoal.order.protocol import (
    AXIS_BITS,
    BoundOrder,
    Dealing,
    Narrowing,
    as_ids,
    as_span,
    innermost,
    lanes_of,
    node_and_lane,
)

_SPAN = 1 << 17
_BOUND = 2  # segments: a position that is read, and one that is planned, lie in neighbouring ones


class SegmentsInTurn:
    """Segments in turn; each is bound when it is needed, and the two that were bound last are kept.

    Parameters
    ----------
    first_samples, first_chunks
        Samples and chunks before each segment, then those of all; shape (num_segments + 1,). A segment may be empty.
    order_of
        Binds the order of a segment, given by number, over its own samples and chunks, which count from 0.
    parameters
        What is told of the order as a whole: readers plan with the number of ``chunks`` that it uses at a time.
    """

    version: ClassVar[int] = 1
    num_canonical_nodes: ClassVar[int] = 1

    def __init__(
        self,
        first_samples: ArrayLike,
        first_chunks: ArrayLike,
        order_of: Callable[[int], BoundOrder],
        *,
        parameters: Mapping[str, Any],
    ) -> None:
        self.first_samples = np.asarray(first_samples, dtype=np.int64)
        self.first_chunks = np.asarray(first_chunks, dtype=np.int64)
        self.num_samples = int(self.first_samples[-1])
        self.parameters = parameters
        self.span = _SPAN
        self._order_of = order_of
        self._bound: dict[int, BoundOrder] = {}

    def segment(self, number: int) -> BoundOrder:
        """Return the order of a segment; without a lock, at worst it is bound twice."""
        found = self._bound.get(number)
        if found is None:
            found = self._order_of(number)
            if self.span < _SPAN:
                _narrow(found, self.span)
            self._bound[number] = found
            for oldest in list(self._bound)[:-_BOUND]:
                self._bound.pop(oldest, None)  # another thread may have just removed it
        return found

    def narrow(self, positions: int) -> None:
        """Make spans of about so many positions at most, in the segments that can."""
        if positions < self.span:
            self.span = positions
            for order in list(self._bound.values()):
                _narrow(order, positions)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions ``[start, stop)`` and the chunk of each."""
        start, stop = as_span(start, stop, self.num_samples)
        ids, chunks = np.empty(stop - start, dtype=np.int64), np.empty(stop - start, dtype=np.int64)
        number, at = int(np.searchsorted(self.first_samples, start, side="right")) - 1, start
        while at < stop:
            first, end = self.first_samples[number : number + 2].tolist()
            if at < (end := min(end, stop)):
                here = slice(at - start, end - start)
                found = self.segment(number).locate(at - first, end - first)
                np.add(found[0], first, out=ids[here])
                np.add(found[1], self.first_chunks[number], out=chunks[here])
            number, at = number + 1, end
        return ids, chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each sample id."""
        array = as_ids(ids, self.num_samples)
        found = np.empty_like(array)
        for number, mine in _grouped(self.first_samples, array):
            first = self.first_samples[number]
            found[mine] = self.segment(number).positions(array[mine] - first) + first
        return found

    def lanes(self, chunks: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the lane of each chunk in the order of its segment."""
        found = np.empty(len(chunks), dtype=np.uint16)
        for number, mine in _grouped(self.first_chunks, chunks):
            found[mine] = lanes_of(self.segment(number), chunks[mine] - self.first_chunks[number])
        return found

    def axis(
        self, positions: NDArray[np.int64], chunks: NDArray[np.int64], batches: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Return where each sample lies when its batch is shared: as in the order of its segment."""
        found = np.empty(len(positions), dtype=np.uint64)
        for number, mine in _grouped(self.first_samples, positions):
            order = self.segment(number)
            inside, of_segment = positions[mine] - self.first_samples[number], chunks[mine] - self.first_chunks[number]
            if isinstance(dealt := innermost(order), Dealing):
                found[mine] = dealt.axis(inside, of_segment, batches[mine])
            else:
                found[mine] = node_and_lane(order, inside, of_segment, bits=AXIS_BITS)
        return found


def _narrow(order: BoundOrder, positions: int) -> None:
    if isinstance(spanned := innermost(order), Narrowing):
        spanned.narrow(positions)


def _grouped(firsts: NDArray[np.int64], numbers: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Yield each segment in which some numbers lie, ascending, and what selects its numbers."""
    segments = np.searchsorted(firsts, numbers, side="right") - 1
    if not len(segments):
        return
    low, high = int(segments.min()), int(segments.max())
    if low == high:
        yield low, slice(None)
        return
    by_segment = order_by((segments, high.bit_length()))
    borders = np.flatnonzero(np.diff(segments[by_segment])) + 1
    for mine in np.split(by_segment, borders):
        yield int(segments[mine[0]]), mine
