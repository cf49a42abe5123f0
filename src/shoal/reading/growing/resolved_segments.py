"""The first epoch of the growing order, or the part of it whose shards are indexed: segments in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.assembly import subset
from shoal.index.chunk_table import ChunkColumns, ChunkTable
from shoal.order.growing_segments import SegmentsInTurn, segment_seed
from shoal.order.position_subsets import ChosenPositions
from shoal.order.protocol import BoundOrder, Moved, Order
from shoal.reading.resolved_order import ResolvedOrder


@dataclass(frozen=True)
class Growing:
    """The order of segments in turn; not an order for `Dataset.shuffle`, since it needs a listing of shards."""

    name: ClassVar[str] = "growing"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "chunks"

    chunks: int

    @property
    def parameters(self) -> dict[str, int]:
        """The chunks of the largest window, for the plan of reads."""
        return {"chunks": self.chunks}

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> BoundOrder:
        """Raise `UsageError`: chunks alone do not tell the segments."""
        msg = f"the growing order of epoch {epoch} and seed {seed} needs the listing of {len(chunk_samples)} chunks"
        raise UsageError(msg, hint='shoal.open(..., index="grow").shuffle()')


@dataclass(frozen=True)
class ResolvedSegments(ResolvedOrder):
    """Segments in turn, each with its own window over the shards ``[borders[s], borders[s + 1])`` of the index.

    ``known`` are segments, by number, that were resolved before.
    """

    borders: tuple[int, ...] = (0,)
    known: Mapping[int, ResolvedOrder] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for processes."""
        return {**super().__getstate__(), "borders": self.borders, "known": {}}

    @cached_property
    def segments(self) -> tuple[ResolvedOrder, ...]:
        """Each segment, resolved as a dataset of its own."""
        ranges = enumerate(pairwise(self.borders))
        return tuple(self.known.get(number) or self._segment(number, range(*shards)) for number, shards in ranges)

    def _segment(self, number: int, shards: range) -> ResolvedOrder:
        request = replace(self.request, seed=segment_seed(self.request.seed, number))
        return ResolvedOrder(subset(self.index, shards), request, spills=self.spills)

    @cached_property
    def _resolved(self) -> tuple[Order, int]:
        chunks = max(segment.order.parameters["chunks"] for segment in self.segments)
        return Growing(chunks), max(segment.extents_per_chunk for segment in self.segments)

    @cached_property
    def chunks(self) -> ChunkTable:
        """The chunks of all segments."""
        tables = [segment.chunks for segment in self.segments]
        samples = accumulate((segment.index.num_samples for segment in self.segments), initial=0)
        shards = self.borders
        columns = ChunkColumns(
            shard=np.concatenate([table.shard + np.int32(first) for table, first in zip(tables, shards, strict=False)]),
            first_byte=np.concatenate([table.first_byte for table in tables]),
            end_byte=np.concatenate([table.end_byte for table in tables]),
            decoded=np.concatenate([table.decoded_bytes for table in tables]),
        )
        return ChunkTable(_one_after_another([table.first_sample for table in tables], samples), columns)

    def untouched(self, epoch: int) -> BoundOrder:
        """Return the segments in turn; the same for every epoch."""
        bound = self._epochs.get(epoch)
        if bound is None:
            segments = self.segments
            bound = SegmentsInTurn(
                list(accumulate((segment.index.num_samples for segment in segments), initial=0)),
                list(accumulate((len(segment.chunks) for segment in segments), initial=0)),
                lambda number: _bound(segments[number]),
                parameters=self.order.parameters,
            )
            bound = bound if self.delivered is None else ChosenPositions(bound, self.delivered)
            self._epochs[epoch] = bound
        return bound


def _bound(segment: ResolvedOrder) -> BoundOrder:
    """Return the order of a segment. The caller caches it, since a stream passes most segments only once."""
    return segment.order.bind(np.diff(segment.order_borders), seed=segment.seed, epoch=0)


def _one_after_another(columns: list[NDArray[np.int64]], firsts: Any) -> NDArray[np.int64]:
    """Join columns of borders; each counts from 0 and ends with its total."""
    shifted = [column + first for column, first in zip(columns, firsts, strict=False)]
    return np.concatenate([*(column[:-1] for column in shifted[:-1]), shifted[-1]])
