"""Sizes of requests to a remote store: how much is asked for at a time, and which reads are asked for in parts."""

from __future__ import annotations

from typing import NamedTuple

from shoal.reading.schedule.coalescing import MOST_AMPLIFICATION, Request

__all__ = ["LARGE_BYTES", "PART_BYTES", "RequestSizes", "in_parts", "request_sizes"]

# What may be ahead is asked for in so many groups, and in at least so many requests: few of them would share what many
# connections can carry, and a group that waits for room is a part of what could be under way.
_GROUPS_AHEAD = 8
_REQUESTS_AHEAD = 32
_LEAST_REQUEST_BYTES = 256 << 10
_MOST_REQUEST_BYTES = 4 << 20
_PARTS_AT_A_TIME = 4  # at least, of a read that comes in turn
LARGE_BYTES = 8 << 20  # from here on a read is asked for in parts: one connection carries so much, and several more
PART_BYTES = 4 << 20


class RequestSizes(NamedTuple):
    """What is asked for at a time, in bytes.

    ``ahead_bytes`` of reads may be ahead of their use. A group is of ``group_bytes`` or one read more, a request for
    several reads of ``most_bytes`` at most, and one for a part of a read that comes in turn of ``turn_bytes``.
    """

    ahead_bytes: int
    most_bytes: int
    group_bytes: int
    turn_bytes: int


def request_sizes(ahead_limit_bytes: int) -> RequestSizes:
    """What is asked for at a time where ``ahead_limit_bytes`` may be asked for or wait for their use.

    >>> request_sizes(32 << 20)
    RequestSizes(ahead_bytes=32896501, most_bytes=1028015, group_bytes=1028015, turn_bytes=4194304)
    """
    # Groups are measured by the reads in them, and their requests may be larger.
    limit = int(ahead_limit_bytes / MOST_AMPLIFICATION)
    most_bytes = min(max(limit // _REQUESTS_AHEAD, _LEAST_REQUEST_BYTES), _MOST_REQUEST_BYTES)
    group_bytes = max(1, min(limit // _GROUPS_AHEAD, most_bytes))
    turn_bytes = max(most_bytes, min(limit // _PARTS_AT_A_TIME, _MOST_REQUEST_BYTES))
    return RequestSizes(limit, most_bytes, group_bytes, turn_bytes)


def in_parts(request: Request) -> list[Request]:
    """The requests that one becomes: itself, or parts of equal size but for the last, if it is for one large read."""
    if len(request.places) > 1 or request.num_bytes <= LARGE_BYTES:
        return [request]
    num_parts = -(-request.num_bytes // PART_BYTES)
    step = -(-request.num_bytes // num_parts)
    starts = range(request.first_byte, request.end_byte, step)
    return [request._replace(first_byte=start, end_byte=min(start + step, request.end_byte)) for start in starts]
