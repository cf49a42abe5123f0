"""The source of batches that worker processes make, for an iteration in the process of the loader."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.processes.interrupts import begin_elsewhere
from shoal.reading.remote.request_stats import RequestStats
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.states.delivery_sums import DeliverySums
from shoal.stream.states.iterator_position import Position
from shoal.stream.states.sequence_hashes import hashes_of
from shoal.stream.workers.worker_batches import WorkerBatch, add_counts
from shoal.stream.workers.worker_errors import SHARED_MEMORY_HINT
from shoal.stream.workers.worker_pool import WorkerPool

_log = logging.getLogger("shoal")
_SECONDS_TO_GIVE_UP = 1.5


class WorkerSource:
    """The batches of one pass, made by worker processes; if ``stay``, the processes go on to the next pass.

    For filled batches, workers make parts, and the receiver cuts batches from the parts. ``finish`` converts batches.
    """

    survives_interrupts = False  # a batch may have left its connection

    def __init__(
        self,
        workers: WorkerPool,
        spec: IteratorSpec,
        *,
        stay: bool,
        finish: Callable[[Any], Any] | None = None,
        is_stopped: Callable[[], bool] = bool,
    ) -> None:
        self.position = spec.position()
        self._next_step = self.position.global_batches.start
        self._batches = spec.work.batcher.received(self.position, partial(_context_of, spec, self.position), finish)
        self._workers: WorkerPool | None = workers
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
            self._workers.close()  # after any error, the content of their connections is unknown
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
        ahead=None,
    )
