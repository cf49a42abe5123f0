"""Batches on their way to the training loop: made in a thread or by worker processes, counted on arrival."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import torch

from shoal.errors import UsageError
from shoal.integrations.torch.batch_transfer import SHARED_MEMORY_HINT
from shoal.integrations.torch.tensor_batches import can_pin, pinned, pinned_array
from shoal.integrations.torch.worker_processes import Workers
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.stats.throughput import Throughput
from shoal.stream.certificate.delivery_sums import Proof
from shoal.stream.checkpoint.position import Position
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_spec import IteratorSpec
from shoal.stream.workers.prefetcher import Ahead
from shoal.stream.workers.worker_batches import WorkerBatch, add_counts

_log = logging.getLogger("shoal")

_SECONDS_TO_GIVE_UP = 1.5


class Received:
    """Batches, counted as they are received; an iterator with a state of its own.

    After an error it raises the same error again: an epoch that failed must not look like one that ended.
    """

    def __init__(self, run: IteratorSpec, source: InThread | ByWorkers) -> None:
        self._run, self._source = run, source
        self.place = run.place()
        self._failure: BaseException | None = None
        self._closed = self._is_stopped = False
        self._pace = run.counters.pace = Throughput(run.counters)
        self._line = run.progress_line(self.place)
        run.follow(self.place)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after everything that this iterator gave."""
        return self._run.state(*self.place.position)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise StopIteration
        before = (self.place.num_yielded, self.place.received)
        taken: list[tuple[Any, Proof]] = []
        try:
            return self._next(taken)
        except StopIteration:
            raise
        except BaseException as error:
            self._undo(error, taken, *before)
            if self._is_stopped and isinstance(error, Exception):
                raise StopIteration from None
            raise

    def _next(self, taken: list[tuple[Any, Proof]]) -> Any:
        """Return the next batch; a batch taken from the source is recorded in ``taken`` first, for `_undo`."""
        began = self._pace.clock()
        try:
            self._source.wait()
            with self._source.handing_over():
                taken.append(self._source.take(self.place))
                self._pace.add(began, self._pace.clock())
                self.place.num_yielded += 1
                made, self.place.received = taken[0]
                if self._line is not None:
                    self._line.step()
                if self.place.num_yielded >= self._run.num_steps:
                    self._end_line()
                    self._run.ended(self.place)  # now, since a loop that counts to len() never calls again
        except StopIteration:
            if not self._closed:
                self._end()
            raise
        return made

    def _undo(self, error: BaseException, taken: list[tuple[Any, Proof]], num_yielded: int, received: Proof) -> None:
        """Restore the state before a batch that was not given out, because of an interrupt or an error."""
        with InterruptsHeld():
            self.place.num_yielded, self.place.received = num_yielded, received
            if self._is_stopped:
                self.close()
            elif isinstance(error, Exception) and not taken:
                self._stop(error)
            elif not self._source.survives_interrupts:
                self._stop(_interrupted())
            elif taken:
                self._source.give_back(taken[0])

    def stop(self) -> None:
        """Give no more batches; returns at once, and a ``next`` that waits for one ends within two seconds.

        Unlike `close`, it may be called in a signal handler. The state stays that after everything received.
        """
        self._closed = self._is_stopped = True
        self._source.stop()

    def close(self) -> None:
        """Stop making batches, and give no more."""
        self._closed = True
        self._end_line()
        with InterruptsHeld():
            self._source.close()

    def _end_line(self) -> None:
        if self._line is not None:
            self._line.close()

    def _end(self) -> None:
        self._closed = True
        self._end_line()
        self._source.end()
        self._run.ended(self.place)

    def _stop(self, error: BaseException) -> None:
        self._failure = error
        self.close()


class InThread:
    """Batches made in a thread of this process, or in the calling thread if none may be made ahead."""

    def __init__(
        self, run: IteratorSpec, finish: Callable[[Any], Any], num_ahead: int, *, limit_bytes: int, pin_memory: bool
    ) -> None:
        pins = pin_memory and can_pin()
        if pins:
            run = run.gathered_into(pinned_array)
        self._iteration = Iteration(
            run.work, run.counters, epoch=run.epoch, start=run.start, ended=_nothing, state=run.state
        )
        batches: Iterator[Any] = map(finish, self._iteration)
        if pins:
            batches = map(partial(_pinned_for, torch.accelerator.current_device_index()), batches)
        place = self._iteration.place
        batches = ((batch, place.proof) for batch in batches)  # in the thread that makes them, so that both match
        close = self._iteration.close
        self._ahead = Ahead(batches, limit=num_ahead, close=close, limit_bytes=limit_bytes) if num_ahead else None
        self._batches = batches
        self.survives_interrupts = self._ahead is not None
        # Taking a ready batch is instant; making one in this thread may take long, and an interrupt loses it.
        self.handing_over: Callable[[], AbstractContextManager[Any]] = InterruptsHeld if self._ahead else nullcontext

    def wait(self) -> None:
        """Wait for the next batch, if a thread makes it; interrupts arrive meanwhile."""
        if self._ahead is not None:
            self._ahead.wait()

    def take(self, place: Position) -> tuple[Any, Proof]:  # noqa: ARG002  # a thread makes them one after another
        """Return the next batch, with the proof of all that was delivered up to it."""
        made: tuple[Any, Proof] = next(self._batches) if self._ahead is None else self._ahead.take()
        return made

    def give_back(self, taken: tuple[Any, Proof]) -> None:
        """Put back a batch that was not given out, as the next one."""
        if self._ahead is not None:
            self._ahead.give_back(taken)

    def end(self) -> None:
        """Stop after the last batch."""
        self.close()

    def stop(self) -> None:
        """Stop, without waiting for the end and without taking locks here."""
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop making batches."""
        if self._ahead is not None:
            self._ahead.close()
        self._iteration.close()


class ByWorkers:
    """Batches made by worker processes."""

    def __init__(self, workers: Workers, run: IteratorSpec, *, stay: bool) -> None:
        self.survives_interrupts = False  # torch may have taken a batch out of its queue
        self.handing_over: Callable[[], AbstractContextManager[Any]] = nullcontext  # torch waits inside
        self._workers: Workers | None = workers
        self._is_waiting = self._has_told = False
        self._run, self._stay = run, stay

    def wait(self) -> None:
        """Do nothing: `take` waits for the batch."""

    def give_back(self, taken: tuple[Any, Proof]) -> None:
        """Do nothing: an interrupt ends this source."""

    def take(self, place: Position) -> tuple[Any, Proof]:
        """Return the batch at this position, with the proof of all that was delivered up to it."""
        if self._workers is None:
            raise StopIteration
        try:
            self._is_waiting = True
            made: WorkerBatch = self._workers.next()
            self._is_waiting = False
        except StopIteration:
            raise
        except BaseException:
            self._workers.close()  # after any error, the content of their queues is unknown
            self._workers = None
            raise
        add_counts(self._run.counters, made.counts)
        if made.counts.get("num_unshared_batches") and not self._has_told:
            self._has_told = True
            _log.warning("batches of workers come through a pipe, which is slower: %s", SHARED_MEMORY_HINT)
        if made.failed is not None:
            made.failed.raise_here()
        step = place.num_yielded
        if made.step != step:  # never seen; but a batch lost between processes must not go unnoticed
            msg = f"a worker gave the batch of step {made.step}, and step {step} is due"
            raise AssertionError(msg)
        return made.batch, place.received.plus(made.proof)

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
        if self._stay:
            self._workers = None
        else:
            self.close()

    def close(self) -> None:
        """End the processes; persistent ones learn from the next pass that this one is over."""
        workers, self._workers = self._workers, None
        if workers is not None and not self._stay:
            workers.close()


def _pinned_for(device: int, batch: Any) -> Any:
    # A new thread starts with device 0, where every rank would create a context.
    torch.accelerator.set_device_index(device)
    return pinned(batch)


def _interrupted() -> UsageError:
    msg = "this iterator was interrupted while it waited, and may have lost a batch"
    hint = "loader.load_state_dict(loader.state_dict()) and iterate again: nothing is lost by that"
    return UsageError(msg, hint=hint)


def _nothing(_: object) -> None:
    """Do nothing: the receiver counts, not the maker."""
