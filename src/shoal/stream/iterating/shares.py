"""The samples of a rank span by span, with their reads planned one span ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Share
from shoal.order.protocol import BoundOrder
from shoal.pipeline.columns.column_gathering import Gathering
from shoal.reading.schedule.lifetimes import handed_on, span_positions
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.states.iterator_position import Position

Shares: TypeAlias = Iterator[tuple[Share, range]]
"""The samples of a rank, span by span, and the steps of each span."""

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The rank's share of some consecutive global batches: the samples as read, before any stage, and the steps.

    Loops over lists are fastest: ``runs`` has the samples in lists of any length, or batches made of columns. The
    rank's batch at step ``steps[i]`` is the samples ``[share.batch_first[i], share.batch_first[i + 1])``.
    """

    runs: Iterator[Any]
    share: Share
    steps: range

    @property
    def samples(self) -> Iterator[Any]:
        """All samples, one by one."""
        return itertools.chain.from_iterable(self.runs)


def shares_of(order: BoundOrder, pipeline: PipelineSpec, position: Position) -> Shares:
    """Yield the shares of a rank, or of one of its workers, and their steps span by span."""
    partition, num_workers = pipeline.partition, pipeline.num_workers
    left, num_taken = position.global_batches, position.num_taken
    batches = max(1, span_positions(order.parameters, partition.world_size) // partition.global_batch)
    for first in range(left.start, left.stop, batches):
        stop = min(first + batches, left.stop)
        share = partition.share(order, pipeline.rank, first, stop, position.start)
        steps = range(first, stop)
        if num_workers > 1:
            steps = range(first + (pipeline.worker - first) % num_workers, stop, num_workers)
            share = _some_batches(share, np.arange(steps.start - first, stop - first, num_workers))
        if num_taken:
            share, num_taken = share.after(num_taken), 0
        if position.sums is not None:  # of certificates
            position.sums.note(share, steps)
        yield share, steps


def _some_batches(share: Share, batches: NDArray[np.int64]) -> Share:
    """Select batches of a share by number; O(samples of these batches).

    >>> share = Share(*(np.arange(6) for _ in range(3)), np.zeros(6, dtype=bool), np.array([0, 3, 5, 6]))
    >>> part = _some_batches(share, np.array([0, 2]))
    >>> part.ids.tolist(), part.batch_first.tolist()
    ([0, 1, 2, 5], [0, 3, 4])
    """
    sizes = np.diff(share.batch_first)[batches]
    batch_first = np.concatenate([[0], np.cumsum(sizes)])
    kept = np.repeat(share.batch_first[batches] - batch_first[:-1], sizes) + np.arange(batch_first[-1])
    return Share(share.ids[kept], share.positions[kept], share.chunks[kept], share.repeated[kept], batch_first)


def gathered(
    shares: Iterator[tuple[Share, range, NDArray[np.int64]]], gathering: Gathering, *, in_runs: bool = False
) -> Iterator[ReadSpan]:
    """Yield span after span of batches, or runs of samples, made of columns; plan each before the last is yielded.

    Beside each share are its steps, and the units that hold its samples.
    """
    make = gathering.runs if in_runs else gathering.batches
    current: tuple[Share, range, NDArray[np.int64]] | None = None
    for following in itertools.chain(shares, [None]):
        share, steps, units = current or (None, range(0), _NOTHING)
        reads, last = handed_on(units, _NOTHING if following is None else following[2])
        gathering.read_ahead(reads)
        if share is not None:
            yield ReadSpan(make(share, units, last), share, steps)
        current = following
