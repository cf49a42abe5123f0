"""The event loop and the threads in which an iteration calls functions of the user."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from shoal.processes.event_loop import EventLoop
from shoal.processes.futures import Unfinished, fail, finish
from shoal.processes.interrupts import InterruptsHeld
from shoal.processes.process_ends import Stop, end_pool, submit
from shoal.storage.retry import StoppedError


class Callers:
    """The event loop and the threads of an iteration: at most ``num_threads``, as many as calls need.

    Thread and loop begin with the first call. `close`, and dropping the last reference, cancel the coroutines, and wait
    at most 2 s for their ends and for calls in threads.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._loop: EventLoop | None = None
        self._threads: _Threads | None = None
        self._is_closed = False

    def on_loop(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call of a coroutine function."""
        with InterruptsHeld():
            if self._loop is None:
                self._loop = EventLoop()
                self._close_late(self._loop)
            return self._loop.call(function, *arguments)

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call of a function in a thread."""
        with InterruptsHeld():
            if self._threads is None:
                self._threads = _Threads(self._num_threads)
                self._close_late(self._threads)
            return self._threads.call(function, *arguments)

    def _close_late(self, caller: EventLoop | _Threads) -> None:
        """Close a new caller, whose calls then fail, if another thread has called `close` meanwhile."""
        if self._is_closed:
            caller.close()

    def close(self) -> None:
        """Cancel the coroutines, and end the threads."""
        with InterruptsHeld():
            self._is_closed = True
            for caller in (self._loop, self._threads):
                if caller is not None:
                    caller.close()


class _Threads:
    """Threads that call functions of the user."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-call")
        self._unfinished, self._in_pool, self._stop = Unfinished(), set[Future[Any]](), Stop()
        end = (self._pool, self._unfinished, self._in_pool, self._stop, os.getpid())
        self._finalizer = weakref.finalize(self, _end, *end)
        self._finalizer.atexit = False  # see `Stop`

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call."""
        future = self._unfinished.new()
        with suppress(RuntimeError):  # the threads have ended
            submit(self._pool, self._in_pool, _call, future, self._stop, function, arguments)
        if self._stop.is_set():
            fail(future, _closed())
        return future

    def close(self) -> None:
        """End the threads; a call that takes longer ends with its thread."""
        self._finalizer()


def _call(future: Future[Any], stop: Stop, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if stop.is_set():
        return
    try:
        finish(future, function(*arguments))
    except BaseException as error:  # noqa: BLE001  # raised at its sample
        fail(future, error)


def _end(pool: ThreadPoolExecutor, unfinished: Unfinished, in_pool: set[Future[Any]], stop: Stop, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no such threads
    with InterruptsHeld(in_finalizer=True):
        stop.set()
        unfinished.fail(_closed())
        end_pool(pool, in_pool)


def _closed() -> StoppedError:
    msg = "the stream was closed while a function ran"
    return StoppedError(msg)
