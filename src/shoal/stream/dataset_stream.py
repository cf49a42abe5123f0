"""The inside of a dataset: spec, resolved order, counters, cursor; the description of an iterator, and its length."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShuffleWarning, StateError, UsageError
from shoal.indexing.growing.growing_shards import Growth
from shoal.indexing.opened_dataset import Opened
from shoal.order.partition import Partition, check_rank
from shoal.order.states.deals import RankPlace, Start
from shoal.pipeline.collate import collate as usual_collate
from shoal.pipeline.missing_fields import refuse_other_fields
from shoal.reading.cache.cached_ranges import expect_windows
from shoal.reading.cache.large_chunks import refuse_too_large
from shoal.reading.generations.resolved_generations import Generation, ResolvedGenerations
from shoal.reading.resolved_epochs import Piece
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.stats.counters import Counters
from shoal.stream.choosing.map_view import MapView
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.generations.followed_source import followed
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.quality.growing_mixing import sorting_of_first
from shoal.stream.quality.predictions import warning_of
from shoal.stream.states.delivery_sums import DeliveredPart
from shoal.stream.states.iterator_position import Cursor
from shoal.stream.verbs.dataset_requests import count_of

_log = logging.getLogger("shoal")


class Stream:
    """The private parts of a dataset, as `Dataset.stream`, for the loaders and commands of shoal.

    ``counters`` and ``cursor`` change. ``resolved`` changes when a state is loaded; ``spec`` too, if the state knew
    another generation of the dataset, or if the source of a followed dataset has changed.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.cursor = Cursor()
        self._has_logged_estimate = False
        self._looked_epoch = -1
        self._fingerprints: dict[int, str] = {}  # the dataset of each epoch that began here

    def __str__(self) -> str:
        """Return a one-line summary, without waiting for an index."""
        return self.spec.summary(self.__dict__.get("resolved"))

    @property
    def opened(self) -> Opened:
        """Shards and their index; an error for a mixture."""
        return self.spec.opened.one("this method")

    @cached_property
    def resolved(self) -> Resolved:
        """The order resolved to integers."""
        return self.spec.resolve()

    @cached_property
    def by_id(self) -> MapView:
        """The samples by id; filters do not apply."""
        spec = self.spec if self.spec.coming is None else self.spec.in_epoch(self.spec.coming.border)
        return MapView(spec, self.resolved, self.cursor)

    @cached_property
    def batcher(self) -> Batcher:
        """The maker of batches."""
        return self.spec.batcher

    @property
    def partition(self) -> Partition:
        """The partition of epochs at the world size of this process."""
        return self._partition(self.spec.ranks.resolve()[1])

    def _partition(self, world_size: int) -> Partition:
        return self.batcher.partition(self.spec.batching, world_size)

    # ---- iterators

    def iterator_spec(
        self,
        collate: Callable[[list[Any]], Any] = usual_collate,
        *,
        waits_for_little: bool = False,
        in_passes: bool = False,
    ) -> IteratorSpec:
        """Describe the next iterator, from the cursor on; warn if the order mixes badly. No samples are read.

        With ``waits_for_little``, the epoch may begin before its number of steps is known. With ``in_passes`` the
        caller cuts the batches of a rank into passes (`StepsOfPass`). `UsageError` if a chunk is too large for the
        memory limit, or if sources of a mixture have different known fields.
        """
        cursor, batcher = self.cursor, self.batcher
        rank, world_size = self.spec.ranks.resolve()
        self._look_again()
        spec, resolved = self.spec.in_epoch(cursor.epoch), self.resolved.from_epoch(cursor.epoch)
        self._fingerprints[cursor.epoch] = resolved.in_epoch(cursor.epoch).fingerprint
        partition = self._partition(world_size)
        batcher.check_passes(spec.batching, world_size, in_passes=in_passes)
        resolved.begin(rank, world_size)
        first = resolved.first(spec.source, cursor.epoch)
        if batcher.makes_arrays and collate is not usual_collate:
            msg = "collate_fn= makes a batch of samples, but pack_sequences() makes the arrays itself"
            raise UsageError(msg, hint="leave out collate_fn=, and use map(function) after batch() to change batches")
        if partition.batched and not batcher.makes_arrays and collate is usual_collate:
            refuse_other_fields(first.opened, spec.stages)
        knows_end = not waits_for_little or batcher.counts_share or resolved.knows_end(cursor.epoch)
        self._warn(first, partition, begins_early=not knows_end)
        for part, order in zip(first.opened.parts, first.resolved.parts, strict=True):
            refuse_too_large(part, order, spec.reading.memory_limit_bytes)
            expect_windows(part, order, world_size, spec.reading.memory_limit_bytes)
        formatting = spec.formatting.of(first.opened, spec.stages)
        stages = (spec.seeded_stages, (*spec.batch_stages, *spec.ranks.slices))
        pipeline = PipelineSpec(partition, rank, *stages, collate, formatting=formatting)
        steps = None if spec.batching is None else spec.batching.steps
        work = WorkerSpec(first.opened, resolved, pipeline, spec.reading, batcher, steps)
        start, taken, sequences = cursor.start
        begin = (cursor.epoch, start, taken, self.counters, cursor, sequences, cursor.later)
        return IteratorSpec(work, *begin, knows_end=knows_end)

    def move(self, spec: DatasetSpec, resolved: Resolved) -> None:
        """Go on with the order of a state, perhaps of another generation of the dataset; the cursor stays."""
        is_same = spec is self.spec
        self.spec, self.resolved = spec, resolved
        if is_same:
            return
        self.__dict__.pop("by_id", None)
        self.__dict__.pop("batcher", None)

    def begin_as(self, other: Stream, epoch: int, start: Start) -> None:
        """Begin at the position of another stream, with the numbers that its running epoch has resolved."""
        self.cursor.begin(epoch, start)
        self._looked_epoch = other._looked_epoch  # noqa: SLF001  # the same class
        if self.spec.coming is not None:
            running = Generation(self.spec.opened, other.resolved.in_epoch(epoch))
            self.resolved = replace(cast("ResolvedGenerations", self.resolved), running=running)
        elif self.spec.opened is other.spec.in_epoch(epoch).opened:
            self.resolved = other.resolved.from_epoch(epoch)

    def _look_again(self) -> None:
        """Look at the source again at the beginning of an epoch, once for each epoch, if the dataset follows it."""
        cursor = self.cursor
        if any(self.spec.follows) and cursor.start == Start() and self._looked_epoch != cursor.epoch:
            self._looked_epoch = cursor.epoch
            spec = followed(self.spec, cursor.epoch)
            if spec is not self.spec:
                self.move(spec, spec.resolve())

    def _warn(self, first: Piece[ResolvedOrder], partition: Partition, *, begins_early: bool) -> None:
        """Warn of an order that mixes badly, and of an epoch without batches."""
        epoch = self.cursor.epoch
        resolved = self.resolved.in_epoch(epoch)
        is_first_rank = self.spec.ranks.resolve()[0] == 0
        if begins_early and is_first_rank and (text := sorting_of_first(first.resolved.sample_index)):
            _log.warning(text)
        if not resolved.knows_end(epoch):
            return
        batch = partition.global_batch if partition.batched else 1
        if message := warning_of(resolved, batch):
            warnings.warn(message, ShuffleWarning, stacklevel=4)
        if not partition.num_batches(num_samples := resolved.num_samples_of(epoch)):
            text = "remainder=%r leaves no batch: an epoch has %s samples, but a global batch of %s ranks has %s"
            _log.warning(text, partition.remainder, num_samples, partition.world_size, partition.global_batch)

    def delivered_parts(self) -> dict[int, DeliveredPart]:
        """Return the delivered part of each epoch; a part of an earlier dataset names this dataset."""
        parts = self.cursor.deliveries.parts()
        newest = self._fingerprints.get(max(parts, default=0), "")
        resolved, named = self.resolved, dict[int, DeliveredPart]()
        for epoch, part in parts.items():
            own = self._fingerprints.get(epoch, newest)
            named[epoch] = replace(part.with_gaps(resolved, epoch), index=own if own != newest else "")
        return named

    def stay(self) -> None:
        """Start the next iterator at the position of the newest iterator."""
        point = self.cursor.resume_point
        if point is not None and (place := point[2]) is not None:
            self.cursor.begin(point[0], place.starts[point[0]], place.starts)

    @property
    def next_position(self) -> tuple[int, int]:
        """Epoch and position of the next sample over all ranks, gaps not counted.

        The start of the epoch if ranks are at different positions.
        """
        try:
            point = self.cursor.resume_point
        except StateError:
            point = None
        if point is None:
            return self.cursor.epoch, self.cursor.start.number
        epoch, number, place = point
        if place is not None and place.partition.world_size == 1:  # the only rank knows the samples that it has taken
            number = place.starts[epoch].number + place.starts[epoch].taken
        return epoch, number

    def start_state(self) -> dict[str, Any]:
        """Return the state at the start of the next iterator."""
        rank, world_size = self.spec.ranks.resolve()
        return self.state(*self.batcher.start(self.cursor, self._partition(world_size), rank))

    def state(self, epoch: int, number: int, place: RankPlace | None = None) -> dict[str, Any]:
        """Return the state after ``number`` samples of an epoch; ``place`` of the rank if ranks fill batches."""
        return self.resolved.state_at(epoch, number, place, tokenizers=self.spec.tokenizers)

    # ---- lengths and ids

    @property
    def batch_size(self) -> int | None:
        """Samples in a whole batch of this rank; None without batches, or if lengths determine the batch sizes."""
        partition = self.partition
        are_counted = partition.batched and self.batcher.counts_samples
        return partition.size_of(self.spec.ranks.resolve()[0]) if are_counted else None

    @property
    def num_steps_of_pass(self) -> int | None:
        """Batches of a pass of ``batch(steps=)``; None if a pass ends with the epoch."""
        return None if self.spec.batching is None else self.spec.batching.num_steps or None

    @property
    def growth(self) -> Growth | None:
        """Shards indexed so far in the growing order; None in another order."""
        self.resolved.begin(*self.spec.ranks.resolve())
        return self.resolved.growth()

    def num_samples(self, epoch: int) -> int:
        """Return the samples of an epoch over all ranks, gaps included; an estimate while shards are not indexed."""
        self.resolved.begin(*self.spec.ranks.resolve())
        length = self.resolved.length(epoch)
        if length.words and not self._has_logged_estimate:
            self._has_logged_estimate = True
            _log.info("%s", length.words)
        return length.num_samples

    def _check_counted(self, world_size: int) -> None:
        """Raise `TypeError` if ranks may count different numbers of samples in the current epoch."""
        if why := self.resolved.why_uncounted(self.cursor.epoch, world_size):
            raise TypeError(why)

    def num_rows(self) -> int:
        """Return the number of rows in the current epoch over all ranks, gaps included."""
        self._check_counted(self.spec.ranks.resolve()[1])
        return self.resolved.num_rows(self.cursor.epoch)

    def length(self, *, exactly: bool = False) -> int:
        """Return the length of a whole epoch on this rank, in batches or samples; an estimate unless ``exactly``.

        `TypeError` if the length is known only after reading, the epoch has no end, or ranks do not know all shards.
        """
        resolved, epoch, (rank, world_size) = self.resolved, self.cursor.epoch, self.spec.ranks.resolve()
        if self.num_steps_of_pass is not None:
            return self.num_steps_of_pass
        if unknown := self.batcher.unknown:
            how = "" if self.spec.batching is None else "; batch(..., steps=n) gives passes a length"
            raise TypeError(f"the number of {unknown} is unknown before reading{how}")
        knows_end, partition = resolved.knows_end(epoch), self._partition(world_size)
        if exactly or knows_end:
            self._check_counted(world_size if exactly else 1)
        num_samples = resolved.num_samples_of(epoch) if knows_end else self.num_samples(epoch)
        return partition.num_batches(num_samples) if partition.batched else partition.num_samples_of(rank, num_samples)

    def batch_of_order(
        self, verb: str, step: int, epoch: int, rank: int | None, world_size: int | None
    ) -> NDArray[np.int64]:
        """Return the sample ids of a rank's batch; for packed documents, the sequence numbers."""
        this_rank, size = self.spec.ranks.resolve()
        size = size if world_size is None else count_of(world_size, f"{verb}(world_size=)")
        rank = this_rank if rank is None else count_of(rank, f"{verb}(rank=)")
        check_rank(rank, size)
        self.batcher.refuse_steps(f"{verb}()")
        step = count_of(step, f"{verb}()")
        partition, order = self._partition(size), self.resolved.epoch(count_of(epoch, f"{verb}(epoch=)"))
        num_batches = partition.num_batches(order.num_samples)
        if step >= num_batches:
            msg = f"there is no step {step}: an epoch has steps 0 to {num_batches - 1} at world size {size}"
            raise UsageError(msg)
        return partition.share(order, rank, step, step + 1).ids
