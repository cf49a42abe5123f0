"""Threads that make something are told to stop: when they are closed or let go of, and when Python ends.

At exit Python waits for the threads of pools before it calls what atexit knows. Without being told before, it would
wait until all that was asked for is made.
"""

from __future__ import annotations

import atexit
import threading
import weakref

__all__ = ["Stop"]


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


_all: weakref.WeakSet[Stop] = weakref.WeakSet()


def _stop_all() -> None:
    for stop in list(_all):
        stop.set()


getattr(threading, "_register_atexit", atexit.register)(_stop_all)
