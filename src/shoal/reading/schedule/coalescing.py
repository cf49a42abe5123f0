"""Coalescing of reads into requests: neighbours in one shard that are needed at about the same time share one.

Every request to a remote store has a cost, in time and often in money. Adjacent or nearly adjacent reads become one
request; the few bytes between them are thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.reading.schedule.units import UnitRead

_PAYLOAD_BYTES_FOR_A_WASTED_ONE = 50
MOST_AMPLIFICATION = 1 + 1 / _PAYLOAD_BYTES_FOR_A_WASTED_ONE
"""Most bytes of a request for each byte that one of its reads needs."""


class Request(NamedTuple):
    """Bytes ``[first_byte, end_byte)`` of a shard, which cover the reads numbered ``places``."""

    shard: int
    first_byte: int
    end_byte: int
    places: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that are requested."""
        return self.end_byte - self.first_byte


def coalesce(reads: Sequence[UnitRead], *, most_bytes: int) -> list[Request]:
    """Return the requests for some reads, ordered by the first read that each serves; O(n log n).

    A read of ``most_bytes`` or more stays alone; no request for several reads is larger. At most one in 51 bytes of a
    request belongs to none of its reads.

    >>> reads = [UnitRead(0, 0, 100, 200, 0, 1), UnitRead(7, 3, 0, 50, 9, 1), UnitRead(1, 0, 200, 300, 1, 1)]
    >>> [(request.shard, request.first_byte, request.end_byte) for request in coalesce(reads, most_bytes=1000)]
    [(0, 100, 300), (3, 0, 50)]
    """
    requests: list[Request] = []
    # The request that is being extended, and the number of its bytes that reads need.
    shard, first_byte, end_byte, wanted_bytes, places = -1, 0, 0, 0, [0]
    for place in sorted(range(len(reads)), key=lambda place: reads[place][1:4]):
        read = reads[place]
        new_end = max(end_byte, read.end_byte)
        gap_bytes = max(0, read.first_byte - end_byte)
        new_bytes = new_end - end_byte - gap_bytes
        wasted_bytes = new_end - first_byte - wanted_bytes - new_bytes
        if (
            read.shard == shard
            and new_end - first_byte <= most_bytes
            and wasted_bytes * _PAYLOAD_BYTES_FOR_A_WASTED_ONE <= wanted_bytes + new_bytes
        ):
            end_byte, wanted_bytes = new_end, wanted_bytes + new_bytes
            places.append(place)
            continue
        if shard >= 0:
            requests.append(Request(shard, first_byte, end_byte, tuple(sorted(places))))
        shard, first_byte, end_byte, wanted_bytes, places = (
            read.shard,
            read.first_byte,
            read.end_byte,
            read.num_bytes,
            [place],
        )
    if shard >= 0:
        requests.append(Request(shard, first_byte, end_byte, tuple(sorted(places))))
    return sorted(requests, key=lambda request: request.places[0])
