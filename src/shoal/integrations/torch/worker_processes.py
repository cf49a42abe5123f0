"""Worker processes for a loader: torch's own, given one task per batch, in turn.

torch gets a map-style dataset and a sampler that gives its keys, not an iterable: it passes keys to workers in turn
and returns the results in the order of the keys. So worker ``w`` of ``m`` makes the steps ``t`` with ``t % m == w``,
no worker ever ends early, and a worker that stays for several epochs learns of each with its first key.
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
    """The dataset in a worker: a maker of steps, and the final conversion of a batch for the loader."""

    def __init__(self, work: WorkerSpec, num_workers: int, finish: Callable[[Any], Any], stop: Any) -> None:
        self._maker, self._finish = StepMaker(work, num_workers, stop), finish

    def __getitem__(self, task: Task) -> WorkerBatch:
        made = self._maker.make(task)
        if made.failed is not None:
            return made
        is_part = isinstance(made.batch, Part)  # of batches that are cut, and finished, where they are received
        batch, is_copied = sendable(made.batch if is_part else self._finish(made.batch))
        return made._replace(batch=batch, counts={**made.counts, "num_unshared_batches": int(is_copied)})


def _begin(init: Callable[[int], None] | None, worker: int) -> None:
    """Make a worker end with the trainer, then call the user's function."""
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
    """The worker processes of a loader, which serve pass after pass if they may stay.

    ``options`` go to torch's DataLoader.
    """

    def __init__(
        self, work: WorkerSpec, num_workers: int, finish: Callable[[Any], Any], options: dict[str, Any]
    ) -> None:
        self._made: Any = None
        self._closed, self._has_given_up = True, False
        self._pid, self._is_fork = os.getpid(), options["multiprocessing_context"].get_start_method() == "fork"
        self._given, self._num_workers = _given(work, num_workers, finish, options), num_workers
        if num_workers > 1:
            work = sharing_chunks(work, num_workers=num_workers)
        self._tasks = _Tasks()
        # An event of multiprocessing would wait for its waiters, one of which may have been killed.
        with named_refusals():
            stopped, self._stop = options["multiprocessing_context"].Pipe(duplex=False)
        workshop: Any = Workshop(work, num_workers, finish, stopped)
        self._loader: Any = torch.utils.data.DataLoader(
            workshop,
            batch_size=None,
            sampler=self._tasks,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            **{**options, "worker_init_fn": partial(_begin, options["worker_init_fn"])},
        )
        self._closed = False
        _open.add(self)

    def serve(self, work: WorkerSpec, num_workers: int, finish: Callable[[Any], Any], options: dict[str, Any]) -> bool:
        """Return True if these workers equal new `Workers` of these arguments, so that they can serve."""
        return not self._closed and not self._has_given_up and _given(work, num_workers, finish, options) == self._given

    def begin(self, spec: IteratorSpec, is_stopped: Callable[[], bool]) -> None:
        """Start making the batches of this pass; what is left of an earlier one is dropped.

        Raises
        ------
        WorkerError
            The system has no room for workers, or one of them ended.
        StoppedError
            ``is_stopped`` returned True meanwhile.
        """
        self._tasks.spec = spec
        try:
            with named_refusals():
                self._made = start_workers(self._loader, is_fork=self._is_fork, is_stopped=is_stopped)
        except WorkerError:
            raise
        except RuntimeError as error:  # one that stayed from an earlier pass has ended
            raise self._explained(error) from error
        except BaseException:
            self._has_given_up = True
            raise

    def next(self) -> WorkerBatch:
        """Return the result of the next task; raise `StopIteration` after the last.

        Raises
        ------
        WorkerError
            A worker ended, or did not answer in time.
        """
        try:
            with seen_ends(self._made):
                made = next(self._made, None)
        except (RuntimeError, EOFError, OSError) as error:
            raise self._explained(error) from error
        if made is None:  # torch's own StopIteration would hold on to its queues until it is handled
            raise StopIteration
        return WorkerBatch(*made)

    def give_up(self) -> None:
        """Make the workers abandon their batches for good: they answer at once, and serve no other pass."""
        self._has_given_up = True
        self._stop.send_bytes(b"stop")

    def kill(self) -> None:
        """Kill the processes, and answer a waiting `next` in their place."""
        made = self._made
        for worker in getattr(made, "_workers", ()):
            worker.kill()
        if made is not None:  # torch would look for lost workers every five seconds
            msg = "the loader was stopped"
            made._worker_result_queue.put((made._rcvd_idx, WorkerBatch(-1, None, {}, Failed(StoppedError(msg), ""))))  # noqa: SLF001

    def close(self) -> None:
        """End the processes, and wait for their end."""
        made, self._made = self._made, None
        self._closed = True
        _open.discard(self)
        if made is not None and self._pid == os.getpid():  # a forked child has no workers, only their queues
            with interrupts_wait():
                self._stop.send_bytes(b"stop")  # torch would wait until the batches in work are made
                made._shutdown_workers()  # noqa: SLF001  # else whenever the garbage collector runs
                # torch does not wait, and a thread with the last reference to a queue frees it after Python's end.
                wait_for_feeders(getattr(made, "_index_queues", ()), timeout_seconds=_SECONDS_TO_END)
                self._loader = made = None  # the last reference to the queues

    def __del__(self) -> None:
        if not self._closed:  # at Python's end they are, and the rest of this module may be gone
            self.close()

    def _explained(self, error: Exception) -> Exception:
        """Return the error that explains why torch lost a worker, as far as the system knows."""
        if isinstance(error, EOFError | OSError):  # its output is lost; the system may not know of its end yet
            wait_for_end(getattr(self._made, "_workers", ()), timeout_seconds=_SECONDS_TO_END)
        if ended := ended_workers(self._made):
            number, worker = ended[0]
            how, hint = _cause(worker.exitcode)
            msg = f"worker {number} of {self._num_workers} (pid {worker.pid}) {how}"
            return WorkerError(msg, hint=hint)
        if "timed out" in str(error):
            msg = f"no batch came within timeout={self._loader.timeout} seconds"
            return WorkerError(msg, hint="a larger timeout=, more workers, or 0 to wait without limit")
        return error


class WorkerBatches:
    """The source of batches that worker processes make: those of one pass, which ``stay`` for the next ones if true.

    If batches are to be filled, workers make parts, and ``finish`` converts the batches that are cut from these here.
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
        """Return the next batch, waiting for the worker that makes it."""
        position, batches = self.position, self._batches
        while not batches.is_full:
            if self._next_step >= position.global_batches.stop:
                return next(batches.last())
            made = self._received()
            if made.num_samples is not None and not position.knows_end:
                position.end_at(made.num_samples)
            if not made.is_over:
                batches.add(made.batch, made.proof)
        return batches.batch()

    def _received(self) -> WorkerBatch:
        """Return what a worker made of the next step."""
        if self._workers is None:
            raise StopIteration
        try:
            self._is_waiting = True
            made = self._workers.next()
            self._is_waiting = False
        except StopIteration:
            raise
        except BaseException:
            self._workers.close()  # after any error, the content of their queues is unknown
            self._workers = None
            raise
        add_counts(self._counters, made.counts)
        if made.counts.get("num_unshared_batches") and not self._has_warned:
            self._has_warned = True
            _log.warning("batches of workers come through a pipe, which is slower: %s", SHARED_MEMORY_HINT)
        if made.failed is not None:
            made.failed.raise_here()
        if made.step != self._next_step:  # never seen; but a batch lost between processes must not go unnoticed
            raise AssertionError(f"a worker sent the batch of step {made.step}; step {self._next_step} is due")
        self._next_step += 1
        return made

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
        """Release the workers after the last batch: persistent ones stay, others end."""
        self.close()

    def close(self) -> None:
        """End the processes; persistent ones learn from the next pass that this one is over."""
        workers, self._workers = self._workers, None
        if workers is not None and not self._stay:
            workers.close()


def _context_of(spec: IteratorSpec, position: Position) -> BatchContext:
    """Return the inputs of a batcher whose samples come from other processes."""
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


def _given(work: WorkerSpec, *others: Any) -> Snapshot:
    """Return a snapshot of everything that workers are started with.

    The location of samples does not change as long as the dataset does not; how workers are started, and the seed of
    the random numbers of the next ones, do not affect what existing workers make.
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
            "what it does, and functions for map(), filter() and collate_fn= must be importable: not of a notebook"
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


def _as_it_is(made: Any) -> Any:
    return made


_open: weakref.WeakSet[Workers] = weakref.WeakSet()


def _close_all() -> None:
    for workers in list(_open):
        workers.close()


# Before multiprocessing's own exit handler, which would remove its directory while workers still make sockets in it.
atexit.register(_close_all)
