"""Ends of thread pools, and of worker processes, even if the process that started them was killed.

Otherwise workers live on: a worker that makes a batch or waits for a server checks its parent only afterwards, and the
fork server and multiprocessing's tracker wait for the last worker.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from shoal.storage.chunk_cache.chunk_cache import close_all_as_orphan

_LOOK_SECONDS = 0.5
_SECONDS_TO_TIDY = 1.0

_watching = 0  # process number of the watching thread, which a forked child does not inherit


def end_with_parent() -> None:
    """End this process within a second or so of the end of its parent, in the middle of any work.

    A thread waits for the end of the parent. The thread then closes the caches that only this process still has open,
    as the parent would have done, and ends this process without ``finally`` and `atexit`. A function that holds the
    interpreter's lock delays the end.
    """
    global _watching  # noqa: PLW0603  # there is one process
    if _watching != os.getpid():
        _watching = os.getpid()
        threading.Thread(target=_watch, args=(os.getppid(),), name="shoal-parent", daemon=True).start()


def end_with_trainer() -> None:
    """Call `end_with_parent` in a worker of torch's DataLoader; else do nothing."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        end_with_parent()


def _watch(starter: int) -> None:
    """Wait for the end of the parent; ``starter`` forked this process, and may be a fork server."""
    parent = multiprocessing.parent_process()
    watched = [] if parent is None else [parent.sentinel]
    # The sentinel is the end of a pipe. It stays open if the parent forked a child that lives on.
    process: list[Any] = []
    with suppress(AttributeError, OSError):
        process.append(os.pidfd_open(starter if parent is None or parent.pid is None else parent.pid))
    while os.getppid() == starter and not connection.wait([*watched, *process], timeout=_LOOK_SECONDS):
        pass
    connection.wait(process, timeout=_LOOK_SECONDS)  # the system closes its pipe before it releases its locks
    try:
        tidying = threading.Thread(target=close_all_as_orphan, name="shoal-heir", daemon=True)
        tidying.start()
        tidying.join(_SECONDS_TO_TIDY)
    finally:
        os._exit(1)


_SECONDS_TO_END = 2.0


class Stop(threading.Event):
    """Event that ends work; the thread that sets it notifies ``changed``."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        super().__init__()
        self._changed = changed
        _all.add(self)

    def set(self) -> None:
        """Set the event, and wake up waiters on ``changed``."""
        super().set()
        if self._changed is not None:
            with self._changed:
                self._changed.notify_all()


def submit(
    pool: concurrent.futures.ThreadPoolExecutor,
    under_way: set[concurrent.futures.Future[Any]],
    call: Callable[..., Any],
    *arguments: Any,
) -> concurrent.futures.Future[Any]:
    """Submit a call to a pool; until it is done, its future is in ``under_way``, for `end_pool`."""
    future = pool.submit(call, *arguments)
    under_way.add(future)
    future.add_done_callback(under_way.discard)
    return future


def end_pool(pool: concurrent.futures.ThreadPoolExecutor, under_way: set[concurrent.futures.Future[Any]]) -> None:
    """End the threads of a pool: cancel pending calls, and wait for calls under way, at most 2 s.

    A thread in a longer call ends with the call.
    """
    with contextlib.suppress(RuntimeError):  # the garbage collector may run in a thread of the pool
        pool.shutdown(wait=False, cancel_futures=True)
        running = [future for future in list(under_way) if not future.cancelled()]
        _, unfinished = concurrent.futures.wait(running, timeout=_SECONDS_TO_END)
        pool.shutdown(wait=not unfinished)


def is_done(future: concurrent.futures.Future[Any], timeout_seconds: float | None) -> bool:
    """Wait at most ``timeout_seconds`` for a future; return True if it is done."""
    return bool(concurrent.futures.wait([future], timeout=timeout_seconds).done)


_all: weakref.WeakSet[Stop] = weakref.WeakSet()


def _stop_all() -> None:
    for stop in list(_all):
        stop.set()


getattr(threading, "_register_atexit", atexit.register)(_stop_all)
