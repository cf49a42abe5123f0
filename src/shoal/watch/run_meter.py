"""Measure a run in progress: cumulative times and counts now, their change over the last seconds, and over the run."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from shoal.reading.cache.cached_ranges import cache_counts
from shoal.stats.counters import Counters, Throughput
from shoal.storage.chunk_cache.chunk_cache import ChunkCache

_WINDOW_SECONDS, _MOST_WINDOW_SECONDS, _WINDOW_BATCHES = 10.0, 120.0, 5
_EVERY_SECONDS = 1.0
_MOST_POINTS = 240
_COUNTS = (
    "num_samples", "num_batches", "read_bytes", "num_requests", "requested_bytes", "num_retries", "num_throttled",
    "num_rereads", "num_hedges", "num_skipped", "index_wait_seconds", "num_cache_hits", "num_cache_misses",
)  # fmt: skip


class Measured(NamedTuple):
    """A run at a moment: counts and times since its begin, calls and waits under way included.

    ``inside_seconds`` is the time of the consumer inside ``next()``. Making batches took ``make_seconds``, and
    ``wait_seconds`` of these were waits for bytes. The call under way has taken ``call_seconds``, or the consumer has
    been outside for ``away_seconds``; both are 0 before the first call. ``is_ahead`` if a thread or processes make
    batches ahead of the consumer.
    """

    at: float
    counts: Mapping[str, float]
    inside_seconds: float = 0.0
    make_seconds: float = 0.0
    wait_seconds: float = 0.0
    call_seconds: float = 0.0
    away_seconds: float = 0.0
    is_waiting: bool = False
    is_ahead: bool = False


class Pace(NamedTuple):
    """The change over the last ``seconds``: counts, and the shares of the consumer's time."""

    seconds: float
    counts: Mapping[str, float]
    wait_share: float
    stages_share: float
    latest: Measured

    @property
    def inside_share(self) -> float:
        """Share of the time in which the consumer waited for a batch."""
        return self.wait_share + self.stages_share

    def per_second(self, name: str) -> float:
        """Return the rate of a count."""
        return self.counts.get(name, 0) / self.seconds if self.seconds else 0.0


class CounterMeter:
    """Measures the run of some counters.

    It refers to the counters, and not to the dataset: a page must not keep a dataset alive. Times of several iterators
    are added up.
    """

    def __init__(
        self,
        counters: Counters,
        caches: Sequence[ChunkCache | None] = (),
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counters, self._caches, self._clock = counters, caches, clock
        self._newest: weakref.ref[Throughput] | None = None  # it refers to the counters
        self._earlier_seconds = self._inside_seconds = 0.0

    def __call__(self) -> Measured:
        """Return the measures of this moment."""
        counters, throughput, now = self._counters, self._counters.throughput, self._clock()
        if throughput is not None and (self._newest is None or self._newest() is not throughput):
            self._newest = weakref.ref(throughput)
            self._earlier_seconds, self._inside_seconds = self._earlier_seconds + self._inside_seconds, 0.0
        call_seconds = away_seconds = 0.0
        if throughput is not None:
            self._inside_seconds = throughput.inside_seconds
            if throughput.is_inside:
                call_seconds = max(0.0, now - throughput.began)
            elif throughput.first is not None:
                away_seconds = max(0.0, now - throughput.last)
        wait_began = counters.wait_began
        waiting_seconds = max(0.0, now - wait_began) if wait_began else 0.0
        makes_itself = throughput is not None and throughput.makes_itself
        return Measured(
            now,
            counts_of(counters.counts() | cache_counts(self._caches, counters.of_workers)),
            self._earlier_seconds + self._inside_seconds + call_seconds,
            counters.make_seconds + (call_seconds if makes_itself else waiting_seconds),
            counters.wait_seconds + waiting_seconds,
            call_seconds,
            away_seconds,
            is_waiting=bool(wait_began),
            is_ahead=not makes_itself,
        )


def measure_of_stats(stats: Callable[[], Mapping[str, Any]]) -> Callable[[], Measured]:
    """Return a meter of an object that has only `stats`, such as a live stream.

    The stats ``inside_seconds`` and ``take_seconds`` are the time inside ``next()``, and the part of it that the source
    took; without them, all waits were for the source. ``call_seconds`` is the time since the latest sample.
    """
    latest = [time.perf_counter(), 0.0]  # when the number of samples last changed, and the number

    def measure() -> Measured:
        counts, now = stats(), time.perf_counter()
        waited, num_samples = float(counts.get("wait_seconds", 0.0)), counts.get("num_samples", 0)
        inside, taken = (float(counts.get(name, waited)) for name in ("inside_seconds", "take_seconds"))
        if num_samples != latest[1]:
            latest[:] = [now, num_samples]
        return Measured(now, counts_of(counts), inside, inside, taken, call_seconds=now - latest[0])

    return measure


def counts_of(stats: Mapping[str, Any]) -> dict[str, float]:
    """Select the counts that are compared over time."""
    misses = stats.get("num_cache_fills", 0) + stats.get("num_cache_bypasses", 0)
    every = {**stats, "num_cache_misses": misses}
    return {name: every.get(name, 0) for name in _COUNTS}


class RunHistory:
    """Measures of a run, once a second for the pace of the last seconds; and at most 240 points of the whole run.

    The pace covers ten seconds, or the time of five batches if that is longer, up to two minutes.
    """

    def __init__(self, measure: Callable[[], Measured]) -> None:
        self.measure = measure
        self._recent: deque[Measured] = deque([measure()])
        self._points: list[Measured] = [self._recent[0]]
        self._point_seconds = _EVERY_SECONDS

    def tick(self) -> None:
        """Measure, if a second has passed; called often."""
        latest = self.measure()
        if latest.at - self._recent[-1].at < _EVERY_SECONDS:
            return
        self._recent.append(latest)
        while latest.at - self._recent[0].at > _MOST_WINDOW_SECONDS:
            self._recent.popleft()
        if latest.at - self._points[-1].at >= 0.95 * self._point_seconds:
            self._points.append(latest)
            if len(self._points) > _MOST_POINTS:
                self._points = self._points[::2]
                self._point_seconds *= 2

    def pace(self) -> Pace:
        """Return the change over the last seconds."""
        latest = self.measure()
        begin = self._recent[0]
        for measured in reversed(self._recent):
            begin = measured
            num_batches = latest.counts["num_batches"] - measured.counts["num_batches"]
            if latest.at - measured.at >= _WINDOW_SECONDS and num_batches >= _WINDOW_BATCHES:
                break
        return pace_between(begin, latest)

    def lines(self) -> list[tuple[float, float, float]]:
        """Return the points of the run: seconds since its begin, samples and read bytes a second before the point."""
        points, begin = [*self._points, self.measure()], self._points[0].at
        if points[-1].at - points[-2].at < 0.9 * self._point_seconds and len(points) > 2:
            points.pop()
        of = attrgetter("at", "counts")
        lines = []
        for (before, counts_before), (at, counts) in zip(map(of, points[:-1]), map(of, points[1:]), strict=True):
            rates = [(counts[name] - counts_before[name]) / (at - before) for name in ("num_samples", "read_bytes")]
            lines.append((at - begin, max(0.0, rates[0]), max(0.0, rates[1])))
        return lines


def pace_between(begin: Measured, end: Measured) -> Pace:
    """Return the change between two measures; the time inside ``next()`` is divided like the time of the makers.

    >>> counts = counts_of({"num_samples": 40})
    >>> pace = pace_between(Measured(0.0, counts_of({})), Measured(10.0, counts, 4.0, 8.0, 6.0))
    >>> pace.per_second("num_samples"), round(pace.wait_share, 3), round(pace.stages_share, 3)
    (4.0, 0.3, 0.1)
    """
    seconds = end.at - begin.at
    counts = {name: max(0, value - begin.counts[name]) for name, value in end.counts.items()}
    if seconds <= 0:
        return Pace(0.0, counts, 0.0, 0.0, end)
    inside = min(1.0, max(0.0, end.inside_seconds - begin.inside_seconds) / seconds)
    make, wait = end.make_seconds - begin.make_seconds, end.wait_seconds - begin.wait_seconds
    waiting = min(1.0, wait / make) if make > 0 and wait > 0 else float(wait > 0)
    return Pace(seconds, counts, inside * waiting, inside * (1.0 - waiting), end)
