"""Requests under way: in what order they begin and are answered, how many at a time, late ones, and how it ends."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.stream.made import reading_threads

from shoal.errors import StorageError
from shoal.reading.remote.request_pool import RequestPool
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.read_requests import Request
from shoal.stats.counters import Counters
from shoal.storage.retry import RetryRule, StoppedError, retried


def request(number: int, num_bytes: int = 10) -> Request:
    return Request(0, number * 1000, number * 1000 + num_bytes, (0,))


def content(asked: Request) -> bytes:
    return f"{asked.first_byte}".encode().ljust(asked.num_bytes, b".")


class Gate:
    """Answers requests when it is told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.lock = threading.Condition()
        self.open: set[int] = set()
        self.is_open = False

    def __call__(self, asked: Request) -> bytes:
        number = asked.first_byte // 1000
        with self.lock:
            self.begun.append(number)
            self.lock.notify_all()
            assert self.lock.wait_for(lambda: self.is_open or number in self.open, timeout=20)
        return content(asked)

    def answer(self, *numbers: int) -> None:
        with self.lock:
            self.open.update(numbers)
            self.lock.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.lock:
            assert self.lock.wait_for(condition, timeout=20)

    def answer_all(self) -> None:
        with self.lock:
            self.is_open = True
            self.lock.notify_all()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.answer_all()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def start(counters: Counters) -> Iterator[Callable[..., RequestPool]]:
    started: list[RequestPool] = []

    def begin(carry_out: Callable[[Request], bytes], **options: Any) -> RequestPool:
        started.append(
            RequestPool(
                lambda asked, _: carry_out(asked), RequestStats(counters), **{"deadline_seconds": 20.0, **options}
            )
        )
        return started[-1]

    yield begin
    for arrivals in started:
        arrivals.close()


def test_each_is_answered_with_its_own_bytes_whatever_comes_first(start: Callable[..., RequestPool]) -> None:
    dice = random.Random(1)

    def late(asked: Request) -> bytes:
        time.sleep(dice.choice([0, 0.001, 0.01]))
        return content(asked)

    arrivals = start(late)
    asked = [request(number) for number in range(200)]
    made = arrivals.ask(asked)
    assert [arrivals.wait(arrival) for arrival in made] == [content(each) for each in asked]


def test_they_begin_in_the_order_they_were_asked_for_and_so_many_at_a_time(
    start: Callable[..., RequestPool], gate: Gate, counters: Counters
) -> None:
    arrivals = start(gate, most_at_a_time=3)
    made = arrivals.ask([request(number) for number in range(5)])
    gate.wait_for(lambda: len(gate.begun) == 3)
    assert counters.concurrency == 3
    time.sleep(0.05)
    assert sorted(gate.begun) == [0, 1, 2]
    first = arrivals.ask([request(9)], at_once=True)[0]
    gate.answer(2)
    gate.wait_for(lambda: len(gate.begun) == 4)
    assert gate.begun[3] == 9
    gate.answer(9)
    assert arrivals.wait(first) == content(request(9))
    gate.wait_for(lambda: len(gate.begun) == 5)
    assert gate.begun[4] == 3
    gate.answer_all()
    assert [arrivals.wait(arrival) for arrival in made] == [content(request(number)) for number in range(5)]


def test_an_error_waits_for_who_wants_these_bytes(start: Callable[..., RequestPool]) -> None:
    def failing(asked: Request) -> bytes:
        if asked.first_byte == 1000:
            msg = "the cable is out"
            raise StorageError(msg)
        return content(asked)

    arrivals = start(failing)
    made = arrivals.ask([request(0), request(1), request(2)])
    assert arrivals.wait(made[2]) == content(request(2))
    with pytest.raises(StorageError, match="the cable is out"):
        arrivals.wait(made[1])
    assert arrivals.wait(made[0]) == content(request(0))


def test_bytes_are_kept_for_all_who_take_them_and_then_let_go(start: Callable[..., RequestPool]) -> None:
    arrivals = start(content)
    shared = arrivals.ask([Request(0, 0, 30, (0, 1, 2))])[0]
    assert [arrivals.wait(shared) for _ in range(3)] == [content(Request(0, 0, 30, ()))] * 3
    assert shared.result == b""


def test_closing_drops_what_has_not_begun(start: Callable[..., RequestPool], gate: Gate) -> None:
    arrivals = start(gate, most_at_a_time=2)
    made = arrivals.ask([request(number) for number in range(9)])
    gate.wait_for(lambda: len(gate.begun) == 2)
    threading.Timer(0.05, gate.answer_all).start()
    arrivals.close()
    assert not reading_threads()
    assert len(gate.begun) == 2
    with pytest.raises(StoppedError, match="closed"):
        arrivals.wait(made[5])


def test_closing_does_not_wait_for_a_server_that_does_not_answer(start: Callable[..., RequestPool], gate: Gate) -> None:
    arrivals = start(gate)
    arrivals.ask([request(0)])
    gate.wait_for(lambda: len(gate.begun) == 1)
    began = time.monotonic()
    arrivals.close()
    assert time.monotonic() - began < 5  # not the 20 s that the gate would take
    (thread,) = (thread for thread in threading.enumerate() if thread.name.startswith("shoal"))
    assert thread.daemon
    gate.answer_all()
    thread.join(10)
    assert not thread.is_alive()


def test_a_pause_before_another_try_ends_with_the_stream(start: Callable[..., RequestPool], counters: Counters) -> None:
    failed = threading.Event()

    def once() -> bytes:
        failed.set()
        msg = "503"
        raise StorageError(msg, transient=True, retry_after_seconds=15.0)

    arrivals = start(lambda _: retried(once, RetryRule(), what="read"), deadline_seconds=100.0)
    made = arrivals.ask([request(0)])
    assert failed.wait(10)
    while not counters.num_retries:
        time.sleep(0.001)
    began = time.monotonic()
    arrivals.close()
    assert not reading_threads()
    assert time.monotonic() - began < 5
    with pytest.raises(StoppedError):
        arrivals.wait(made[0])
    assert counters.num_retries == counters.num_throttled == 1


def test_letting_go_of_it_ends_the_threads() -> None:
    arrivals = RequestPool(lambda asked, _: content(asked), RequestStats(Counters()), deadline_seconds=1.0)
    arrivals.wait(arrivals.ask([request(0)])[0])
    assert reading_threads()
    del arrivals
    gc.collect()
    assert not reading_threads()


# ---- late requests


class Straggler:
    """The first of the requests for some bytes is answered last."""

    def __init__(self, *late: int) -> None:
        self.late = set(late)
        self.begun: list[int] = []
        self.go_on = threading.Event()
        self.lock = threading.Lock()

    def __call__(self, asked: Request) -> bytes:
        number = asked.first_byte // 1000
        with self.lock:
            is_first = number not in self.begun
            self.begun.append(number)
        if is_first and number in self.late:
            assert self.go_on.wait(20)
            return b"the first answer"
        return content(asked)


def test_a_late_request_is_made_a_second_time(start: Callable[..., RequestPool], counters: Counters) -> None:
    store = Straggler(40)
    arrivals = start(store, hedge_bytes=15)
    made = arrivals.ask([request(number) for number in range(50)])
    assert [arrivals.wait(arrival) for arrival in made] == [content(request(number)) for number in range(50)]
    assert store.begun.count(40) == 2
    assert len(store.begun) == 51
    assert (counters.num_hedges, counters.num_hedges_won) == (1, 1)
    store.go_on.set()
    arrivals.close()
    assert made[40].result == b""  # the late answer is thrown away


def test_without_leave_it_is_waited_for(start: Callable[..., RequestPool], counters: Counters) -> None:
    for hedge_bytes in (0, 9):  # none, or less than the request
        store = Straggler(8)
        arrivals = start(store, hedge_bytes=hedge_bytes)
        made = arrivals.ask([request(number) for number in range(9)])
        for arrival in made[:8]:
            arrivals.wait(arrival)
        threading.Timer(0.3, store.go_on.set).start()
        assert arrivals.wait(made[8]) == b"the first answer"
        assert store.begun.count(8) == 1
        arrivals.close()
    assert counters.num_hedges == 0


def test_second_requests_keep_to_their_bytes(start: Callable[..., RequestPool], counters: Counters) -> None:
    """Two are late, and there is room for one second request, which is given back when the first is answered."""
    store = Straggler(20, 21)
    arrivals = start(store, hedge_bytes=15)
    made = arrivals.ask([request(number) for number in range(22)])
    for arrival in made[:20]:
        arrivals.wait(arrival)
    assert arrivals.wait(made[20]) == content(request(20))
    assert arrivals.wait(made[21]) == content(request(21))
    assert counters.num_hedges == counters.num_hedges_won == 2
    store.go_on.set()


def test_when_one_of_two_fails_the_other_counts(start: Callable[..., RequestPool], counters: Counters) -> None:
    second = threading.Event()
    begun: list[int] = []

    def carry_out(asked: Request) -> bytes:
        begun.append(asked.first_byte)
        if asked.first_byte == 20_000:
            if begun.count(20_000) > 1:
                second.set()
                msg = "the second fails"
                raise StorageError(msg)
            assert second.wait(20)
            time.sleep(0.05)
        return content(asked)

    arrivals = start(carry_out, hedge_bytes=100)
    made = arrivals.ask([request(number) for number in range(21)])
    assert [arrivals.wait(arrival) for arrival in made] == [content(request(number)) for number in range(21)]
    assert (counters.num_hedges, counters.num_hedges_won) == (1, 0)


def test_a_second_request_that_is_late_too_is_followed_by_a_third(
    gate: Gate, start: Callable[..., RequestPool], counters: Counters
) -> None:
    """And one that there is no room for is made when there is."""
    asked, times = request(7), iter(range(10))

    def third_time(one: Request) -> bytes:
        if next(times) < 2:
            gate(one)
        return content(one)

    arrivals = start(third_time, hedge_bytes=25)
    assert arrivals.wait(arrivals.ask([asked])[0]) == content(asked)
    assert (counters.num_hedges, counters.num_hedges_won) == (2, 1)


def test_several_may_wait_at_the_same_time(gate: Gate, start: Callable[..., RequestPool]) -> None:
    """Each is woken by its own answer, also when others began to wait after it, and are answered before."""
    arrivals = start(gate)
    made = arrivals.ask([request(number) for number in range(2)])
    got: dict[int, bytes] = {}

    def wait_for(number: int) -> None:
        got[number] = arrivals.wait(made[number])

    waiting = [threading.Thread(target=wait_for, args=(number,), daemon=True) for number in range(2)]
    for arrival, thread in zip(made, waiting, strict=True):
        thread.start()
        while not arrival.is_awaited:
            time.sleep(0.001)
    for number in (1, 0):
        gate.answer(number)
        waiting[number].join(10)
        assert got[number] == content(request(number))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_no_wait_outlasts_requests_that_are_never_answered(seed: int, start: Callable[..., RequestPool]) -> None:
    """First and second requests that hang for ever, in every mixture with good ones, and room for few second ones."""
    dice, over, times = random.Random(seed), threading.Event(), Counter[int]()
    stuck = {number: dice.choice([0, 0, 0, 0, 1, 2]) for number in range(60)}

    def carry_out(asked: Request) -> bytes:
        number = asked.first_byte // 1000
        times[number] += 1
        if times[number] <= stuck[number]:
            over.wait(100)
        time.sleep(dice.choice([0.0, 0.001, 0.003]))
        return content(asked)

    # Threads that hang keep their places, and second requests that hang keep their room.
    arrivals = start(carry_out, hedge_bytes=dice.choice([200, 1000]), most_at_a_time=64)
    made = arrivals.ask([request(number) for number in range(60)])
    try:
        assert [arrivals.wait(arrival) for arrival in made] == [content(request(number)) for number in range(60)]
    finally:
        over.set()


@pytest.mark.parametrize("num_bad", [0, 20])
def test_requests_wait_together_while_the_store_is_down(
    num_bad: int, start: Callable[..., RequestPool], counters: Counters
) -> None:
    """One of them tries again, and the others wait for it; requests that fail for themselves hold nobody up."""
    is_up, failures = threading.Event(), []
    stats = RequestStats(counters)

    def once(asked: Request) -> bytes:
        if is_up.is_set() and asked.first_byte >= num_bad * 1000:
            return content(asked)
        failures.append(asked.first_byte)
        msg = "connection refused"
        raise StorageError(msg, transient=True)

    def read(asked: Request) -> bytes:
        rule = RetryRule(deadline_seconds=1.0 if asked.first_byte < num_bad * 1000 else 60.0)
        return retried(lambda: once(asked), rule, what="read")

    pool = start(read, most_at_a_time=64, deadline_seconds=None)
    pool._queue._stats = stats
    made = pool.ask([request(number) for number in range(200)])
    threading.Timer(0.5, is_up.set).start()
    assert [pool.wait(pending) for pending in made[num_bad:]] == [content(request(n)) for n in range(num_bad, 200)]
    assert len([first_byte for first_byte in failures if first_byte >= num_bad * 1000]) < 60
    assert counters.num_retries >= len(failures) - num_bad
    for pending in made[:num_bad]:
        with pytest.raises(StorageError, match="deadline"):
            pool.wait(pending)
