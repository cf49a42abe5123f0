"""Decision where in a shard walks from guessed starts pay, by how far apart the headers are that its scan asks for.

A walk costs the bytes up to the first header behind its guess, half a member on average, and saves the scan a round
trip for each header that it finds. What a round trip is worth in bytes is known from `shoal.indexing.scan.costs`.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.indexing.scan.costs import REACH_BYTES, ReadCosts

ALIGNMENT_BYTES = 4096
"""The first byte of a walk is a multiple of this."""

_LEAST_REQUESTS = 4  # of the scan itself, before it is known how far apart headers are
_SMOOTHING = 16  # distances that are averaged
_LEAST_HEADERS = 8  # of a walk, which then reads a sixteenth of the bytes on average to find its start
_MOST_HEADERS = 512  # of a walk, as 2 KiB are kept of each
_LEAST_SEARCH_BYTES, _MOST_SEARCH_BYTES = 64 << 10, 2 << 20  # of one request


class Walks(NamedTuple):
    """Expected walks through the rest of a shard; and of each, what finding its start takes."""

    num_walks: int
    num_at_once: int
    search_requests: float
    search_bytes: float


NO_WALKS = Walks(0, 0, 0.0, 0.0)


class WalkPlan:
    """Running estimate of the distance between the headers of one shard, and the length of walks that pay.

    At most ``most_walks`` are made at a time.
    """

    def __init__(self, costs: ReadCosts, num_bytes: int, *, most_walks: int) -> None:
        self.most_walks = most_walks
        self._costs, self._num_bytes = costs, num_bytes
        self._num_requests = self._first = self._end = self._reached = 0
        self._distance = 0.0

    def asked(self, first_byte: int, end_byte: int) -> bool:
        """Record a range that the scan asked for, wherever its bytes come from; return True if walks would pay now."""
        if first_byte >= self._reached:
            if self._reached:
                self._num_requests += 1
                distance = 0 if first_byte == self._end else first_byte - self._first
                self._distance += (distance - self._distance) / min(self._num_requests, _SMOOTHING)
            self._first, self._reached = first_byte, first_byte + REACH_BYTES
        self._reached = max(self._reached, end_byte)
        self._end = end_byte
        return self._span_bytes(first_byte) > 0

    @property
    def search_bytes(self) -> int:
        """Bytes of one request that looks for a start."""
        return min(max(int(self._distance) // 4, _LEAST_SEARCH_BYTES), _MOST_SEARCH_BYTES)

    def expected(self, first_byte: int) -> Walks:
        """Return the walks that a scan would begin at ``first_byte``, and later."""
        span_bytes = self.span_bytes(first_byte)
        if not span_bytes:
            return NO_WALKS
        num_walks = (self._num_bytes - first_byte) // span_bytes - 1
        search_bytes = (self._distance + self.search_bytes) / 2
        return Walks(num_walks, min(num_walks, self.most_walks), search_bytes / self.search_bytes, search_bytes)

    def span_bytes(self, first_byte: int) -> int:
        """Return the bytes that each walk should pass if the scan is at ``first_byte``; 0 if none should be made."""
        return self._span_bytes(first_byte) if self._num_requests >= _LEAST_REQUESTS else 0

    def _span_bytes(self, first_byte: int) -> int:
        if self.most_walks < 1 or self._distance <= REACH_BYTES:
            return 0
        # The saved requests are to count for twice the bytes that finding a start takes.
        num_headers = max(_LEAST_HEADERS, self._distance / max(1, self._costs.request_bytes()))
        least_bytes = int(self._distance * num_headers)
        left_bytes = self._num_bytes - first_byte - max(0, _LEAST_REQUESTS - self._num_requests) * int(self._distance)
        if left_bytes < 2 * least_bytes:
            return 0
        most_bytes = max(least_bytes, int(self._distance * _MOST_HEADERS))
        return min(max(least_bytes, left_bytes // (self.most_walks + 1)), most_bytes) & -ALIGNMENT_BYTES
