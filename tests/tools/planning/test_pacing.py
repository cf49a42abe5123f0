"""The number of requests at a time, found against stores that are only arithmetic."""

from __future__ import annotations

import heapq

import pytest

from shoal.reading.remote.requests_in_flight import ConcurrencyControl

REQUEST_BYTES = 1_000_000


class Store:
    """Answers after a latency, at so many bytes a second and connection, and no more than so many in all."""

    def __init__(self, *, latency: float, each: float, in_all: float, throttles_above: int = 10**9) -> None:
        self.latency, self.each, self.in_all, self.throttles_above = latency, each, in_all, throttles_above
        self.free_at = 0.0

    def answer_at(self, now: float) -> float:
        """When a request made now is answered."""
        self.free_at = max(self.free_at, now) + REQUEST_BYTES / self.in_all
        return max(now + self.latency + REQUEST_BYTES / self.each, self.free_at)

    def best(self, connections: int) -> float:
        """Bytes per second with so many connections."""
        return min(connections * REQUEST_BYTES / (self.latency + REQUEST_BYTES / self.each), self.in_all)


def run(
    pace: ConcurrencyControl, store: Store, *, seconds: float, held_back: bool = True, begin: float = 0
) -> tuple[list[int], float]:
    """The limits that were in force, and bytes per second in the second half."""
    under_way: list[float] = []
    limits, now, late_bytes = [], begin, 0
    pace.begin(now_seconds=now)
    while now < seconds:
        while len(under_way) < pace.limit:
            heapq.heappush(under_way, store.answer_at(now))
        now = heapq.heappop(under_way)
        if len(under_way) + 1 > store.throttles_above:
            pace.throttled(now_seconds=now)
        else:
            pace.answered(REQUEST_BYTES, now_seconds=now, held_back=held_back)
            late_bytes += REQUEST_BYTES * (now > (begin + seconds) / 2)
        limits.append(pace.limit)
    return limits, late_bytes / ((seconds - begin) / 2)


@pytest.mark.parametrize("latency", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("each", [20e6, 60e6, 500e6])
@pytest.mark.parametrize("in_all", [100e6, 400e6, 1e10])
def test_it_finds_what_the_store_can_give(latency: float, each: float, in_all: float) -> None:
    store = Store(latency=latency, each=each, in_all=in_all)
    limits, rate = run(ConcurrencyControl(), store, seconds=20)
    assert rate >= 0.85 * store.best(64)
    needed = next((n for n in range(1, 65) if store.best(n) >= 0.999 * store.best(64)), 64)
    assert sorted(limits)[len(limits) // 2] <= max(8, 2 * needed)


def test_it_is_there_soon() -> None:
    limits, _ = run(ConcurrencyControl(), Store(latency=0.02, each=60e6, in_all=1e10), seconds=0.6)
    assert limits[-1] == 64


def test_it_stays_where_nobody_waits() -> None:
    limits, _ = run(ConcurrencyControl(), Store(latency=0.02, each=60e6, in_all=1e10), seconds=5, held_back=False)
    assert set(limits) == {8}


def test_it_gives_way_when_the_store_says_so_and_comes_back() -> None:
    store = Store(latency=0.02, each=60e6, in_all=1e10, throttles_above=20)
    pace = ConcurrencyControl()
    limits, rate = run(pace, store, seconds=30)
    assert max(limits[len(limits) // 4 :]) <= 26
    assert rate >= 0.6 * store.best(20)
    store.throttles_above = 10**9
    assert run(pace, store, seconds=60, begin=30)[0][-1] == 64


def test_many_refusals_at_once_count_as_one() -> None:
    pace = ConcurrencyControl(first=32)
    for number in range(32):
        pace.throttled(now_seconds=5 + number * 0.001)
    assert pace.limit == 16
    for second in range(6, 20):
        pace.throttled(now_seconds=second)
    assert pace.limit == 1


def test_one_refusal_in_ten_is_no_reason_to_give_way() -> None:
    pace = ConcurrencyControl()
    pace.begin(now_seconds=0.0)
    for number in range(2000):
        if number % 10 == 9:
            pace.throttled(now_seconds=number * 0.01)
        else:
            pace.answered(REQUEST_BYTES, now_seconds=number * 0.01, held_back=False)
    assert pace.limit == 8


def test_a_ceiling_is_kept() -> None:
    assert ConcurrencyControl(first=8, most=3).limit == 3
    limits, _ = run(ConcurrencyControl(most=20), Store(latency=0.02, each=60e6, in_all=1e10), seconds=5)
    assert max(limits) == 20
