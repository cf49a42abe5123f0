"""The inside of a dataset: spec, resolved order, counters and cursor, and all that is computed from them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShuffleWarning, StateError, UsageError
from shoal.indexing.growing.growing_shards import Growth
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition, check_rank
from shoal.order.position_subsets import Gaps
from shoal.order.seeds import MAX_SEED
from shoal.order.state_dict import State
from shoal.order.states.deals import RankPlace, Start
from shoal.pipeline.collate import collate as usual_collate
from shoal.pipeline.missing_fields import refuse_other_fields
from shoal.quality.expected_quality import ShuffleQuality
from shoal.reading.cached_ranges import cache_counts, expect_windows
from shoal.reading.large_chunks import refuse_too_large
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.resolved_epochs import BatchSegments, Piece
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.stats.counters import Counters
from shoal.stream.certificates.certificate import Certificate, covered, differences
from shoal.stream.certificates.sequence_hashes import hashes_of
from shoal.stream.dataset_requests import count_of
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.growing.growing_mixing import sorting_of_first
from shoal.stream.growing.growing_states import order_as_saved
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.iterator_position import Cursor
from shoal.stream.map_view import MapView
from shoal.stream.quality.predictions import predicted, warning_of
from shoal.stream.refilling.refilled_states import resumed

_log = logging.getLogger("shoal")


class Stream:
    """The parts of a dataset, as `Dataset.stream`: for the loaders and commands of shoal, and not public.

    ``spec`` never changes; ``counters`` and ``cursor`` do, and ``resolved`` when a state is loaded.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.cursor = Cursor()
        self._has_told_estimate = False

    def summary(self) -> str:
        """Return a one-line description, without waiting for an index."""
        return self.spec.summary(self.__dict__.get("resolved"))

    @property
    def opened(self) -> Opened:
        """Shards and their index; an error for a mixture."""
        return self.spec.dataset("this method")

    @cached_property
    def resolved(self) -> Resolved:
        """The order resolved to integers."""
        return self.spec.resolve()

    @cached_property
    def by_id(self) -> MapView:
        """The samples by id; filters do not apply."""
        return MapView(self.spec, self.resolved, self.cursor)

    @cached_property
    def batcher(self) -> Batcher:
        """The way in which batches are made."""
        return self.spec.batcher

    @property
    def partition(self) -> Partition:
        """The partition of epochs at the world size of this process."""
        return self._partition(self.spec.ranks.resolve()[1])

    def _partition(self, world_size: int) -> Partition:
        return self.batcher.partition(self.spec.batching, world_size)

    def iterator_spec(
        self,
        collate: Callable[[list[Any]], Any] = usual_collate,
        *,
        waits_for_little: bool = False,
        in_passes: bool = False,
    ) -> IteratorSpec:
        """Describe the next iterator, which begins at the cursor; warn if it will mix badly. No samples are read.

        With ``waits_for_little``, the epoch may begin before its number of steps is known. ``in_passes`` says that the
        caller cuts the batches of a rank into passes (`StepsOfPass`).

        Raises
        ------
        UsageError
            A chunk is too large for the memory limit, or sources of a mixture are known to have other fields.
        """
        spec, resolved, cursor = self.spec, self.resolved, self.cursor
        rank, world_size = spec.ranks.resolve()
        partition = self._partition(world_size)
        batcher = self.batcher
        batcher.check_passes(spec.batching, world_size, in_passes=in_passes)
        resolved.begin(rank, world_size)
        first = resolved.first(spec.source)
        if batcher.makes_arrays and collate is not usual_collate:
            msg = "collate_fn= makes a batch of samples, and pack_sequences() makes the arrays itself"
            raise UsageError(msg, hint="leave it out: map(function) after batch() changes batches")
        if partition.batched and not batcher.makes_arrays and collate is usual_collate:
            refuse_other_fields(first.opened, spec.stages)
        knows_end = not waits_for_little or batcher.counts_share or resolved.knows_end(cursor.epoch)
        self._warn(first, partition, begins_early=not knows_end)
        for part, order in zip(first.opened.parts, first.resolved.parts, strict=True):
            refuse_too_large(part, order, spec.reading.memory_limit_bytes)
            expect_windows(part, order, world_size, spec.reading.memory_limit_bytes)
        formatting = spec.formatting.of(first.opened, spec.stages)
        stages = (spec.seeded_stages, spec.batch_stages)
        pipeline = PipelineSpec(partition, rank, *stages, collate, formatting=formatting)
        steps = None if spec.batching is None else spec.batching.steps
        work = WorkerSpec(first.opened, resolved, pipeline, spec.reading, batcher, steps)
        start, taken, sequences = cursor.start
        begin = (cursor.epoch, start, taken, self.counters, cursor, sequences, cursor.later)
        return IteratorSpec(work, *begin, knows_end=knows_end)

    def _warn(self, first: Piece[ResolvedOrder], partition: Partition, *, begins_early: bool) -> None:
        """Warn of an order that mixes badly, and of an epoch without batches."""
        resolved, epoch = self.resolved, self.cursor.epoch
        is_first_rank = self.spec.ranks.resolve()[0] == 0
        if begins_early and is_first_rank and (text := sorting_of_first(first.resolved.sample_index)):
            _log.warning(text)
        if not resolved.knows_end(epoch):
            return
        batch = partition.global_batch if partition.batched else 1
        if message := warning_of(resolved, batch):
            warnings.warn(message, ShuffleWarning, stacklevel=4)
        if not partition.num_batches(num_samples := resolved.num_samples_of(epoch)):
            text = "remainder=%r leaves no batch: an epoch has %s samples, and a global batch of %s ranks has %s"
            _log.warning(text, partition.remainder, num_samples, partition.world_size, partition.global_batch)

    @property
    def batch_size(self) -> int | None:
        """Samples in a whole batch of this rank; None without batches, and where lengths decide their sizes."""
        partition = self.partition
        are_counted = partition.batched and self.batcher.counts_samples
        return partition.size_of(self.spec.ranks.resolve()[0]) if are_counted else None

    @property
    def num_steps_of_pass(self) -> int | None:
        """Batches of a pass of ``batch(steps=)``; None if a pass ends with the epoch."""
        return None if self.spec.batching is None else self.spec.batching.num_steps or None

    def stay(self) -> None:
        """Let the next iterator begin where the newest one is."""
        point = self.cursor.resume_point
        if point is not None and (place := point[2]) is not None:
            self.cursor.begin(point[0], place.starts[point[0]], place.starts)

    @property
    def growth(self) -> Growth | None:
        """Shards indexed so far, of a dataset in the growing order; None in another one."""
        self.resolved.begin(*self.spec.ranks.resolve())
        return self.resolved.growth()

    def num_samples(self, epoch: int) -> int:
        """Return the samples of an epoch over all ranks, gaps included; an estimate while shards are not indexed."""
        self.resolved.begin(*self.spec.ranks.resolve())
        length = self.resolved.length(epoch)
        if length.words and not self._has_told_estimate:
            self._has_told_estimate = True
            _log.info("%s", length.words)
        return length.num_samples

    def check_counted(self) -> None:
        """Raise `TypeError` if ranks have no number of samples of the current epoch in common."""
        self._check_counted(self.spec.ranks.resolve()[1])

    def _check_counted(self, world_size: int) -> None:
        if why := self.resolved.why_uncounted(self.cursor.epoch, world_size):
            raise TypeError(why)

    def num_rows(self) -> int:
        """Return the rows that all batches of the current epoch have, over all ranks, gaps included."""
        self.check_counted()
        return self.resolved.num_rows(self.cursor.epoch)

    def length(self, *, exactly: bool = False) -> int:
        """Return the length of a whole epoch on this rank, in batches or samples; an estimate unless ``exactly``.

        Raises
        ------
        TypeError
            Only reading shows it, or the epoch has no end, or ranks do not know all shards.
        """
        resolved, epoch, (rank, world_size) = self.resolved, self.cursor.epoch, self.spec.ranks.resolve()
        if self.num_steps_of_pass is not None:
            return self.num_steps_of_pass
        if unknown := self.batcher.unknown:
            how = "" if self.spec.batching is None else "; batch(..., steps=n) gives passes a length"
            raise TypeError(f"how many {unknown} is not known before they are read{how}")
        knows_end, partition = resolved.knows_end(epoch), self._partition(world_size)
        if exactly or knows_end:
            self._check_counted(world_size if exactly else 1)
        num_samples = resolved.num_samples_of(epoch) if knows_end else self.num_samples(epoch)
        return partition.num_batches(num_samples) if partition.batched else partition.num_samples_of(rank, num_samples)

    def as_map(self) -> MapView:
        """Return the samples by id, if there is one for every id."""
        if self.spec.filters:
            msg = "as_map() gives a sample for every id, and this dataset has a filter()"
            raise UsageError(msg, hint="select() chooses samples by id or by columns of the index")
        return self.by_id

    def quality(self, batch: int | None, key: Any, rho: float | None) -> ShuffleQuality:
        """Predict how well batches will be mixed; see `Dataset.quality`."""
        if batch is None:
            # An estimate may be high.
            most = self.resolved.num_samples // 2 if self.resolved.knows_end(0) else self.num_samples(0) // 3
            few = max(1, min(256, most))
            batch = few if self.spec.batching is None else self.partition.global_batch
        return predicted(self.resolved, count_of(batch, "quality(batch=)"), key=key, rho=rho)

    def ids(self, epoch: int, start: int, stop: int | None) -> NDArray[np.int64]:
        """Return the sample ids at positions of an epoch; see `Dataset.ids`."""
        order = self.resolved.untouched(count_of(epoch, "ids(epoch=)"))
        if stop is None and order.num_samples > FOREVER // 2:
            raise UsageError("ids() was asked for all ids of a mixture without end", hint="ids(epoch, start, stop)")
        ids = order.ids(start, order.num_samples if stop is None else stop)
        return self.resolved.samples_of(epoch, ids)

    def batch_ids(self, step: int, epoch: int, rank: int | None, world_size: int | None) -> NDArray[np.int64]:
        """Return the sample ids of a rank's batch; see `Dataset.batch_ids`."""
        return self.resolved.samples_of(epoch, self._batch("batch_ids", step, epoch, rank, world_size))

    def batch_segments(self, step: int, epoch: int, rank: int | None, world_size: int | None) -> BatchSegments:
        """Return the documents of a rank's sequences; see `Dataset.batch_segments`."""
        numbers = self._batch("batch_segments", step, epoch, rank, world_size)
        return self.resolved.segments_in(epoch, numbers)

    def _batch(self, verb: str, step: int, epoch: int, rank: int | None, world_size: int | None) -> NDArray[np.int64]:
        """Return what the order calls the samples of a rank's batch: their ids, or numbers of sequences."""
        here, size = self.spec.ranks.resolve()
        size = size if world_size is None else count_of(world_size, f"{verb}(world_size=)")
        here = here if rank is None else count_of(rank, f"{verb}(rank=)")
        check_rank(here, size)
        self.refuse_steps(f"{verb}()")
        step = count_of(step, f"{verb}()")
        partition, order = self._partition(size), self.resolved.epoch(count_of(epoch, f"{verb}(epoch=)"))
        num_batches = partition.num_batches(order.num_samples)
        if step >= num_batches:
            msg = f"step {step} was asked for; an epoch has steps 0 to {num_batches - 1} at world size {size}"
            raise UsageError(msg)
        return partition.share(order, here, step, step + 1).ids

    def gaps(self, steps: Any, positions: Any, epoch: int) -> Gaps:
        """Return the positions left out already, and those that `Dataset.without` is to leave out.

        Raises
        ------
        UsageError
            Neither steps nor positions were given, or both, or they do not exist.
        """
        if (steps is None) == (positions is None):
            msg = "without() takes steps, or positions="
            raise UsageError(msg, hint="without(steps=range(48212, 48215)) or without(positions=[(start, stop)])")
        if positions is not None:
            return self._joined_gaps(Gaps.of((epoch, start, stop) for start, stop in _pairs(positions)))
        if self.spec.batching is None:
            msg = "without(steps=) counts batches, and this dataset has none yet"
            raise UsageError(msg, hint="call it after batch(), or give positions=")
        self.refuse_steps("without(steps=)")
        several = steps if np.iterable(steps) else [steps]
        numbers = np.unique([count_of(step, "without(steps=)") for step in several])
        partition, resolved = self.partition, self.resolved
        num_samples = resolved.num_samples_of(epoch)
        num_steps = partition.num_batches(num_samples)
        if not len(numbers) or numbers[-1] >= num_steps:
            asked = f"step {numbers[-1]}" if len(numbers) else "no step"
            msg = f"without() was given {asked}; epoch {epoch} has steps 0 to {num_steps - 1}"
            raise UsageError(msg, hint="steps count from the start of the epoch that epoch= names")
        size = resolved.num_positions(epoch)
        left = resolved.gaps.left(epoch, size) or Runs.span(0, size)
        ranges = []
        for span in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
            first = int(span[0]) * partition.global_batch
            runs = left.of_members(Runs.span(first, partition.end_of(int(span[-1]), num_samples)))
            bounds = zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)
            ranges += [(epoch, start, stop) for start, stop in bounds]
        return self._joined_gaps(Gaps.of(ranges))

    def _joined_gaps(self, gaps: Gaps) -> Gaps:
        """Return the positions left out already, and these, which must leave something of each epoch."""
        joined = self.resolved.gaps.plus(gaps)
        for epoch, _, stop in joined.ranges:
            if stop > (size := self.resolved.num_positions(epoch)):
                raise UsageError(f"without() was given positions up to {stop} of epoch {epoch}, which has {size}")
            left = joined.left(epoch, size)
            if left is not None and not len(left):
                raise UsageError(f"without() leaves none of the {size} positions of epoch {epoch}")
        return joined

    def refuse_steps(self, verb: str) -> None:
        """Raise `UsageError` for a method that counts steps if positions do not follow from them."""
        self.batcher.refuse_steps(verb)

    def start_state(self) -> dict[str, Any]:
        """Return the state at which the next iterator begins."""
        rank, world_size = self.spec.ranks.resolve()
        return self._state(*self.batcher.start(self.cursor, self._partition(world_size), rank))

    def _state(self, epoch: int, number: int, place: RankPlace | None = None) -> dict[str, Any]:
        return self.resolved.state_at(epoch, number, place, tokenizers=self.spec.tokenizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the newest iterator; see `Dataset.state_dict`."""
        point = self.cursor.resume_point
        return self.start_state() if point is None else self._state(*point)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of an epoch; see `Dataset.set_epoch`."""
        if self.spec.batching is not None and self.spec.batching.num_steps:
            return  # passes follow each other, and each rank is in an epoch of its own
        if epoch < self.cursor.epoch and self.resolved.deals:
            self.resolved = self.resolved.with_deals(())  # an epoch that is begun anew is whole
        if epoch != self.cursor.epoch:
            if self.cursor.loaded_epoch is not None:
                text = "set_epoch(%d) leaves position %d of epoch %d, which a state had loaded"
                _log.warning(text, epoch, self.cursor.start.number, self.cursor.epoch)
            self.cursor.begin_epoch(epoch)
        self.cursor.name_epoch()

    def state_at(self, position: int, epoch: int) -> dict[str, Any]:
        """Return the state at a position of an epoch; at the end of an epoch, that of the start of the next."""
        number, in_epoch = count_of(position, "state_at(position)"), count_of(epoch, "state_at(epoch=)")
        if number > (size := self.resolved.num_positions(in_epoch)):
            msg = f"state_at() was asked for position {number} of an epoch of {size} samples"
            raise UsageError(msg, hint="positions count samples over all ranks: steps times the global batch")
        if number == size:
            number, in_epoch = 0, in_epoch + 1
        start = State.from_dict(self._state(in_epoch, 0))
        segments = self.resolved.segments_of_state(in_epoch, number)
        return replace(start, position=number, deals=(), segments=segments).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; see `Dataset.load_state_dict`."""
        if hasattr(state, "keys") and "check" not in state:
            state = self._adopted(state)
        saved = State.from_dict(state)
        saved.check_tokenizers(self.spec.tokenizers, self.resolved.state_order)
        self.resolved = order_as_saved(self.spec, self.resolved, saved)
        resolved, epoch = self.resolved.resumed(saved, self.spec.gaps), saved.epoch
        starts: Mapping[int, Start] = {saved.epoch: Start(resolved.number_of(saved.epoch, saved.position))}
        if saved.deals:
            rank, world_size = self.spec.ranks.resolve()
            resolved, epoch, starts = resumed(saved, resolved, self._partition(world_size), rank)
        self.resolved = resolved
        self.cursor.begin_loaded(epoch, starts.get(epoch, Start()), starts)
        self.cursor.loaded = "" if any(deal.rank is not None for deal in saved.deals) else str(state["check"])
        self.cursor.deliveries.forget()

    def _adopted(self, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state of a checkpoint of the library whose order this is; other mappings as they are."""
        found = self.resolved.adopted(checkpoint)
        if found is None:
            return checkpoint
        order, epoch, position = found
        if not (0 <= epoch <= MAX_SEED and 0 <= position <= order.num_samples):
            msg = f"the checkpoint is at position {position} of epoch {epoch}; an epoch has {order.num_samples} samples"
            raise StateError(msg, hint="the checkpoint was changed, or it is of another dataset")
        self.resolved = order
        return self.state_at(position, epoch)

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of what was delivered in this process."""
        resolved = self.resolved
        parts = {epoch: part.with_gaps(resolved, epoch) for epoch, part in self.cursor.deliveries.parts().items()}
        # All pieces have checksums as the first one has; the others are not waited for.
        kind = hashes_of(resolved.first(self.spec.source).resolved).kind
        seed = resolved.seed
        return Certificate(resolved.fingerprint, seed, resolved.state_order, kind, parts, resolved.gaps).to_dict()

    def check_certificate(self, certificate: Mapping[str, Any]) -> str:
        """Verify that what was due was delivered; see `Dataset.check_certificate`."""
        given = Certificate.from_dict(certificate)
        if found := differences(given, self.resolved):
            hint = "merge the certificates of all ranks, and those of earlier parts of the run"
            if self.spec.filters or self.batcher.counts_share or self.spec.reading.leaves_out:
                hint += (
                    '; what filter(), reading() or remainder="drop" leave out was not delivered, and stats() counts it'
                )
            if self.batcher.counts_share:
                hint += "; ranks that fill their batches are at different positions until an epoch ends"
            raise StateError("; ".join(found), hint=hint)
        return covered(given, self.resolved, self.batcher.note)

    def stats(self) -> dict[str, Any]:
        """Return the counters, and those of the chunk cache."""
        return self.counters.as_dict() | cache_counts(self.spec.source.caches, self.counters.of_workers)


def _pairs(positions: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(start, stop) for start, stop in positions]
    except (TypeError, ValueError):
        msg = f"without(positions=) takes a list of ranges (start, stop); got {positions!r:.80}"
        raise UsageError(msg, hint="without(positions=[(1_024, 1_536)])") from None
    return [(count_of(start, "without(positions=)"), count_of(stop, "without(positions=)")) for start, stop in pairs]
