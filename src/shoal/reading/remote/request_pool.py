"""Pool of threads for requests to a remote store, several at a time, each completed on its own.

Requests wait in one queue, in the order in which their bytes are needed, and threads take them from its head; the limit
on requests in flight adapts as they run (`shoal.reading.schedule.concurrency`). A consumer waits only for the request
that it needs.

The threads refer to the queue and not to the stream, so that dropping a stream ends them. They are daemons: closing a
stream or ending a process does not wait for a server that does not respond.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from shoal.errors import StorageError
from shoal.processes.interrupts import InterruptsHeld, wait_in_slices
from shoal.reading.remote.request_stats import RequestStats, is_throttling
from shoal.reading.schedule.coalescing import Request
from shoal.reading.schedule.concurrency import ConcurrencyControl
from shoal.storage.retry import RetryControl, StoppedError, retry_control

FIRST_AT_A_TIME = 8
_CLOSE_SECONDS = 0.4  # time that closing waits for requests in flight
_RECENT = 64  # latest responses, whose times decide when a request is late
_LATE_AFTER_MEDIANS = 3.0
_LATE_AFTER_SECONDS = 0.05
_LATE_AT_FIRST_SECONDS = 1.0
_MOST_HEDGES = 3
_MOST_THREADS = 2  # for each request that may be in flight: some pause, some wait for a response that may never come
_LIVELY_SECONDS = 10.0  # time after a response during which the store counts as up


class Arrival:
    """The response to a request, once it has arrived.

    ``num_takers`` counts the consumers that still need it; the last one takes the bytes. ``num_hedges`` counts its
    hedged requests, ``asked_seconds`` is the time of the latest. Of the ``num_under_way`` in flight, ``num_lost`` are
    late and do not count towards the limit.
    """

    __slots__ = (
        "asked_seconds",
        "began_seconds",
        "is_awaited",
        "num_hedges",
        "num_lost",
        "num_takers",
        "num_under_way",
        "request",
        "result",
        "took_seconds",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.num_takers = len(request.places)
        self.result: bytes | Exception | None = None
        self.num_under_way = self.num_hedges = self.num_lost = 0
        self.is_awaited = False
        self.began_seconds = self.asked_seconds = self.took_seconds = 0.0

    @property
    def num_places(self) -> int:
        """Slots that this takes of the limit on requests in flight: none once it is answered."""
        return self.num_under_way - self.num_lost if self.result is None else 0


class Arrivals:
    """Pool that runs requests by ``carry_out``, which is called in several threads and may raise.

    Parameters
    ----------
    deadline_seconds
        Time during which a request may be retried.
    hedge_bytes
        Bytes of hedged requests (second ones for late ones) that may be in flight; 0 for no hedging.
    first_at_a_time, most_at_a_time
        Limit on requests in flight, initial and maximal.
    """

    def __init__(
        self,
        carry_out: Callable[[Request], bytes],
        traffic: RequestStats,
        *,
        deadline_seconds: float,
        hedge_bytes: int = 0,
        first_at_a_time: int = FIRST_AT_A_TIME,
        most_at_a_time: int = 64,
    ) -> None:
        pace = ConcurrencyControl(first=first_at_a_time, most=most_at_a_time)
        self._line = _Line(carry_out, traffic, pace, deadline_seconds, hedge_bytes)
        _lines.add(self._line)
        # Closes even if the consumer does not: no thread waits for work once this object is gone.
        self._finalizer = weakref.finalize(self, _close, self._line, os.getpid())

    def ask(self, requests: Sequence[Request], *, at_once: bool = False) -> list[Arrival]:
        """Put requests at the end of the queue (with ``at_once``, at its head)."""
        arrivals = [Arrival(request) for request in requests]
        with InterruptsHeld():
            self._line.join(arrivals, at_once=at_once)
        return arrivals

    def wait(self, arrival: Arrival) -> bytes:
        """Wait for the bytes of a request, and return them or raise its error. Called once by each of its takers."""
        wait_in_slices(partial(self._line.wait, arrival))
        return self._line.take(arrival)

    def close(self) -> None:
        """Drop requests that have not begun, wait briefly for those in flight, and then abandon them."""
        with InterruptsHeld():
            self._finalizer()


class _Line:
    """The queue, shared by the threads and the consumer."""

    def __init__(
        self,
        carry_out: Callable[[Request], bytes],
        traffic: RequestStats,
        pace: ConcurrencyControl,
        deadline_seconds: float,
        hedge_bytes: int,
    ) -> None:
        self._carry_out, self._traffic, self._pace = carry_out, traffic, pace
        self._deadline_seconds, self._hedge_bytes, self._most_hedge_bytes = deadline_seconds, hedge_bytes, hedge_bytes
        # Re-entrant, since the garbage collector can close a stream in the middle of anything.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._arrived = threading.Condition(self._lock)
        self._stopped = threading.Condition(self._lock)
        self._waiting: deque[tuple[Arrival, bool]] = deque()  # with True for a hedged request
        # Requests in flight, neither late nor answered; and threads that run one, or pause before a retry.
        self._num_under_way = self._num_busy = 0
        self._is_stopped = False
        self._held_back = False
        self._answered_seconds = float("-inf")
        self._recent_seconds: deque[float] = deque(maxlen=_RECENT)
        self.threads: list[threading.Thread] = []

    # ---- the consumer's side

    def join(self, arrivals: Sequence[Arrival], *, at_once: bool) -> None:
        with self._lock:
            if not self._num_under_way and not self._waiting:
                self._pace.begin(now_seconds=time.monotonic())
            if at_once:
                self._waiting.extendleft((arrival, False) for arrival in reversed(arrivals))
            else:
                self._waiting.extend((arrival, False) for arrival in arrivals)
            self._call_threads()

    def wait(self, arrival: Arrival, most_seconds: float | None) -> bool:
        """Wait up to ``most_seconds``; return True if the response has arrived, or never will."""
        with self._lock:
            arrival.is_awaited = True
            if arrival.result is None and not self._is_stopped:
                self._held_back |= bool(self._waiting)
                patience_seconds = self._patience_with(arrival)
                limits = [limit for limit in (patience_seconds, most_seconds) if limit is not None]
                self._arrived.wait(min(limits, default=None))
            return arrival.result is not None or self._is_stopped

    def take(self, arrival: Arrival) -> bytes:
        """Return the bytes that have arrived, or raise the error of the request."""
        with InterruptsHeld(), self._lock:
            result = arrival.result
            if result is None:
                msg = "the stream was closed while it waited for bytes"
                raise StoppedError(msg)
            arrival.num_takers -= 1
            if not arrival.num_takers:
                arrival.result = b""  # only the taker keeps the bytes
        if isinstance(result, Exception):
            raise result
        return result

    def _patience_with(self, arrival: Arrival) -> float | None:
        """Return the time to wait for a request before it is late; if it is late now, hedge it."""
        num_bytes = arrival.request.num_bytes
        if num_bytes > self._most_hedge_bytes or arrival.num_hedges >= _MOST_HEDGES:
            return None
        if not arrival.num_under_way or num_bytes > self._hedge_bytes:  # not begun, or no room: check again soon
            return _LATE_AFTER_SECONDS
        usual_seconds = statistics.median(self._recent_seconds) if len(self._recent_seconds) > 7 else None
        if usual_seconds is None:
            late_after = _LATE_AT_FIRST_SECONDS
        else:
            late_after = max(_LATE_AFTER_SECONDS, _LATE_AFTER_MEDIANS * usual_seconds)
        # A hedged request may be late itself: each gets twice the time of the one before.
        late_after *= float(1 << arrival.num_hedges)
        left_seconds = arrival.asked_seconds + late_after - time.monotonic()
        if left_seconds > 0:
            return left_seconds
        arrival.num_hedges += 1
        self._num_under_way -= arrival.num_places
        arrival.num_lost = arrival.num_under_way
        arrival.asked_seconds = time.monotonic()
        self._hedge_bytes -= num_bytes
        self._traffic.hedged()
        self._waiting.appendleft((arrival, True))
        self._call_threads()
        return late_after

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for condition in (self._work, self._arrived, self._stopped):
                condition.notify_all()

    # ---- the threads' side

    def run(self) -> None:
        """Run requests until the pool stops; the main function of a thread."""
        try:
            self._take_all()
        except BaseException:
            self.stop()  # no consumer may wait for a thread that is gone
            raise

    def _take_all(self) -> None:
        with retry_control(RetryControl(self._pause, self._failed, self._deadline_seconds, self._is_lively)):
            while taken := self._next():
                arrival, is_hedge = taken
                result: bytes | Exception
                try:
                    result = self._carry_out(arrival.request)
                except Exception as error:  # noqa: BLE001  # raised by the consumer
                    result = error
                self._came(arrival, result, is_hedge=is_hedge)
                del taken, arrival, result  # an idle thread must not keep bytes alive

    def _next(self) -> tuple[Arrival, bool] | None:
        with self._lock:
            while not self._is_stopped:
                if self._may_begin():
                    arrival, is_hedge = self._waiting.popleft()
                    if is_hedge and arrival.result is not None:  # the first request was answered meanwhile
                        self._hedge_bytes += arrival.request.num_bytes
                        continue
                    self._num_busy += 1
                    self._num_under_way += arrival.result is None
                    arrival.num_under_way += 1
                    if not is_hedge:
                        arrival.began_seconds = arrival.asked_seconds = time.monotonic()
                    return arrival, is_hedge
                self._work.wait()
            return None

    def _came(self, arrival: Arrival, result: bytes | Exception, *, is_hedge: bool) -> None:
        with self._lock:
            now = time.monotonic()
            self._num_busy -= 1
            self._num_under_way -= arrival.num_places
            arrival.num_under_way -= 1
            arrival.num_lost = min(arrival.num_lost, arrival.num_under_way)
            if is_hedge:
                self._hedge_bytes += arrival.request.num_bytes
            is_first = arrival.result is None
            # If one of two requests failed, the other may still succeed.
            if is_first and not (isinstance(result, Exception) and arrival.num_under_way):
                arrival.result = result
                arrival.took_seconds = now - arrival.began_seconds
                if arrival.is_awaited:
                    self._arrived.notify_all()
                if is_hedge and not isinstance(result, Exception):
                    self._traffic.hedge_won()
            self._num_under_way += arrival.num_places
            if not isinstance(result, Exception):
                self._answered_seconds = now
                self._recent_seconds.append(now - arrival.began_seconds)
                self._pace.answered(arrival.request.num_bytes, now_seconds=now, held_back=self._held_back)
                self._held_back = False
            self._call_threads(besides=1)  # this thread continues by itself

    def _may_begin(self) -> bool:
        """Return True if the request at the head may start; those that pause or are late do not count as in flight."""
        has_thread = self._num_busy < _MOST_THREADS * self._pace.most
        return bool(self._waiting) and ((has_thread and self._num_under_way < self._pace.limit) or self._waiting[0][1])

    def _call_threads(self, *, besides: int = 0) -> None:
        """Wake or start threads for requests that may start, not counting threads that are about to check anyway."""
        self._traffic.at_a_time(self._pace.limit)
        num_due = min(len(self._waiting), max(self._pace.limit - self._num_under_way, int(self._may_begin())))
        num_due -= besides
        if num_due <= 0 or self._is_stopped:
            return
        num_idle = len(self.threads) - self._num_busy - besides
        for _ in range(num_due - num_idle):
            thread = threading.Thread(target=self.run, name=f"shoal-read-{len(self.threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                if not self.threads:
                    raise
                break
            self.threads.append(thread)  # only now: a thread that never started cannot be joined
        self._work.notify(num_due)

    def _pause(self, seconds: float) -> bool:
        """Wait before a retry; return True to stop instead."""
        with self._lock:
            self._num_under_way -= 1
            self._call_threads()
            self._stopped.wait_for(lambda: self._is_stopped, timeout=seconds)
            self._num_under_way += 1
            return self._is_stopped

    def _is_lively(self) -> bool:
        return time.monotonic() - self._answered_seconds < _LIVELY_SECONDS

    def _failed(self, error: StorageError) -> None:
        self._traffic.retried(error)
        if is_throttling(error):
            with self._lock:
                self._pace.throttled(now_seconds=time.monotonic())
                self._call_threads()


def _close(line: _Line, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child does not have these threads, and their lock may be held for ever
    with InterruptsHeld(in_finalizer=True):
        line.stop()
        _wait_for(line.threads)
        # Forget threads here: Python would do it in weakref callbacks, in which an interrupt would be lost.
        line.threads = [thread for thread in line.threads if thread.is_alive()]
        if not line.threads:
            _lines.discard(line)


def _wait_for(threads: Sequence[threading.Thread]) -> None:
    until = time.monotonic() + _CLOSE_SECONDS
    for thread in threads:
        # The garbage collector may free a stream in one of its own threads, which cannot join itself.
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


_lines: weakref.WeakSet[_Line] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop all threads at exit, so that none returns from a request while the interpreter is being torn down."""
    lines = list(_lines)
    for line in lines:
        with contextlib.suppress(Exception):
            line.stop()
    _wait_for([thread for line in lines for thread in line.threads])


def _forget_all() -> None:
    """Forget all queues in a forked child, since their threads are the parent's."""
    _lines.clear()


os.register_at_fork(after_in_child=_forget_all)
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
