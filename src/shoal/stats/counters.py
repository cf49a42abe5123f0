"""What a stream has done so far, counted: the source of `Dataset.stats`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from shoal.stats.pinned_views import Pins
from shoal.stats.throughput import Throughput

__all__ = ["Counters"]

_NO_COUNTS = ("of_workers", "pace", "pins")


@dataclass(slots=True)
class Counters:
    """Counts since the dataset object was made, over all of its iterators in this process; and how fast the newest is.

    ``num_rereads`` are reads of a unit that an iterator had let go before; ``num_repeats`` samples that were delivered
    a second time, marked in ``__pad__``; ``num_skipped`` samples that were due and left out because they are damaged,
    of which ``skipped_ids`` lists the first 1,000; ``make_seconds`` the time in which batches (or samples) were made,
    and ``wait_seconds`` that part of it in which their making stood still for a read; over all worker processes.

    ``num_reads`` and ``read_bytes`` are what the order needed, ``num_requests`` and ``requested_bytes`` what the store
    was asked for: less often where neighbours share a request, more where one was made again. So ``requested_bytes`` by
    ``read_bytes`` is the bytes moved for each that was wanted. ``in_flight_bytes`` are asked for at this moment.
    What is read to scan a changed shard again is among them. Redirects are not counted, nor the look that each process
    takes at a remote shard when it first meets it.

    Of requests that were made again (``num_retries``), ``num_throttled`` were refused because the store was asked too
    much, and ``num_corrupt`` answers held other bytes than were indexed. ``num_hedges`` second requests were made for
    late ones, and ``num_hedges_won`` of them were answered first. ``concurrency`` is how many requests may be under way
    at a time. All of these but ``num_requests`` and ``requested_bytes`` stay 0 for files of this machine.

    ``num_unshared_batches`` are those that workers of a loader sent through a pipe, which is slower, because shared
    memory was full.

    ``peak_held_bytes`` is the most that was held of chunks, read ahead or in use. ``gives_views`` says whether values
    are views (``reading(copy=False)``, where the format can); ``pinned_bytes`` are then held by views alone.

    Of the newest iterator, from its first ``next()`` to the end of the latest: ``elapsed_seconds``, rates, and who held
    it up. ``wait_share`` of that time went by waiting for bytes, ``stages_share`` with decoding, functions and the
    making of batches, and the rest outside of shoal. ``bottleneck`` names the largest of the three: "storage", "stages"
    or "consumer". Rates are 0 and the others None before the first ``next()``.

    Where there is a chunk cache (``cache=``, or one that the workers of a loader share), there are
    ``num_cache_hits``, ``num_cache_fills`` and others beside these (docs/guides/chunk-cache.md).
    """

    num_samples: int = 0
    num_batches: int = 0
    num_repeats: int = 0
    num_unshared_batches: int = 0
    num_filtered: int = 0
    num_skipped: int = 0
    skipped_ids: list[int] = field(default_factory=list)
    num_reads: int = 0
    num_rereads: int = 0
    read_bytes: int = 0
    peak_held_bytes: int = 0
    pinned_bytes: int = 0
    peak_pinned_bytes: int = 0
    num_requests: int = 0
    requested_bytes: int = 0
    in_flight_bytes: int = 0
    peak_in_flight_bytes: int = 0
    num_retries: int = 0
    num_throttled: int = 0
    num_corrupt: int = 0
    num_hedges: int = 0
    num_hedges_won: int = 0
    concurrency: int = 0
    wait_seconds: float = 0.0
    make_seconds: float = 0.0
    # What worker processes counted beside all this: of the cache, whose own counts are of this process.
    of_workers: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    pace: Throughput | None = field(default=None, repr=False, compare=False)
    pins: Pins | None = field(default=None, repr=False, compare=False)

    def counts(self) -> dict[str, Any]:
        """The counts by name."""
        if self.pins is not None:
            self.pinned_bytes, self.peak_pinned_bytes = self.pins.num_bytes, self.pins.peak_bytes
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NO_COUNTS}
        counts["skipped_ids"] = list(self.skipped_ids)
        return counts

    def as_dict(self) -> dict[str, Any]:
        """The counts by name, whether values are views, and the rates and shares of the newest iterator."""
        return self.counts() | {"gives_views": self.pins is not None} | (self.pace or Throughput(self)).told()
