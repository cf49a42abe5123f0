"""The main function of a worker process: makes the steps of a pass, and sends each as soon as it may.

The loader sends a `Pass`, and after each received step a `More`. A worker never has more unread steps than the loader
allows, and looks at its messages between two steps: a new pass ends the work on an old one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.processes.main_module import place_of_main
from shoal.processes.process_ends import end_with_parent
from shoal.stream.iterating.iterator_specs import WorkerSpec
from shoal.stream.workers.packed_work import pack, unpack
from shoal.stream.workers.shared_batches import BatchSender, is_about_room
from shoal.stream.workers.worker_batches import Failed, StepMaker, Task, WorkerBatch


class Pass(NamedTuple):
    """A pass over the steps ``[first_step, num_steps)`` of an epoch from position ``start``.

    ``number`` counts passes of these workers. A worker sends at most ``room`` steps that the loader has not received.
    """

    number: int
    epoch: int
    start: int
    first_step: int
    num_steps: int
    room: int


class More(NamedTuple):
    """Permission for one more step, and the segments of shared memory that the loader no longer reads."""

    returned: list[int]


class Job:
    """Everything that a worker process needs: its work, and the functions that prepare the process and pack values.

    ``prepare`` is called with the number of the worker. ``reduce`` is a `reducer_override` for sent batches. A job is
    pickled once for all workers; ``packages`` names the packages of its pickle.
    """

    def __init__(
        self,
        work: WorkerSpec,
        num_workers: int,
        prepare: Callable[[int], None],
        reduce: Callable[[Any], Any] | None = None,
    ) -> None:
        self.work, self.num_workers, self.prepare, self.reduce = work, num_workers, prepare, reduce
        self._pickled: bytes | None = None
        self.packages: set[str] = set()

    def pack(self) -> None:
        """Pickle the job now, for processes that do not inherit it; errors of pickling are raised here."""
        self._pickled, self.packages = pack(self.work, self.num_workers, self.prepare, self.reduce)

    def __reduce__(self) -> tuple[object, ...]:
        if self._pickled is None:
            self.pack()
        return _unpacked, (self._pickled, place_of_main())


def _unpacked(packed: bytes, main: dict[str, Any]) -> Job:
    return Job(*unpack(packed, main))


def run_worker(worker: int, job: Job, connection: Connection, stop: Connection) -> None:
    """Make the steps of worker ``worker``, until the connection ends or ``stop`` can be read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the loader, which ends its workers
    end_with_parent()
    job.prepare(worker)
    maker = StepMaker(job.work, job.num_workers, stop)
    sender = BatchSender(connection, job.reduce)
    try:
        with suppress(EOFError, OSError):
            _Worker(worker, maker, sender, connection, stop).run()
    finally:
        sender.close()
        maker.end()


class _Worker:
    def __init__(
        self, worker: int, maker: StepMaker, sender: BatchSender, connection: Connection, stop: Connection
    ) -> None:
        self._worker, self._maker, self._sender = worker, maker, sender
        self._connection, self._stop = connection, stop
        self._pass_number, self._room = -1, 0
        self._tasks: Iterator[Task] = iter(())
        self._next: Task | None = None

    def run(self) -> None:
        """Serve passes until the loader closes the connection, or stops its workers."""
        while True:
            # A forked worker has both ends of the connections before its own, so it does not see the loader close them.
            is_idle = not self._room or self._next is None
            if is_idle and self._stop in wait([self._connection, self._stop]):
                return
            while self._connection.poll(0):
                self._take(self._connection.recv())
            if self._room and self._next is not None:
                self._room -= 1
                task, self._next = self._next, next(self._tasks, None)
                self._send(self._maker.make(task))

    def _take(self, message: Pass | More) -> None:
        if isinstance(message, More):
            self._room += 1
            self._sender.free(message.returned)
            return
        self._pass_number, self._room = message.number, message.room
        num_workers = self._maker.num_workers
        first = message.first_step + (self._worker - message.first_step) % num_workers
        steps = range(first, message.num_steps, num_workers)
        self._tasks = (Task(message.epoch, message.start, step, message.num_steps) for step in steps)
        self._next = next(self._tasks, None)

    def _send(self, result: WorkerBatch) -> None:
        try:
            packed, buffers = self._sender.packed((self._pass_number, result))
        except Exception as error:  # noqa: BLE001  # raised by the loader
            packed, buffers = self._sender.packed((self._pass_number, _unsendable(result, error)))
        try:
            self._sender.send(packed, buffers)
        except OSError as error:
            if not is_about_room(error):
                raise
            counts = {**result.counts, "num_unshared_batches": 1}
            packed, buffers = self._sender.packed((self._pass_number, result._replace(counts=counts)))
            self._sender.send_whole(packed, buffers)


def _unsendable(result: WorkerBatch, error: Exception) -> WorkerBatch:
    msg = f"the batch cannot be sent from the worker that made it: {type(error).__name__}: {error}"
    hint = "map() and collate_fn= must return what pickle takes: no generators, files or lambdas; or num_workers=0"
    return result._replace(batch=None, failed=Failed(UsageError(msg, hint=hint), ""))
