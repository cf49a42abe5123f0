"""Interrupts wait while something must not be left half done: Ctrl-C, and other signals that Python code answers to.

An exception that comes between any two steps of the interpreter can leave a lock of Python's taken for ever, a thread
counted that never began, or a batch that was taken from its queue and given to nobody. So whoever takes locks, starts
or ends threads, or hands something over does so with interrupts held back, for a moment only; who waits for long does
so in slices, and interrupts arrive between these.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

__all__ = ["InterruptsHeld", "begin_elsewhere", "interrupts_wait", "wait_in_slices"]

_SLICE_SECONDS = 0.1
_LATER_SECONDS = 0.001
_SIGNALS = tuple(
    int(number)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
)
# What `signal` wraps: turning numbers into names and back would take ten times as long as the rest.
_answer_of: Callable[[int], Any] = _signal.getsignal
_set_answer: Callable[[int, Any], Any] = _signal.signal


class InterruptsHeld:
    """A context in which no signal raises anything: what came meanwhile is answered at its end, each kind once.

    Only in the main thread, since no other is interrupted, and for signals that a function of Python answers to. With
    ``in_finalizer`` they are answered a moment after the end: what is raised in a finalizer is lost. 6 us.
    """

    __slots__ = ("_answers", "_came", "_in_finalizer")

    def __init__(self, *, in_finalizer: bool = False) -> None:
        self._answers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: dict[int, FrameType | None] = {}
        self._in_finalizer = in_finalizer

    def __enter__(self) -> Self:
        if not _is_main():
            return self
        note = self._note
        try:
            for number in _SIGNALS:
                answer = _answer_of(number)
                if callable(answer):
                    self._answers[number] = answer
                    _set_answer(number, note)
        except BaseException:  # one came before it was held
            self._answer_again()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._answers:
            return
        answers = dict(self._answers)
        try:
            self._answer_again()
        finally:
            if self._came:
                self._deliver([(number, answers[number], frame) for number, frame in self._came.items()])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = frame

    def _answer_again(self) -> None:
        """Put the answers back, also if one that is back already raises in between."""
        try:
            self._put_back()
        finally:
            self._put_back()

    def _put_back(self) -> None:
        for number in list(self._answers):
            _set_answer(number, self._answers[number])
            del self._answers[number]

    def _deliver(self, came: list[tuple[int, Callable[[int, FrameType | None], Any], FrameType | None]]) -> None:
        if self._in_finalizer:
            threading.Thread(target=_send_later, args=([number for number, *_ in came],), daemon=True).start()
            return
        number, answer, frame = came.pop()
        try:
            answer(number, frame)
        finally:
            if came:
                self._deliver(came)


def wait_in_slices(wait: Callable[[float | None], bool]) -> None:
    """Call ``wait``, which waits for at most so many seconds, or without end, until it says that there is no more need.

    In the main thread each slice is short and interrupts are answered between two of them.
    """
    if not _is_main():
        while not wait(None):
            pass
        return
    while True:
        with InterruptsHeld():
            if wait(_SLICE_SECONDS):
                return


def begin_elsewhere(function: Callable[[], Any]) -> None:
    """Call this in another thread, from now on: what a signal handler may do, since it takes no lock of Python's."""
    _thread.start_new_thread(function, ())


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _send_later(numbers: list[int]) -> None:
    time.sleep(_LATER_SECONDS)
    for number in numbers:
        if (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, number)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C is answered at the end; a second one at once, should the end be far.

    For the end of worker processes, which takes a moment. Their queues are taken apart when nobody knows them any more,
    by finalizers: Python ignores what is raised in one, so an interrupt at that moment was lost, and multiprocessing's
    tracker warned at exit of a semaphore that was there no more.
    """
    answer = signal.getsignal(signal.SIGINT)
    if not _is_main() or not callable(answer):
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
