"""Makes what an iterator yields in a thread of its own, some items ahead of their use."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from shoal.stream.sizes import bytes_of
from shoal.stream.stopping import Stop

__all__ = ["Ahead"]

_END = object()


class Ahead:
    """An iterator over the same items, of which up to ``limit`` are ready before they are asked for.

    Those that are ready hold ``limit_bytes`` at most, as far as the largest so far tells how large the next will be;
    one may always be ready. An error is raised at its place. Close it, or let go of it: the thread is gone when that
    returns, at the latest when the item in work is made; ``close`` is called before, and may see to it that its making
    ends early. An interrupt while waiting loses nothing.
    """

    def __init__(
        self, items: Iterator[Any], *, limit: int, close: Callable[[], None], limit_bytes: int | None = None
    ) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-make")
        self._room = _Room(limit_bytes)
        self._finalizer = weakref.finalize(self, _stop, self._thread, self._room.stop, close, os.getpid())
        self._finalizer.atexit = False  # see `Stop`
        self._items = items
        self._ready: deque[Future[Any]] = deque(self._asked() for _ in range(limit))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            raise StopIteration
        item, num_bytes = self._ready[0].result()  # an interrupt here leaves it where it is
        self._ready.popleft()
        if item is _END:
            self.close()
            raise StopIteration
        self._room.taken(num_bytes)
        self._ready.append(self._asked())
        return item

    def close(self) -> None:
        """Make no more."""
        self._ready.clear()
        self._finalizer()

    def _asked(self) -> Future[Any]:
        return self._thread.submit(_next_of, self._items, self._room)


class _Room:
    """What is ready, in bytes, and whether there is room for one more."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._ready_bytes = self._num_ready = self._largest_bytes = 0
        self.stop = Stop(self._changed)

    def wait(self) -> bool:
        """Wait until there is room for another; whether it is still wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self.stop.is_set() or self._has_room())
        return not self.stop.is_set()

    def _has_room(self) -> bool:
        limit = self._limit_bytes
        return limit is None or not self._num_ready or self._ready_bytes + self._largest_bytes <= limit

    def made(self, item: Any) -> int:
        """Count one that is ready; its bytes."""
        num_bytes = 0 if self._limit_bytes is None else bytes_of(item)
        with self._changed:
            self._num_ready += 1
            self._ready_bytes += num_bytes
            self._largest_bytes = max(self._largest_bytes, num_bytes)
        return num_bytes

    def taken(self, num_bytes: int) -> None:
        """One was taken, and another may be made."""
        with self._changed:
            self._num_ready -= 1
            self._ready_bytes -= num_bytes
            self._changed.notify_all()


def _next_of(items: Iterator[Any], room: _Room) -> tuple[Any, int]:
    if not room.wait():
        return _END, 0
    item = next(items, _END)
    return (item, 0) if item is _END else (item, room.made(item))


def _stop(thread: ThreadPoolExecutor, stop: Stop, close: Callable[[], None], pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no such thread
    stop.set()
    close()
    with contextlib.suppress(RuntimeError):  # the garbage collector may run in the thread itself, which cannot wait
        thread.shutdown(wait=True, cancel_futures=True)
