"""Calls that block and cannot be interrupted: another thread makes them, so that the wait for their result can end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from shoal.storage.retry import StoppedError

_Result = TypeVar("_Result")
_SLICE_SECONDS = 0.1


def call_unless_stopped(
    call: Callable[[], _Result], *, is_stopped: Callable[[], bool], undo: Callable[[_Result], object], what: str
) -> _Result:
    """Return the result of ``call``, or raise its error.

    The wait ends at an interrupt, and when ``is_stopped`` returns True; the call then goes on in its thread, and its
    result is given to ``undo``.

    Raises
    ------
    StoppedError
        ``is_stopped`` returned True; ``what`` names the call in the message.

    Examples
    --------
    >>> call_unless_stopped(lambda: 3, is_stopped=bool, undo=print, what="counting")
    3
    """
    made = _Call(call, undo)
    try:
        while not made.is_done.wait(_SLICE_SECONDS):
            if is_stopped():
                raise StoppedError(f"{what} was stopped")  # noqa: TRY301  # the same end as of an interrupt
        return made.result()
    except BaseException:
        made.abandon()
        raise


class _Call(Generic[_Result]):
    def __init__(self, call: Callable[[], _Result], undo: Callable[[_Result], object]) -> None:
        self.is_done = threading.Event()
        self._undo, self._lock, self._is_wanted = undo, threading.Lock(), True
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(call,), name="shoal-call", daemon=True).start()

    def result(self) -> _Result:
        if self._error is not None:
            raise self._error
        return self._results.pop()

    def abandon(self) -> None:
        with self._lock:
            self._is_wanted = False
        while self._results:
            self._undo(self._results.pop())

    def _run(self, call: Callable[[], _Result]) -> None:
        try:
            result = call()
            with self._lock:
                is_wanted = self._is_wanted
                if is_wanted:
                    self._results.append(result)
        except BaseException as error:  # noqa: BLE001  # raised by `result`
            self._error = error
            return
        finally:
            self.is_done.set()
        if not is_wanted:
            self._undo(result)
