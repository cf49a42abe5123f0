"""Functions of the user that process several samples at a time: coroutine functions, and functions in threads.

The classes here are functions, too: a call processes one sample, and waits for its result. So code that processes
samples one by one needs no other case.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import AsyncGeneratorType, CoroutineType
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.order.protocol import as_within
from shoal.pipeline.stages.callers import Callers
from shoal.processes.event_loop import EventLoop
from shoal.processes.interrupts import InterruptsHeld, wait_in_slices
from shoal.processes.process_ends import is_done

MOST_COROUTINES = 32
"""Coroutines of a function at a time, by default: servers limit requests, and every worker adds its own."""

_MOST_AT_A_TIME = 1 << 16


class _LoopByProcess:
    """The event loop for calls outside an iteration: it lives as long as this object, in each process that calls."""

    __slots__ = ("_loops",)

    def __init__(self) -> None:
        self._loops: dict[int, EventLoop] = {}  # by process number

    def __reduce__(self) -> tuple[object, ...]:
        return _LoopByProcess, ()

    def result_of(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a coroutine function; an interrupt cancels the coroutine."""
        future: Future[Any] | None = None
        try:
            with InterruptsHeld():
                loop = self._loops.get(os.getpid())
                loop = self._loops.setdefault(os.getpid(), EventLoop()) if loop is None else loop
                future = loop.call(function, *arguments)
            wait_in_slices(partial(is_done, future))
            return future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            raise


@dataclass(frozen=True, slots=True)
class CoroutineFunction:
    """A coroutine function of the user: at most ``max_concurrency`` coroutines run at a time in a process."""

    function: Callable[..., Any]
    max_concurrency: int = MOST_COROUTINES
    _loop: _LoopByProcess = field(default_factory=_LoopByProcess, repr=False, compare=False)

    def __repr__(self) -> str:
        return name_of(self.function)

    def __call__(self, *arguments: Any) -> Any:
        """Return the result for one sample."""
        return self._loop.result_of(self.function, *arguments)

    def begin(self, callers: Callers, *arguments: Any) -> Future[Any]:
        """Begin a call."""
        return callers.on_loop(self.function, *arguments)


@dataclass(frozen=True, slots=True)
class ThreadedFunction:
    """A function of the user that at most ``max_concurrency`` threads call at a time in a process."""

    function: Callable[..., Any]
    max_concurrency: int

    def __repr__(self) -> str:
        return name_of(self.function)

    def __call__(self, *arguments: Any) -> Any:
        """Return the result for one sample."""
        return self.function(*arguments)

    def begin(self, callers: Callers, *arguments: Any) -> Future[Any]:
        """Begin a call."""
        return callers.in_thread(self.function, *arguments)


ConcurrentFunction = CoroutineFunction | ThreadedFunction


class Begun(NamedTuple):
    """A call that has begun: the stage that waits for its result in place of the call, and the result."""

    stage: Any
    result: Future[Any]


@dataclass(frozen=True, slots=True)
class BegunCall:
    """A function that returns the result of a call that has begun."""

    function: ConcurrentFunction
    result: Future[Any]

    def __repr__(self) -> str:
        return repr(self.function)

    def __call__(self, *_: Any) -> Any:
        """Wait for the result, and return it."""
        if not self.result.done():
            wait_in_slices(partial(is_done, self.result))
        return self.result.result()


def as_function(verb: str, function: Any, max_concurrency: int | None = None) -> Callable[..., Any]:
    """Return the function of a verb, able to process ``max_concurrency`` samples at a time.

    None is `MOST_COROUTINES` for a coroutine function, and 1 for other functions. Raises `UsageError` unless the
    argument is a function.
    """
    if not callable(function):
        raise UsageError(f"{verb} takes a function; got {function!r}")
    most = max_concurrency
    if most is not None:
        most = as_within(f"{verb.removesuffix(')')}max_concurrency=)", most, 1, _MOST_AT_A_TIME)
    if isinstance(function, CoroutineFunction | ThreadedFunction):
        return function
    if is_coroutine_function(function):
        return CoroutineFunction(function, most or MOST_COROUTINES)
    return ThreadedFunction(function, most) if most is not None and most > 1 else function


def is_coroutine_function(function: Any) -> bool:
    """Return True for a coroutine function, a partial of one, and an object with such a ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # the method


def check_result(result: Any, function: Callable[..., Any]) -> None:
    """Raise `UsageError` if the result of a function is a coroutine, or an asynchronous generator."""
    if type(result) is not CoroutineType and type(result) is not AsyncGeneratorType:
        return
    kind = "an asynchronous generator"
    if type(result) is CoroutineType:
        result.close()  # else Python warns that nothing awaited it
        kind = "a coroutine"
    msg = f"{name_of(function)} returned {kind}, which nothing awaits"
    raise UsageError(msg, hint='pass an "async def" function that returns its result, or a functools.partial of one')


def max_concurrency_of(function: Callable[..., Any]) -> int:
    """Return the most samples in a function at a time; 0 if the function gets one sample after another."""
    concurrent = concurrent_of(function)
    return 0 if concurrent is None else concurrent.max_concurrency


def concurrent_of(function: Callable[..., Any]) -> ConcurrentFunction | None:
    """Return the function if it processes several samples at a time, else None."""
    return function if isinstance(function, CoroutineFunction | ThreadedFunction) else None


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function."""
    return getattr(function, "__qualname__", "") or repr(function)
