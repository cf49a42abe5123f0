"""Worker processes of a loader: torch's own processes, with one task per batch, in turn.

torch gets a map-style dataset and a sampler of its keys, not an iterable: it passes keys to workers in turn, and
returns the results in the order of the keys. So worker ``w`` of ``m`` makes the steps ``t`` with ``t % m == w``, no
worker ends early, and the first key of an epoch tells a persistent worker about the epoch.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch.utils.data

from shoal.errors import WorkerError
from shoal.integrations.torch.batch_transfer import SHARED_MEMORY_HINT, named_refusals, sendable
from shoal.integrations.torch.worker_watch import ended_workers, seen_ends, start_workers
from shoal.processes.interrupts import begin_elsewhere, interrupts_wait
from shoal.processes.process_ends import end_with_parent
from shoal.processes.start_methods import UNSENT_EXIT_CODE, end_where_unsent, wait_for_end, wait_for_feeders
from shoal.reading.remote.request_stats import RequestStats
from shoal.storage.retry import StoppedError
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec
from shoal.stream.refilling.filled_batches import Part
from shoal.stream.states.delivery_sums import DeliverySums
from shoal.stream.states.iterator_position import Position
from shoal.stream.states.sequence_hashes import hashes_of
from shoal.stream.workers.snapshot import Snapshot
from shoal.stream.workers.worker_batches import Failed, StepMaker, Task, WorkerBatch, add_counts, sharing_chunks

_log = logging.getLogger("shoal")

_SECONDS_TO_END = 2.0
_SECONDS_TO_GIVE_UP = 1.5


class Workshop:
    """The dataset of a worker process: makes a batch for each task, and converts the batch for the loader."""

    def __init__(self, work: WorkerSpec, num_workers: int, finish: Callable[[Any], Any], stop: Any) -> None:
        self._maker, self._finish = StepMaker(work, num_workers, stop), finish

    def __getitem__(self, task: Task) -> WorkerBatch:
        result = self._maker.make(task)
        if result.failed is not None:
            return result
        is_part = isinstance(result.batch, Part)  # the receiver cuts batches from parts, and finishes them
        batch, is_copied = sendable(result.batch if is_part else self._finish(result.batch))
        return result._replace(batch=batch, counts={**result.counts, "num_unshared_batches": int(is_copied)})


def _begin(init: Callable[[int], None] | None, worker: int) -> None:
    """Let a worker end with the trainer, then call the user's function."""
    end_with_parent()
    end_where_unsent()
    if init is not None:
        init(worker)


class _Tasks:
    """The sampler: the steps of the current pass."""

    def __init__(self) -> None:
        self.spec: IteratorSpec | None = None

    def __iter__(self) -> Iterator[Task]:
        if (spec := self.spec) is not None:
            steps = spec.position().global_batches
            for step in steps:
                yield Task(spec.epoch, spec.start, step, steps.stop)


class Workers:
    """The worker processes of a loader for one pass, or for several; ``options`` go to torch's DataLoader."""

    def __init__(
        self, work: WorkerSpec, num_workers: int, finish: Callable[[Any], Any], options: dict[str, Any]
    ) -> None:
        self._iterator: Any = None  # of torch's loader
        self._closed, self._has_given_up = True, False
        self._pid, self._is_fork = os.getpid(), options["multiprocessing_context"].get_start_method() == "fork"
        self._inputs, self._num_workers = _inputs(work, num_workers, finish, options), num_workers
        if num_workers > 1:
            work = sharing_chunks(work, num_workers=num_workers)
        self._tasks = _Tasks()
        # Not an event of multiprocessing, which waits for its waiters: one may have been killed.
        with named_refusals():
            stopped, self._stop = options["multiprocessing_context"].Pipe(duplex=False)
        workshop: Any = Workshop(work, num_workers, finish, stopped)
        self._loader: Any = torch.utils.data.DataLoader(
            workshop,
            batch_size=None,
            sampler=self._tasks,
            num_workers=num_workers,
            collate_fn=_identity,
            **{**options, "worker_init_fn": partial(_begin, options["worker_init_fn"])},
        )
        self._closed = False
        _open.add(self)

    def serve(self, work: WorkerSpec, num_workers: int, finish: Callable[[Any], Any], options: dict[str, Any]) -> bool:
        """Return True if these workers can replace new `Workers` of these arguments."""
        is_usable = not self._closed and not self._has_given_up
        return is_usable and _inputs(work, num_workers, finish, options) == self._inputs

    def begin(self, spec: IteratorSpec, is_stopped: Callable[[], bool]) -> None:
        """Begin the batches of this pass; remaining batches of an earlier pass are dropped.

        Raises `WorkerError` if the system refuses to start workers, or a worker ended; `StoppedError` if ``is_stopped``
        returned True meanwhile.
        """
        self._tasks.spec = spec
        try:
            with named_refusals():
                self._iterator = start_workers(self._loader, is_fork=self._is_fork, is_stopped=is_stopped)
        except WorkerError:
            raise
        except RuntimeError as error:  # a worker of an earlier pass has ended
            raise self._explained(error) from error
        except BaseException:
            self._has_given_up = True
            raise

    def next(self) -> WorkerBatch:
        """Return the result of the next task; raise `StopIteration` after the last.

        Raises `WorkerError` if a worker ended, or did not answer in time.
        """
        try:
            with seen_ends(self._iterator):
                result = next(self._iterator, None)
        except (RuntimeError, EOFError, OSError) as error:
            raise self._explained(error) from error
        if result is None:  # torch's own StopIteration would keep its queues alive until it is handled
            raise StopIteration
        return WorkerBatch(*result)

    def give_up(self) -> None:
        """Let the workers abandon their batches for good: they answer at once, and serve no other pass."""
        self._has_given_up = True
        self._stop.send_bytes(b"stop")

    def kill(self) -> None:
        """Kill the processes; a waiting `next` raises `StoppedError`."""
        iterator = self._iterator
        for worker in getattr(iterator, "_workers", ()):
            worker.kill()
        if iterator is not None:  # torch would look for lost workers only every five seconds
            failed = Failed(StoppedError("the loader was stopped"), "")
            iterator._worker_result_queue.put((iterator._rcvd_idx, WorkerBatch(-1, None, {}, failed)))  # noqa: SLF001

    def close(self) -> None:
        """Stop the processes, and wait until they have exited."""
        iterator, self._iterator = self._iterator, None
        self._closed = True
        _open.discard(self)
        if iterator is not None and self._pid == os.getpid():  # a forked child has no workers, only their queues
            with interrupts_wait():
                self._stop.send_bytes(b"stop")  # torch would wait until the batches in work are made
                iterator._shutdown_workers()  # noqa: SLF001  # otherwise only the garbage collector does it
                # torch does not wait, and a thread with the last reference to a queue frees it after Python's end.
                wait_for_feeders(getattr(iterator, "_index_queues", ()), timeout_seconds=_SECONDS_TO_END)
                self._loader = iterator = None  # the last reference to the queues

    def __del__(self) -> None:
        if not self._closed:  # at Python's end they are closed, and the rest of this module may be gone
            self.close()

    def _explained(self, error: Exception) -> Exception:
        """Return an error with the reason why torch lost a worker, as far as the system knows it."""
        if isinstance(error, EOFError | OSError):  # the output is lost; the system may not know of the end yet
            wait_for_end(getattr(self._iterator, "_workers", ()), timeout_seconds=_SECONDS_TO_END)
        if ended := ended_workers(self._iterator):
            number, worker = ended[0]
            how, hint = _cause(worker.exitcode)
            msg = f"worker {number} of {self._num_workers} (pid {worker.pid}) {how}"
            return WorkerError(msg, hint=hint)
        if "timed out" in str(error):
            msg = f"no batch came within timeout={self._loader.timeout} seconds"
            return WorkerError(msg, hint="set a larger timeout=, or 0 to wait without limit; or use more workers")
        return error


class WorkerBatches:
    """The batches of one pass, made by worker processes; if ``stay``, the processes go on to the next pass.

    For filled batches, workers make parts; the receiver cuts batches from the parts, and ``finish`` converts them.
    """

    survives_interrupts = False  # torch may have taken a batch out of its queue

    def __init__(
        self,
        workers: Workers,
        spec: IteratorSpec,
        *,
        stay: bool,
        finish: Callable[[Any], Any] | None = None,
        is_stopped: Callable[[], bool] = bool,
    ) -> None:
        self.position = spec.position()
        self._next_step = self.position.global_batches.start
        self._batches = spec.work.batcher.received(self.position, partial(_context_of, spec, self.position), finish)
        self._workers: Workers | None = workers
        self._is_waiting = self._has_warned = False
        self._counters, self._stay = spec.counters, stay
        workers.begin(spec, is_stopped)

    def receive(self, taken: list[Any]) -> Any:  # noqa: ARG002  # nothing can be given back
        """Return the next batch, after waiting for its worker."""
        position, batches = self.position, self._batches
        while not batches.is_full:
            if self._next_step >= position.global_batches.stop:
                return next(batches.last())
            result = self._received()
            if result.num_samples is not None and not position.knows_end:
                position.end_at(result.num_samples)
            if not result.is_over:
                batches.add(result.batch, result.proof)
        return batches.batch()

    def _received(self) -> WorkerBatch:
        """Return a worker's result for the next step."""
        if self._workers is None:
            raise StopIteration
        try:
            self._is_waiting = True
            result = self._workers.next()
            self._is_waiting = False
        except StopIteration:
            raise
        except BaseException:
            self._workers.close()  # after any error, the content of their queues is unknown
            self._workers = None
            raise
        add_counts(self._counters, result.counts)
        if result.counts.get("num_unshared_batches") and not self._has_warned:
            self._has_warned = True
            _log.warning("batches of workers come through a pipe, which is slower: %s", SHARED_MEMORY_HINT)
        if result.failed is not None:
            result.failed.raise_here()
        if result.step != self._next_step:  # never seen; but a batch lost between processes must not go unnoticed
            raise AssertionError(f"a worker sent the batch of step {result.step}; step {self._next_step} is due")
        self._next_step += 1
        return result

    def give_back(self, taken: list[Any]) -> None:
        """Do nothing: an interrupt ends this source."""

    def stop(self) -> None:
        """Cancel the batches in work, and end workers that do not react."""
        if self._workers is not None:
            self._workers.give_up()
            begin_elsewhere(self._end_if_stuck)

    def _end_if_stuck(self) -> None:
        time.sleep(_SECONDS_TO_GIVE_UP)
        if (workers := self._workers) is not None and self._is_waiting:
            workers.kill()

    def end(self) -> None:
        """Release the workers after the last batch: persistent workers stay, others end."""
        self.close()

    def close(self) -> None:
        """End the processes; the next pass tells persistent workers that this pass is over."""
        workers, self._workers = self._workers, None
        if workers is not None and not self._stay:
            workers.close()


def _context_of(spec: IteratorSpec, position: Position) -> BatchContext:
    """Return the inputs of a batcher for samples from other processes."""
    piece = spec.work.resolved.whole(spec.work.opened, spec.epoch)
    return BatchContext(
        opened=piece.opened,
        resolved=piece.resolved,
        pipeline=spec.work.pipeline,
        options=spec.work.options,
        counters=spec.counters,
        requests=RequestStats(spec.counters),
        position=position,
        sums=DeliverySums(hashes_of(piece.resolved), spec.epoch),
        quarantine=None,
        decoders=None,
    )


def _inputs(work: WorkerSpec, *others: Any) -> Snapshot:
    """Return a snapshot of all inputs of workers.

    The location of samples changes only with the dataset. The start method, and the generator of seeds for new workers,
    do not affect the batches of existing workers.
    """
    options: dict[str, Any] = others[-1]
    alone = (work.opened, work.opened.index, options["multiprocessing_context"], options["generator"])
    return Snapshot((work, *others), alone=alone)


def _cause(exitcode: int) -> tuple[str, str]:
    if exitcode >= 0:
        if exitcode == UNSENT_EXIT_CODE:
            hint = f"its own message is on stderr; often {SHARED_MEMORY_HINT}; or no more files can be open (ulimit -n)"
            return "could not send its batch", hint
        hint = (
            'its own message is on stderr. A script that starts workers needs `if __name__ == "__main__":` around '
            "its work, and functions for map(), filter() and collate_fn= must be importable: not of a notebook"
        )
        return f"ended with exit code {exitcode}", hint
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hints = {
        "SIGKILL": "often the system was out of memory (see dmesg): fewer workers, a smaller window, or batches",
        "SIGBUS": f"often {SHARED_MEMORY_HINT}",
        "SIGSEGV": "a library crashed in the worker; num_workers=0 shows where",
    }
    return f"was ended by {name}", hints.get(name, "something outside of shoal ended it")


def _identity(batch: Any) -> Any:
    return batch


_open: weakref.WeakSet[Workers] = weakref.WeakSet()


def _close_all() -> None:
    for workers in list(_open):
        workers.close()


# Before multiprocessing's own exit handler, which would remove its directory while workers still make sockets in it.
atexit.register(_close_all)
