"""Adaptive limit on requests in flight, from the throughput while they run.

The number of connections that saturates a store depends on its latency, on the throughput of one connection, and on the
processors of this machine. So it is found by trial. If the consumer waits while requests are queued, the limit rises as
long as throughput grows with it. A rise that brought nothing is undone. If an overloaded store refuses more than a few
requests, the limit is halved.
"""

from __future__ import annotations

_LEAST_ANSWERS = 8  # responses in a round, or two for each request in flight if that is more
_LEAST_SECONDS = 0.05  # least duration of a round: rates over a few milliseconds say nothing
_WORTH = 0.5  # a higher limit must bring at least this fraction of the best possible growth
_FIRST_REST_SECONDS = 0.5
_MOST_REST_SECONDS = 4.0
_THROTTLED_REST_SECONDS = 1.0
# An overloaded store refuses many requests. Some stores always refuse one in ten; halving at each refusal ended at one
# request at a time.
_LEAST_REFUSALS = 3
_ANSWERS_FOR_A_REFUSAL = 6


class ConcurrencyControl:
    """Controller of the number of requests that may be in flight; not thread-safe.

    Times are in seconds on any monotonic clock.

    >>> pace = ConcurrencyControl(first=8, most=64)
    >>> pace.begin(now_seconds=0.0)
    >>> for number in range(16):
    ...     pace.answered(1000, now_seconds=0.1 + 0.1 * number, held_back=True)
    >>> pace.limit
    16
    """

    def __init__(self, *, first: int = 8, most: int = 64) -> None:
        self.limit = min(first, most)
        self.most = most
        self._is_new = True  # nothing has stopped the growth yet, so the limit doubles
        self._before: tuple[int, float] | None = None  # limit and bytes per second before the latest step up
        self._rest_seconds = _FIRST_REST_SECONDS
        self._rests_until = self._throttled_until = float("-inf")
        self.begin(now_seconds=0.0)

    def begin(self, *, now_seconds: float) -> None:
        """Start a round: requests are made from now on."""
        self._began = now_seconds
        self._num_answers = self._num_bytes = self._num_refusals = 0
        self._held_back = False

    def answered(self, num_bytes: int, *, now_seconds: float, held_back: bool) -> None:
        """Record a response; ``held_back`` is True if the limit kept the consumer waiting for the response."""
        self._num_answers += 1
        self._num_bytes += num_bytes
        self._held_back |= held_back
        if self._num_answers >= max(_LEAST_ANSWERS, 2 * self.limit) and now_seconds >= self._began + _LEAST_SECONDS:
            self._turn(self._num_bytes / (now_seconds - self._began), now_seconds)
            self.begin(now_seconds=now_seconds)

    def throttled(self, *, now_seconds: float) -> None:
        """Record a refusal because of overload; many at once count as one, a few among many responses as none."""
        self._num_refusals += 1
        is_much = self._num_refusals * _ANSWERS_FOR_A_REFUSAL >= self._num_answers + self._num_refusals
        if now_seconds < self._throttled_until or self._num_refusals < _LEAST_REFUSALS or not is_much:
            return
        self._throttled_until = now_seconds + _THROTTLED_REST_SECONDS / 2
        self.limit = max(1, self.limit // 2)
        self._is_new = False
        self._before = None
        self._rests_until = now_seconds + _THROTTLED_REST_SECONDS
        self.begin(now_seconds=now_seconds)

    def _turn(self, rate: float, now_seconds: float) -> None:
        """Adapt the limit after a round at ``rate`` bytes per second."""
        if now_seconds < self._rests_until:
            return
        if self._before is not None:
            limit, rate_before = self._before
            self._before = None
            if rate < rate_before * (1 + _WORTH * (self.limit / limit - 1)):
                self.limit = limit
                self._is_new = False
                self._rests_until = now_seconds + self._rest_seconds
                self._rest_seconds = min(2 * self._rest_seconds, _MOST_REST_SECONDS)
                return
            self._rest_seconds = _FIRST_REST_SECONDS
        if not self._held_back or self.limit >= self.most:
            return
        self._before = self.limit, rate
        self.limit = min(self.most, self.limit + (self.limit if self._is_new else max(1, self.limit // 4)))
