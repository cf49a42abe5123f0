"""Pool of threads for requests to a remote store: consumers queue requests, and each waits only for its own requests.

The threads refer to the queue and not to the stream, so dropping a stream ends them. They are daemons: closing a stream
or ending a process does not wait for a server that does not respond.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shoal.processes.interrupts import InterruptsHeld, wait_in_slices
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.request_queue import PendingRequest, Read, RequestQueue
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.remote.requests_in_flight import ConcurrencyControl
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request

FIRST_AT_A_TIME = 8
_CLOSE_SECONDS = 0.4  # time that closing waits for requests in flight


class RequestPool:
    """Pool of threads that call ``read`` for each request; ``read`` may raise.

    ``memory`` counts the responses that are not taken yet. A request may be retried for ``deadline_seconds``. Repeats
    of slow requests have at most ``hedge_bytes`` in flight. The pool starts with ``first_at_a_time`` requests in
    flight.
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
        self._read, self._queue = read, RequestQueue(stats, memory, concurrency, deadline_seconds, hedge_bytes)
        _queues.add(self._queue)
        # Closes even if the consumer does not: no thread waits for work once this object is gone.
        self._close: Callable[[], object] = weakref.finalize(self, _close, self._queue, os.getpid())

    def of_source(self, read: Read, hedge_bytes: int) -> RequestPool:
        """Return a pool for another source with the threads of this pool; only this pool closes the threads.

        All sources share the ``hedge_bytes`` that each source adds.
        """
        self._queue.add_hedge_bytes(hedge_bytes)
        pool = copy.copy(self)
        pool._read, pool._close = read, lambda: None  # noqa: SLF001  # of this class
        return pool

    def ask(
        self,
        requests: Sequence[Request],
        buffers: Iterable[ReadBuffer | None] = itertools.repeat(None),  # never ends
        *,
        at_once: bool = False,
    ) -> list[PendingRequest]:
        """Append requests, with buffers for their responses, to the queue; ``at_once`` puts them at the front."""
        queue = self._queue
        pending = [PendingRequest(self._read, *request) for request in zip(requests, buffers, strict=False)]
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
        """Wait for the bytes of a request, and return them or raise its error. Each waiter calls this once."""
        if pending.result is None:
            wait_in_slices(partial(self._queue.wait, pending))
        return self._queue.take(pending)

    def close(self) -> None:
        """Drop requests that have not begun, wait briefly for requests in flight, then abandon them."""
        with InterruptsHeld():
            self._close()


def _close(queue: RequestQueue, pid: int) -> None:
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


_queues: weakref.WeakSet[RequestQueue] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop all threads at exit, so that none returns from a request while the interpreter shuts down."""
    queues = list(_queues)
    for queue in queues:
        with contextlib.suppress(Exception):
            queue.stop()
    _wait_for([thread for queue in queues for thread in queue.threads])


os.register_at_fork(after_in_child=_queues.clear)  # their threads are the parent's
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
