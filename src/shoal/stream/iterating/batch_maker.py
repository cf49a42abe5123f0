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
from shoal.storage.retry import StoppedError
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.piece_batches import PieceBatches
from shoal.stream.states.iterator_position import Position


@dataclass(slots=True)
class BatchMaker:
    """The maker of an iterator's batches in the calling thread; ``position`` counts batches made, yielded or not.

    The maker has no reference to its `runs_of`, because a reference would keep unused threads alive.
    """

    position: Position
    piece_batches: PieceBatches | None = None

    def end(self) -> None:
        """Stop after the last batch."""
        self.close()

    def stop(self) -> None:
        """Stop, without waiting for the end and without taking locks here."""
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop reading; the threads have ended when this returns. Indexing continues as long as the dataset exists."""
        with InterruptsHeld():
            self.position.is_over = True  # perhaps while a thread makes the next batch
            if self.piece_batches is not None:
                self.piece_batches.close()


def runs_of(maker: BatchMaker, spec: IteratorSpec) -> Iterator[Iterator[Any]]:
    """Yield the batches of each piece: the first, and then the others; and before all none, if they are not ready.

    Pieces end with a whole global batch; batches do not depend on where pieces end.
    """
    end_with_trainer()
    position = maker.position
    pieces = _pieces(spec, lambda: position.is_over)
    if not pieces.is_ready:
        yield iter(())
    while not position.is_over:
        piece = pieces.upto(position.end + position.partition.global_batch - 1, read_before=position.end)
        num_steps = position.reach(piece.resolved.num_samples, is_all=piece.is_last)
        maker.piece_batches = made = PieceBatches(spec, piece, position, pieces.whole)
        try:
            if maker.position.is_over:  # closed meanwhile, with the piece before
                made.close()
                raise StoppedError("the stream was closed while a batch was made")
            yield itertools.islice(made.batches, 1)
            pieces.begun()
            yield made.batches
        finally:
            pieces.ended()
        made.close()
        if piece.is_last or position.is_over:
            return
        # This worker may have none of the last steps: count them as done.
        position.num_yielded = max(position.num_yielded, num_steps)


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
