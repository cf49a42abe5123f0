"""Counts what goes to a remote store and comes back, from whatever thread."""

from __future__ import annotations

import os
import threading

from shoal.errors import StorageError
from shoal.stats.counters import Counters

__all__ = ["RequestStats"]

# One for all: streams of one dataset count in the same place. It is held for a few additions.
_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603  # there is one process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class RequestStats:
    """What some `Counters` are told of requests, answers and second tries.

    ``lying`` has the checksum of wrong bytes that came for a place (shard, first byte, end byte) at every attempt, and
    so lie there.
    """

    __slots__ = ("_counters", "lying")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.lying: dict[tuple[int, int, int], int] = {}

    def began(self, num_bytes: int) -> None:
        """One try of a request is under way."""
        counters = self._counters
        with _lock:
            counters.num_requests += 1
            counters.requested_bytes += num_bytes
            counters.in_flight_bytes += num_bytes
            counters.peak_in_flight_bytes = max(counters.peak_in_flight_bytes, counters.in_flight_bytes)

    def ended(self, num_bytes: int) -> None:
        """It was answered, or failed."""
        with _lock:
            self._counters.in_flight_bytes -= num_bytes

    def retried(self, error: StorageError) -> None:
        """A request failed and is made again."""
        with _lock:
            self._counters.num_retries += 1
            self._counters.num_throttled += is_throttling(error)

    def corrupt(self) -> None:
        """Bytes came that are not those that were indexed."""
        with _lock:
            self._counters.num_corrupt += 1

    def hedged(self) -> None:
        """A request was made a second time before the first was answered."""
        with _lock:
            self._counters.num_hedges += 1

    def hedge_won(self) -> None:
        """The second was answered first."""
        with _lock:
            self._counters.num_hedges_won += 1

    def at_a_time(self, num_requests: int) -> None:
        """So many requests may be under way now."""
        self._counters.concurrency = num_requests


def is_throttling(error: StorageError) -> bool:
    """Whether the store says that it is asked too much."""
    return error.retry_after_seconds is not None or " 429" in error.message or " 503" in error.message
