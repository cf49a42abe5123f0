"""Sizes of requests to a remote store, and the splitting of large reads into parts."""

from __future__ import annotations

from typing import NamedTuple

from shoal.reading.schedule.coalescing import MOST_AMPLIFICATION, Request

# Groups, and least number of requests, into which the read-ahead is divided: fewer requests would not use the
# throughput of many connections, and a group that waits for room is missing from the requests in flight.
_GROUPS_AHEAD = 8
_REQUESTS_AHEAD = 32
_LEAST_REQUEST_BYTES = 256 << 10
_MOST_REQUEST_BYTES = 4 << 20
_PARTS_AT_A_TIME = 4  # least number in flight of a read that is fetched part by part
LARGE_BYTES = 8 << 20  # larger reads are split into parts: several connections have more throughput than one
PART_BYTES = 4 << 20


class RequestSizes(NamedTuple):
    """Sizes of groups and requests, in bytes.

    ``ahead_bytes`` of reads may be ahead of their use. A group has ``group_bytes`` or up to one read more, a request
    for several reads at most ``most_bytes``, and a part of a read that is fetched part by part ``turn_bytes``.
    """

    ahead_bytes: int
    most_bytes: int
    group_bytes: int
    turn_bytes: int


def request_sizes(ahead_limit_bytes: int) -> RequestSizes:
    """Return the request sizes if ``ahead_limit_bytes`` may be requested or waiting for their use.

    >>> request_sizes(32 << 20)
    RequestSizes(ahead_bytes=32896501, most_bytes=1028015, group_bytes=1028015, turn_bytes=4194304)
    """
    # Groups are measured by their reads; the requests for them may be larger.
    limit = int(ahead_limit_bytes / MOST_AMPLIFICATION)
    most_bytes = min(max(limit // _REQUESTS_AHEAD, _LEAST_REQUEST_BYTES), _MOST_REQUEST_BYTES)
    group_bytes = max(1, min(limit // _GROUPS_AHEAD, most_bytes))
    turn_bytes = max(most_bytes, min(limit // _PARTS_AT_A_TIME, _MOST_REQUEST_BYTES))
    return RequestSizes(limit, most_bytes, group_bytes, turn_bytes)


def in_parts(request: Request) -> list[Request]:
    """Split a request for one large read into parts of equal size, except for the last; return others unchanged."""
    if len(request.places) > 1 or request.num_bytes <= LARGE_BYTES:
        return [request]
    num_parts = -(-request.num_bytes // PART_BYTES)
    step = -(-request.num_bytes // num_parts)
    starts = range(request.first_byte, request.end_byte, step)
    return [request._replace(first_byte=start, end_byte=min(start + step, request.end_byte)) for start in starts]
