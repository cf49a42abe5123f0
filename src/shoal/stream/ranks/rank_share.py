"""The share of a rank in an epoch, and that of each of its worker processes: whole batches, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Share
from shoal.order.protocol import BoundOrder
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import span_positions
from shoal.reading.schedule.units import ChunkUnits, Units
from shoal.stream.checkpoint.position import Position
from shoal.stream.iterating.pipeline_spec import PipelineSpec


def shares_of(
    order: BoundOrder,
    arrangement: ResolvedOrder,
    recipe: PipelineSpec,
    place: Position,
    units: Units | None = None,
) -> Iterator[tuple[Share, range]]:
    """Yield the shares of a rank, or of one of its workers, span by span, and their steps.

    They have stored ids, and for chunks the ``units`` that hold these; None for the chunks of the order. Each is noted
    for the certificate.
    """
    by_chunks = units is None or (isinstance(units, ChunkUnits) and not arrangement.by_shards)
    partition, num_workers = recipe.partition, recipe.num_workers
    start, begin = place.start, place.num_yielded
    num_batches = partition.num_batches(order.num_samples, start)
    batches = max(1, span_positions(order.parameters, partition.world_size) // partition.global_batch)
    for first in range(begin, num_batches, batches):
        stop = min(first + batches, num_batches)
        share = partition.share(order, recipe.rank, first, stop, start)
        steps = range(first, stop)
        if num_workers > 1:
            steps = range(first + (recipe.worker - first) % num_workers, stop, num_workers)
            share = some_batches(share, np.arange(steps.start - first, stop - first, num_workers))
        if arrangement.stored is not None:
            share = replace(share, ids=arrangement.stored.members(share.ids))
        if units is not None and not by_chunks:
            share = replace(share, chunks=units.of(share.ids))
        if place.ledger is not None:
            place.ledger.note(share, steps)
        yield share, steps


def some_batches(share: Share, batches: NDArray[np.int64]) -> Share:
    """Select batches of a share by number; O(samples of those batches).

    >>> share = Share(*(np.arange(6) for _ in range(3)), np.zeros(6, dtype=bool), np.array([0, 3, 5, 6]))
    >>> part = some_batches(share, np.array([0, 2]))
    >>> part.ids.tolist(), part.batch_first.tolist()
    ([0, 1, 2, 5], [0, 3, 4])
    """
    sizes = np.diff(share.batch_first)[batches]
    batch_first = np.concatenate([[0], np.cumsum(sizes)])
    kept = np.repeat(share.batch_first[batches] - batch_first[:-1], sizes) + np.arange(batch_first[-1])
    return Share(share.ids[kept], share.positions[kept], share.chunks[kept], share.repeated[kept], batch_first)
