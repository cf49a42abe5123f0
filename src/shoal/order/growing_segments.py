"""The growing order: a listing's shards permuted by the seed, cut into segments, and ordered segment by segment.

The first segment is small, because delivery waits for its index. Each next segment is twice as large, and is indexed
while the segment before is used. A segment larger than two windows would hardly mix better, and its first sample would
come later. Segments are a function of the listing, the seed and the window alone.

A segment is a range of sample ids and of chunks, and its positions are the same range as its ids. Its order knows
nothing of other segments, so the samples at its positions stay the same when segments follow.

The order of a segment decides how ranks share a batch. In a batch at a border, the samples of both segments are spread
over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute
from shoal.order.arrays.vectorized import order_by
from shoal.order.protocol import (
    AXIS_BITS,
    BoundOrder,
    Dealing,
    as_ids,
    as_span,
    innermost,
    lanes_of,
    narrow,
    node_and_lane,
)
from shoal.order.seeds import check_seed, key

FIRST_BYTES = 64 * 2**20
"""Bytes that end the first segment, unless the window is less than half as large."""

_WINDOWS = 2  # size of a segment in the middle of an epoch, in windows


def permuted_shards(num_shards: int, *, seed: int) -> NDArray[np.int64]:
    """Return the shards of a listing, by number, in the order of indexing.

    >>> permuted_shards(5, seed=0).tolist()
    [2, 1, 0, 4, 3]
    """
    return permute(np.arange(num_shards), num_shards, key(check_seed(seed), 0, "growing shards"))


def segment_seed(seed: int, number: int) -> int:
    """Return the seed of the order inside a segment; a common seed would order segments of equal size alike."""
    return key(check_seed(seed), 0, "growing segment", number)


def cut_segments(num_bytes: Sequence[int] | NDArray[Any], *, window_bytes: int) -> list[int]:
    """Cut permuted shards into segments; less than 1 us per shard.

    Segment ``i`` ends with the shard that completes ``min(FIRST_BYTES * 2**i, 2 * window_bytes)``. A last segment
    of less than half this size is joined to the one before, since its few shards would hardly mix. If there are only
    two segments, the first delivery then waits for less than twice the bytes.

    Parameters
    ----------
    num_bytes
        Bytes of each shard, in the permuted order.
    window_bytes
        Bytes of the window that orders each segment.

    Returns
    -------
    list[int]
        First shard of each segment, then the number of shards. Every segment has a shard; no shards make no segment.

    Examples
    --------
    >>> cut_segments([2**25] * 41, window_bytes=2**27)  # of 32 MiB, with a window of 128 MiB
    [0, 2, 6, 14, 22, 30, 41]
    """
    if window_bytes < 1:
        raise UsageError(f"window_bytes must be at least 1; got {window_bytes}")
    sizes = np.asarray(num_bytes)
    if sizes.size and int(sizes.min()) < 0:
        raise UsageError(f"shards cannot have a negative size; shard {int(sizes.argmin())} has {int(sizes.min())}")
    most = _WINDOWS * int(window_bytes)
    limit, filled, firsts = min(FIRST_BYTES, most), 0, [0]
    for number, size in enumerate(sizes.tolist(), start=1):
        filled += size
        if filled >= limit:
            firsts.append(number)
            limit, filled = min(2 * limit, most), 0
    if firsts[-1] < len(sizes):
        if len(firsts) > 1 and 2 * filled < limit:
            firsts.pop()
        firsts.append(len(sizes))
    return firsts


_SPAN = 1 << 17
_BOUND = 2  # segments: the reader and the planner are in the same segment or in neighbours


class SegmentsInTurn:
    """Segments in turn; each segment is bound on first use, and the last two bound segments are kept.

    Parameters
    ----------
    first_samples, first_chunks
        Samples and chunks before each segment, then the totals; shape (num_segments + 1,). A segment may be empty.
    order_of
        Binds the order of a segment, given by number, over its samples and chunks; both count from 0.
    parameters
        Parameters of the order as a whole: readers plan with the number of ``chunks`` used at a time.
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
        """Return the order of a segment; without a lock, at worst a segment is bound twice."""
        order = self._bound.get(number)
        if order is None:
            order = self._order_of(number)
            if self.span < _SPAN:
                narrow(order, self.span)
            self._bound[number] = order
            for oldest in list(self._bound)[:-_BOUND]:
                self._bound.pop(oldest, None)  # another thread may have just removed it
        return order

    def narrow(self, positions: int) -> None:
        """Limit spans to about this many positions, in segments whose order supports the limit."""
        if positions < self.span:
            self.span = positions
            for order in list(self._bound.values()):
                narrow(order, positions)

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
                rows = slice(at - start, end - start)
                located = self.segment(number).locate(at - first, end - first)
                np.add(located[0], first, out=ids[rows])
                np.add(located[1], self.first_chunks[number], out=chunks[rows])
            number, at = number + 1, end
        return ids, chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each sample id."""
        array = as_ids(ids, self.num_samples)
        positions = np.empty_like(array)
        for number, rows in _grouped(self.first_samples, array):
            first = self.first_samples[number]
            positions[rows] = self.segment(number).positions(array[rows] - first) + first
        return positions

    def lanes(self, chunks: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the lane of each chunk in the order of its segment."""
        lanes = np.empty(len(chunks), dtype=np.uint16)
        for number, rows in _grouped(self.first_chunks, chunks):
            lanes[rows] = lanes_of(self.segment(number), chunks[rows] - self.first_chunks[number])
        return lanes

    def axis(
        self, positions: NDArray[np.int64], chunks: NDArray[np.int64], batches: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Return the place of each sample in its batch, as in the order of its segment; see `Dealing`."""
        axis = np.empty(len(positions), dtype=np.uint64)
        for number, rows in _grouped(self.first_samples, positions):
            order = self.segment(number)
            inside, of_segment = positions[rows] - self.first_samples[number], chunks[rows] - self.first_chunks[number]
            if isinstance(dealing := innermost(order), Dealing):
                axis[rows] = dealing.axis(inside, of_segment, batches[rows])
            else:
                axis[rows] = node_and_lane(order, inside, of_segment, bits=AXIS_BITS)
        return axis


def _grouped(firsts: NDArray[np.int64], numbers: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Yield each segment with some of the numbers, ascending, and the indices of its numbers."""
    segments = np.searchsorted(firsts, numbers, side="right") - 1
    if not len(segments):
        return
    low, high = int(segments.min()), int(segments.max())
    if low == high:
        yield low, slice(None)
        return
    by_segment = order_by((segments, high.bit_length()))
    borders = np.flatnonzero(np.diff(segments[by_segment])) + 1
    for rows in np.split(by_segment, borders):
        yield int(segments[rows[0]]), rows
