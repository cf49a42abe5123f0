"""Threads that make something are told to stop: when they are closed or let go of, and when Python ends.

At exit Python waits for the threads of pools before it calls what atexit knows. Without being told before, it would
wait until all that was asked for is made.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Iterable
from typing import Any

__all__ = ["Stop", "end_pool", "is_done"]

_SECONDS_TO_END = 2.0


class Stop(threading.Event):
    """Set when what is being made is not wanted any more; `wake` is called then, in the thread that sets it."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        super().__init__()
        self._changed = changed
        _all.add(self)

    def set(self) -> None:
        """Stop, and wake up who waits for a change."""
        super().set()
        if self._changed is not None:
            with self._changed:
                self._changed.notify_all()


def end_pool(pool: concurrent.futures.ThreadPoolExecutor, under_way: Iterable[concurrent.futures.Future[Any]]) -> None:
    """End the threads of a pool: what has not begun is dropped, and what has is waited for, but not long.

    A thread in a function that takes longer ends when that does.
    """
    with contextlib.suppress(RuntimeError):  # the garbage collector may run in one of the threads, which cannot wait
        pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in under_way if not future.cancelled()]
        _, left = concurrent.futures.wait(begun, timeout=_SECONDS_TO_END)
        pool.shutdown(wait=not left)


def is_done(future: concurrent.futures.Future[Any], timeout_seconds: float | None) -> bool:
    """Whether it is, after so long at most."""
    return bool(concurrent.futures.wait([future], timeout=timeout_seconds).done)


_all: weakref.WeakSet[Stop] = weakref.WeakSet()


def _stop_all() -> None:
    for stop in list(_all):
        stop.set()


getattr(threading, "_register_atexit", atexit.register)(_stop_all)
