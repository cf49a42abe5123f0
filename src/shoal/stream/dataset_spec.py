"""The immutable description of a dataset, to which each method of a user adds one thing, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from shoal.errors import UsageError
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.sampling.shares import Repeats, Sampling
from shoal.order.sequential_and_full import Sequential
from shoal.order.state_dict import Tokenizers
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages.map_and_filter import Filter, filters_in, seeded
from shoal.pipeline.stages.stage import Stage, verb_of
from shoal.pipeline.stages.tokenizing import tokenizers_of
from shoal.reading.growing.resolved_growing import GrowingRequest
from shoal.reading.order_request import OrderRequest, Request, Selection
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_epochs import Source
from shoal.reading.resolved_order import Resolved
from shoal.reading.resolving import resolve
from shoal.stream.dataset_requests import Batching, choose_by_columns, count_of, numbers_left
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.ranks import Ranks
from shoal.stream.rows import Rows

_OF_JOINS = 1 << 32  # number of the first seeded stage of a join of datasets; one of joins begins at twice as much


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Shards, an order over them, the processing of their samples, and their division into batches and among ranks.

    Parameters
    ----------
    source
        Shards and their index, or shards that have none yet.
    request
        The order that was asked for; None before `shuffle`: that of storage.
    stored
        Ids of the samples that were selected before `shuffle`; None for all.
    sampling
        How often each of them comes in an epoch; None for once.
    delivered
        Positions of an epoch that were selected after `shuffle`; None for all.
    gaps
        Positions that are left out of some epochs.
    stages, batching, batch_stages
        Stages of each sample, the cutting of batches, and stages of each batch.
    rows
        The rows of batches: samples, or sequences that documents are packed into.
    grows
        True if `shuffle` may give the growing order, which begins before all shards are indexed.
    """

    source: Source
    request: Request | None = None
    stored: Runs | None = None
    sampling: Sampling | None = None
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS
    stages: tuple[Stage, ...] = ()
    batching: Batching | None = None
    batch_stages: tuple[Stage, ...] = ()
    rows: Rows = field(default_factory=Rows)
    ranks: Ranks = field(default_factory=Ranks)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    formatting: Formatting = field(default_factory=Formatting)
    grows: bool = False

    @staticmethod
    def of(opened: Opened | Unindexed, request: OrderRequest | None = None, *, grows: bool = False) -> DatasetSpec:
        """Describe all samples of a dataset that take part in it."""
        return DatasetSpec(opened, request, stored=opened.stored, grows=grows)

    @property
    def opened(self) -> OpenedDataset:
        """Shards and their index, which is made first if there is none."""
        return self.source.whole

    @property
    def tokenizers(self) -> Tokenizers:
        """Identities of the tokenizers of all tokens, for states; shards without an index do not tell theirs."""
        return tokenizers_of(self.stages, self.source.indexes)

    @property
    def can_begin_early(self) -> bool:
        """True if the order may begin before all is indexed: a window over all samples, without columns or lengths."""
        asked = self.request
        in_window = isinstance(asked, OrderRequest) and asked.order is None
        chosen = self.stored is not None or self.sampling is not None
        return in_window and not chosen and not self.rows.needs_index

    @property
    def asked(self) -> Request:
        """The order that was asked for: that of storage before `shuffle`."""
        if self.grows and self.can_begin_early:
            return GrowingRequest(cast("OrderRequest", self.request))
        return OrderRequest(Sequential()) if self.request is None else self.request

    def summary(self, resolved: Resolved | None = None) -> str:
        """Return a one-line description, without indexing anything; ``resolved`` knows what is indexed by now."""
        batching, asked, what = self.batching, self.asked, self.rows.noun
        parts = [] if asked.names_source else [resolved.words if resolved is not None else ""]
        if not asked.names_source and not parts[0]:
            parts = [self.source.words(lambda: f"{self.num_samples:,} {what}")]
        if self.sampling is not None:
            parts.append(f"sampled ({self.repeats})")
        if self.request is not None:
            parts += asked.words(lambda: f"{self.num_samples:,} {what}")
        parts += [verb_of(stage) for stage in self.stages if not stage.own_stages]
        parts += self.rows.words
        parts += [] if batching is None else [batching.words]
        return ", ".join(parts)

    # ---- additions by methods of `Dataset`

    def in_order(self, request: OrderRequest) -> DatasetSpec:
        """Set the order of the samples; allowed once."""
        self.refuse_after_grouping("shuffle()")
        shuffled = replace(self, request=request if self.request is None else self.request.shuffled(request))
        self._refuse_after_gaps("shuffle()")
        if self.request is not None:
            return shuffled
        if self.sampling is not None and request.has_own_length:
            msg = f"{request.order!r} decides itself how often samples come, and was asked for after sample()"
            raise UsageError(msg, hint="an order of shoal itself, such as shuffle(), takes sampled datasets")
        if request.has_own_length and self.num_samples and not shuffled.num_samples:
            msg = f"{request.order!r} drops all of {self.num_samples:,} samples: they do not fill what it deals out"
            raise UsageError(msg, hint="smaller batches, fewer ranks or workers, or an order that drops no samples")
        return shuffled

    def selected(self, samples: Any, columns: Mapping[str, Any]) -> DatasetSpec:
        """Keep only these samples (numbers or a mask), or those that match columns of the index."""
        if (samples is None) == (not columns):
            msg = "select() takes samples, or columns of the index by name"
            raise UsageError(msg, hint="select([3, 5, 8]) or select(sample_bytes=lambda size: size < 1_000_000)")
        if columns:
            self.dataset("select() by columns")
        if columns and self.request is not None:
            msg = "columns of the index select stored samples; after shuffle() there are only positions"
            raise UsageError(msg, hint="put select() before shuffle()")
        if columns:
            samples = choose_by_columns(self.dataset("select() by columns").index, columns)
            if self.stored is not None:
                samples = samples[self.stored.members(np.arange(len(self.stored)))]
        elif self.request is None and self.stored is not None:
            samples = numbers_left(samples, self.stored)
        return self.only(Runs.of(samples, self.num_samples), "select()")

    def taken(self, num_samples: Any) -> DatasetSpec:
        """Keep only the first samples."""
        return self.only(Runs.span(0, min(count_of(num_samples, "take()"), self.num_samples)), "take()")

    def skipped(self, num_samples: Any) -> DatasetSpec:
        """Skip the first samples."""
        first = min(count_of(num_samples, "skip()"), self.num_samples)
        return self.only(Runs.span(first, self.num_samples), "skip()")

    def only(self, runs: Runs, verb: str) -> DatasetSpec:
        """Keep only these samples, numbered among those left: of storage before `shuffle`, of epochs after it."""
        self.refuse_selection(verb)
        if self.request is not None and self.request.varies:
            msg = f"{verb} chooses positions of every epoch, and epochs of this mixture differ in length"
            raise UsageError(msg, hint=f"{verb[:-1]}...) on its sources")
        if not len(runs):
            raise UsageError(f"{verb} leaves none of {self.num_samples} samples")
        if self.request is None:
            return replace(self, stored=runs if self.stored is None else self.stored.of_members(runs))
        return replace(self, delivered=runs if self.delivered is None else self.delivered.of_members(runs))

    def then(self, stage: Stage, verb: str, *, takes_batches: bool = False) -> DatasetSpec:
        """Add the stage of a method, which may take batches as well as samples."""
        if not takes_batches or self.batching is None:
            self.refuse_after_grouping(verb)
        if self.batching is not None:
            return replace(self, batch_stages=(*self.batch_stages, stage))
        return replace(self, stages=(*self.stages, stage))

    def in_batches(self, batching: Batching) -> DatasetSpec:
        """Cut the samples into batches; allowed once."""
        self._refuse_after_batch("batch()")
        batched = replace(self, batching=batching)
        if batching.balance and not batched.batcher.weighs:
            msg = 'batch(balance="attention") weighs sequences by lengths in the index, and there are none'
            raise UsageError(msg, hint="call pack_sequences(lengths=...) before")
        if batching.num_steps is not None and not batched.batcher.counts_share:
            msg = f"batch(steps={batching.steps!r}) is for ranks that fill their batches; those of this dataset do not"
            raise UsageError(msg, hint="leave out steps=: all ranks yield the same number of batches")
        return batched

    def read_by(self, options: ReadingOptions) -> DatasetSpec:
        """Set the reading options; allowed once."""
        if self.reading != ReadingOptions():
            msg = "reading() was called before; a second call would override the first"
            raise UsageError(msg, hint="give all options in one call")
        return replace(self, reading=options)

    def refuse_selection(self, verb: str) -> None:
        """Raise `UsageError` if samples can no longer be selected: after `batch`, `without`, `filter` or `sample`."""
        self.refuse_after_grouping(verb)
        self._refuse_after_gaps(verb)
        if any(isinstance(stage, Filter) for stage in self.stages):
            msg = f"{verb} counts samples before any filter, and was called after filter()"
            raise UsageError(msg, hint=f"put {verb} before filter()")
        if self.request is None and self.sampling is not None:
            msg = f"{verb} chooses stored samples, and was called after sample()"
            raise UsageError(msg, hint=f"put {verb} before sample()")

    def _refuse_after_gaps(self, verb: str) -> None:
        if self.gaps:
            msg = f"{verb} would move other samples to the positions that without() leaves out"
            raise UsageError(msg, hint=f"put {verb} before without()")

    def _refuse_after_batch(self, verb: str) -> None:
        if self.batching is not None:
            before = self.batching.verb
            msg = f"{verb} works on samples, and was called after {before}"
            if {verb, before} == {"batch()", "batch_by_length()"}:
                raise UsageError(msg, hint="batch_by_length() makes the batches itself: leave batch() out")
            raise UsageError(msg, hint=f"put {verb} before {before}; only map() works on batches")

    def refuse_after_grouping(self, verb: str) -> None:
        """Raise `UsageError` after `batch`, and after `pack_sequences`: there are batches or sequences, no samples."""
        self._refuse_after_batch(verb)
        if before := self.rows.verb:
            msg = f"{verb} works on documents, and was called after {before}, which makes sequences of them"
            raise UsageError(msg, hint=f"put {verb} before {before}; only map() works on batches, after batch()")

    # ---- derived properties

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch over all ranks, before any filter."""
        left = self.delivered if self.delivered is not None else self.stored
        if self.delivered is None and self.sampling is not None:
            return self.sampling.num_samples
        if self.delivered is None and self.asked.has_own_length:
            return resolve(self.asked, self.source, self._selection(NO_GAPS)).num_samples
        return self.opened.index.num_samples if left is None else len(left)

    @property
    def repeats(self) -> Repeats | None:
        """Repeats and gaps of the sampling; None without one."""
        return None if self.sampling is None else self.sampling.repeats

    def dataset(self, verb: str) -> Opened:
        """Return the dataset; raise `UsageError` for a mixture, which is several."""
        return self.opened.one(verb)

    @property
    def seeded_stages(self) -> tuple[Stage, ...]:
        """The stages of samples, with the seed of the order for those that have none of their own."""
        # Stages of a join get numbers of their own: the first part has the same sample ids as the join.
        return seeded(self.stages, self.asked.seed, first_number=_OF_JOINS * self.source.depth)

    @property
    def filters(self) -> bool:
        """True if the number of samples that remain is not known before they are read."""
        return any(filters_in(self.stages))

    @property
    def batcher(self) -> Batcher:
        """The way in which batches are made."""
        return self.rows.batcher(self.source, self.stages, batched=self.batching is not None)

    def resolve(self) -> Resolved:
        """Return the order resolved to integers."""
        return self.rows.resolved(partial(resolve, self.asked, self.source), self._selection, self.gaps)

    def _selection(self, gaps: Gaps) -> Selection:
        return Selection(self.stored, self.sampling, self.delivered, gaps)

    def partition(self, world_size: int) -> Partition:
        """Return the partition of epochs at this world size."""
        return self.batcher.partition(self.batching, world_size)
