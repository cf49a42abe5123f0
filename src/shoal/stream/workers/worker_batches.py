"""Batches made one by one, by step, in a worker process: tasks, results, and a shared cache.

A task names epoch, start and step, so a worker does not know the position of the run: the same worker serves any number
of epochs and resumed positions, and a new worker begins anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import ShoalError, StorageError, UsageError
from shoal.figures import format_bytes
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.quarantine import MOST_LISTED
from shoal.reading.cache.cached_ranges import cache_counts, check_cacheable, chunk_cache_of, expect_windows
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stats.counters import Counters
from shoal.storage.retry import StoppedError
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec
from shoal.stream.states.delivery_sums import Proof

_log = logging.getLogger("shoal")
_HEIGHTS = ("peak_", "in_flight_", "pinned_", "concurrency", "num_pieces", "num_indexed_")
_LEAST_CACHE_BYTES = 1 << 30
_SECONDS_TO_END = 1.0
_OVER = object()
_CACHED_WINDOWS = 2  # because workers are not at exactly the same position


class Task(NamedTuple):
    """One batch to make: the rank's batch at a step of ``num_steps``, counted from position ``start`` of an epoch."""

    epoch: int
    start: int
    step: int
    num_steps: int


class Failed(NamedTuple):
    """An error of a worker, and its traceback in the worker."""

    error: BaseException
    where: str

    def raise_here(self) -> None:
        """Raise the error in the process that requested the batch."""
        self.error.add_note(f"shoal: in a worker process:\n{self.where}")
        raise self.error


class WorkerBatch(NamedTuple):
    """A batch, or the error in its place; and the counts added by making the batch and by reading ahead.

    ``proof`` sums up the samples of the batch. ``num_samples`` is the number of samples in the epoch, None while
    unknown. After the end of the epoch, ``is_over`` is true.
    """

    step: int
    batch: Any
    counts: dict[str, Any]
    failed: Failed | None = None
    proof: Proof = Proof()
    num_samples: int | None = None
    is_over: bool = False


class StepMaker:
    """The maker of a worker's steps; consecutive steps are as fast as iteration.

    ``stop`` is the end of a pipe. When the pipe becomes readable, the current batch is abandoned at its next sample.
    """

    def __init__(self, work: WorkerSpec, num_workers: int, stop: Any) -> None:
        self._work, self.num_workers, self._stop = work, num_workers, stop
        self._watch: threading.Thread | None = None
        self._iteration: Iteration | None = None
        self._next: tuple[int, int, int] | None = None
        self._counters = Counters()
        self._sent: dict[str, Any] = {}  # counts

    def make(self, task: Task) -> WorkerBatch:
        """Make the batch of a task; an error is returned instead, and keeps its type when sent to the loader."""
        if self._watch is None:
            self._sent = dict(cache_counts(self._work.opened.caches))  # a forked process has the counts of its parent
            self._watch = threading.Thread(target=self._close_when_told, name="shoal-stop", daemon=True)
            self._watch.start()
        try:
            if self._stop.poll():
                raise StoppedError("the loader was closed")  # as it would be in the middle of a batch
            return self._made(task)
        except Exception as error:  # noqa: BLE001  # raised again by the receiving process
            self._next = None
            return WorkerBatch(task.step, None, self._counts(), Failed(_portable(error), traceback.format_exc()))

    def _made(self, task: Task) -> WorkerBatch:
        if self._iteration is None or self._next != (task.epoch, task.start, task.step):
            self.close()
            work = self._work.of_worker(task.step % self.num_workers, self.num_workers)
            spec = IteratorSpec(work, task.epoch, task.start, task.step, self._counters)
            spec = replace(spec, knows_end=work.resolved.knows_end(task.epoch))
            self._iteration = Iteration(spec)
        position = self._iteration.position
        before = position.proof
        batch = next(self._iteration, _OVER)
        proof = position.proof.minus(before)
        num_samples = position.num_samples if position.knows_end else None
        following = task.step + self.num_workers
        self._next = (task.epoch, task.start, following)
        if following >= task.num_steps:
            self.close()  # the pass is over for this worker: free its memory
        if batch is _OVER:
            return WorkerBatch(task.step, None, self._counts(), num_samples=num_samples, is_over=True)
        return WorkerBatch(task.step, batch, self._counts(), None, proof, num_samples)

    def close(self) -> None:
        """Stop reading."""
        iteration, self._iteration, self._next = self._iteration, None, None
        if iteration is not None:
            iteration.close()

    def end(self) -> None:
        """Stop reading, before the process ends: coroutines of users are cancelled, and have a moment to end."""
        self.close()
        if self._watch is not None and self._stop.poll():
            self._watch.join(_SECONDS_TO_END)  # this thread may have begun to close

    def _close_when_told(self) -> None:
        with contextlib.suppress(OSError):
            self._stop.poll(None)  # without reading: the other workers must see the signal, too
        self.close()

    def _counts(self) -> dict[str, Any]:
        """Return the counts to be added by `add_counts`."""
        before, self._sent = self._sent, self._counters.counts() | cache_counts(self._work.opened.caches)
        return counts_since(before, self._sent)


def counts_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the increase of each count, and the current value of each peak.

    >>> counts_since({"num_samples": 3, "peak_bytes": 100}, {"num_samples": 5, "peak_bytes": 120})
    {'num_samples': 2, 'peak_bytes': 120}
    """
    added = {}
    for name, value in now.items():
        if name.startswith(_HEIGHTS):
            added[name] = value
        elif isinstance(value, list):
            added[name] = value[len(before.get(name, ())) :]
        else:
            added[name] = value - before.get(name, 0)
    return added


def add_counts(counters: Counters, counts: Mapping[str, Any]) -> None:
    """Add the counts of a worker; of peaks, keep the highest of any process."""
    for name, more in counts.items():
        value = getattr(counters, name, None)
        if value is None:  # a count of the cache; streams do not count the cache
            counters.of_workers[name] = counters.of_workers.get(name, 0) + more
        elif name.startswith(_HEIGHTS):
            setattr(counters, name, max(value, more))
        elif isinstance(value, list):
            new = [entry for entry in more if entry not in value]
            value.extend(new[: max(0, MOST_LISTED - len(value))])
        else:
            setattr(counters, name, value + more)


def _portable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled, else an error with its type and message."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own object, to test if it can be sent
    except Exception:  # noqa: BLE001  # a foreign class may raise anything when it is taken apart
        return ShoalError(f"{type(error).__name__}: {error}")
    return error


def sharing_chunks(work: WorkerSpec, *, num_workers: int) -> WorkerSpec:
    """Add a temporary cache on this machine to work that reads remote shards without a cache.

    Worker ``w`` of ``m`` makes every ``m``-th batch, so all workers need nearly all chunks at about the same time. The
    page cache shares local files. Without room for a cache, each worker reads all chunks, and a warning names the cost.
    Workers do not divide the window: a worker with a part of the window would read chunks again over the network.
    """
    world_size = work.pipeline.partition.world_size
    opened, resolved = work.resolved.cached(work.opened, partial(_sharing, world_size, num_workers))
    return replace(work, opened=opened, resolved=resolved)


def _sharing(
    world_size: int, num_workers: int, opened: Opened, resolved: ResolvedOrder, window_bytes: int | None
) -> Opened:
    """Add a cache on this machine to a dataset in a remote store without a cache."""
    if opened.cache is not None or opened.store.reads_ahead or not len(resolved.chunks):
        return opened
    if window_bytes is None:
        chunks = min(resolved.order.parameters.get("chunks", 0), len(resolved.chunks))
        window_bytes = chunks * resolved.index.num_bytes // len(resolved.chunks)
    budget = {"budget": max(_LEAST_CACHE_BYTES, _CACHED_WINDOWS * window_bytes), "keep": False}
    try:
        check_cacheable(opened.format)
        shared = replace(opened, cache=chunk_cache_of(budget, dataset=opened.index.fingerprint))
        expect_windows(shared, resolved, world_size)
    except (UsageError, StorageError) as error:
        _log.warning(
            "workers cannot share a cache, so each worker reads every chunk: %s; %d workers hold a window of %s "
            "each, and every chunk is read over the network up to %d times",
            error,
            num_workers,
            format_bytes(window_bytes),
            num_workers,
        )
        return opened
    return shared
