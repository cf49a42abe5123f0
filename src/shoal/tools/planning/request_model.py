"""Count the requests to a remote store: reads are grouped, neighbours share a request, and large requests are split.

Read-ahead is requested in groups, as soon as memory has room. So the order of first uses decides which reads share a
request, and the number of requests is known in advance.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.reading.schedule.memory_ledger import MemoryBudget, groups_with_room
from shoal.reading.schedule.read_requests import LARGE_BYTES, PART_BYTES, Request, RequestSizes, coalesce, split_large
from shoal.reading.schedule.units import UnitRead, Units
from shoal.tools.planning.chunk_uses import ChunkUses

_MOST_READS = 1 << 15  # sampled to count their requests: 6 us each


def count_requests(spans: Iterable[Sequence[UnitRead]], sizes: RequestSizes) -> int:
    """Count the requests of a rank for its reads, by span and in the order of first use; O(n log n).

    The reads of a span are planned before the samples of the previous span are delivered. A used read makes room.
    """
    budget = MemoryBudget(ahead_limit_bytes=sizes.ahead_bytes)
    waiting: deque[UnitRead] = deque()
    pending: deque[_PendingRequest] = deque()  # the request of each read ahead
    num_requests = 0

    def request_all(group: Sequence[UnitRead]) -> None:
        nonlocal num_requests
        answers: dict[int, _PendingRequest] = {}
        for request in coalesce(group, most_bytes=sizes.most_bytes):
            num_requests += len(split_large(request))
            budget.reserve(request.num_bytes)
            answers |= dict.fromkeys(request.reads, _PendingRequest(request))
        pending.extend(answers[place] for place in range(len(group)))

    def read_ahead() -> None:
        for group in groups_with_room(budget, sizes.group_bytes, pending=waiting, is_due=lambda: bool(waiting)):
            request_all(group)

    def use(num_reads: int) -> None:
        for _ in range(num_reads):
            if not pending:  # the read had no room
                request_all([waiting.popleft()])
            if pending[0].take():
                budget.drop(pending[0].num_bytes)
            pending.popleft()
            read_ahead()

    before = 0
    for reads in spans:
        waiting.extend(reads)
        read_ahead()
        use(before)
        before = len(reads)
    use(before)
    return num_requests


class _PendingRequest:
    """A request, and the number of its unused reads."""

    def __init__(self, request: Request) -> None:
        self.num_bytes, self._num_waiters = request.num_bytes, len(request.reads)

    def take(self) -> bool:
        """Use a read; return True if it was the last."""
        self._num_waiters -= 1
        return not self._num_waiters


def requests_for_each_read(uses: ChunkUses, units: Units, sizes: RequestSizes, *, span_positions: int) -> float:
    """Return the requests per chunk that a rank uses, in an epoch with spans of ``span_positions`` positions.

    Ranks are sampled evenly, until 32,768 reads are counted.
    """
    borders = np.searchsorted(uses.ranks, np.arange(len(uses.samples_of_rank) + 1))
    num_reads = num_requests = 0
    for rank in from_all_over(len(uses.samples_of_rank)):
        of_rank = slice(borders[rank], borders[rank + 1])
        in_turn = np.argsort(uses.first[of_rank])
        chunks, span = uses.chunks[of_rank][in_turn], uses.first[of_rank][in_turn] // span_positions
        num_spans = int(span[-1]) + 1 if len(span) else 0
        parts = np.split(chunks, np.searchsorted(span, np.arange(1, num_spans)))
        num_requests += count_requests(map(units.reads, parts), sizes)
        num_reads += len(chunks)
        if num_reads >= _MOST_READS:
            break
    return num_requests / max(1, num_reads)


def from_all_over(num_ranks: int) -> list[int]:
    """Return all ranks in an order that separates neighbours.

    >>> from_all_over(8)
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    step = next(step for step in range(int(num_ranks * 0.618) + 1, 2 * num_ranks + 1) if math.gcd(step, num_ranks) == 1)
    return [number * step % num_ranks for number in range(num_ranks)]


def likely_requests_for_each_read(chunk_bytes: NDArray[np.int64], num_chunks: int, sizes: RequestSizes) -> float:
    """Estimate `requests_for_each_read` for chunks in random order.

    The group of a chunk has the next chunk with the same probability as any other chunk.

    >>> from shoal.reading.schedule.read_requests import request_sizes
    >>> chunk_bytes, sizes = np.full(1000, 32 << 10), request_sizes(32 << 20)
    >>> [likely_requests_for_each_read(chunk_bytes * many, 1000, sizes) for many in (1, 100, 300)]
    [0.969, 1.0, 3.0]
    """
    mean_bytes = float(chunk_bytes.mean())
    shared = 0.0
    if 2 * mean_bytes <= sizes.most_bytes:
        shared = min(1.0, (-(-sizes.group_bytes // mean_bytes) - 1) / max(1, num_chunks))
    return parts_of_each_read(chunk_bytes) - shared


def parts_of_each_read(chunk_bytes: NDArray[np.int64]) -> float:
    """Return the mean number of requests per chunk if no chunks share a request; a chunk above 8 MiB takes several.

    >>> parts_of_each_read(np.array([1 << 20, 9 << 20]))
    2.0
    """
    return float(np.where(chunk_bytes <= LARGE_BYTES, 1, -(-chunk_bytes // PART_BYTES)).mean())
