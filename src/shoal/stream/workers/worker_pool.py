"""The worker processes of a loader: their start, the steps that they send in turn, and their end.

Worker ``w`` of ``m`` makes the steps ``t`` with ``t % m == w``, so the loader knows whose step is due, and waits for
that worker alone. Each worker has a connection of its own: no queue between processes can be left locked by a worker
that was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from shoal.errors import WorkerError
from shoal.processes.calls_in_threads import call_unless_stopped
from shoal.processes.interrupts import InterruptsHeld, interrupts_wait
from shoal.processes.start_methods import existing_main
from shoal.storage.retry import StoppedError
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.workers.shared_batches import BatchReceiver
from shoal.stream.workers.worker_batches import WorkerBatch
from shoal.stream.workers.worker_errors import error_of_ended, named_refusals
from shoal.stream.workers.worker_loop import Job, More, Pass, run_worker

_SECONDS_TO_END = 5.0
_SECONDS_TO_DIE = 2.0
_SPARE_SEGMENTS = 4  # for each worker, beyond the batches that are made ahead of use


class _Worker(NamedTuple):
    process: Any
    connection: Connection
    receiver: BatchReceiver


class WorkerPool:
    """The worker processes of one job, started at the first pass; they serve one pass after another.

    ``context`` is a context of `multiprocessing`. Each worker makes up to ``prefetch_factor`` batches ahead of use.
    ``timeout_seconds`` limits the wait for a batch; 0 waits without limit.
    """

    def __init__(self, job: Job, *, context: Any, prefetch_factor: int, timeout_seconds: float) -> None:
        self._job, self._context, self._timeout_seconds = job, context, timeout_seconds
        self._prefetch_factor = prefetch_factor
        self._workers: list[_Worker] = []
        self._num_passes, self._steps = 0, iter(range(0))
        self._has_given_up, self._is_closed, self._pid = False, False, os.getpid()
        with named_refusals():
            # Not an event of multiprocessing, which waits for its waiters: one may have been killed.
            self._stopped, self._stop = context.Pipe(duplex=False)
            self._killed, self._kill = context.Pipe(duplex=False)
        _open.add(self)

    @property
    def is_usable(self) -> bool:
        """True if the pool can serve another pass."""
        return not self._is_closed and not self._has_given_up

    @property
    def processes(self) -> list[Any]:
        """The processes of the workers, in order."""
        return [worker.process for worker in self._workers]

    def begin(self, spec: IteratorSpec, is_stopped: Callable[[], bool]) -> None:
        """Begin the steps of a pass; unread steps of an earlier pass are dropped.

        Raises
        ------
        WorkerError
            The system refuses to start workers, or a worker has ended.
        StoppedError
            ``is_stopped`` returned True while the workers started.
        """
        if not self._workers:
            with named_refusals():
                try:
                    self._workers = self._started(is_stopped)
                except BaseException:
                    self._has_given_up = True
                    raise
        self._num_passes += 1
        steps = spec.position().global_batches
        self._steps = iter(steps)
        message = Pass(self._num_passes, spec.epoch, spec.start, steps.start, steps.stop, self._prefetch_factor)
        for number, worker in enumerate(self._workers):
            self._send(number, worker, message)

    def next(self) -> WorkerBatch:
        """Return the result of the next step; raise `StopIteration` after the last.

        Raises `WorkerError` if a worker has ended, or did not answer in time; `StoppedError` after `kill`.
        """
        step = next(self._steps, None)
        if step is None:
            raise StopIteration
        number = step % len(self._workers)
        worker = self._workers[number]
        limit = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        while True:
            self._wait(worker.connection, limit)
            try:
                with InterruptsHeld():
                    of_pass, result = worker.receiver.receive()
            except (EOFError, OSError) as error:
                raise self._error_of_lost(number, error) from error
            if of_pass == self._num_passes:
                self._send(number, worker, More(worker.receiver.returned()))
                return WorkerBatch(*result)

    def give_up(self) -> None:
        """Let the workers abandon their batches for good: they answer at once, and serve no other pass."""
        self._has_given_up = True
        self._stop.send_bytes(b"stop")

    def kill(self) -> None:
        """Kill the processes; a waiting `next` raises `StoppedError`."""
        processes = self.processes  # before the message: `next` may answer it with `close`, which forgets them
        self._kill.send_bytes(b"kill")
        for process in processes:
            process.kill()

    def close(self) -> None:
        """End the processes, and wait until they have ended."""
        workers, self._workers = self._workers, []
        is_first, self._is_closed = not self._is_closed, True
        _open.discard(self)
        if not is_first or self._pid != os.getpid():  # a forked child has no workers, only their connections
            return
        with interrupts_wait():
            with contextlib.suppress(OSError):
                self._stop.send_bytes(b"stop")
            _end(workers)
            workers.clear()  # the last references: an interrupt in a finalizer would be lost

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):  # at Python's end they are closed, and this module may be gone
            self.close()

    def _started(self, is_stopped: Callable[[], bool]) -> list[_Worker]:
        if self._context.get_start_method() == "fork":  # takes milliseconds; and Python advises against other threads
            return self._start()
        return call_unless_stopped(self._start, is_stopped=is_stopped, undo=_end, what="the start of worker processes")

    def _start(self) -> list[_Worker]:
        workers: list[_Worker] = []
        try:
            with existing_main():
                workers.extend(map(self._start_one, range(self._job.num_workers)))
        except BaseException:
            _end(workers)
            raise
        return workers

    def _start_one(self, number: int) -> _Worker:
        here, there = self._context.Pipe()
        try:
            arguments = (number, self._job, there, self._stopped)
            process = self._context.Process(target=run_worker, args=arguments, name=f"shoal-{number}", daemon=True)
            process.start()
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        return _Worker(process, here, BatchReceiver(here, most_lent=self._prefetch_factor + _SPARE_SEGMENTS))

    def _wait(self, connection: Connection, limit: float | None) -> None:
        """Wait until a message can be read; raise an error if none will come."""
        ends = [process.sentinel for process in self.processes]
        seconds = None if limit is None else max(0.0, limit - time.monotonic())
        ready = wait([connection, self._killed, *ends], timeout=seconds)
        if self._killed in ready:
            raise StoppedError("the loader was stopped")
        if connection in ready:
            return
        if not ready:
            msg = f"no batch came within timeout={self._timeout_seconds} seconds"
            raise WorkerError(msg, hint="set a larger timeout=, or 0 to wait without limit; or use more workers")
        raise self._error_of_lost(ends.index(next(end for end in ready if end in ends)), None)

    def _send(self, number: int, worker: _Worker, message: Pass | More) -> None:
        try:
            with InterruptsHeld():
                worker.connection.send(message)
        except OSError as error:
            # The worker may have sent all of its batches; else the wait for its next batch raises.
            if isinstance(message, Pass):
                raise self._error_of_lost(number, error) from error

    def _error_of_lost(self, number: int, error: Exception | None) -> Exception:
        """Return the error for a worker whose connection has ended."""
        process = self._workers[number].process
        process.join(_SECONDS_TO_DIE)  # the connection ends a moment before the system knows the exit code
        if process.exitcode is None and error is not None:
            return error
        return error_of_ended(number, len(self._workers), process.pid, process.exitcode)


def _end(workers: Sequence[_Worker]) -> None:
    """End processes: a worker that is in the middle of a function of the user is killed after some seconds."""
    for worker in workers:
        worker.receiver.close()
    limit = time.monotonic() + _SECONDS_TO_END
    for end in ("", "terminate", "kill"):
        left = [worker.process for worker in workers if worker.process.exitcode is None]
        for process in left if end else ():
            getattr(process, end)()
        for process in left:
            process.join(max(0.0, limit - time.monotonic()))
        limit = time.monotonic() + _SECONDS_TO_DIE


_open: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def close_all() -> None:
    """Close all pools of this process."""
    for pool in list(_open):
        pool.close()


atexit.register(close_all)
