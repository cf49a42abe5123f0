"""The making of batches of an epoch that grows: piece after piece, each of all segments that are indexed by then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.indexing.growing.segment_indexes import SegmentIndexes
from shoal.indexing.opened_dataset import Opened
from shoal.order.states.forms import MAX_POSITION
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.reading.growing.resolved_growing import Piece, ResolvedGrowing
from shoal.reading.growing.resolved_segments import ResolvedSegments
from shoal.reading.large_chunks import refuse_too_large
from shoal.stats.counters import Counters
from shoal.stream.iterating.batch_maker import BatchMaker, context_of_all
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterator_position import Position
from shoal.stream.quality.growing_mixing import sorting_of_first

_log = logging.getLogger("shoal")

_NOTICED_SECONDS = 1.0

Convert = Callable[[Iterator[Any]], Iterator[Any]]


@dataclass(slots=True)
class _Making:
    """The maker of the piece in work, for whoever closes it."""

    maker: BatchMaker | None = None
    is_closed: bool = False


class PieceMaker:
    """The source of an iterator over an epoch that grows; as `BatchMaker` otherwise.

    Pieces end with a whole global batch. An order has the same samples at the same positions however many segments are
    known, so batches do not depend on where pieces end.
    """

    def __init__(self, spec: IteratorSpec, resolved: ResolvedGrowing, convert: Convert | None = None) -> None:
        self.position = spec.position()
        self._making = _Making()
        # Not a method: a generator that referenced this object would keep its threads alive when nothing else does.
        self.batches = _batches(spec, resolved, convert, self.position, self._making)
        self.are_converted = convert is not None

    def end(self) -> None:
        """Stop after the last batch."""
        self.close()

    def stop(self) -> None:
        """Stop, without waiting for the end and without taking locks here."""
        self._making.is_closed = True
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop reading; the threads have ended when this returns. Indexing goes on as long as the dataset is there."""
        with InterruptsHeld():
            self._making.is_closed = True
            self.batches = iter(())
            if self._making.maker is not None:
                self._making.maker.close()


def _batches(
    spec: IteratorSpec, resolved: ResolvedGrowing, convert: Convert | None, position: Position, making: _Making
) -> Iterator[Any]:
    size = position.partition.global_batch
    pipeline = spec.work.pipeline
    num_workers = pipeline.num_workers
    resolved.growing.begin(pipeline.rank * num_workers + pipeline.worker, position.partition.world_size * num_workers)
    tells = pipeline.rank == pipeline.worker == position.epoch == 0
    while position.grows:
        piece = _next_piece(spec, resolved, position.end + size - 1, making)
        if tells and (text := sorting_of_first(piece)):
            _log.warning(text)
            tells = False
        num_steps = (piece.resolved.num_samples - position.start) // size
        if piece.is_last:
            position.end_at(piece.resolved.num_samples)
        else:
            position.num_samples = position.start + num_steps * size
        resolved.growing.drop_before(position.end)
        refuse_too_large(piece.opened, piece.resolved, spec.work.options.memory_limit_bytes)
        work = spec.work.of_piece(piece.opened, piece.resolved)
        of_all = partial(context_of_all, work, spec.counters, partial(_all_of, resolved, making))
        making.maker = BatchMaker(replace(spec, work=work), convert, position, of_all)
        try:
            yield from _begun(making.maker.batches, partial(resolved.growing.segments.need, piece.last_segment))
        finally:
            making.maker.close()
            _count_scans(spec.counters, resolved.growing.segments)
        if making.is_closed:
            return
        if position.grows:
            position.is_over = False  # of this maker alone
            # The last steps of a piece may be those of other workers.
            position.num_yielded = max(position.num_yielded, num_steps)


def _begun(batches: Iterator[Any], need_more: Callable[[], None]) -> Iterator[Any]:
    """Yield the batches of a piece; say that more is needed when the first is made, which thus has all processors."""
    for batch in batches:
        need_more()
        yield batch
        break
    else:
        need_more()
    yield from batches


def _all_of(resolved: ResolvedGrowing, making: _Making) -> tuple[Opened, ResolvedSegments]:
    """Return all samples of the epoch, waiting until they are indexed."""
    piece = resolved.piece(MAX_POSITION, is_stopped=lambda: making.is_closed)
    return piece.opened, piece.resolved


def _next_piece(spec: IteratorSpec, resolved: ResolvedGrowing, position: int, making: _Making) -> Piece:
    """Return a piece with this position; count and tell how long that took."""
    began, segments = time.perf_counter(), resolved.growing.segments
    num_made = segments.num_made
    piece = resolved.piece(position, is_stopped=lambda: making.is_closed)
    waited = time.perf_counter() - began
    counters = spec.counters
    counters.num_pieces += 1
    counters.index_wait_seconds += waited
    counters.wait_seconds += waited  # for bytes of the storage, or the bottleneck would be the stages
    counters.num_indexed_segments = max(counters.num_indexed_segments, segments.num_made)
    if num_made and waited > _NOTICED_SECONDS:
        text = "waited %.1f s for the index of the next shards: indexing is slower than the stream; "
        text += "%d of %d segments are indexed now (docs/guides/first-batch.md)"
        _log.warning(text, waited, segments.num_made, resolved.growing.num_segments)
    return piece


def _count_scans(counters: Counters, segments: SegmentIndexes) -> None:
    traffic, passing = segments.traffic, segments.passing
    counters.num_scan_requests, counters.num_scan_retries = traffic.num_requests, traffic.num_retries
    counters.scanned_bytes = traffic.read_bytes
    if passing is not None:
        counters.from_scans_bytes = passing.counters.served_bytes
        counters.not_kept_bytes = passing.counters.refused_bytes
