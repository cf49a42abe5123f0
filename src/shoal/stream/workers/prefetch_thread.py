"""A thread that makes batches ahead of their use."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from shoal.pipeline.batch_memory import bytes_of
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere, wait_in_slices
from shoal.processes.process_ends import Stop, end_pool, is_done, submit
from shoal.stats.counters import Counters
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.workers.worker_batches import add_counts

_END = object()


class Prefetcher:
    """The source of batches that an iteration makes in a thread; up to ``limit`` batches are ready ahead of use.

    Ready batches hold ``limit_bytes`` at most; the largest batch so far is the estimate for the next batch. One batch
    may always be ready. An error is raised in the place of its batch. ``spec`` describes the iteration; results are
    counted when received (`IteratorSpec.made_ahead`). Closing the prefetcher, or dropping the last reference, ends the
    thread, unless the current batch takes seconds more; the iteration is closed first, so the current batch may end
    early. An interrupt loses nothing: a batch is taken after the wait, and can be given back.
    """

    survives_interrupts = True

    def __init__(self, iteration: Iteration, spec: IteratorSpec, *, limit: int, limit_bytes: int | None = None) -> None:
        self._counters, self._results = spec.counters, spec.ahead or Counters()
        results, made = self._results, iteration.position
        self.position = replace(made, sums=None)
        # The thread that makes a batch also reads its position, so that batch and proof match.
        self._items = (
            (
                batch,
                (made.num_yielded, made.num_sequences, made.proof),
                made.num_samples,
                made.knows_end,
                results.take_results(),
            )
            for batch in iteration
        )
        self._made = made
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix="shoal-make")
        self._room = _Room(limit_bytes)
        self._ready: deque[Future[Any]] = deque()
        # Stages may refer to the owner of this object (a method of a trainer), so neither the finalizer nor an idle
        # thread refers to the stages: otherwise a dropped trainer would stay, and its threads, too.
        self._iteration, self._under_way = iteration, set[Future[Any]]()
        stop = (self._thread, self._under_way, self._room.stop, weakref.WeakMethod(iteration.close), os.getpid())
        self._finalizer = weakref.finalize(self, _stop, *stop)
        self._finalizer.atexit = False  # see `Stop`
        with InterruptsHeld():
            for _ in range(limit):
                self._ask()

    def receive(self, taken: list[Any]) -> Any:
        """Return the next batch; interrupts arrive during the wait."""
        wait_in_slices(self._is_ready)
        with InterruptsHeld():
            if not self._ready or self._room.stop.is_set():
                raise StopIteration
            try:
                item, num_bytes = self._ready.popleft().result()
            except BaseException:
                self._count_rest()
                raise
            if item is _END:
                if not self._room.stop.is_set():  # the maker is at the end, possibly some samples after the last batch
                    self.position.move((self._made.num_yielded, self._made.num_sequences, self.position.received))
                    self.position.end_at(self._made.num_samples)
                    self._count_rest()
                self.close()
                raise StopIteration
            taken.append(item)
            self._room.taken(num_bytes)
            self._ask()
            batch, place, num_samples, knows_end, counts = item
            add_counts(self._counters, counts)
            counts.clear()  # the batch may be given back, and received again
            self.position.move(place)
            self.position.num_samples, self.position.knows_end = num_samples, knows_end
        return batch

    def _count_rest(self) -> None:
        """Count samples that the thread made, or left out, after its last batch."""
        add_counts(self._counters, self._results.take_results())

    def _is_ready(self, timeout_seconds: float | None) -> bool:
        ready = self._ready
        return not ready or is_done(ready[0], timeout_seconds) or self._room.stop.is_set()

    def give_back(self, taken: list[Any]) -> None:
        """Put back an undelivered batch, as the next batch."""
        with InterruptsHeld():
            future: Future[Any] = Future()
            future.set_result((taken[0], self._room.made(taken[0])))
            self._ready.appendleft(future)

    def end(self) -> None:
        """Stop after the last batch."""
        self.close()

    def stop(self) -> None:
        """Stop, without waiting for the end and without taking locks here."""
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop making batches."""
        with InterruptsHeld():
            self._finalizer()
            self._ready.clear()
            self._thread = None  # now: Python releases threads in callbacks, and loses interrupts in callbacks

    def _ask(self) -> None:
        if self._thread is not None:
            self._ready.append(submit(self._thread, self._under_way, _next_of, weakref.ref(self._items), self._room))


class _Room:
    """The bytes of the ready items, and the room for another item."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._ready_bytes = self._num_ready = self._largest_bytes = 0
        self.stop = Stop(self._changed)

    def wait(self) -> bool:
        """Wait until there is room for another item; return True if the item is still wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self.stop.is_set() or self._has_room())
        return not self.stop.is_set()

    def _has_room(self) -> bool:
        limit = self._limit_bytes
        return limit is None or not self._num_ready or self._ready_bytes + self._largest_bytes <= limit

    def made(self, item: Any) -> int:
        """Add a ready item; return its bytes."""
        num_bytes = 0 if self._limit_bytes is None else bytes_of(item)
        with self._changed:
            self._num_ready += 1
            self._ready_bytes += num_bytes
            self._largest_bytes = max(self._largest_bytes, num_bytes)
        return num_bytes

    def taken(self, num_bytes: int) -> None:
        """Count one ready item fewer, so that another item may be made."""
        with self._changed:
            self._num_ready -= 1
            self._ready_bytes -= num_bytes
            self._changed.notify_all()


def _next_of(items_of: Callable[[], Iterator[Any] | None], room: _Room) -> tuple[Any, int]:
    items = items_of() if room.wait() else None
    item = _END if items is None else next(items, _END)
    return (item, 0) if item is _END else (item, room.made(item))


def _stop(
    thread: ThreadPoolExecutor,
    under_way: set[Future[Any]],
    stop: Stop,
    close_of: Callable[[], Callable[[], None] | None],
    pid: int,
) -> None:
    if os.getpid() != pid:
        return  # a forked child does not have the thread
    with InterruptsHeld(in_finalizer=True):
        stop.set()
        if (close := close_of()) is not None:
            close()
        end_pool(thread, under_way)
