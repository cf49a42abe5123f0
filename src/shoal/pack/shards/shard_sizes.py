"""Recommended shard sizes, from the cost of a request and the number of readers.

A reader of whole shards waits once per shard: ``latency / (latency + bytes / bandwidth)`` of its time. A loader that
assigns whole shards leaves some readers idle if shards are few. shoal itself reads parts of shards in parallel and
assigns samples, so neither matters for it; the rule serves other tools that may read the shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import UsageError

LARGEST_SHARD_BYTES = 4 << 30
"""Below the 5 GB limit of a request to common stores. A killed packing loses at most the work on such a shard."""

_MIB = 1 << 20
_OVERHEAD = 0.01


@dataclass(frozen=True, slots=True)
class ShardSizing:
    """Recommended size of a shard, and the reason.

    Parameters
    ----------
    shard_bytes
        Recommended bytes of a shard.
    num_shards
        Approximate number of shards; None if the total size is unknown.
    overhead
        Share of time that a reader of whole shards waits for first bytes, 0 to 1.
    reason
        The reason, as one line of text.

    Examples
    --------
    >>> sizing = shoal.pack.shard_sizing(50 << 30)
    >>> sizing.shard_bytes >> 20, sizing.num_shards, round(sizing.overhead, 3)
    (255, 201, 0.01)
    """

    shard_bytes: int
    num_shards: int | None
    overhead: float
    reason: str


def shard_sizing(
    num_bytes: int | None = None, *, num_readers: int = 1, latency_seconds: float = 0.03, bytes_per_second: float = 90e6
) -> ShardSizing:
    """Return the smallest shard size that keeps waiting below 1 %, or a smaller size if it gives each reader a shard.

    Parameters
    ----------
    num_bytes
        Total bytes to be packed, if known.
    num_readers
        Readers that may need a shard at the same time: the planned world size times the workers per rank.
    latency_seconds, bytes_per_second
        Time from a request to its first byte, and throughput of one connection; defaults as for `shoal plan`.

    Returns
    -------
    ShardSizing
        Whole MiB, from 1 MiB to 4 GiB. More readers never make shards larger.

    Raises
    ------
    UsageError
        A number is out of range.

    Examples
    --------
    >>> shoal.pack.shard_sizing(50 << 30).reason
    '255 MiB: at 30 ms a request and 90 MB/s a connection, 1.0 % of the time goes into waiting; about 201 shards'
    >>> shoal.pack.shard_sizing(50 << 30, num_readers=1024).reason
    '50 MiB: 1024 shards, one for each reader; 4.9 % of the time goes into waiting at 30 ms a request and 90 MB/s'
    """
    if num_bytes is not None and num_bytes < 0:
        raise UsageError(f"num_bytes must not be negative; got {num_bytes}")
    if num_readers < 1:
        raise UsageError(f"num_readers must be at least 1; got {num_readers}")
    if not 0 <= latency_seconds < math.inf or not 0 < bytes_per_second < math.inf:
        values = f"{latency_seconds} s and {bytes_per_second} B/s"
        raise UsageError(f"latency_seconds must be at least 0, bytes_per_second positive, both finite; got {values}")
    speed = f"{latency_seconds * 1e3:.3g} ms a request and {bytes_per_second / 1e6:.4g} MB/s"
    exact = latency_seconds * bytes_per_second * (1 - _OVERHEAD) / _OVERHEAD
    ideal_bytes = max(1, math.ceil(exact / _MIB)) * _MIB
    by_requests = min(ideal_bytes, LARGEST_SHARD_BYTES)
    shard_bytes = by_requests
    if num_readers > 1 and num_bytes is not None and num_bytes < by_requests * num_readers:
        # Rounded down: rounding up could give one shard too few.
        shard_bytes = min(by_requests, max(_MIB, num_bytes // num_readers // _MIB * _MIB))
    num_shards = None if num_bytes is None else max(1, -(-num_bytes // shard_bytes))
    waiting = latency_seconds / (latency_seconds + shard_bytes / bytes_per_second)
    lost = f"{100 * waiting:.2g} %" if waiting < 0.0095 else f"{100 * waiting:.1f} %"
    about = "" if num_shards is None else f"; about {num_shards} shard{'s' * (num_shards > 1)}"
    if shard_bytes == by_requests:
        rule = f"at {speed} a connection, {lost} of the time goes into waiting{about}"
        if by_requests < ideal_bytes:
            rule = f"larger objects do not go into one request of common stores; {rule}"
    elif num_shards is not None and num_shards >= num_readers:
        share = (
            "one for each reader" if num_shards == num_readers else f"at least one for each of {num_readers} readers"
        )
        rule = f"{num_shards} shards, {share}; {lost} of the time goes into waiting at {speed}"
    else:
        rule = f"the smallest size for a shard; there are fewer shards than {num_readers} readers{about}"
    return ShardSizing(shard_bytes, num_shards, waiting, f"{shard_bytes >> 20} MiB: {rule}")
