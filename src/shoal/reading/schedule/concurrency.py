"""How many requests at a time: found from what comes back, while it comes.

Nobody knows beforehand how many connections a store needs to give all it has: that depends on its distance, on what one
connection carries, and on this machine's processors. So it is tried: when the consumer has to wait while requests wait
for their turn, there are more at a time, as long as more bytes come for it; when more brought nothing, fewer again; and
when the store refuses more than a few because it is too much, half.
"""

from __future__ import annotations

__all__ = ["ConcurrencyControl"]

_LEAST_ANSWERS = 8  # a round is so many answers, or two for each request under way,
_LEAST_SECONDS = 0.05  # and lasts so long: rates over a few milliseconds say nothing
_WORTH = 0.5  # more requests must bring at least this part of the growth that they would bring at best
_FIRST_REST_SECONDS = 0.5
_MOST_REST_SECONDS = 4.0
_THROTTLED_REST_SECONDS = 1.0
# A store that is asked too much refuses many. One refusal in ten, as some stores have at any rate, is no reason to give
# way: halving at each of them ended at one request at a time.
_LEAST_REFUSALS = 3
_ANSWERS_FOR_A_REFUSAL = 6


class ConcurrencyControl:
    """How many requests may be under way; not safe for threads.

    Times are in seconds on any clock that only goes forward.

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
        self._is_new = True  # nothing has stopped it from growing yet, so it doubles
        self._before: tuple[int, float] | None = None  # the limit before the last step up, and bytes per second then
        self._rest_seconds = _FIRST_REST_SECONDS
        self._rests_until = self._throttled_until = float("-inf")
        self.begin(now_seconds=0.0)

    def begin(self, *, now_seconds: float) -> None:
        """Requests are made from now on: a round begins."""
        self._began = now_seconds
        self._num_answers = self._num_bytes = self._num_refusals = 0
        self._held_back = False

    def answered(self, num_bytes: int, *, now_seconds: float, held_back: bool) -> None:
        """An answer came; ``held_back`` says that since the last one somebody waited for want of more at a time."""
        self._num_answers += 1
        self._num_bytes += num_bytes
        self._held_back |= held_back
        if self._num_answers >= max(_LEAST_ANSWERS, 2 * self.limit) and now_seconds >= self._began + _LEAST_SECONDS:
            self._turn(self._num_bytes / (now_seconds - self._began), now_seconds)
            self.begin(now_seconds=now_seconds)

    def throttled(self, *, now_seconds: float) -> None:
        """The store said that it is too much; many that say so at once count as one, and few among many as none."""
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
        """A round ended at ``rate`` bytes per second."""
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
