"""An event loop in a thread of its own, for coroutine functions of users; callers wait for futures.

Only this module uses `asyncio`, and imports it with the first loop: the import takes 30 ms and more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from shoal.processes.futures import Unfinished, fail, finish
from shoal.processes.interrupts import InterruptsHeld
from shoal.processes.process_ends import Stop
from shoal.storage.retry import StoppedError

_SECONDS_TO_END = 2.0


class EventLoop:
    """An event loop that runs coroutines in a thread.

    `close`, and dropping the last reference, cancel all tasks of the loop, and wait at most 2 s for their ends. A task
    that ignores its cancellation, or never awaits, goes on in the thread, which does not delay the end of the process.
    """

    def __init__(self) -> None:
        self._tasks = _Tasks()
        self._thread = threading.Thread(target=self._tasks.run, name="shoal-await", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _end, self._tasks, self._thread, os.getpid())
        self._finalizer.atexit = False  # see `Stop`

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a coroutine function on the loop; cancelling the future cancels the coroutine.

        Raises `RuntimeError` if a coroutine of this loop makes the call: the loop would wait for itself.
        """
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a coroutine waits for another coroutine of its own event loop: await it instead")
        return self._tasks.add(function, arguments)

    def close(self) -> None:
        """Cancel all tasks, and end the thread."""
        self._finalizer()
        if not self._tasks.has_given_up:  # another thread closes the loop
            _wait_for(self._thread)


class _Tasks(Stop):
    """The tasks of a loop; setting the event cancels all tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._asyncio = asyncio = _asyncio_library()
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._started: set[Any] = set()  # a loop has only weak references to its tasks
        self._unfinished = Unfinished()
        self.has_given_up = False

    def set(self) -> None:
        """Cancel all tasks soon."""
        super().set()
        if self._pid == os.getpid():  # a forked process shares the pipe that wakes the loop of its parent
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._is_over.set)

    def give_up(self) -> None:
        """Fail the calls that have not ended."""
        self.has_given_up = True
        self._unfinished.fail(_closed())

    def add(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        future = self._unfinished.new()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._start, function, arguments, future)
        if self.is_set():
            fail(future, _closed())
        return future

    def _start(self, function: Callable[..., Any], arguments: tuple[Any, ...], future: Future[Any]) -> None:
        if self.is_set():
            return
        task = self._loop.create_task(self._called(function, arguments, future))
        self._started.add(task)
        task.add_done_callback(self._started.discard)

        def cancel_too(future: Future[Any]) -> None:
            if future.cancelled():
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(cancel_too)

    async def _called(self, function: Callable[..., Any], arguments: tuple[Any, ...], future: Future[Any]) -> None:
        try:
            finish(future, await function(*arguments))
        except self._asyncio.CancelledError:
            if not self.is_set():  # else the call fails after the ends of all: a process may end with the first error
                # The caller would take the class of this error for its own cancellation.
                fail(future, RuntimeError("the coroutine was cancelled, but not by shoal"))
        except BaseException as error:  # noqa: BLE001  # raised by the caller; SystemExit would end the loop
            fail(future, error)

    def run(self) -> None:
        """Run the loop until all tasks have ended after `set`."""
        self._asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:  # a task of the user's own raised SystemExit
            self._unfinished.fail(error)
            raise
        finally:
            super().set()
            self._loop.close()
            self.give_up()

    async def _serve(self) -> None:
        await self._is_over.wait()
        asyncio = self._asyncio
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _asyncio_library() -> Any:
    import asyncio  # noqa: PLC0415  # only for coroutine functions

    return asyncio


def _closed() -> StoppedError:
    msg = "the stream was closed while a coroutine ran"
    return StoppedError(msg)


_of_parents: list[_Tasks] = []


def _end(tasks: _Tasks, thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:
        _of_parents.append(tasks)  # a loop that is freed in a forked process would close the files of the parent's loop
        return
    with InterruptsHeld(in_finalizer=True):
        tasks.set()
        _wait_for(thread)
        tasks.give_up()


def _wait_for(thread: threading.Thread) -> None:
    if threading.get_ident() != thread.ident:  # the garbage collector may run in the thread of the loop
        thread.join(_SECONDS_TO_END)
