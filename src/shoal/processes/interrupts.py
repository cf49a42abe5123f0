"""Deferral of interrupts: Ctrl-C and other signals with Python handlers wait while work must not stay half done.

An exception between any two steps of the interpreter can leave a lock of Python's acquired for ever, count a thread
that never started, or lose a batch between its queue and its consumer. So code that takes locks, starts or ends
threads, or hands objects over defers interrupts, only briefly. Long waits are split into slices, and interrupts arrive
between two slices.
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

_SLICE_SECONDS = 0.1
_LATER_SECONDS = 0.001
_SIGNALS = tuple(
    int(number)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
)
# The functions that `signal` wraps: `signal` converts numbers to names and back, which takes ten times as long.
_answer_of: Callable[[int], Any] = _signal.getsignal
_set_answer: Callable[[int, Any], Any] = _signal.signal


class InterruptsHeld:
    """A context that defers signals: their handlers run at its end, once for each kind of signal.

    Works only in the main thread, where handlers run, and for signals with a Python handler. With ``in_finalizer``
    the handlers run a moment after the end: Python drops exceptions in a finalizer. 6 us.
    """

    __slots__ = ("_answers", "_came", "_in_finalizer")

    def __init__(self, *, in_finalizer: bool = False) -> None:
        self._answers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: dict[int, FrameType | None] = {}
        self._in_finalizer = in_finalizer

    def __enter__(self) -> Self:
        if not is_main_thread():
            return self
        note = self._note
        try:
            for number in _SIGNALS:
                answer = _answer_of(number)
                if callable(answer):
                    self._answers[number] = answer
                    _set_answer(number, note)
        except BaseException:  # a signal came before it was deferred
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
        """Restore the handlers, even if a restored one raises in between."""
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
    """Call ``wait`` until it returns true; its argument is the longest wait in seconds, or None for no limit.

    In the main thread each slice is short, and interrupts are handled between two slices.
    """
    if not is_main_thread():
        while not wait(None):
            pass
        return
    while True:
        with InterruptsHeld():
            if wait(_SLICE_SECONDS):
                return


def begin_elsewhere(function: Callable[[], Any]) -> None:
    """Start a function in another thread; safe in a signal handler, because no Python lock is taken."""
    _thread.start_new_thread(function, ())


def is_main_thread() -> bool:
    """Return True in the main thread, the only one in which handlers of signals run."""
    return threading.get_ident() == threading.main_thread().ident


def _send_later(numbers: list[int]) -> None:
    time.sleep(_LATER_SECONDS)
    for number in numbers:
        if (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, number)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Defer Ctrl-C to the end of the context; a second one is handled at once, in case the end is far off.

    For the end of worker processes, which takes a moment. Finalizers then close their queues. Python ignores exceptions
    in a finalizer: an interrupt at that moment was lost, and multiprocessing's tracker warned at exit of a semaphore
    that no longer existed.
    """
    answer = signal.getsignal(signal.SIGINT)
    if not is_main_thread() or not callable(answer):
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
