"""Futures that always end: with a result, with an error, or with the end of their iteration."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any


class Unfinished:
    """The futures without a result."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._futures)

    def new(self) -> Future[Any]:
        """Return a new future."""
        future: Future[Any] = Future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def fail(self, error: BaseException) -> None:
        """Set the error in all futures without a result."""
        for future in list(self._futures):
            fail(future, error)


def finish(future: Future[Any], result: Any) -> None:
    """Set the result, unless the future has ended before.

    >>> future = Future()
    >>> finish(future, 1), finish(future, 2), future.result()
    (None, None, 1)
    """
    with suppress(InvalidStateError):
        future.set_result(result)


def fail(future: Future[Any], error: BaseException) -> None:
    """Set the error, unless the future has ended before."""
    with suppress(InvalidStateError):
        future.set_exception(error)
