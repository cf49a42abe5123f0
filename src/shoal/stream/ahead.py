"""Makes what an iterator yields in a thread of its own, some items ahead of their use."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

__all__ = ["Ahead"]

_END = object()


class Ahead:
    """An iterator over the same items, of which up to ``limit`` are ready before they are asked for.

    An error is raised at its place. Close it, or let go of it: the thread is gone when that returns, at the latest when
    the item in work is made. An interrupt while waiting loses nothing.
    """

    def __init__(self, items: Iterator[Any], *, limit: int, close: Callable[[], None]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-make")
        self._stopping = threading.Event()
        _running.add(self._stopping)
        self._finalizer = weakref.finalize(self, _stop, self._thread, self._stopping, close, os.getpid())
        self._finalizer.atexit = False  # see the end of this module
        self._items = items
        self._ready: deque[Future[Any]] = deque(self._asked() for _ in range(limit))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            raise StopIteration
        item = self._ready[0].result()  # an interrupt here leaves it where it is
        self._ready.popleft()
        if item is _END:
            self.close()
            raise StopIteration
        self._ready.append(self._asked())
        return item

    def close(self) -> None:
        """Make no more."""
        self._ready.clear()
        self._finalizer()

    def _asked(self) -> Future[Any]:
        return self._thread.submit(_next_of, self._items, self._stopping)


def _next_of(items: Iterator[Any], stopping: threading.Event) -> Any:
    return _END if stopping.is_set() else next(items, _END)


def _stop(thread: ThreadPoolExecutor, stopping: threading.Event, close: Callable[[], None], pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no such thread
    stopping.set()
    with contextlib.suppress(RuntimeError):  # the garbage collector may run in the thread itself, which cannot wait
        thread.shutdown(wait=True, cancel_futures=True)
    close()


_running: weakref.WeakSet[threading.Event] = weakref.WeakSet()


def _stop_all() -> None:
    for stopping in list(_running):
        stopping.set()


# At exit Python waits for the threads of pools before it calls what atexit knows; without this it would wait until all
# that is asked for is made.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
