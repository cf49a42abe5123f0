"""Counts of requests to a remote store and its responses, updated from any thread."""

from __future__ import annotations

import os
import threading

from shoal.errors import StorageError
from shoal.stats.counters import Counters

# One lock for all, since streams of one dataset share counters. It is held for a few additions.
_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child, since a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603  # there is one process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class RequestStats:
    """Recorder of requests, responses and retries in some `Counters`.

    ``corrupt_in_store`` maps a range (shard, first byte, end byte) to the checksum of its bytes, if the same wrong
    bytes arrived at every attempt.
    """

    __slots__ = ("_counters", "corrupt_in_store")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.corrupt_in_store: dict[tuple[int, int, int], int] = {}

    def began(self, num_bytes: int) -> None:
        """Count an attempt of a request as in flight."""
        counters = self._counters
        with _lock:
            counters.num_requests += 1
            counters.requested_bytes += num_bytes
            counters.in_flight_bytes += num_bytes
            counters.peak_in_flight_bytes = max(counters.peak_in_flight_bytes, counters.in_flight_bytes)
        counters.events.request_began(num_bytes)

    def ended(self, num_bytes: int) -> None:
        """Count an attempt as answered or failed."""
        self._counters.events.request_ended(num_bytes)
        with _lock:
            self._counters.in_flight_bytes -= num_bytes

    def arrived(self, num_reads: int, read_bytes: int) -> None:
        """Count reads whose bytes have arrived."""
        with _lock:
            self._counters.num_reads += num_reads
            self._counters.read_bytes += read_bytes

    def served(self, num_bytes: int, *, is_all: bool) -> None:
        """Take back bytes that came from elsewhere than the store; with ``is_all`` there was no request."""
        with _lock:
            self._counters.num_requests -= is_all
            self._counters.requested_bytes -= num_bytes

    def retried(self, error: StorageError) -> None:
        """Count a request that failed and is retried."""
        self._counters.events.request_retried(error)
        with _lock:
            self._counters.num_retries += 1
            self._counters.num_throttled += is_throttling(error)

    def corrupt(self) -> None:
        """Count bytes that differ from the index."""
        with _lock:
            self._counters.num_corrupt += 1

    def hedged(self) -> None:
        """Count a hedged request: a second one made before the first was answered."""
        with _lock:
            self._counters.num_hedges += 1

    def hedge_won(self) -> None:
        """Count a hedged request that was answered before the first request."""
        with _lock:
            self._counters.num_hedges_won += 1

    def at_a_time(self, num_requests: int) -> None:
        """Record the current limit on requests in flight."""
        self._counters.concurrency = num_requests


def is_throttling(error: StorageError) -> bool:
    """Return True if the error says that the store is overloaded."""
    return error.retry_after_seconds is not None or " 429" in error.message or " 503" in error.message
