"""Batches of the parts that `flat_map` makes of samples: a rank fills its batches with the parts of its share.

A position counts samples, and a sample counts once all of its parts are delivered. Of the sample after these, a state
has the number of parts that are delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.order.partition import Partition
from shoal.order.states.deals import MOST_PARTS, parts_taken, settled
from shoal.pipeline.stages.flat_map import EachPart, Parts
from shoal.pipeline.stages.stage import Stage
from shoal.reading.resolved_epochs import Source
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.rows import Rows
from shoal.stream.refilling.filled_batches import BatchFiller, FilledBatches, Part
from shoal.stream.states.delivery_sums import Proof
from shoal.stream.verbs.dataset_requests import Batching

_Numbered = tuple[Any, int]
"""A part of a sample, and its number among the parts of the sample."""


@dataclass(frozen=True)
class BatchesOfParts(FilledBatches):
    """Batches that each rank fills with the parts of its samples, up to ``most`` of each."""

    most: int
    verb = "flat_map()"
    unknown = "parts flat_map() makes"

    def partition(self, batching: Batching | None, world_size: int) -> Partition:
        """Return the partition for ranks that fill batches with parts."""
        packing = None if batching is None else {MOST_PARTS: self.most}
        return replace(super().partition(batching, world_size), packing=packing)

    def kept(self, context: BatchContext) -> Callable[[Parts, int, int], list[_Numbered]]:
        """Return the function from the parts of a sample to the parts that no rank has delivered."""
        resolved, epoch = context.resolved, context.position.epoch
        deals = [deal for deal in resolved.deals if deal.epoch == epoch]
        taken = parts_taken(settled(deals, resolved.untouched(epoch))) if deals else {}

        def parts_left(parts: Parts, _: int, position: int) -> list[_Numbered]:
            first = taken.get(position, 0)
            return [(part, number) for part, number in zip(parts, parts.numbers, strict=True) if number >= first]

        return parts_left

    def filler(self, context: BatchContext, parts: Iterator[Part]) -> BatchFiller:
        """Return the filler that cuts parts of samples into batches."""
        return _PartsFiller(context, parts)


class PartRows(Rows):
    """Rows of one part of a sample each; ``most`` is the most parts of a sample."""

    __slots__ = ("_most",)

    divider = "flat_map()"

    def __init__(self, most: int) -> None:
        self._most = most

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartRows) and self._most == other._most

    def __hash__(self) -> int:
        return hash((PartRows, self._most))

    def batcher(self, source: Source, stages: tuple[Stage, ...], *, batched: bool) -> Batcher:  # type: ignore[override]  # noqa: ARG002
        """Return the maker of batches."""
        return BatchesOfParts(self._most)

    def stage(self, stage: Stage) -> Stage:
        """Return the stage for parts."""
        return EachPart(stage)

    def refilled_as(self, rows: Rows) -> Rows:  # noqa: ARG002
        """Return these rows, since batches of parts are always filled up."""
        return self


class _PartsFiller(BatchFiller):
    """The batches that are cut from the parts of samples."""

    def __init__(self, context: BatchContext, parts: Iterator[Part]) -> None:
        super().__init__(context, parts)
        collated = self._collated
        self._collated = lambda numbered: collated([part for part, _ in numbered])

    def add(self, part: Part) -> None:
        """Append the parts of some samples, without parts that were delivered before."""
        num_taken, open_sample = self._position.num_sequences, self._position.num_yielded + 1
        is_new = not self._waiting.samples
        super().add(part)
        samples, counts, hashes, _ = self._waiting
        if is_new and num_taken and counts:
            num_before = sum(
                count == open_sample and number < num_taken for (_, number), count in zip(samples, counts, strict=True)
            )
            self._waiting = Part(samples[num_before:], counts[num_before:], hashes[num_before:])

    def end(self) -> None:
        """Record the end of the share."""
        super().end()
        self._position.num_sequences = 0

    def _count_rows(self, num_rows: int, *, is_last: bool) -> None:
        """Advance by this many parts: past each sample whose last part they hold."""
        samples, counts, hashes, _ = self._waiting
        position, following = self._position, [*counts[1 : num_rows + 1], None]
        ends = [row for row in range(num_rows) if counts[row] != following[row]]
        is_open = ends[-1:] != [num_rows - 1]
        num_taken = samples[num_rows - 1][1] + 1 if is_open else 0
        self._go_to(position.num_steps if is_last else counts[num_rows - 1] - is_open)
        position.num_sequences = num_taken
        position.received = position.received.plus(Proof(len(ends), int(hashes[ends].sum(dtype=np.uint64))))
