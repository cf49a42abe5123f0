"""Requests for reads of a remote store: neighbours share a request, and large reads are split into parts.

Every request costs time, and often money. So reads of a shard that are nearly adjacent, and needed at about the same
time, become one request; the few bytes between them are thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.reading.schedule.units import UnitRead

_PAYLOAD_BYTES_FOR_A_WASTED_ONE = 50
MOST_AMPLIFICATION = 1 + 1 / _PAYLOAD_BYTES_FOR_A_WASTED_ONE
"""Most bytes of a request for each byte that one of its reads needs."""


# The read-ahead has so many groups, and at least so many requests: fewer requests would not use the throughput of many
# connections, and a group that waits for room is missing from the requests in flight.
_GROUPS_AHEAD = 8
_REQUESTS_AHEAD = 32
_LEAST_REQUEST_BYTES = 256 << 10
_MOST_REQUEST_BYTES = 4 << 20
_PARTS_AT_A_TIME = 4  # least number in flight, of a read that comes part by part
LARGE_BYTES = 8 << 20
PART_BYTES = 4 << 20


class Request(NamedTuple):
    """Bytes ``[first_byte, end_byte)`` of a shard, which cover the reads with the numbers ``reads``.

    ``is_cached`` is False for bytes that must not go through the chunk cache. The response adds ``num_reads`` and
    ``read_bytes`` to the counts of the stream; 0 for bytes that were counted before.
    """

    shard: int
    first_byte: int
    end_byte: int
    reads: tuple[int, ...]
    is_cached: bool = True
    num_reads: int = 0
    read_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the request."""
        return self.end_byte - self.first_byte

    @property
    def is_large(self) -> bool:
        """True for one large read, which is split: several connections have more throughput than one."""
        return len(self.reads) == 1 and self.num_bytes > LARGE_BYTES


def coalesce(reads: Sequence[UnitRead], *, most_bytes: int) -> list[Request]:
    """Return the requests for some reads, ordered by the first read of each request; O(n log n).

    A request for several reads has at most ``most_bytes``, and at most one in 51 of its bytes belongs to no read.

    >>> reads = [UnitRead(0, 0, 100, 200, 0, 1), UnitRead(7, 3, 0, 50, 9, 1), UnitRead(1, 0, 200, 300, 1, 1)]
    >>> [(request.shard, request.first_byte, request.end_byte) for request in coalesce(reads, most_bytes=1000)]
    [(0, 100, 300), (3, 0, 50)]
    """
    requests: list[Request] = []
    # The request that is being extended, and the number of its bytes that reads need.
    shard, first_byte, end_byte, read_bytes, numbers = -1, 0, 0, 0, [0]
    for number in sorted(range(len(reads)), key=lambda number: reads[number][1:4]):
        read = reads[number]
        new_end = max(end_byte, read.end_byte)
        gap_bytes = max(0, read.first_byte - end_byte)
        new_bytes = new_end - end_byte - gap_bytes
        wasted_bytes = new_end - first_byte - read_bytes - new_bytes
        is_dense = wasted_bytes * _PAYLOAD_BYTES_FOR_A_WASTED_ONE <= read_bytes + new_bytes
        if read.shard == shard and new_end - first_byte <= most_bytes and is_dense:
            end_byte, read_bytes = new_end, read_bytes + new_bytes
            numbers.append(number)
            continue
        if shard >= 0:
            requests.append(Request(shard, first_byte, end_byte, tuple(sorted(numbers))))
        _, shard, first_byte, end_byte = read[:4]
        read_bytes, numbers = read.num_bytes, [number]
    if shard >= 0:
        requests.append(Request(shard, first_byte, end_byte, tuple(sorted(numbers))))
    return sorted(requests, key=lambda request: request.reads[0])


class RequestSizes(NamedTuple):
    """Sizes of groups and requests, in bytes.

    ``ahead_bytes`` limits the reads ahead of their use. A group has ``group_bytes``, or up to one read more. A request
    for several reads has at most ``most_bytes``. A read that comes part by part has parts of ``turn_bytes``.
    """

    ahead_bytes: int
    most_bytes: int
    group_bytes: int
    turn_bytes: int


def request_sizes(ahead_limit_bytes: int) -> RequestSizes:
    """Return the request sizes for at most ``ahead_limit_bytes`` bytes that are requested or unused.

    >>> request_sizes(32 << 20)
    RequestSizes(ahead_bytes=32896501, most_bytes=1028015, group_bytes=1028015, turn_bytes=4194304)
    """
    # Groups are measured by their reads; the requests for them may be larger.
    limit = int(ahead_limit_bytes / MOST_AMPLIFICATION)
    most_bytes = min(max(limit // _REQUESTS_AHEAD, _LEAST_REQUEST_BYTES), _MOST_REQUEST_BYTES)
    group_bytes = max(1, min(limit // _GROUPS_AHEAD, most_bytes))
    turn_bytes = max(most_bytes, min(limit // _PARTS_AT_A_TIME, _MOST_REQUEST_BYTES))
    return RequestSizes(limit, most_bytes, group_bytes, turn_bytes)


def split_large(request: Request) -> list[Request]:
    """Split a request for one large read into parts of equal size, except the last; return other requests unchanged."""
    if not request.is_large:
        return [request]
    num_parts = -(-request.num_bytes // PART_BYTES)
    step = -(-request.num_bytes // num_parts)
    starts = range(request.first_byte, request.end_byte, step)
    return [request._replace(first_byte=start, end_byte=min(start + step, request.end_byte)) for start in starts]
