"""A rank's samples span by span, with their reads planned one span ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Share
from shoal.pipeline.columns.column_gathering import Gathering
from shoal.pipeline.quarantine import QUARANTINED, Skips
from shoal.reading.budgets import Budget
from shoal.reading.fetcher import Fetch
from shoal.reading.schedule.lifetimes import first_uses, last_uses
from shoal.reading.single_samples import Singles

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The rank's share of some consecutive global batches: the samples as read, before any stage, and their ids.

    Lists, since loops over samples are fastest with them. Batch ``i`` is ``[batch_first[i], batch_first[i + 1])`` of
    them, and the rank's at step ``steps[i]``.
    """

    samples: Iterator[Any]
    ids: list[int]
    repeated: list[bool]
    batch_first: list[int]
    steps: range


@dataclass(frozen=True, slots=True)
class Gathered:
    """A span whose batches are made of columns; ids and marks of repeats as in `Share`."""

    batches: Iterator[Any]
    share: Share
    steps: range


def planned(
    shares: Iterator[tuple[Share, range]], budget: Budget, fetch: Fetch, skips: Skips | None
) -> Iterator[ReadSpan]:
    """Yield span after span of shares (with units as chunks), planning the next before samples of this one are yielded.

    If memory is limited, only those of this one: which of its units stay depends on those that the next one needs.
    """
    current, units, keeping = None, _NOTHING, budget.keeping
    for following in itertools.chain(shares, [None]):
        units_after = _NOTHING
        if following is not None:
            wanted = _wanted(following[0], skips)
            units_after = following[0].chunks[wanted]
            if keeping is None:
                fetch.follow(first_uses(units_after, units))
        if current is not None:
            share, steps = current
            drops: list[int] = []
            if keeping is None:
                last = last_uses(units, units_after)
            else:
                reads, last, drops = keeping.plan(units, units_after)
                fetch.follow(reads)
            wanted = _wanted(share, skips)
            samples = fetch.samples(share.ids[wanted].tolist(), units.tolist(), last.tolist(), drops)
            yield _span(share, steps, samples, wanted)
        current, units = following, units_after


def gathered(shares: Iterator[tuple[Share, range]], fetch: Fetch, gathering: Gathering) -> Iterator[Gathered]:
    """Yield span after span of batches made of columns, planned as in `planned`."""
    current, units = None, _NOTHING
    for following in itertools.chain(shares, [None]):
        units_after = _NOTHING
        if following is not None:
            units_after = following[0].chunks
            fetch.follow(first_uses(units_after, units))
        if current is not None:
            last = last_uses(units, units_after)
            yield Gathered(gathering.batches(current[0], units, last), *current)
        current, units = following, units_after


def unplanned(shares: Iterator[tuple[Share, range]], singles: Singles, skips: Skips | None) -> Iterator[ReadSpan]:
    """Yield span after span of samples that have a read of their own."""
    for share, steps in shares:
        wanted = _wanted(share, skips)
        ids = share.ids[wanted]
        samples = singles.samples(ids.tolist(), share.chunks[wanted])
        yield _span(share, steps, samples, wanted)


def _wanted(share: Share, skips: Skips | None) -> slice | NDArray[np.bool_]:
    """Select the samples of a share to read: all but those in quarantine."""
    return slice(None) if skips is None or not len(skips.known) else ~skips.among(share.ids)


def _span(share: Share, steps: range, samples: Iterator[Any], wanted: slice | NDArray[np.bool_]) -> ReadSpan:
    if not isinstance(wanted, slice):
        samples = _with_gaps(samples, wanted.tolist())
    return ReadSpan(samples, share.ids.tolist(), share.repeated.tolist(), share.batch_first.tolist(), steps)


def _with_gaps(samples: Iterator[Any], wanted: list[bool]) -> Iterator[Any]:
    """Yield the samples that are read, and a mark in place of each that is not."""
    for is_wanted in wanted:
        if not is_wanted:
            yield QUARANTINED
            continue
        try:
            yield next(samples)
        except StopIteration:
            return
