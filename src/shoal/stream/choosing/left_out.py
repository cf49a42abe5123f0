"""Arguments of `Dataset.without`: steps or positions of an epoch that it leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import Gaps
from shoal.stream.dataset_stream import Stream
from shoal.stream.verbs.dataset_requests import count_of


def gaps_without(stream: Stream, steps: Any, positions: Any, epoch: int) -> Gaps:
    """Add steps or positions of an epoch to the gaps of a stream.

    `UsageError` unless exactly one of ``steps`` and ``positions`` is given, if a step or position does not exist, or
    if an epoch would be empty.
    """
    if (steps is None) == (positions is None):
        msg = "without() takes steps, or positions="
        raise UsageError(msg, hint="without(steps=range(48212, 48215)) or without(positions=[(start, stop)])")
    ranges = _ranges_of(positions) if steps is None else _ranges_of_steps(stream, steps, epoch)
    gaps = stream.resolved.gaps.plus(Gaps.of((epoch, start, stop) for start, stop in ranges))
    for number, _, stop in gaps.ranges:
        if stop > (size := stream.resolved.num_positions(number)):
            raise UsageError(f"without() was given positions up to {stop}; epoch {number} has {size}")
        left = gaps.left(number, size)
        if left is not None and not len(left):
            raise UsageError(f"without() leaves none of the {size} positions of epoch {number}")
    return gaps


def _ranges_of(positions: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(start, stop) for start, stop in positions]
    except (TypeError, ValueError):
        msg = f"without(positions=) takes a list of ranges (start, stop); got {positions!r:.80}"
        raise UsageError(msg, hint="without(positions=[(1_024, 1_536)])") from None
    return [(count_of(start, "without(positions=)"), count_of(stop, "without(positions=)")) for start, stop in pairs]


def _ranges_of_steps(stream: Stream, steps: Any, epoch: int) -> list[tuple[int, int]]:
    """Return the positions of the global batches of these steps; steps do not count earlier gaps."""
    if stream.spec.batching is None:
        msg = "without(steps=) counts batches, but this dataset has none yet"
        raise UsageError(msg, hint="call it after batch(), or give positions=")
    stream.batcher.refuse_steps("without(steps=)")
    numbers = np.unique([count_of(step, "without(steps=)") for step in (steps if np.iterable(steps) else [steps])])
    partition, resolved = stream.partition, stream.resolved
    num_samples, size = resolved.num_samples_of(epoch), resolved.num_positions(epoch)
    num_steps = partition.num_batches(num_samples)
    if not len(numbers) or numbers[-1] >= num_steps:
        given = f"step {numbers[-1]}" if len(numbers) else "no step"
        msg = f"without() was given {given}; epoch {epoch} has steps 0 to {num_steps - 1}"
        raise UsageError(msg, hint="steps count from the start of the epoch that epoch= names")
    left, ranges = resolved.gaps.left(epoch, size) or Runs.span(0, size), list[tuple[int, int]]()
    for span in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
        first = int(span[0]) * partition.global_batch
        runs = left.of_members(Runs.span(first, partition.end_of(int(span[-1]), num_samples)))
        ranges += zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)
    return ranges
