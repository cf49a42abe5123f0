"""The pieces of an epoch that is read while its shards are indexed: a stream goes on once the next segment is indexed.

A piece has all segments that are indexed. The order has the same samples at the same positions in any case, so batches
do not depend on the ends of pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from shoal.indexing.growing.growing_shards import GrowingShards
from shoal.indexing.opened_dataset import Opened
from shoal.order.states.forms import MAX_POSITION
from shoal.reading.cache.large_chunks import refuse_too_large
from shoal.reading.growing.resolved_segments import ResolvedSegments
from shoal.reading.resolved_epochs import Piece, Pieces, Piecewise
from shoal.reading.resolved_order import ResolvedOrder

_log = logging.getLogger("shoal")

_NOTICED_SECONDS = 1.0


class FirstSegments(NamedTuple):
    """The first segments of a dataset: opened, and in their order; the last ones if ``is_last``."""

    opened: Opened
    resolved: ResolvedSegments
    is_last: bool

    @property
    def last_segment(self) -> int:
        """Number of the last segment."""
        return len(self.resolved.borders) - 2

    @property
    def piece(self) -> Piece[ResolvedOrder]:
        """The segments as a piece of an epoch."""
        return Piece(self.opened, self.resolved, self.is_last)


class GrowingPieces(Pieces[ResolvedOrder]):
    """The pieces of the first epoch of a growing order.

    ``segments_upto`` returns all segments that are indexed, and waits for the segment with a position.
    """

    is_ready = False

    def __init__(
        self,
        growing: GrowingShards,
        segments_upto: Callable[[int, Callable[[], bool]], FirstSegments],
        piecewise: Piecewise,
    ) -> None:
        self._growing, self._segments_upto, self._piecewise = growing, segments_upto, piecewise
        self._last_segment = 0
        growing.begin(piecewise.reader, piecewise.num_readers)

    def upto(self, position: int, *, read_before: int) -> Piece[ResolvedOrder]:
        """Return all segments that are indexed, and the segment with this position; count the wait."""
        growing, segments, counters = self._growing, self._growing.segments, self._piecewise.counters
        began, num_made = counters.wait_begins(), segments.num_made
        first = self._segments_upto(position, self._piecewise.is_stopped)
        self._last_segment = first.last_segment
        waited = counters.waited(began)  # counts as storage: else the stages would look like the bottleneck
        counters.num_pieces += 1
        counters.index_wait_seconds += waited
        counters.num_indexed_segments = max(counters.num_indexed_segments, segments.num_made)
        if num_made and waited > _NOTICED_SECONDS:
            text = "waited %.1f s for the index of the next shards: indexing is slower than the stream; "
            text += "%d of %d segments are indexed now (docs/guides/first-batch.md)"
            _log.warning(text, waited, segments.num_made, growing.num_segments)
        growing.drop_before(read_before)
        refuse_too_large(first.opened, first.resolved, self._piecewise.memory_limit_bytes)
        return first.piece

    def whole(self) -> Piece[ResolvedOrder]:
        """Return all samples of the epoch, waiting until they are indexed."""
        return self._segments_upto(MAX_POSITION, self._piecewise.is_stopped).piece

    def begun(self) -> None:
        """Have more shards indexed: until now, the first batch of the piece needed all processors."""
        self._growing.segments.need(self._last_segment)

    def ended(self) -> None:
        """Count the requests of the scans so far."""
        counters, segments = self._piecewise.counters, self._growing.segments
        traffic, passing = segments.traffic, segments.passing
        counters.num_scan_requests, counters.num_scan_retries = traffic.num_requests, traffic.num_retries
        counters.scanned_bytes = traffic.read_bytes
        if passing is not None:
            counters.from_scans_bytes = passing.counters.served_bytes
            counters.not_kept_bytes = passing.counters.refused_bytes
