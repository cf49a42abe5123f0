"""Calls in other threads: blocking calls with a wait that can be stopped, and parallel calls with ordered results."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from shoal.storage.retry import StoppedError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SLICE_SECONDS = 0.1


def called_in_order(call: Callable[[_Item], _Result], items: Iterable[_Item], *, num_threads: int) -> Iterator[_Result]:
    """Yield ``call(item)`` for each item, in order; at most ``num_threads`` results are in the making or unread.

    With one thread, each call is made when its result is needed. After an error no further call begins; the error of
    the first failed item is raised once the running calls have ended.

    >>> list(called_in_order(abs, range(-2, 2), num_threads=4))
    [2, 1, 0, 1]
    """
    if num_threads <= 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-call") as pool:
        under_way: deque[Future[_Result]] = deque()
        try:
            for item in items:
                under_way.append(pool.submit(call, item))
                if len(under_way) >= num_threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def call_unless_stopped(
    call: Callable[[], _Result], *, is_stopped: Callable[[], bool], undo: Callable[[_Result], object], what: str
) -> _Result:
    """Return the result of ``call``, or raise its error.

    The wait ends at an interrupt, and when ``is_stopped`` returns True; the call then goes on in its thread, and
    ``undo`` receives its result.

    Raises
    ------
    StoppedError
        ``is_stopped`` returned True; ``what`` names the call in the message.

    Examples
    --------
    >>> call_unless_stopped(lambda: 3, is_stopped=bool, undo=print, what="counting")
    3
    """
    running = _Call(call, undo)
    try:
        while not running.is_done.wait(_SLICE_SECONDS):
            if is_stopped():
                raise StoppedError(f"{what} was stopped")  # ends like an interrupt
        return running.result()
    except BaseException:
        running.abandon()
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
