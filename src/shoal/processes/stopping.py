"""Stopping of worker threads: when they are closed or dropped, and when Python exits.

At exit Python waits for the threads of pools before it runs atexit handlers. Without an earlier signal, it would wait
until all pending work is done.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Iterable
from typing import Any

_SECONDS_TO_END = 2.0


class Stop(threading.Event):
    """Event that is set when the work is no longer wanted; ``changed`` is notified then, in the thread that sets it."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        super().__init__()
        self._changed = changed
        _all.add(self)

    def set(self) -> None:
        """Stop, and wake up waiters on ``changed``."""
        super().set()
        if self._changed is not None:
            with self._changed:
                self._changed.notify_all()


def end_pool(pool: concurrent.futures.ThreadPoolExecutor, under_way: Iterable[concurrent.futures.Future[Any]]) -> None:
    """End the threads of a pool: cancel pending work, and wait for work under way, but not long.

    A thread in a function that takes longer ends when the function does.
    """
    with contextlib.suppress(RuntimeError):  # the garbage collector may run in one of the threads, which cannot wait
        pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in under_way if not future.cancelled()]
        _, left = concurrent.futures.wait(begun, timeout=_SECONDS_TO_END)
        pool.shutdown(wait=not left)


def is_done(future: concurrent.futures.Future[Any], timeout_seconds: float | None) -> bool:
    """Return True if the future is done, waiting at most ``timeout_seconds``."""
    return bool(concurrent.futures.wait([future], timeout=timeout_seconds).done)


_all: weakref.WeakSet[Stop] = weakref.WeakSet()


def _stop_all() -> None:
    for stop in list(_all):
        stop.set()


getattr(threading, "_register_atexit", atexit.register)(_stop_all)
