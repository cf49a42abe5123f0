"""Descriptions of an iterator's work, made before any reads, for this process or for workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.deals import Start
from shoal.order.partition import Partition
from shoal.order.state_dict import Tokenizers, told_tokenizers
from shoal.order.states.forms import MAX_POSITION
from shoal.pipeline.collate import collate, nested
from shoal.pipeline.columns.column_sources import gathers
from shoal.pipeline.decode_pool import Threaded
from shoal.pipeline.missing_fields import warner_of_missing
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.padded_arrays import PaddedFields
from shoal.pipeline.quarantine import Quarantine
from shoal.pipeline.sequence_arrays import SequenceFields
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.stages.tokenizing import tokenizers_of
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.resolved_sequences import Resolved
from shoal.stats.counters import Counters
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.stream.iterator_position import Cursor, Position


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Stages of a sample, collation, stages of a batch; and the division of batches among workers.

    Worker ``worker`` of ``num_workers`` makes those of the rank's batches whose step leaves this remainder.
    ``threaded`` are the stages that run in threads; None for none. ``allocate`` makes the arrays of batches that are
    gathered from columns, or stacked. With ``in_parts``, if batches are to be filled, this process gives what is left
    of each global batch, and another cuts the batches. ``sequences`` are the fields of sequences, if documents are
    packed.
    """

    partition: Partition
    rank: int
    stages: tuple[Stage, ...]
    batch_stages: tuple[Stage, ...] = ()
    collate: Callable[[list[Any]], Any] = collate
    worker: int = 0
    num_workers: int = 1
    formatting: Formatting = field(default_factory=Formatting)
    threaded: Threaded | None = None
    allocate: Callable[..., NDArray[Any]] = np.empty
    in_parts: bool = False
    sequences: SequenceFields | PaddedFields | None = None

    @property
    def fills(self) -> bool:
        """True if batches are filled here."""
        return self.partition.refills and not self.in_parts

    @property
    def filters(self) -> bool:
        """True if the samples that remain are not known before they are read."""
        return any(filters_in(self.stages))

    @property
    def stacks(self) -> bool:
        """True if batches can be made of columns, since no stage does anything that columns do not allow."""
        usual = self.collate is collate and self.sequences is None
        return self.partition.batched and usual and gathers(self.stages)

    def makes_together(self, quarantine: Quarantine | None) -> bool:
        """True if samples may be made before they are due: no function of a user sees them, and none is left out."""
        usual = quarantine is None and self.threaded is None and self.sequences is None and self.num_workers == 1
        alone = self.partition.batched or self.partition.refills
        return usual and not alone and have_no_effects(self.stages)

    @property
    def collator(self) -> Callable[[list[Any]], Any]:
        """The function that makes a batch of samples after their stages, before `after_collation`."""
        if self.collate is not collate:
            return self.collate
        return partial(collate, allocate=self.allocate, on_missing=warner_of_missing(self.stages))

    @property
    def after_collation(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions that convert a batch, collated or gathered, for the stages of batches."""
        nests = self.collate is collate and self.formatting.nests
        nesting = (partial(nested, allocate=self.allocate),) if nests else ()
        return nesting if self.formatting.name is None else (*nesting, self.formatting.finished)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a process needs to make batches of any epoch of one rank; it pickles, and has no position.

    With ``growing``, ``opened`` and ``resolved`` are those of the first segment, and `of_epoch` gives the rest.
    ``numbering`` names the dataset whose samples have these ids; None for that of the index. ``steps`` are those of
    `Dataset.batch`, which ranks compare.
    """

    opened: Opened | OpenedMixture
    resolved: Resolved
    pipeline: PipelineSpec
    options: ReadingOptions
    growing: ResolvedGrowing | None = None
    numbering: str | None = None
    steps: int | str | None = None

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The caches of all datasets."""
        return self.opened.caches if self.growing is None else self.growing.growing.caches

    @property
    def tokenizers(self) -> Tokenizers:
        """Identities of the tokenizers of all tokens, for states."""
        return tokenizers_of(self.pipeline.stages, self.opened.indexes)

    def grows(self, epoch: int) -> bool:
        """Return True if an epoch can be read while shards are still indexed."""
        return self.growing is not None and self.growing.grows(epoch)

    def of_epoch(self, epoch: int) -> WorkerSpec:
        """Return the work of one epoch of shards that are all indexed, waiting until they are."""
        return self if self.growing is None else self.of_piece(self.growing.growing.whole, self.growing.of_epoch(epoch))

    def of_piece(self, opened: Opened, resolved: ResolvedOrder) -> WorkerSpec:
        """Return the work on some of the shards."""
        numbering = None if self.growing is None else self.growing.numbering
        return replace(self, opened=opened, resolved=resolved, growing=None, numbering=numbering)

    def of_worker(self, worker: int, num_workers: int) -> WorkerSpec:
        """Return the spec of one of ``num_workers`` workers, which share the memory limit of this process.

        Values are copied on their way to another process, so views are turned off.
        """
        limit = self.options.memory_limit_bytes
        each = None if limit is None else max(1, limit // num_workers)
        options = replace(self.options, copy=True, memory_limit_bytes=each)
        in_parts = self.pipeline.partition.refills
        pipeline = replace(self.pipeline, worker=worker, num_workers=num_workers, in_parts=in_parts)
        return replace(self, pipeline=pipeline, options=options)


@dataclass(frozen=True, slots=True)
class IteratorSpec:
    """A rank's work from position ``start`` of an epoch to its end, beginning with the batch at ``first_step``.

    ``start`` and steps count what is left of the epoch. ``cursor`` follows the iterator; None for the work of others,
    whose batches are counted where they are received. Where batches are filled, ``first_step`` counts samples, and
    ``num_sequences`` and ``later`` are as in `Position`. If the epoch ``grows``, it is read in pieces, while shards are
    still indexed. ``ahead`` counts samples and batches for a receiver, who adds them to ``counters``; None if each is
    given out as soon as it is made.
    """

    work: WorkerSpec
    epoch: int
    start: int
    first_step: int = 0
    counters: Counters = field(default_factory=Counters)
    cursor: Cursor | None = None
    num_sequences: int = 0
    later: Mapping[int, Start] = field(default_factory=dict)
    grows: bool = False
    ahead: Counters | None = None

    def position(self) -> Position:
        """Return the starting position, which is advanced batch by batch."""
        work = self.work
        num_samples = MAX_POSITION if self.grows else (work.growing or work.resolved).num_samples_of(self.epoch)
        pipeline = work.pipeline
        return Position(
            self.epoch,
            self.start,
            pipeline.partition,
            num_samples,
            self.first_step,
            leaves_out=pipeline.filters or work.options.leaves_out,
            rank=pipeline.rank if pipeline.fills else None,
            later=self.later,
            num_sequences=self.num_sequences,
            grows=self.grows,
        )

    @property
    def results(self) -> Counters:
        """The counters of samples and batches where they are made."""
        return self.counters if self.ahead is None else self.ahead

    @property
    def growing(self) -> ResolvedGrowing | None:
        """The epochs of shards that are still indexed, if this one is read in pieces."""
        return self.work.growing if self.grows else None

    @property
    def num_steps(self) -> int:
        """Number of batches from ``start`` to the end of the epoch, or of positions without batches."""
        return self.position().num_steps

    def settings(self) -> tuple[dict[str, Any], int]:
        """Return the settings that all ranks must share, in JSON types, and the part of the samples of this one."""
        work, partition = self.work, self.work.pipeline.partition
        state = (work.growing or work.resolved).state_at(self.epoch, 0)
        settings = {
            "dataset": state["index"],
            "seed": state["seed"],
            "order": state["order"],
            "epoch": self.epoch,
            "position": self.start,
            "global batch": partition.global_batch if partition.batched else "none",
            "remainder": partition.remainder,
            "world size": partition.world_size,
        }
        if tokenizers := work.tokenizers:
            settings["tokenizer"] = told_tokenizers(tokenizers)
        if partition.balance:
            settings["neighbours"] = partition.balance
        if partition.refills:
            loaded = "" if self.cursor is None else self.cursor.loaded
            place = f"that of the rank in the merged state {loaded}" if loaded else "that of the rank"
            settings |= {"epoch": place, "position": place, "steps": self.work.steps}
        return settings, work.pipeline.rank

    def unobserved(self) -> IteratorSpec:
        """Return this spec without the cursor and the progress line, which the receiver of the batches moves."""
        options = replace(self.work.options, progress=False)
        return replace(self, work=replace(self.work, options=options), cursor=None)

    def made_ahead(self) -> IteratorSpec:
        """Return this spec for batches that are made before somebody receives them."""
        return replace(self, ahead=Counters())

    def of_worker(self, worker: int, num_workers: int, *, first_step: int = 0) -> IteratorSpec:
        """Return the spec of one of ``num_workers`` workers from a step on; it moves no cursor."""
        return replace(self, work=self.work.of_worker(worker, num_workers), first_step=first_step, cursor=None)

    def with_threads(self, threaded: Threaded | None) -> IteratorSpec:
        """Return this spec with the first stages of samples run in threads."""
        return self._with_pipeline(threaded=threaded)

    def gathered_into(self, allocate: Callable[..., NDArray[Any]]) -> IteratorSpec:
        """Return this spec with batches of columns in arrays that ``allocate`` makes of a shape and a type."""
        return self._with_pipeline(allocate=allocate)

    def _with_pipeline(self, **changes: Any) -> IteratorSpec:
        return replace(self, work=replace(self.work, pipeline=replace(self.work.pipeline, **changes)))


def have_no_effects(stages: Sequence[Stage]) -> bool:
    """Return True if stages do nothing but select, rename and decode numbers, text and the like by shoal's functions.

    Media take long and much memory, so that they are decoded one by one.
    """
    return gathers([
        stage
        for stage in stages
        if not isinstance(stage, Decode) or stage.has_functions or stage.has_media
    ])  # fmt: skip
