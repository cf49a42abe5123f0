"""Ctrl-C waits while worker processes are ended, which takes a moment.

Their queues are taken apart when nobody knows them any more, by finalizers: Python ignores what is raised in one, so an
interrupt at that moment was lost, and multiprocessing's tracker warned at exit of a semaphore that was there no more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupts_wait"]


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """An interrupt that comes meanwhile is raised at the end; a second one at once, should the end be far.

    Only in the main thread, since no other is interrupted, and where somebody answers to SIGINT in Python.
    """
    answer = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(answer):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            answer(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, answer)
        if len(came) == 1:
            answer(*came[0])
