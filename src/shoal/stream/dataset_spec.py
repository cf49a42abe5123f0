"""The immutable description of a dataset; each method of a dataset adds a setting, or raises an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from shoal.errors import UsageError
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.arrays.index_ranges import Runs
from shoal.order.orders_without_window import Sequential
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.sampling.weights_and_classes import Repeats, Sampling
from shoal.order.state_dict import Tokenizers
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages.map_and_filter import Filter, filters_in, seeded
from shoal.pipeline.stages.stage import Stage, verb_of
from shoal.pipeline.stages.tokens.tokenizing import tokenizers_of
from shoal.reading.generations.resolved_generations import Generation, ResolvedGenerations
from shoal.reading.growing.resolved_growing import GrowingRequest
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.order_request import OrderRequest, Request, Selection
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_epochs import Source
from shoal.reading.resolved_order import Resolved, resolve
from shoal.stream.choosing.index_columns import choose_by_columns, numbers_left
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.rows import Rows
from shoal.stream.ranks import Ranks
from shoal.stream.verbs.dataset_requests import Batching

_OF_JOINS = 1 << 32  # number of the first seeded stage of a join of datasets; twice as much for a join of joins


Choice = Callable[["DatasetSpec"], "DatasetSpec"]
"""A call that chooses samples or their order. It must pickle: a partial or a methodcaller, not a lambda."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Calls that chose samples, in turn. A pickled copy has none: their functions may not pickle, and workers need none."""

    calls: tuple[Choice, ...] = ()
    are_known: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Choices, ((), not self.calls)

    def __deepcopy__(self, _: Any) -> Choices:
        return self

    def plus(self, choice: Choice) -> Choices:
        """Return these calls and one more."""
        return Choices((*self.calls, choice), self.are_known)

    def made(self, spec: DatasetSpec) -> DatasetSpec:
        """Repeat the calls on another description."""
        if not self.are_known:
            msg = "this dataset was sent from another process, and its choices of samples cannot be repeated here"
            raise UsageError(msg, hint="open the dataset in the process where it grows")
        for choice in self.calls:
            spec = choice(spec)
        return spec


class Refusal(NamedTuple):
    """A rule about the order of calls: the error of a later call that must not follow an earlier call.

    ``earlier`` returns the name of the earlier call, or a false value. ``message`` and ``hint`` may contain
    ``{verb}``, the later call, and ``{earlier}``.
    """

    earlier: Callable[[DatasetSpec, str], object]
    message: str
    hint: str


_MADE_BATCHES = Refusal(
    lambda spec, _: spec.batching and spec.batching.verb,
    "{verb} works on samples, but was called after {earlier}",
    "put {verb} before {earlier}; only map() works on batches",
)
_MADE_THEM_ALREADY = _MADE_BATCHES._replace(
    earlier=lambda spec, verb: (
        spec.batching and {verb, spec.batching.verb} == {"batch()", "batch_by_length()"} and spec.batching.verb
    ),
    hint="batch_by_length() makes the batches itself: leave out batch()",
)
_PACKED = Refusal(
    lambda spec, _: spec.rows.verb,
    "{verb} works on documents, but was called after {earlier}, which makes sequences of them",
    "put {verb} before {earlier}; only map() works on batches, after batch()",
)
_LEFT_OUT = Refusal(
    lambda spec, _: spec.gaps,
    "{verb} would move other samples to the positions that without() leaves out",
    "put {verb} before without()",
)
_FILTERED = Refusal(
    lambda spec, _: any(isinstance(stage, Filter) for stage in spec.stages),
    "{verb} counts samples before any filter, but was called after filter()",
    "put {verb} before filter()",
)
_SAMPLED = Refusal(
    lambda spec, _: spec.request is None and spec.sampling is not None,
    "{verb} chooses stored samples, but was called after sample()",
    "put {verb} before sample()",
)
DIVIDED = Refusal(
    lambda spec, _: spec.rows.divider,
    "{verb} takes whole samples, but was called after {earlier}, which makes several of one",
    "put {verb} before {earlier}",
)
"""The rule of calls that count or group whole samples."""

_BATCHED = (_MADE_THEM_ALREADY, _MADE_BATCHES)

GROUPED = (*_BATCHED, _PACKED)
"""Rules of calls that take single samples."""

CHOSEN = (*GROUPED, DIVIDED, _LEFT_OUT, _FILTERED, _SAMPLED)
"""Rules of calls that choose samples."""


class Coming(NamedTuple):
    """The dataset of the epochs from ``border`` on, which has grown."""

    border: int
    opened: OpenedDataset


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Shards, their order, the processing of their samples, and the division of samples into batches and among ranks.

    Parameters
    ----------
    source
        Shards with or without an index.
    request
        The requested order; None before `shuffle`: storage order.
    stored
        Ids of the samples selected before `shuffle`; None for all.
    sampling
        How often each stored sample appears in an epoch; None for once.
    delivered
        Positions of an epoch selected after `shuffle`; None for all.
    gaps
        Positions that are left out of some epochs.
    stages, batching, batch_stages
        Stages of each sample, the cutting of batches, and stages of each batch.
    rows
        The rows of batches: samples, or sequences that documents are packed into.
    grows
        True if `shuffle` may return the growing order; this order begins before all shards are indexed.
    choices
        The calls that chose samples and their order, to repeat them on the dataset once it has grown.
    made_of
        The function from a dataset that has grown to its description without these calls; None for all samples.
    coming
        The dataset of later epochs; None if all epochs read ``source``.
    follows
        For each part, True if its source is looked at again at the beginning of each epoch; empty for none.
    recovered
        The way in which the dataset of a loaded state was recovered; "" if it is the dataset that was opened.
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
    choices: Choices = field(default_factory=Choices)
    made_of: Callable[[OpenedDataset], DatasetSpec] | None = None
    coming: Coming | None = None
    follows: tuple[bool, ...] = ()
    recovered: str = ""

    @staticmethod
    def of(opened: Opened | Unindexed, request: OrderRequest | None = None, *, grows: bool = False) -> DatasetSpec:
        """Describe all samples of a dataset that take part in it."""
        return DatasetSpec(opened, request, stored=opened.stored, grows=grows)

    @property
    def opened(self) -> OpenedDataset:
        """Shards and their index; builds a missing index."""
        return self.source.whole

    @property
    def tokenizers(self) -> Tokenizers:
        """Identities of all tokenizers, for states; tokenizers of shards without an index are unknown."""
        return tokenizers_of(self.stages, self.source.indexes)

    @property
    def can_begin_early(self) -> bool:
        """True if the order may begin before all shards are indexed: a window over all samples, without columns."""
        request = self.request
        in_window = isinstance(request, OrderRequest) and request.order is None
        chosen = self.stored is not None or self.sampling is not None
        return in_window and not chosen and not self.rows.needs_index

    @property
    def order_request(self) -> Request:
        """The requested order; storage order before `shuffle`."""
        if self.grows and self.can_begin_early:
            return GrowingRequest(cast("OrderRequest", self.request))
        return OrderRequest(Sequential()) if self.request is None else self.request

    def summary(self, resolved: Resolved | None = None) -> str:
        """Return a one-line description, without indexing; ``resolved`` may know the progress of the index."""
        batching, request = self.batching, self.order_request
        parts = [] if request.names_source else [resolved.words if resolved is not None else ""]
        if not request.names_source and not parts[0]:
            parts = [self.source.words(self._counted)]
        if self.sampling is not None:
            parts.append(f"sampled ({self.repeats})")
        if self.request is not None:
            parts += request.words(self._counted)
        parts += [verb_of(stage) for stage in self.stages if not stage.own_stages]
        parts += self.rows.words
        parts += [] if batching is None else [batching.words]
        parts += [self.recovered] if self.recovered else []
        if self.coming is not None:
            parts.append(f"from epoch {self.coming.border:,} on {self.coming.opened.index.num_samples:,} samples")
        return ", ".join(parts)

    def _counted(self) -> str:
        """Return the number of samples of an epoch in words."""
        num_samples = self.num_samples
        return "endless" if num_samples > FOREVER // 2 else f"{num_samples:,} {self.rows.noun}"

    # ---- additions by methods of `Dataset`

    def refuse(self, verb: str, rules: tuple[Refusal, ...]) -> None:
        """Raise `UsageError` if the call ``verb`` must not follow an earlier call."""
        for rule in rules:
            if earlier := rule.earlier(self, verb):
                message, hint = (text.format(verb=verb, earlier=earlier) for text in (rule.message, rule.hint))
                raise UsageError(message, hint=hint)

    def in_order(self, request: OrderRequest) -> DatasetSpec:
        """Set the order of the samples; allowed once."""
        self.refuse("shuffle()", GROUPED)
        shuffled = replace(self, request=request if self.request is None else self.request.shuffled(request))
        self.refuse("shuffle()", (_LEFT_OUT,))
        if self.request is not None:
            return shuffled
        if self.sampling is not None and request.has_own_length:
            msg = f"{request.order!r} decides itself how often samples come, so sample() cannot come before"
            raise UsageError(msg, hint="an order of shoal itself, such as shuffle(), takes sampled datasets")
        if request.has_own_length and self.num_samples and not shuffled.num_samples:
            msg = f"{request.order!r} drops all of {self.num_samples:,} samples: they do not fill one round of batches"
            raise UsageError(msg, hint="smaller batches, fewer ranks or workers, or an order that drops no samples")
        return shuffled

    def selected(self, samples: Any, columns: Mapping[str, Any]) -> DatasetSpec:
        """Keep only these samples (numbers or a mask), or the samples that match columns of the index."""
        if (samples is None) == (not columns):
            msg = "select() takes samples, or columns of the index by name"
            raise UsageError(msg, hint="select([3, 5, 8]) or select(sample_bytes=lambda size: size < 1_000_000)")
        if columns:
            index = self.opened.one("select() by columns").index
            if self.request is not None:
                msg = "columns of the index select stored samples; after shuffle() there are only positions"
                raise UsageError(msg, hint="put select() before shuffle()")
            samples = choose_by_columns(index, columns)
            if self.stored is not None:
                samples = samples[self.stored.members(np.arange(len(self.stored)))]
        elif self.request is None and self.stored is not None:
            samples = numbers_left(samples, self.stored)
        return self.only(Runs.of(samples, self.num_samples), "select()")

    def taken(self, num_samples: int) -> DatasetSpec:
        """Keep only the first samples: of storage, or of every epoch."""
        return self.only(Runs.span(0, min(num_samples, self.num_samples)), "take()")

    def skipped(self, num_samples: int) -> DatasetSpec:
        """Leave out the first samples: of storage, or of every epoch."""
        return self.only(Runs.span(min(num_samples, self.num_samples), self.num_samples), "skip()")

    def only(self, runs: Runs, verb: str) -> DatasetSpec:
        """Keep only these samples: stored samples before `shuffle`, positions of every epoch after it."""
        self.refuse(verb, CHOSEN)
        if self.request is not None and self.request.varies:
            msg = f"{verb} chooses positions of every epoch, but epochs of this mixture differ in length"
            raise UsageError(msg, hint=f"{verb[:-1]}...) on its sources")
        if not len(runs):
            raise UsageError(f"{verb} leaves none of {self.num_samples} samples")
        if self.request is None:
            return replace(self, stored=runs if self.stored is None else self.stored.of_members(runs))
        return replace(self, delivered=runs if self.delivered is None else self.delivered.of_members(runs))

    def then(self, stage: Stage, verb: str, *, takes_batches: bool = False) -> DatasetSpec:
        """Add the stage of a method; ``takes_batches`` if the method works on batches, too."""
        if not takes_batches or self.batching is None:
            self.refuse(verb, GROUPED)
        if self.batching is not None:
            return replace(self, batch_stages=(*self.batch_stages, stage))
        return replace(self, stages=(*self.stages, self.rows.stage(stage)))

    def in_batches(self, batching: Batching) -> DatasetSpec:
        """Cut the samples into batches; allowed once."""
        self.refuse("batch()", _BATCHED)
        batched = replace(self, batching=batching)
        if batching.balance and not batched.batcher.weighs:
            msg = 'batch(balance="attention") weighs sequences by lengths in the index, but there are none'
            raise UsageError(
                msg, hint="call pack_sequences(lengths=...) before, or name a column: balance='num_tokens'"
            )
        if batching.num_steps is not None and not batched.batcher.counts_share:
            msg = f"batch(steps={batching.steps!r}) is for ranks that fill their batches; ranks of this dataset do not"
            raise UsageError(msg, hint="leave out steps=: all ranks yield the same number of batches")
        return batched

    # ---- derived properties

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch over all ranks, before any filter."""
        if self.delivered is not None:
            return len(self.delivered)
        if self.sampling is not None:
            return self.sampling.num_samples
        if self.order_request.has_own_length:
            return resolve(self.order_request, self.source, self._selection(NO_GAPS)).num_samples
        return self.opened.index.num_samples if self.stored is None else len(self.stored)

    @property
    def repeats(self) -> Repeats | None:
        """Repeats and gaps of the sampling; None without sampling."""
        return None if self.sampling is None else self.sampling.repeats

    @property
    def seeded_stages(self) -> tuple[Stage, ...]:
        """The stages of samples; a stage without a seed has the seed of the order."""
        # Stages of a join get separate numbers, because the first part has the same sample ids as the join.
        return seeded(self.stages, self.order_request.seed, first_number=_OF_JOINS * self.source.depth)

    @property
    def has_filters(self) -> bool:
        """True if the number of remaining samples is unknown before reading."""
        return any(filters_in(self.stages))

    @property
    def batcher(self) -> Batcher:
        """The maker of batches."""
        rows = self.rows.in_chunks(*self.ranks.num_chunks)
        return rows.batcher(self.source, self.stages, batched=self.batching is not None)

    def chosen(self, choice: Choice) -> DatasetSpec:
        """Return the result of a call that chooses samples or their order, and keep the call for a grown dataset."""
        return replace(choice(self), choices=self.choices.plus(choice))

    def moved(self, opened: OpenedDataset) -> DatasetSpec:
        """Return the same description of another generation of the dataset: calls that choose samples are repeated.

        Raises `UsageError`: a call cannot be repeated, such as `select` with a mask of the size of the dataset.
        """
        fresh = DatasetSpec.of(cast("Opened", opened)) if self.made_of is None else self.made_of(opened)
        fresh = self.choices.made(fresh)
        chosen = {name: getattr(fresh, name) for name in ("request", "stored", "sampling", "delivered", "made_of")}
        own_stages = len(fresh.stages)  # of a mixture: the stages of its sources
        stages = (*fresh.stages, *self.stages[own_stages:])
        return replace(self, source=opened, stages=stages, coming=None, grows=False, **chosen)

    def in_epoch(self, epoch: int) -> DatasetSpec:
        """Return the description of the dataset that an epoch reads."""
        coming = self.coming
        return self if coming is None or epoch < coming.border else self.moved(coming.opened)

    def resolve(self) -> Resolved:
        """Return the order resolved to integers."""
        if self.coming is not None:
            border, opened = self.coming
            running = Generation(self.opened, replace(self, coming=None).resolve())
            return ResolvedGenerations(running, Generation(opened, self.moved(opened).resolve()), border)
        return self.rows.resolved(partial(resolve, self.order_request, self.source), self._selection, self.gaps)

    def _selection(self, gaps: Gaps) -> Selection:
        return Selection(self.stored, self.sampling, self.delivered, gaps)
