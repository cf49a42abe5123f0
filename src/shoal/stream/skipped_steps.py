"""Conversion of steps of a run to the positions that it leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import Gaps
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.dataset_requests import count_of
from shoal.stream.spec import DatasetSpec


def gaps_of(described: DatasetSpec, arrangement: ResolvedOrder, steps: Any, positions: Any, epoch: int) -> Gaps:
    """Return the positions that `shoal.Dataset.without` is to leave out.

    Raises
    ------
    UsageError
        Neither steps nor positions were given, or both, or they do not exist.
    """
    if (steps is None) == (positions is None):
        msg = "without() takes steps, or positions="
        raise UsageError(msg, hint="without(steps=range(48212, 48215)) or without(positions=[(start, stop)])")
    if positions is not None:
        return Gaps.of((epoch, start, stop) for start, stop in _pairs(positions))
    if described.batching is None:
        msg = "without(steps=) counts batches, and this dataset has none yet"
        raise UsageError(msg, hint="put it behind batch(), or give positions=")
    numbers = np.unique([count_of(step, "without(steps=)") for step in _several(steps)])
    partition = described.partition(described.ranks.resolve()[1])
    num_samples = arrangement.num_samples_of(epoch)
    num_steps = partition.num_batches(num_samples)
    if not len(numbers) or numbers[-1] >= num_steps:
        asked = f"step {numbers[-1]}" if len(numbers) else "no step"
        msg = f"without() was given {asked}; epoch {epoch} has steps 0 to {num_steps - 1}"
        raise UsageError(msg, hint="steps count from the start of the epoch; epoch= says of which")
    left = arrangement.gaps.left(epoch, arrangement.num_samples) or Runs.span(0, arrangement.num_samples)
    ranges = []
    for span in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
        first = int(span[0]) * partition.global_batch
        stop = partition.end_of(int(span[-1]), num_samples)
        runs = left.of_members(Runs.span(first, stop))
        ranges += [(epoch, start, end) for start, end in zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)]
    return Gaps.of(ranges)


def _several(steps: Any) -> list[Any]:
    try:
        return list(steps)
    except TypeError:
        return [steps]


def _pairs(positions: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(start, stop) for start, stop in positions]
    except (TypeError, ValueError):
        msg = f"without(positions=) takes a list of ranges (start, stop); got {positions!r:.80}"
        raise UsageError(msg, hint="without(positions=[(1_024, 1_536)])") from None
    return [(count_of(start, "without(positions=)"), count_of(stop, "without(positions=)")) for start, stop in pairs]
