"""The deliveries of a run as rows: sample, step, rank and bytes, and steps in other epochs."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.sample_ids import KEY, keys_in_order
from shoal.cli.options.source_options import imported_object, names_mixture, open_with_samples
from shoal.cli.options.stream_options import (
    given_order_options,
    open_mixture,
    packed_as_requested,
    read_state,
    requested_order,
    shuffled_mixture,
)
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index, check_ids
from shoal.indexing.opened_dataset import Opened
from shoal.order.mixture.mixed_order import MixedEpoch
from shoal.order.partition import Partition, check_rank
from shoal.order.position_subsets import NO_GAPS, span_in
from shoal.order.protocol import BoundOrder, Repeating
from shoal.order.state_dict import PACKED, State
from shoal.reading.growing.resolved_growing import ResolvedGrowing, growing_as_saved
from shoal.reading.growing.resolved_segments import Growing
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.generations.saved_generations import opened_as_saved
from shoal.stream.iterating.rows import Rows
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.sequences.saved_sequences import of_documents, packed_as_saved
from shoal.stream.verbs.dataset_requests import request_of_state
from shoal.tools.samples.preview import json_value, printable


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """A dataset imported from ``module:NAME``."""

    name: str
    dataset: Dataset

    def __str__(self) -> str:
        return self.name

    def order(self, epoch: int | None, state: State | None) -> tuple[Dataset, Resolved]:
        """Load a state, and return the stored samples and their order.

        Raises `StateError` if the state belongs to another dataset, selection or order, and `UsageError` if the dataset
        fills batches by the content of its samples.
        """
        dataset = self.dataset
        if (batcher := dataset.stream.spec.batcher).counts_share:
            msg = f"{self.name} fills batches with {batcher.verb}: only reading shows their samples"
            hint = (
                f"with_ids() before {batcher.verb} adds the sample ids to batches, as the field {batcher.ids_field!r}"
            )
            raise UsageError(msg, hint=hint)
        if state is not None:
            dataset.load_state_dict(state.to_dict())
        in_epoch = dataset.epoch if epoch is None else epoch
        resolved, spec = dataset.stream.resolved.in_epoch(in_epoch), dataset.stream.spec.in_epoch(in_epoch)
        if isinstance(resolved, ResolvedGrowing):
            return Dataset(DatasetSpec.of(resolved.growing.whole)), resolved.of_epoch(in_epoch)
        if isinstance(dataset, MixedDataset):
            return MixedDataset(replace(spec, rows=Rows(), batching=None, batch_stages=())), resolved
        return Dataset(DatasetSpec.of(spec.opened.one("shoal trace"))), resolved


def imported_run(text: str) -> ImportedRun:
    """Import the dataset ``module:NAME``, or call the function of this name."""
    value = imported_object(text)
    dataset = value() if callable(value) and not isinstance(value, Dataset) else value
    if not isinstance(dataset, Dataset):
        msg = f"{text} is {type(dataset).__name__}, not a shoal dataset or a function that returns a shoal dataset"
        raise argparse.ArgumentTypeError(msg)
    return ImportedRun(text, dataset)


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run that divides an epoch into batches from ``start`` on; ``start`` does not count gaps."""

    dataset: Dataset
    resolved: Resolved
    partition: Partition
    epoch: int
    start: int
    ranks: range

    @property
    def parts(self) -> Iterator[tuple[int, Opened]]:
        """The dataset or the sources of a mixture, each with its first sample id."""
        parts = self.dataset.stream.spec.opened.parts
        firsts = itertools.accumulate((part.index.num_samples for part in parts[:-1]), initial=0)
        return zip(firsts, parts, strict=True)

    @property
    def index(self) -> Index | JoinedIndex:
        """The index of all samples."""
        return self.dataset.stream.spec.opened.index

    @property
    def is_mixture(self) -> bool:
        """True for a mixture."""
        return isinstance(self.index, JoinedIndex)

    @property
    def documents(self) -> ResolvedOrder | ResolvedMixture:
        """The order of the samples, or of the documents of sequences."""
        resolved = self.resolved.documents if isinstance(self.resolved, ResolvedSequences) else self.resolved
        return cast("ResolvedOrder | ResolvedMixture", resolved)

    @property
    def packing(self) -> dict[str, str]:
        """The call that packs the documents; empty without packing."""
        return {"packing": self.resolved.grouping} if isinstance(self.resolved, ResolvedSequences) else {}

    @property
    def counted_from(self) -> int:
        """Position of the start of step 0."""
        return self.resolved.position_of(self.epoch, self.start)

    @property
    def first_step(self) -> int:
        """First step: negative if counting starts after the start of the epoch."""
        return -(self.start // self.partition.global_batch)

    @property
    def end_step(self) -> int:
        """One more than the last step."""
        return self.partition.num_batches(self.resolved.num_samples_of(self.epoch), self.start)

    @property
    def is_endless(self) -> bool:
        """True for an epoch without end."""
        return self.resolved.num_samples > FOREVER // 2

    def positions(self, step: int) -> tuple[int, int]:
        """Return the first and the end position of a step in the order."""
        first = self.start + step * self.partition.global_batch
        stop = min(first + self.partition.global_batch, self.resolved.num_samples_of(self.epoch))
        left = self.resolved.gaps.left(self.epoch, self.resolved.num_positions(self.epoch))
        return span_in(left, first, stop)

    def check_step(self, step: int) -> None:
        """Raise `UsageError` with a hint unless this is a step of the epoch."""
        first, end = self.first_step, self.end_step
        if first <= step < end:
            return
        steps = f"from {first} on, without end" if self.is_endless else f"{first} to {end - 1}"
        msg = f"step {step} was requested; epoch {self.epoch} has steps {steps}"
        if self.start:
            msg += f", counted from position {self.counted_from}"
        hint = "with --state FILE --from-state, negative steps are the steps before the position of the state"
        if step >= end > 0:
            hint = f"counted over all epochs, use --epoch {step // end} --step {step % end}"
        if self.start:
            hint = "without --from-state, steps count from the start of the epoch"
        raise UsageError(msg, hint=hint)

    def rows_of_step(self, step: int) -> list[Row]:
        """Return the deliveries of a step to the traced ranks."""
        return [row for rank in self.ranks for row in self._rows_of_share(rank, step)]

    def rows_of_samples(self, ids: list[int], most_uses: int) -> list[Row]:
        """Return the deliveries of these samples to the traced ranks; a sample without delivery has a row with a note.

        In a mixture a sample may appear several times; returns the first ``most_uses`` deliveries.
        """
        samples = np.array(ids, dtype=np.int64)
        check_ids(self.index, samples)
        positions = dict(zip(ids, self._positions_of(samples, most_uses), strict=True))
        numbers = self._numbers(np.concatenate([np.zeros(0, np.int64), *positions.values()]))
        deliveries: dict[int, list[Row]] = {sample: [] for sample in ids}
        # Samples are in their own steps, and the last step may repeat samples.
        steps = set(((numbers[numbers >= 0] - self.start) // self.partition.global_batch).tolist())
        for step in sorted(step for step in {*steps, self.end_step - 1} if self.first_step <= step < self.end_step):
            for rank in self.ranks:
                for row in self._rows_of_share(rank, step, only=samples):
                    deliveries[row["sample"]].append(row)
        return [
            row
            for sample, places in positions.items()
            for row in deliveries[sample] or [self._undelivered(sample, places)]
        ]

    def _positions_of(self, ids: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
        """Return the first positions of each sample in the epoch, or of each document in its order."""
        order = self.documents.untouched(self.epoch)
        if isinstance(order, MixedEpoch | Repeating):
            return [_all_positions(order, sample, most) for sample in ids.tolist()]
        return [positions[positions >= 0] for positions in order.positions(ids)[:, None]]

    def _numbers(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of these positions, or of their sequences, without gaps; -1 for positions in gaps."""
        left = self.resolved.left(self.epoch)
        if isinstance(self.resolved, ResolvedSequences):
            positions = self.resolved.untouched(self.epoch).sequences_with(positions)
        return positions if left is None else left.numbers(positions)

    def _undelivered(self, sample: int, positions: NDArray[np.int64]) -> Row:
        """Return the row of a sample without a delivery to a traced rank, with a note about the reason."""
        numbers, position = self._numbers(positions), None
        if len(numbers) and not isinstance(self.resolved, ResolvedSequences):
            position = int(positions[0])
        if not len(numbers):
            note = f"does not come in epoch {self.epoch}"
        elif (numbers < 0).all():
            note = f"left out of epoch {self.epoch}, by the state or without()"
        elif (numbers < self.start + self.first_step * self.partition.global_batch).all():
            note = f"comes before step {self.first_step}"
        elif (numbers >= self.start + self.end_step * self.partition.global_batch).all():
            note = f"in the dropped remainder of epoch {self.epoch}"
        else:
            note = "comes to another rank"
        row = {"sample": sample, "step": None, "rank": None, "place": None, "position": position}
        return {**row, "repeat": False, "note": note}

    def id_of_key(self, key: str) -> int:
        """Return the id of the first sample with this key; reads the dataset up to this sample."""
        for first, opened in self.parts:
            for number, other in enumerate(keys_in_order(opened, label=f"looking for {printable(key)}"), first):
                if other == key:
                    return number
        msg = f"none of {self.index.num_samples} samples has the key {key!r}"
        raise UsageError(msg, hint="keys are names of tar members up to the first dot, directories included")

    def ids_of_shard(self, name: str, limit: int) -> tuple[list[int], int]:
        """Return the first ``limit`` samples of a shard in the epoch, and the number of its samples."""
        shards = [(before, opened.index, number) for before, opened in self.parts for number, shard in
                 enumerate(opened.index.shard_names) if name in (shard, shard.rpartition("/")[2])]  # fmt: skip
        if len(shards) != 1:
            names = [shard for _, opened in self.parts for shard in opened.index.shard_names]
            among = f"{counted(len(names), 'shard')}, the first {printable(names[0])}"
            msg = f"{printable(name)} is {'the name of several' if shards else 'none'} of {among}"
            raise UsageError(msg, hint="give the whole name, as in `shoal info` and in the rows of `shoal trace`")
        before, index, number = shards[0]
        first, end = (index.extent_first_sample[index.shard_first_extent[number : number + 2]] + before).tolist()
        ids = np.arange(first, end)
        positions = self.documents.untouched(self.epoch).positions(ids)
        by_position = np.lexsort((positions, positions < 0))  # samples without a position are last
        return ids[by_position][:limit].tolist(), end - first

    def add_locations(self, rows: list[Row], *, keys: bool = False) -> None:
        """Add the bytes of the samples to the rows; ``keys`` also reads the samples for their keys."""
        index, dataset = self.index, self.dataset
        with Progress(total=len(rows), label="reading keys") as progress:
            for row in rows:
                shard, first_byte, end_byte = index.place(row["sample"])
                if isinstance(index, JoinedIndex):
                    row["source"] = index.names[index.part_of(row["sample"])[0]]
                row["shard"], row["first_byte"], row["end_byte"] = json_value(shard), first_byte, end_byte
                if keys:
                    row["key"] = json_value(dataset[row["sample"]].get(KEY))
                    progress.advance()

    def add_other_epochs(self, rows: list[Row], epochs: Sequence[int]) -> None:
        """Add to the rows the first step of their samples in other epochs, with the same global batch.

        The step is None if the epoch lacks the sample or drops it with the remainder.
        """
        if self.is_endless:
            msg = "--epochs asks for other epochs, but the epoch of this mixture never ends"
            raise UsageError(msg, hint="leave it out: the rows have the steps of the samples in this epoch")
        ids = np.array([row["sample"] for row in rows], dtype=np.int64)
        for row in rows:
            row["seen"] = {}
        for epoch in epochs if rows else ():
            numbers = self._first_numbers(epoch, ids)
            num_steps = self.partition.num_batches(self.resolved.num_samples_of(epoch))
            for row, number in zip(rows, numbers.tolist(), strict=True):
                step = number // self.partition.global_batch
                row["seen"][epoch] = step if number >= 0 and step < num_steps else None

    def _first_numbers(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position of each sample in an epoch, without gaps; -1 if the epoch lacks the sample."""
        if not isinstance(self.resolved, ResolvedSequences):
            return self.resolved.epoch(epoch).positions(ids)
        order, left = self.resolved.untouched(epoch), self.resolved.left(epoch)
        positions = self.documents.untouched(epoch).positions(ids)
        sequences = [order.sequences_with(position[position >= 0]) for position in positions[:, None]]
        numbers = np.array([held[0] if len(held) else -1 for held in sequences], dtype=np.int64)
        return numbers if left is None else left.numbers(numbers)

    def _rows_of_share(self, rank: int, step: int, *, only: NDArray[np.int64] | None = None) -> Iterator[Row]:
        share = self.partition.share(self.resolved.epoch(self.epoch), rank, step, step + 1, self.start)
        segments = None
        if isinstance(self.resolved, ResolvedSequences):
            segments = self.resolved.segments_in(self.epoch, share.ids)
        ids, slots = (share.ids, np.arange(len(share.ids))) if segments is None else (segments.ids, segments.rows)
        for number in range(len(ids)) if only is None else np.flatnonzero(np.isin(ids, only)).tolist():
            slot = int(slots[number])
            row = {
                "sample": int(ids[number]),
                "step": step,
                "rank": rank,
                "place": slot,
                "position": int(share.positions[slot]),
                "repeat": bool(share.repeated[slot]),
            }
            if segments is not None:
                row["segment"] = int(segments.segments[number])
                row["first_token"], row["end_token"] = int(segments.starts[number]), int(segments.stops[number])
            yield row


def _all_positions(order: MixedEpoch | Repeating, sample: int, most: int) -> NDArray[np.int64]:
    """Return the first ``most`` positions of a sample in an epoch, ascending."""
    if isinstance(order, MixedEpoch):
        return order.all_positions(sample, most)
    positions, num_samples = [-1], cast("BoundOrder", order).num_samples
    while len(positions) <= most and (at := order.first_between(sample, positions[-1] + 1, num_samples)) >= 0:
        positions.append(at)
    return np.array(positions[1:], dtype=np.int64)


def traced_run(arguments: argparse.Namespace) -> TracedRun:
    """Return the run of the arguments; raise `UsageError` if arguments contradict each other or the state."""
    state = None if arguments.state is None else read_state(arguments.state)
    options = given_order_options(arguments) + ["--pack-sequences"] * (arguments.pack_sequences is not None)
    if state is not None and options:
        msg = f"--state determines the order, but {options[0]} asks for another"
        raise UsageError(msg, hint="leave out one of them")
    if state is not None and state.deals:
        msg = f"the state was saved with `{state.deals[0].call}`, but only reading shows the samples of such batches"
        raise UsageError(msg, hint="with_ids() shows the ids in each batch; without --state, only positions are known")
    if state is None and arguments.from_state:
        msg = "--from-state counts from the position of a state, but --state is not given"
        raise UsageError(msg, hint="--state FILE names it")
    world_size = arguments.world_size
    if arguments.rank is not None:
        check_rank(arguments.rank, world_size)
    dataset, resolved = _order(arguments, state)
    epoch, start = arguments.epoch or 0, 0
    if state is not None:
        epoch = state.epoch if arguments.epoch is None else arguments.epoch
        start = resolved.number_of(state.epoch, state.position) if arguments.from_state else 0
        if arguments.from_state and epoch != state.epoch:
            start_text = f"position {state.position} of epoch {state.epoch}"
            msg = f"--from-state counts from {start_text}, but --epoch asks for epoch {epoch}"
            raise UsageError(msg, hint="leave out one of them")
    ranks = range(world_size) if arguments.rank is None else range(arguments.rank, arguments.rank + 1)
    return TracedRun(dataset, resolved, _partition(arguments), epoch, start, ranks)


def _partition(arguments: argparse.Namespace) -> Partition:
    """Return the batches of the options, or of the run."""
    world_size, size = arguments.world_size, arguments.global_batch
    if arguments.batch_size is not None:
        size = arguments.batch_size * world_size
    if size is not None:
        return Partition(size, world_size, arguments.remainder or "keep")
    batching = None if arguments.run is None else arguments.run.dataset.stream.spec.batching
    if batching is None:
        msg = "steps are counted in batches, but the size of a batch is not given"
        raise UsageError(msg, hint="--batch-size B is the size on each rank, --global-batch N over all ranks")
    return cast("Partition", batching.partition(world_size))


def _order(arguments: argparse.Namespace, state: State | None) -> tuple[Dataset, Resolved]:
    """Return the dataset, and its order by the options or by the state, after checking the state."""
    if (arguments.run is None) == (not arguments.source):
        msg = f"shoal trace takes SOURCE or --run MODULE:NAME; got {'both' if arguments.source else 'neither'}"
        raise UsageError(msg)
    if arguments.run is not None:
        return cast("ImportedRun", arguments.run).order(arguments.epoch, state)
    if names_mixture(arguments):
        if state is None:
            mixture = shuffled_mixture(arguments)
            return mixture, packed_as_requested(mixture.resolved, arguments)
        mixture = open_mixture(arguments)
        if PACKED in state.order:
            return mixture, packed_as_saved(mixture.resolved, state, arguments.lengths)
        return mixture, mixture.resolved.resumed(state, NO_GAPS)
    opened = open_with_samples(arguments)
    if state is not None and state.order.get("name") == Growing.name:
        growing = growing_as_saved(opened, OrderRequest(seed=state.seed), state).resumed(state, NO_GAPS)
        epoch = state.epoch if arguments.epoch is None else arguments.epoch
        return Dataset(DatasetSpec.of(growing.growing.whole)), growing.of_epoch(epoch)
    opened = opened if state is None else opened_as_saved(opened, state)
    if state is not None and PACKED in state.order:
        request = request_of_state(of_documents(state), stored=opened.stored)
        documents = ResolvedOrder(opened.index, request, stored=opened.stored)
        return Dataset(DatasetSpec.of(opened)), packed_as_saved(documents, state, arguments.lengths)
    request = requested_order(arguments) if state is None else request_of_state(state, stored=opened.stored)
    gaps = NO_GAPS if state is None else state.gaps
    resolved = ResolvedOrder(opened.index, request, stored=opened.stored, gaps=gaps)
    if state is not None:
        fingerprint, samples = opened.index.fingerprint, resolved.num_samples
        state.check(seed=request.seed, order=resolved.state_order, index=fingerprint, num_samples=samples)
    return Dataset(DatasetSpec.of(opened)), packed_as_requested(resolved, arguments) if state is None else resolved
