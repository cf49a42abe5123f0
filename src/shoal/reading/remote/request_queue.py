"""Queue of requests to a remote store, and the threads that take requests from its head.

Each request completes on its own. The limit on requests in flight adapts as they run (`requests_in_flight.py`). A late
request is hedged. While the store is down, one thread retries and all others wait.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from shoal.errors import StorageError
from shoal.processes.interrupts import InterruptsHeld
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.request_stats import RequestStats, is_throttling
from shoal.reading.remote.requests_in_flight import ConcurrencyControl
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request
from shoal.storage.retry import RetryControl, StoppedError, retry_control

_RECENT = 64  # latest responses, whose times decide when a request is late
_LATE_AFTER_MEDIANS = 3.0
_LATE_AFTER_SECONDS = 0.05
_LATE_AT_FIRST_SECONDS = 1.0
_MOST_HEDGES = 3
_MOST_THREADS = 2  # for each request that may be in flight: some pause, some wait for a response that may never come
_OUTAGE_FAILURES = 3  # requests that failed since the last response: the store is down, and not one object bad
_LIVELY_SECONDS = 10.0  # time after a response during which the store counts as up

Read = Callable[[Request, ReadBuffer | None], bytes]


class PendingRequest:
    """The response to a request, once it has arrived.

    ``num_waiters`` counts the consumers that still need the response; the last consumer takes the bytes. ``num_hedges``
    counts hedged requests; the latest began at ``asked_seconds``. ``num_lost`` of the ``num_in_flight`` requests are
    late and do not count towards the limit.
    """

    __slots__ = (
        "asked_seconds",
        "began_seconds",
        "buffer",
        "is_awaited",
        "num_hedges",
        "num_in_flight",
        "num_lost",
        "num_waiters",
        "read",
        "request",
        "result",
        "took_seconds",
    )

    def __init__(self, read: Read, request: Request, buffer: ReadBuffer | None = None) -> None:
        self.read, self.request, self.buffer = read, request, buffer
        self.num_waiters = len(request.reads)
        self.result: bytes | Exception | None = None
        self.num_in_flight = self.num_hedges = self.num_lost = 0
        self.is_awaited = False
        self.began_seconds = self.asked_seconds = self.took_seconds = 0.0

    @property
    def num_slots(self) -> int:
        """Slots of the limit on requests in flight: none once a response has arrived."""
        return self.num_in_flight - self.num_lost if self.result is None else 0


class RequestQueue:
    """Requests that wait, and the threads that run them; the consumer and the threads share it."""

    def __init__(
        self,
        stats: RequestStats,
        memory: MemoryBudget,
        concurrency: ConcurrencyControl,
        deadline_seconds: float,
        hedge_bytes: int,
    ) -> None:
        self._stats, self._memory, self.concurrency = stats, memory, concurrency
        self._deadline_seconds, self._hedge_bytes, self._most_hedge_bytes = deadline_seconds, hedge_bytes, hedge_bytes
        # Re-entrant, since the garbage collector can close a stream in the middle of anything.
        self.lock = threading.RLock()
        # Idle threads, each with a lock of its own. The thread that became idle last is woken first: its memory is
        # still in a cache of the processor.
        self._idle: list[threading.Lock] = []
        self._num_waking = 0
        self._arrived = threading.Condition(self.lock)
        self._stopped = threading.Condition(self.lock)
        self._num_paused = 0
        self.waiting: deque[tuple[PendingRequest, bool]] = deque()  # with True for a hedged request
        # Requests in flight, neither late nor answered; and threads that run a request or pause before a retry.
        self.num_in_flight = self._num_busy = 0
        # While the store is down, one thread retries, one new request begins after each of its pauses, and all other
        # threads wait: for a response, or for the end of that thread's request.
        self._failing: set[int] = set()  # threads whose requests failed since the last response
        self._retrying: int | None = None
        self._num_answers = self._num_admitted = 0
        self._is_stopped = False
        self._held_back = False
        self._answered_seconds = float("-inf")
        self._recent_seconds: deque[float] = deque(maxlen=_RECENT)
        self.threads: list[threading.Thread] = []

    # ---- the consumer's side

    def add_hedge_bytes(self, num_bytes: int) -> None:
        """Allow hedged requests ``num_bytes`` more in flight."""
        with self.lock:
            self._hedge_bytes += num_bytes
            self._most_hedge_bytes += num_bytes

    def wait(self, pending: PendingRequest, most_seconds: float | None) -> bool:
        """Wait up to ``most_seconds``; return True if the response has arrived, or never will."""
        with self.lock:
            pending.is_awaited = True
            if pending.result is None and not self._is_stopped:
                self._held_back |= bool(self.waiting)
                patience_seconds = self._patience_with(pending)
                limits = [limit for limit in (patience_seconds, most_seconds) if limit is not None]
                self._arrived.wait(min(limits, default=None))
            return pending.result is not None or self._is_stopped

    def take(self, pending: PendingRequest) -> bytes:
        """Return the bytes that have arrived, or raise the error of the request."""
        with InterruptsHeld(), self.lock:
            result = pending.result
            if result is None:
                raise StoppedError("the stream was closed while it waited for bytes")
            pending.num_waiters -= 1
            if not pending.num_waiters:
                pending.result = b""  # only the taker keeps the bytes
                if not isinstance(result, Exception):
                    self._memory.leave(pending.request.num_bytes)
        if isinstance(result, Exception):
            raise result
        return result

    def _patience_with(self, pending: PendingRequest) -> float | None:
        """Return the seconds until a request is late; hedge a late request."""
        num_bytes = pending.request.num_bytes
        if num_bytes > self._most_hedge_bytes or pending.num_hedges >= _MOST_HEDGES:
            return None
        if not pending.num_in_flight or num_bytes > self._hedge_bytes:  # not begun, or no room: check again soon
            return _LATE_AFTER_SECONDS
        late_after = _LATE_AT_FIRST_SECONDS
        if len(self._recent_seconds) > 7:
            late_after = max(_LATE_AFTER_SECONDS, _LATE_AFTER_MEDIANS * statistics.median(self._recent_seconds))
        # A hedged request may be late itself: each gets twice the time of the request before.
        late_after *= float(1 << pending.num_hedges)
        left_seconds = pending.asked_seconds + late_after - time.monotonic()
        if left_seconds > 0:
            return left_seconds
        pending.num_hedges += 1
        self.num_in_flight -= pending.num_slots
        pending.num_lost = pending.num_in_flight
        pending.asked_seconds = time.monotonic()
        self._hedge_bytes -= num_bytes
        self._stats.hedged()
        self.waiting.appendleft((pending, True))
        self.wake_threads()
        return late_after

    def stop(self) -> None:
        """Let all threads and waiters stop."""
        with self.lock:
            self._is_stopped = True
            self._wake(len(self._idle))
            for condition in (self._arrived, self._stopped):
                condition.notify_all()

    # ---- the threads' side

    def run(self) -> None:
        """Run requests until the pool stops; the main function of a thread."""
        pending: PendingRequest | None
        served: list[int] = []  # of the request that this thread runs
        control = RetryControl(self._pause, self._failed, self._deadline_seconds, self._is_lively, served.append)
        waking, is_woken = threading.Lock(), False
        waking.acquire()
        try:
            with retry_control(control):
                while True:
                    with self.lock:
                        self._num_waking -= is_woken
                        if self._is_stopped:
                            return
                        pending, is_hedge = None, False
                        while self._may_begin() and pending is None:
                            pending, is_hedge = self.waiting.popleft()
                            if not self._begins(pending, is_hedge=is_hedge):
                                pending = None
                        if is_woken := pending is None:
                            self._idle.append(waking)
                    if pending is None:
                        waking.acquire()  # until `_wake` releases it
                        continue
                    served.clear()
                    result: bytes | Exception
                    try:
                        result = pending.read(pending.request, pending.buffer)
                    except Exception as error:  # noqa: BLE001  # raised by the consumer
                        result = error
                    self._answered(pending, result, is_hedge=is_hedge, is_served=self._is_served(pending, served))
                    del pending, result  # an idle thread must not keep bytes alive
        except BaseException:
            self.stop()  # no consumer may wait for a thread that is gone
            raise

    def _begins(self, pending: PendingRequest, *, is_hedge: bool) -> bool:
        """Count a request as in flight; return False for a hedged request that is no longer needed."""
        if is_hedge and pending.result is not None:  # the first request was answered meanwhile
            self._hedge_bytes += pending.request.num_bytes
            return False
        self._num_busy += 1
        self._num_admitted = 0
        self.num_in_flight += pending.result is None
        pending.num_in_flight += 1
        if not is_hedge:
            pending.began_seconds = pending.asked_seconds = time.monotonic()
        return True

    def _is_served(self, pending: PendingRequest, served: Sequence[int]) -> bool:
        """Return True if all bytes came from files of this machine; these do not count as requested."""
        if not served:
            return not pending.request.num_bytes
        is_all = sum(served) >= pending.request.num_bytes
        self._stats.served(sum(served), is_all=is_all)
        return is_all

    def _answered(self, pending: PendingRequest, result: bytes | Exception, *, is_hedge: bool, is_served: bool) -> None:
        with self.lock:
            now = time.monotonic()
            self._num_busy -= 1
            self.num_in_flight -= pending.num_slots
            pending.num_in_flight -= 1
            pending.num_lost = min(pending.num_lost, pending.num_in_flight)
            if is_hedge:
                self._hedge_bytes += pending.request.num_bytes
            is_first = pending.result is None
            # If one of two requests failed, the other may still succeed.
            if is_first and not (isinstance(result, Exception) and pending.num_in_flight):
                pending.result = result
                pending.took_seconds = now - pending.began_seconds
                if pending.is_awaited:
                    self._arrived.notify_all()
                if not isinstance(result, Exception):
                    self._memory.arrive(pending.request.num_bytes)
                    self._stats.arrived(pending.request.num_reads, pending.request.read_bytes)
                    if is_hedge:
                        self._stats.hedge_won()
            self.num_in_flight += pending.num_slots
            self._tell_waiting(is_up=not isinstance(result, Exception) and not is_served)
            # Bytes from files say nothing about the store: beside them, each of its responses would be late.
            if not isinstance(result, Exception) and not is_served:
                self._answered_seconds = now
                self._recent_seconds.append(now - pending.began_seconds)
                self.concurrency.answered(pending.request.num_bytes, now_seconds=now, held_back=self._held_back)
                self._held_back = False
            self.wake_threads(besides=1)  # this thread continues by itself

    def _may_begin(self) -> bool:
        """Return True if the request at the head may start; paused and late requests do not count as in flight."""
        if not self.waiting:
            return False
        is_admitted = bool(not self._is_down or self._num_admitted)
        has_thread = self._num_busy < _MOST_THREADS * self.concurrency.most
        return (is_admitted and has_thread and self.num_in_flight < self.concurrency.limit) or self.waiting[0][1]

    @property
    def _is_down(self) -> bool:
        return len(self._failing) >= _OUTAGE_FAILURES

    def _tell_waiting(self, *, is_up: bool) -> None:
        """Let threads that wait for the store retry: all after a response, one if this thread was the retrying one."""
        self._failing.discard(me := threading.get_ident())
        if is_up:
            self._num_answers += 1
            self._failing.clear()
        if is_up or self._retrying == me:
            self._retrying = None
        if self._num_paused:
            self._stopped.notify_all()

    def wake_threads(self, *, besides: int = 0) -> None:
        """Wake or start threads for requests that may start; ``besides`` threads are about to check anyway."""
        self._stats.at_a_time(self.concurrency.limit)
        num_free = max(self.concurrency.limit - self.num_in_flight, int(self._may_begin()))
        num_due = min(len(self.waiting), num_free) - besides - self._num_waking
        if num_due <= 0 or self._is_stopped:
            return
        num_idle = len(self.threads) - self._num_busy - besides - self._num_waking
        for _ in range(num_due - num_idle):
            thread = threading.Thread(target=self.run, name=f"shoal-read-{len(self.threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                if not self.threads:
                    raise
                break
            self.threads.append(thread)  # only now: a thread that never started cannot be joined
        self._wake(num_due)

    def _wake(self, num_threads: int) -> None:
        while self._idle and num_threads > 0:
            num_threads -= 1
            self._num_waking += 1
            self._idle.pop().release()

    def _pause(self, seconds: float) -> bool:
        """Wait before a retry, and for a response if the store is down; return True to stop instead."""
        me = threading.get_ident()
        with self.lock:
            self._failing.add(me)
            if self._retrying is None:
                self._retrying = me
            num_answers = self._num_answers
            self._num_paused += 1
            self.num_in_flight -= 1
            self.wake_threads()
            self._stopped.wait_for(lambda: self._is_stopped, timeout=seconds)

            def may_retry() -> bool:
                if self._retrying is None:
                    self._retrying = me
                return self._is_stopped or not self._is_down or self._num_answers > num_answers or self._retrying == me

            self._stopped.wait_for(may_retry)
            if self._is_down:
                self._num_admitted = 1
                self.wake_threads()
            self.num_in_flight += 1
            self._num_paused -= 1
            return self._is_stopped

    def _is_lively(self) -> bool:
        return time.monotonic() - self._answered_seconds < _LIVELY_SECONDS

    def _failed(self, error: StorageError) -> None:
        self._stats.retried(error)
        if is_throttling(error):
            with self.lock:
                self.concurrency.throttled(now_seconds=time.monotonic())
                self.wake_threads()
