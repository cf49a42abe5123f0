"""Iteration of one rank over the rest of an epoch: samples or batches out, and a position that counts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, Self, TypeAlias

from shoal.errors import ForkError, UsageError
from shoal.processes import start_methods
from shoal.processes.interrupts import InterruptsHeld
from shoal.stats.counters import Throughput
from shoal.stream.iterating.batch_maker import BatchMaker, runs_of
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.reporters import reporter_of
from shoal.stream.states.delivery_sums import Proof
from shoal.stream.states.iterator_position import EMPTY_QUEUE, Position


class BatchSource(Protocol):
    """Batches made ahead of use in another thread, or in worker processes."""

    position: Position
    """The position after the last received batch, with the proof of all received samples."""
    survives_interrupts: bool
    """True if an interrupted `receive` never loses a batch."""

    def receive(self, taken: list[Any]) -> Any:
        """Wait for the next batch, and return it; append to ``taken`` first, for `give_back`."""

    def give_back(self, taken: list[Any]) -> None:
        """Put back an undelivered batch, as the next batch."""

    def end(self) -> None:
        """Stop after the last batch."""

    def stop(self) -> None:
        """Stop soon, without waiting or taking locks: a signal handler may call this."""

    def close(self) -> None:
        """Stop making batches."""


Renew: TypeAlias = Callable[[], tuple[IteratorSpec, BatchSource | None]]


class Iteration:
    """The batches (or samples) of one rank from a position to the end of an epoch.

    If `Dataset.set_epoch` or `Dataset.load_state_dict` moves the start before this iterator has yielded anything,
    this iterator moves, too: ``renew`` recomputes the arguments.

    `position` counts everything yielded so far. Close the iteration, use it in a ``with``, or drop it: all three end
    its threads. After an error, `next` raises the same error again: a failed epoch must not look like a finished
    epoch.

    Examples
    --------
    >>> with iter(ds.batch(4)) as iterator:
    ...     next(iterator)["__key__"]
    ['cat/000', 'cat/001', 'cat/002', 'cat/003']
    """

    def __init__(self, spec: IteratorSpec, source: BatchSource | None = None, renew: Renew | None = None) -> None:
        with InterruptsHeld():
            self._elsewhere, self._made = source, EMPTY_QUEUE
            self._source: BatchSource | BatchMaker
            self._source = BatchMaker(spec.position()) if source is None else source
            self.position = position = self._source.position
            self._reporter = reporter_of(spec, position)  # before the first read
            if isinstance(self._source, BatchMaker):
                runs = runs_of(self._source, spec)
                # Chained, without a call in between for every batch.
                batches = itertools.chain.from_iterable(itertools.chain([next(runs)], runs))
                self._made = batches if spec.convert is None else spec.convert(batches)
            self._tokenizers = spec.work.tokenizers
            self._num_steps = position.num_steps if position.knows_end else None
            self._resolved, self._counters, self._cursor = spec.work.resolved, spec.counters, spec.cursor
            self._failure: BaseException | None = None
            self._closed = self._is_stopped = False
            self._generation = start_methods.generation
            self._throughput = spec.counters.throughput = Throughput(spec.counters, is_elsewhere=source is not None)
            # Samples made together by the source are yielded without calling the source again.
            self._queue = EMPTY_QUEUE
            needs_steps = self._reporter is not None and self._reporter.needs_steps
            self._takes_queue = source is None and spec.convert is None and not needs_steps
            self._renew, self._num_moves = renew, 0
            self._begin = position.counts_made
            if spec.cursor is not None:
                spec.cursor.follow(position)
                self._num_moves = spec.cursor.num_moves

    def state_dict(self) -> dict[str, Any]:
        """Return the state after everything this iterator has yielded; see `Dataset.state_dict`.

        Examples
        --------
        >>> iterator = iter(ds.shuffle(seed=0).batch(8))
        >>> batches = next(iterator), next(iterator)
        >>> iterator.state_dict()["position"]
        16
        """
        return self._resolved.state_at(*self.position.resume_point, tokenizers=self._tokenizers)

    @property
    def is_stopped(self) -> bool:
        """True after `stop`.

        Examples
        --------
        >>> iterator = iter(ds)
        >>> iterator.stop()
        >>> iterator.is_stopped
        True
        """
        return self._is_stopped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if start_methods.generation != self._generation:
            msg = "the parent process made this iterator; a forked process cannot continue it"
            raise ForkError(msg, hint="call iter() in the child process: the dataset itself works there")
        queue = self._queue
        if queue is not EMPTY_QUEUE:
            # Set before the sample is taken: nothing can interrupt between taking and returning the sample.
            self._throughput.last = perf_counter()
            for sample in queue:
                return sample
        # Make the next result, or wait for it.
        if not self._closed and self.position.counts_made == self._begin:
            self._begin_where_moved()
        position, throughput, elsewhere = self.position, self._throughput, self._elsewhere
        taken: list[Any] = []
        before = (position.num_yielded, position.num_sequences, position.received)
        throughput.began = began = perf_counter()
        try:
            if elsewhere is None:
                result = next(self._made)
                throughput.last = ended = perf_counter()
                if throughput.first is None:
                    throughput.first = began
                self._counters.make_seconds += ended - began
                if self._takes_queue:
                    self._queue = position.queue
                    if self._closed:  # meanwhile, by a signal handler
                        self._queue = EMPTY_QUEUE
            else:
                if self._closed:
                    raise StopIteration  # the except below is where an iteration ends
                result = elsewhere.receive(taken)
                throughput.add(began, perf_counter())
            if self._reporter is not None:
                self._reporter.step(began)
            if position.num_yielded >= (position.num_steps if self._num_steps is None else self._num_steps):
                self._end_epoch()  # here, because a loop that counts to len() makes no further request
            return result  # noqa: TRY300  # an interrupt here is undone, too
        except StopIteration:
            if self._failure is not None and not self._is_stopped:
                raise self._failure from None
            if not self._closed:
                self._closed = True
                self._source.end()
                self._end_epoch()
            elif self._reporter is not None:
                self._reporter.close()
            raise
        except BaseException as error:
            if isinstance(error, ValueError) and "already executing" in str(error):
                msg = "two threads called next() on one iterator at the same time"
                raise UsageError(msg, hint="use one iterator per thread, or a lock around next()") from None
            self._undo(error, taken, before)
            if self._is_stopped and isinstance(error, Exception):
                raise StopIteration from None
            raise

    def _begin_where_moved(self) -> None:
        """Begin again if the cursor has moved; batches made ahead are dropped."""
        cursor = self._cursor
        if cursor is None:
            return
        if cursor.num_moves != self._num_moves and (renew := self._renew) is not None:
            self.close()
            try:
                spec, source = renew()
                was_stopped = self._is_stopped  # meanwhile, by a signal handler
                Iteration.__init__(self, spec, source, renew)
            except BaseException as error:
                self._failure = error
                self.close()
                if self._is_stopped and isinstance(error, Exception):
                    raise StopIteration from None
                raise
            if was_stopped:
                self.stop()
        cursor.yields_first(self.position)

    @property
    def is_at_end(self) -> bool:
        """True after the last batch; if the end is known only after reading, True after the next request.

        Examples
        --------
        >>> iterator = iter(ds.batch(128))
        >>> [(len(batch["txt"]), iterator.is_at_end) for batch in iterator]
        [(128, False), (72, True)]
        """
        return self._closed or self.position.num_yielded >= self.position.num_steps

    def _end_epoch(self) -> None:
        if self._reporter is not None:
            self._reporter.close()
        if self._cursor is not None:
            self._cursor.ended(self.position)

    def _undo(self, error: BaseException, taken: list[Any], before: tuple[int, int, Proof]) -> None:
        """Restore the state before a batch that was not delivered because of an error or an interrupt."""
        with InterruptsHeld():
            self.position.move(before)
            elsewhere, is_interrupt = self._elsewhere, not isinstance(error, Exception)
            if not self._is_stopped and elsewhere is not None and elsewhere.survives_interrupts:
                if taken:
                    elsewhere.give_back(taken)
                if taken or is_interrupt:
                    return
            if not self._is_stopped and self._failure is None:
                # The batch is lost; continuing would skip the batch.
                self._failure = error if elsewhere is None or not is_interrupt else _interrupted()
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Stop yielding and return at once; a ``next`` that waits for bytes or workers ends within two seconds.

        A signal handler may call `stop`, but not `close`. The state still counts everything yielded.

        Examples
        --------
        >>> iterator = iter(ds.batch(8))
        >>> batch = next(iterator)
        >>> iterator.stop()
        >>> list(iterator), iterator.state_dict()["position"]
        ([], 8)
        """
        self._is_stopped = self._closed = True
        self._made = self._queue = EMPTY_QUEUE
        self._source.stop()

    def close(self) -> None:
        """Stop reading and yielding; the threads have ended when this returns.

        Examples
        --------
        >>> iterator = iter(ds.batch(8))
        >>> batch = next(iterator)
        >>> iterator.close()
        >>> list(iterator)
        []
        """
        with InterruptsHeld():
            self._closed = True
            self._made = self._queue = EMPTY_QUEUE
            self._source.close()
            if self._reporter is not None:
                self._reporter.close()


def _interrupted() -> UsageError:
    msg = "this iterator was interrupted while it waited, and may have lost a batch"
    hint = "call loader.load_state_dict(loader.state_dict()) and iterate again: no batch is skipped"
    return UsageError(msg, hint=hint)
