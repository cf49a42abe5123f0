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
from shoal.pipeline.quarantine import QUARANTINED, Quarantine
from shoal.reading.fetcher import Fetcher
from shoal.reading.local.local_samples import LocalSamples
from shoal.reading.remote.remote_samples import RemoteSamples
from shoal.reading.schedule.lifetimes import handed_on, span_positions
from shoal.reading.schedule.memory_division import Budget
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.states.iterator_position import Position

Shares: TypeAlias = Iterator[tuple[Share, range]]
"""The samples of a rank, span by span, and the steps of each span."""

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The rank's share of some consecutive global batches: the samples as read, before any stage, and their ids.

    Loops over lists are fastest; ``runs`` has the samples in lists of any length. The rank's batch at step ``steps[i]``
    is the samples ``[batch_first[i], batch_first[i + 1])``.
    """

    runs: Iterator[list[Any]]
    ids: list[int]
    repeated: list[bool]
    batch_first: list[int]
    steps: range

    @property
    def samples(self) -> Iterator[Any]:
        """All samples, one by one."""
        return itertools.chain.from_iterable(self.runs)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A span with batches, or runs of samples, made from columns; ids and marks of repeats as in `Share`."""

    made: Iterator[Any]
    share: Share
    steps: range


def shares_of(order: BoundOrder, pipeline: PipelineSpec, position: Position) -> Shares:
    """Yield the shares of a rank, or of one of its workers, and their steps span by span."""
    partition, num_workers, left = pipeline.partition, pipeline.num_workers, position.global_batches
    batches = max(1, span_positions(order.parameters, partition.world_size) // partition.global_batch)
    for first in range(left.start, left.stop, batches):
        stop = min(first + batches, left.stop)
        share = partition.share(order, pipeline.rank, first, stop, position.start)
        steps = range(first, stop)
        if num_workers > 1:
            steps = range(first + (pipeline.worker - first) % num_workers, stop, num_workers)
            share = _some_batches(share, np.arange(steps.start - first, stop - first, num_workers))
        if position.sums is not None:  # for certificates
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


def planned(shares: Shares, budget: Budget, fetch: Fetcher, quarantine: Quarantine | None) -> Iterator[ReadSpan]:
    """Yield the spans of shares that have units as chunks; plan each span before the last span is yielded.

    With limited memory only the current span is read ahead, since the next span decides which units stay.
    """
    current, units, keeping = None, _NOTHING, budget.keeping
    for following in itertools.chain(shares, [None]):
        units_after, drops = _NOTHING, list[int]()
        if following is not None:
            units_after = following[0].chunks[to_read_of(following[0], quarantine)]
        if keeping is None:
            reads, last = handed_on(units, units_after)
            fetch.read_ahead(reads)
        if current is not None:
            share, steps = current
            if keeping is not None:
                reads, last, drops = keeping.plan(units, units_after)
                fetch.read_ahead(reads)
            to_read = to_read_of(share, quarantine)
            runs = fetch.runs(share.ids[to_read].tolist(), units.tolist(), last.tolist(), drops)
            if isinstance(to_read, slice):
                yield ReadSpan(runs, share.ids.tolist(), share.repeated.tolist(), share.batch_first.tolist(), steps)
            else:
                yield span_of(share, steps, itertools.chain.from_iterable(runs), to_read)
        current, units = following, units_after


def gathered(shares: Shares, gathering: Gathering, *, in_runs: bool = False) -> Iterator[Gathered]:
    """Yield span after span of batches, or runs of samples, made from columns; planned as in `planned`."""
    make = gathering.runs if in_runs else gathering.batches
    current, units = None, _NOTHING
    for following in itertools.chain(shares, [None]):
        units_after = _NOTHING if following is None else following[0].chunks
        reads, last = handed_on(units, units_after)
        gathering.read_ahead(reads)
        if current is not None:
            yield Gathered(make(current[0], units, last), *current)
        current, units = following, units_after


def unplanned(
    shares: Shares, reader: LocalSamples | RemoteSamples, quarantine: Quarantine | None
) -> Iterator[ReadSpan]:
    """Yield spans of samples; each sample is read by its own request."""
    for share, steps in shares:
        to_read = to_read_of(share, quarantine)
        yield span_of(share, steps, reader.samples(share.ids[to_read].tolist(), share.chunks[to_read]), to_read)


def to_read_of(share: Share, quarantine: Quarantine | None) -> slice | NDArray[np.bool_]:
    """Select the samples of a share to read: all samples outside of the quarantine."""
    return slice(None) if quarantine is None or not len(quarantine.known) else ~quarantine.among(share.ids)


def span_of(share: Share, steps: range, samples: Iterator[Any], to_read: slice | NDArray[np.bool_]) -> ReadSpan:
    """Return a span with runs of one sample, so that no sample is taken early.

    A mark replaces each sample that is not read.
    """
    if not isinstance(to_read, slice):
        samples = _with_gaps(samples, to_read.tolist())
    runs = ([sample] for sample in samples)
    return ReadSpan(runs, share.ids.tolist(), share.repeated.tolist(), share.batch_first.tolist(), steps)


def _with_gaps(samples: Iterator[Any], to_read: list[bool]) -> Iterator[Any]:
    for is_read in to_read:
        if not is_read:
            yield QUARANTINED
            continue
        try:
            yield next(samples)
        except StopIteration:
            return
