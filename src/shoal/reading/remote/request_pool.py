"""Pool of threads for requests to a remote store, several at a time, each completed on its own.

Requests wait in one queue, in the order in which their bytes are needed, and threads take them from its head; the limit
on requests in flight adapts as they run (`request_concurrency.py`). A consumer waits for its own alone.

The threads refer to the queue and not to the stream, so that dropping a stream ends them. They are daemons: closing a
stream or ending a process does not wait for a server that does not respond.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import itertools
import os
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shoal.errors import StorageError
from shoal.processes.interrupts import InterruptsHeld, wait_in_slices
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.request_stats import RequestStats, is_throttling
from shoal.reading.remote.requests_in_flight import ConcurrencyControl
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request
from shoal.storage.retry import RetryControl, StoppedError, retry_control

FIRST_AT_A_TIME = 8
_CLOSE_SECONDS = 0.4  # time that closing waits for requests in flight
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

    ``num_waiters`` counts the consumers that still need it; the last one takes the bytes. ``num_hedges`` counts its
    hedged requests, ``asked_seconds`` is the time of the latest. Of the ``num_in_flight`` in flight, ``num_lost`` are
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
        """Slots that this takes of the limit on requests in flight: none once it is answered."""
        return self.num_in_flight - self.num_lost if self.result is None else 0


class RequestPool:
    """Pool that runs requests by ``read``, which is called in several threads and may raise.

    Parameters
    ----------
    memory
        Ledger of the responses that have arrived and are not taken yet; None for one of its own.
    deadline_seconds
        Time during which a request may be retried.
    hedge_bytes
        Bytes of hedged requests (second ones for late ones) that may be in flight; 0 for no hedging.
    first_at_a_time, most_at_a_time
        Limit on requests in flight, initial and maximal.
    """

    def __init__(
        self,
        read: Read,
        stats: RequestStats,
        memory: MemoryBudget | None = None,
        *,
        deadline_seconds: float,
        hedge_bytes: int = 0,
        first_at_a_time: int = FIRST_AT_A_TIME,
        most_at_a_time: int = 128,
    ) -> None:
        concurrency = ConcurrencyControl(first=first_at_a_time, most=most_at_a_time)
        memory = MemoryBudget(ahead_limit_bytes=0) if memory is None else memory
        self._read, self._queue = read, _Queue(stats, memory, concurrency, deadline_seconds, hedge_bytes)
        _queues.add(self._queue)
        # Closes even if the consumer does not: no thread waits for work once this object is gone.
        self._close: Callable[[], object] = weakref.finalize(self, _close, self._queue, os.getpid())

    def of_source(self, read: Read) -> RequestPool:
        """Return a pool with the threads of this one for the requests of another source; only this one closes them."""
        pool = copy.copy(self)
        pool._read, pool._close = read, _stay_open  # noqa: SLF001  # of this class
        return pool

    def ask(
        self,
        requests: Sequence[Request],
        buffers: Iterable[ReadBuffer | None] = itertools.repeat(None),  # never ends
        *,
        at_once: bool = False,
    ) -> list[PendingRequest]:
        """Put requests, with buffers for their responses, at the end of the queue; with ``at_once``, at its head."""
        queue = self._queue
        pending = [PendingRequest(self._read, *asked) for asked in zip(requests, buffers, strict=False)]
        with InterruptsHeld(), queue.lock:
            if not queue.num_in_flight and not queue.waiting:
                queue.concurrency.begin(now_seconds=time.monotonic())
            if at_once:
                queue.waiting.extendleft((request, False) for request in reversed(pending))
            else:
                queue.waiting.extend((request, False) for request in pending)
            queue.wake_threads()
        return pending

    def wait(self, pending: PendingRequest) -> bytes:
        """Wait for the bytes of a request, and return them or raise its error. Called once by each of its takers."""
        wait_in_slices(partial(self._queue.wait, pending))
        return self._queue.take(pending)

    def close(self) -> None:
        """Drop requests that have not begun, wait briefly for those in flight, and then abandon them."""
        with InterruptsHeld():
            self._close()


def _stay_open() -> None:
    """Leave the threads to the pool that they belong to."""


class _Queue:
    """The queue, shared by the threads and the consumer."""

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
        self._work = threading.Condition(self.lock)
        self._arrived = threading.Condition(self.lock)
        self._stopped = threading.Condition(self.lock)
        self.waiting: deque[tuple[PendingRequest, bool]] = deque()  # with True for a hedged request
        # Requests in flight, neither late nor answered; and threads that run one, or pause before a retry.
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
        """Return the time to wait for a request before it is late; if it is late now, hedge it."""
        num_bytes = pending.request.num_bytes
        if num_bytes > self._most_hedge_bytes or pending.num_hedges >= _MOST_HEDGES:
            return None
        if not pending.num_in_flight or num_bytes > self._hedge_bytes:  # not begun, or no room: check again soon
            return _LATE_AFTER_SECONDS
        usual_seconds = statistics.median(self._recent_seconds) if len(self._recent_seconds) > 7 else None
        if usual_seconds is None:
            late_after = _LATE_AT_FIRST_SECONDS
        else:
            late_after = max(_LATE_AFTER_SECONDS, _LATE_AFTER_MEDIANS * usual_seconds)
        # A hedged request may be late itself: each gets twice the time of the one before.
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
        with self.lock:
            self._is_stopped = True
            for condition in (self._work, self._arrived, self._stopped):
                condition.notify_all()

    # ---- the threads' side

    def run(self) -> None:
        """Run requests until the pool stops; the main function of a thread."""
        served: list[int] = []  # of the request that this thread runs
        control = RetryControl(self._pause, self._failed, self._deadline_seconds, self._is_lively, served.append)
        try:
            with retry_control(control):
                while True:
                    with self.lock:
                        while not (self._is_stopped or self._may_begin()):
                            self._work.wait()
                        if self._is_stopped:
                            return
                        pending, is_hedge = self.waiting.popleft()
                        if not self._begins(pending, is_hedge=is_hedge):
                            del pending
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
        """Count a request as in flight; return False for a hedged one that is no longer needed."""
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
        """Return True if all bytes came from files of this machine; take back what was not requested."""
        is_all = sum(served) >= pending.request.num_bytes
        if served:
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
        """Return True if the request at the head may start; those that pause or are late do not count as in flight."""
        has_thread = self._num_busy < _MOST_THREADS * self.concurrency.most
        has_thread &= bool(not self._is_down or self._num_admitted)
        return bool(self.waiting) and (
            (has_thread and self.num_in_flight < self.concurrency.limit) or self.waiting[0][1]
        )

    @property
    def _is_down(self) -> bool:
        return len(self._failing) >= _OUTAGE_FAILURES

    def _tell_waiting(self, *, is_up: bool) -> None:
        """Let threads that wait for the store retry: all after a response, one after the end of the retrying one."""
        self._failing.discard(me := threading.get_ident())
        if is_up:
            self._num_answers += 1
            self._failing.clear()
        if is_up or self._retrying == me:
            self._retrying = None
        self._stopped.notify_all()

    def wake_threads(self, *, besides: int = 0) -> None:
        """Wake or start threads for requests that may start, not counting threads that are about to check anyway."""
        self._stats.at_a_time(self.concurrency.limit)
        num_due = min(len(self.waiting), max(self.concurrency.limit - self.num_in_flight, int(self._may_begin())))
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
        """Wait before a retry, while the store is down also for its next response; return True to stop instead."""
        me = threading.get_ident()
        with self.lock:
            self._failing.add(me)
            if self._retrying is None:
                self._retrying = me
            num_answers = self._num_answers
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
            return self._is_stopped

    def _is_lively(self) -> bool:
        return time.monotonic() - self._answered_seconds < _LIVELY_SECONDS

    def _failed(self, error: StorageError) -> None:
        self._stats.retried(error)
        if is_throttling(error):
            with self.lock:
                self.concurrency.throttled(now_seconds=time.monotonic())
                self.wake_threads()


def _close(queue: _Queue, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child does not have these threads, and their lock may be held for ever
    with InterruptsHeld(in_finalizer=True):
        queue.stop()
        _wait_for(queue.threads)
        # Forget threads here: Python would do it in weakref callbacks, in which an interrupt would be lost.
        queue.threads = [thread for thread in queue.threads if thread.is_alive()]
        if not queue.threads:
            _queues.discard(queue)


def _wait_for(threads: Sequence[threading.Thread]) -> None:
    until = time.monotonic() + _CLOSE_SECONDS
    for thread in threads:
        # The garbage collector may free a stream in one of its own threads, which cannot join itself.
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop all threads at exit, so that none returns from a request while the interpreter is being torn down."""
    queues = list(_queues)
    for queue in queues:
        with contextlib.suppress(Exception):
            queue.stop()
    _wait_for([thread for queue in queues for thread in queue.threads])


def _forget_all() -> None:
    """Forget all queues in a forked child, since their threads are the parent's."""
    _queues.clear()


os.register_at_fork(after_in_child=_forget_all)
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
