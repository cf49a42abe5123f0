"""Counters of a stream, the source of `Dataset.stats`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from shoal.stats.pinned_views import Pins
from shoal.stats.throughput import Throughput

_NO_COUNTS = ("of_workers", "throughput", "pins")


@dataclass(slots=True)
class Counters:
    """Counts since the dataset object was created, over all its iterators in this process, and the newest one's speed.

    ``num_rereads`` counts reads of a unit that an iterator had released before; ``num_repeats`` samples delivered a
    second time, marked in ``__pad__``; ``num_skipped`` samples that were due but left out because they are damaged, of
    which ``skipped_ids`` lists the first 1,000; ``make_seconds`` is the time spent on making batches (or samples), and
    ``wait_seconds`` the part of it spent blocked on a read; over all worker processes.

    ``num_reads`` and ``read_bytes`` are the reads that the order needed, ``num_requests`` and ``requested_bytes`` the
    requests to the store: fewer if neighbours share a request, more with retries. So ``requested_bytes`` over
    ``read_bytes`` is the bytes moved per byte needed. ``in_flight_bytes`` are being requested at this moment. Reads to
    scan a changed shard again are included. Redirects are not counted, nor the stat of each remote shard when a process
    first meets it.

    Of the retried requests (``num_retries``), ``num_throttled`` were throttled by the store, and ``num_corrupt``
    responses held other bytes than were indexed. ``num_hedges`` duplicate requests were made for late ones, and
    ``num_hedges_won`` of them were answered first. ``concurrency`` is the most requests allowed in flight at a time.
    All of these but ``num_requests`` and ``requested_bytes`` stay 0 for local files.

    ``num_unshared_batches`` are those that workers of a loader sent through a pipe, which is slower, because shared
    memory was full.

    ``peak_held_bytes`` is the most that was held of chunks, read ahead or in use. ``gives_views`` says whether values
    are views (``reading(copy=False)``, where the format can); ``pinned_bytes`` are then held by views alone.

    Of the newest iterator, from its first ``next()`` to the end of the latest: ``elapsed_seconds``, rates, and the
    bottleneck. ``wait_share`` of that time was spent on waiting for bytes, ``stages_share`` on decoding, functions and
    making batches, and the rest outside of shoal. ``bottleneck`` names the largest of the three: "storage", "stages" or
    "consumer". Rates are 0 and the others None before the first ``next()``.

    With a chunk cache (``cache=``, or one that the workers of a loader share), there are also ``num_cache_hits``,
    ``num_cache_fills`` and others (docs/guides/chunk-cache.md).
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
    # Counts by worker processes of their cache use; the cache's own counts are of this process.
    of_workers: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    throughput: Throughput | None = field(default=None, repr=False, compare=False)
    pins: Pins | None = field(default=None, repr=False, compare=False)

    def counts(self) -> dict[str, Any]:
        """Return the counts by name."""
        if self.pins is not None:
            self.pinned_bytes, self.peak_pinned_bytes = self.pins.num_bytes, self.pins.peak_bytes
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NO_COUNTS}
        counts["skipped_ids"] = list(self.skipped_ids)
        return counts

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name, whether values are views, and the rates and shares of the newest iterator."""
        return self.counts() | {"gives_views": self.pins is not None} | (self.throughput or Throughput(self)).rates()
