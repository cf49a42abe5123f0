"""Descriptions of an iterator's work, made before any reads, for this process or for workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from shoal.indexing.opened_dataset import OpenedDataset
from shoal.order.state_dict import Tokenizers, tokenizers_text
from shoal.order.states.deals import Start
from shoal.order.states.forms import MAX_POSITION
from shoal.pipeline.decode_pool import Threaded
from shoal.pipeline.stages.tokens.tokenizing import tokenizers_of
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import Resolved
from shoal.stats.counters import Counters
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.iterating.single_samples import SingleSamples
from shoal.stream.states.iterator_position import Cursor, Position


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a process needs to make batches of any epoch of one rank; it pickles, and has no position.

    ``opened`` is the first piece of ``resolved``. ``steps`` is an argument of `Dataset.batch`; ranks compare it.
    """

    opened: OpenedDataset
    resolved: Resolved
    pipeline: PipelineSpec
    options: ReadingOptions
    batcher: Batcher = field(default_factory=SingleSamples)
    steps: int | str | None = None

    @property
    def tokenizers(self) -> Tokenizers:
        """Identities of the tokenizers of all tokens, for states."""
        return tokenizers_of(self.pipeline.stages, self.opened.indexes)

    def of_worker(self, worker: int, num_workers: int) -> WorkerSpec:
        """Return the spec of one of ``num_workers`` workers, which share the memory limit of this process.

        Views are turned off, because values are copied to another process anyway.
        """
        limit = self.options.memory_limit_bytes
        limit_bytes = None if limit is None else max(1, limit // num_workers)
        options = replace(self.options, copy=True, memory_limit_bytes=limit_bytes)
        ahead_bytes = max(1, self.pipeline.ahead_bytes // num_workers)
        pipeline = replace(self.pipeline, worker=worker, num_workers=num_workers, ahead_bytes=ahead_bytes)
        return replace(self, pipeline=pipeline, options=options, batcher=self.batcher.of_worker())


@dataclass(frozen=True, slots=True)
class IteratorSpec:
    """A rank's work from position ``start`` of an epoch to its end, beginning with the batch at ``first_step``.

    ``start`` and steps do not count gaps. ``cursor`` follows the iterator; None for a worker, whose batches are counted
    by their receiver. If ranks fill batches, ``first_step`` counts samples; ``num_sequences`` and ``later`` are as in
    `Position`. With ``knows_end``, the iterator waits until all samples of the epoch are counted; else it may begin
    before. ``ahead`` counts batches made ahead of use, and their receiver adds the counts to ``counters``. ``convert``
    maps the iterator over batches to an iterator over converted batches.
    """

    work: WorkerSpec
    epoch: int
    start: int
    first_step: int = 0
    counters: Counters = field(default_factory=Counters)
    cursor: Cursor | None = None
    num_sequences: int = 0
    later: Mapping[int, Start] = field(default_factory=dict)
    knows_end: bool = True
    ahead: Counters | None = None
    convert: Callable[[Iterator[Any]], Iterator[Any]] | None = None

    def position(self) -> Position:
        """Return the starting position; it advances batch by batch."""
        work = self.work
        num_samples = work.resolved.num_samples_of(self.epoch) if self.knows_end else MAX_POSITION
        pipeline = work.pipeline
        return Position(
            self.epoch,
            self.start,
            pipeline.partition,
            num_samples,
            self.first_step,
            leaves_out=pipeline.has_filters or work.options.leaves_out,
            rank=pipeline.rank if work.batcher.counts_share else None,
            later=self.later,
            num_sequences=self.num_sequences,
            knows_end=self.knows_end,
        )

    @property
    def results(self) -> Counters:
        """The counters of the maker of samples and batches."""
        return self.counters if self.ahead is None else self.ahead

    @property
    def num_steps(self) -> int:
        """Number of batches from ``start`` to the end of the epoch, or of positions without batches."""
        return self.position().num_steps

    def settings(self) -> tuple[dict[str, Any], int]:
        """Return the settings that all ranks must share, in JSON types, and the number of this rank's part."""
        work, partition = self.work, self.work.pipeline.partition
        state = work.resolved.state_at(self.epoch, 0)
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
            settings["tokenizer"] = tokenizers_text(tokenizers)
        if partition.balance:
            settings["neighbours"] = partition.balance
        settings |= work.batcher.settings("" if self.cursor is None else self.cursor.loaded, work.steps)
        return settings, work.pipeline.rank

    def unobserved(self) -> IteratorSpec:
        """Return this spec without the cursor and the report of progress: the receiver of the batches updates both."""
        options = replace(self.work.options, progress="", is_received=True)
        return replace(self, work=replace(self.work, options=options), cursor=None)

    def made_ahead(self) -> IteratorSpec:
        """Return this spec for batches that are made ahead of use."""
        return replace(self, ahead=Counters())

    def of_worker(self, worker: int, num_workers: int, *, first_step: int = 0) -> IteratorSpec:
        """Return the spec of one of ``num_workers`` workers from a step on, without the cursor."""
        return replace(self, work=self.work.of_worker(worker, num_workers), first_step=first_step, cursor=None)

    def with_threads(self, threaded: Threaded | None, *, ahead_bytes: int) -> IteratorSpec:
        """Return this spec with the first stages of samples run in threads, and a limit on samples made ahead."""
        return self._with_pipeline(threaded=threaded, ahead_bytes=ahead_bytes)

    def converted(self, convert: Callable[[Iterator[Any]], Iterator[Any]]) -> IteratorSpec:
        """Return this spec with converted batches."""
        return replace(self, convert=convert)

    def gathered_into(self, allocate: Callable[..., NDArray[Any]]) -> IteratorSpec:
        """Return this spec with batches of columns in arrays that ``allocate`` makes of a shape and a type."""
        return self._with_pipeline(allocate=allocate)

    def _with_pipeline(self, **changes: Any) -> IteratorSpec:
        return replace(self, work=replace(self.work, pipeline=replace(self.work.pipeline, **changes)))
