"""Making the batches, or samples, of a rank in the calling thread, piece after piece of an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.processes.process_ends import end_with_trainer
from shoal.reading.resolved_epochs import Pieces, Piecewise
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.piece_batches import PieceBatches
from shoal.stream.states.iterator_position import Position


@dataclass(slots=True)
class _Stop:
    """A flag to stop after the current piece; the flag has no references, so it keeps nothing alive."""

    is_set: bool = False


@dataclass(slots=True)
class _InWork:
    """The current piece, for `BatchMaker.close`."""

    piece: PieceBatches | None = None


class BatchMaker:
    """The source of an iterator that makes its batches in the calling thread; ``position`` counts the batches made.

    ``convert`` maps the iterator over batches to an iterator over converted batches.
    """

    def __init__(self, spec: IteratorSpec, convert: Callable[[Iterator[Any]], Iterator[Any]] | None = None) -> None:
        end_with_trainer()
        self.position = position = spec.position()
        self._stop, self._in_work = stop, in_work = _Stop(), _InWork()
        pieces = _pieces(spec, lambda: stop.is_set)
        # Not a method: a generator that referenced this object would keep its threads alive.
        runs = _runs(spec, pieces, position, in_work, stop)
        begun = [next(runs)] if pieces.is_ready else []
        # `chain` saves a Python call per batch.
        batches = itertools.chain.from_iterable(itertools.chain(begun, runs))
        self.batches: Iterator[Any] = batches if convert is None else convert(batches)
        self.are_converted = convert is not None

    def end(self) -> None:
        """Stop after the last batch."""
        self.close()

    def stop(self) -> None:
        """Stop, without waiting for the end and without taking locks here."""
        self._stop.is_set = True
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop reading; the threads have ended when this returns. Indexing continues as long as the dataset exists."""
        with InterruptsHeld():
            self._stop.is_set = True
            self.position.is_over = True  # perhaps while a thread makes the next batch
            self.batches = iter(())
            if self._in_work.piece is not None:
                self._in_work.piece.close()


def _pieces(spec: IteratorSpec, is_stopped: Callable[[], bool]) -> Pieces[ResolvedOrder]:
    """Return the pieces of the epoch; if the end must be known, wait for the whole epoch, as one piece."""
    work, pipeline = spec.work, spec.work.pipeline
    if spec.knows_end:
        return Pieces(work.resolved.whole(work.opened, spec.epoch))
    num_workers, world_size = pipeline.num_workers, pipeline.partition.world_size
    reader = pipeline.rank * num_workers + pipeline.worker
    limit_bytes = work.options.memory_limit_bytes
    piecewise = Piecewise(spec.counters, limit_bytes, reader, world_size * num_workers, is_stopped)
    return work.resolved.pieces(work.opened, spec.epoch, piecewise)


def _runs(
    spec: IteratorSpec, pieces: Pieces[ResolvedOrder], position: Position, in_work: _InWork, stop: _Stop
) -> Iterator[Iterator[Any]]:
    """Yield two iterators for each piece: one over the first batch, and one over the remaining batches.

    Pieces end with a whole global batch, so batches do not depend on the ends of pieces.
    """
    while not stop.is_set:
        piece = pieces.upto(position.end + position.partition.global_batch - 1, read_before=position.end)
        num_steps = position.reach(piece.resolved.num_samples, is_all=piece.is_last)
        in_work.piece = made = PieceBatches(spec, piece, position, pieces.whole)
        try:
            yield itertools.islice(made.batches, 1)
            pieces.begun()
            yield made.batches
        finally:
            pieces.ended()
        made.close()
        if piece.is_last:
            return
        # Other workers may make the last steps: count these steps as done.
        position.num_yielded = max(position.num_yielded, num_steps)
