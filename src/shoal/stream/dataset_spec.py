"""The immutable description of a dataset, to which each method of a user adds one thing, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.sampling.shares import Repeats, Sampling
from shoal.order.sequences.packed_order import Packing
from shoal.order.sequential_and_full import Sequential
from shoal.order.state_dict import Tokenizers
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.sequence_arrays import SequenceFields
from shoal.pipeline.stages.map_and_filter import Filter, filters_in
from shoal.pipeline.stages.seeded_map import seeded
from shoal.pipeline.stages.stage import Stage, verb_of
from shoal.pipeline.stages.tokenizing import tokenizers_of
from shoal.reading.growing.resolved_growing import ResolvedGrowing, growing_order
from shoal.reading.large_chunks import can_spill
from shoal.reading.mixture.mix_request import FOREVER, MixRequest
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import OrderRequest, ResolvedOrder
from shoal.reading.resolved_sequences import Resolved, ResolvedSequences
from shoal.stream.dataset_requests import APART, Batching, choose_by_columns, count_of, numbers_left
from shoal.stream.ranks import Ranks
from shoal.stream.sampling.sampling_requests import sampling_of
from shoal.stream.sequences.sequence_requests import SequenceRequest

_OF_MIXTURES = (
    1 << 32
)  # number of the first seeded stage of a mixture of datasets; one of mixtures begins at twice as much


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
    sequences
        How documents are packed into sequences; None if samples are not packed.
    grows
        True if `shuffle` may give the growing order, which begins before all shards are indexed.
    """

    source: Opened | OpenedMixture | Unindexed
    request: OrderRequest | MixRequest | None = None
    stored: Runs | None = None
    sampling: Sampling | None = None
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS
    stages: tuple[Stage, ...] = ()
    batching: Batching | None = None
    batch_stages: tuple[Stage, ...] = ()
    sequences: SequenceRequest | None = None
    ranks: Ranks = field(default_factory=Ranks)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    formatting: Formatting = field(default_factory=Formatting)
    grows: bool = False

    @staticmethod
    def of(opened: Opened | Unindexed, request: OrderRequest | None = None, *, grows: bool = False) -> DatasetSpec:
        """Describe all samples of a dataset that take part in it."""
        stored = opened.stored if isinstance(opened, Opened) else None
        return DatasetSpec(opened, request, stored=stored, grows=grows)

    @property
    def opened(self) -> Opened | OpenedMixture:
        """Shards and their index, which is made first if there is none."""
        return self.source.whole if isinstance(self.source, Unindexed) else self.source

    @property
    def tokenizers(self) -> Tokenizers:
        """Identities of the tokenizers of all tokens, for states; shards without an index do not tell theirs."""
        return tokenizers_of(self.stages, {"": None} if isinstance(self.source, Unindexed) else self.source.indexes)

    @property
    def is_growing(self) -> bool:
        """True if the order is the growing one: a window over all samples, without columns or lengths of the index."""
        asked, packed = self.request, self.sequences
        in_window = self.grows and isinstance(asked, OrderRequest) and asked.order is None
        chosen = self.stored is not None or self.sampling is not None
        return in_window and not chosen and (packed is None or packed.lengths is None)

    def summary(self, resolved: Resolved | ResolvedGrowing | None = None) -> str:
        """Return a one-line description, without indexing anything; ``resolved`` knows what is indexed by now."""
        batching, request, packed = self.batching, self.request, self.sequences
        what = "samples" if packed is None else "documents"
        if isinstance(request, MixRequest):
            length = "endless" if self.num_samples > FOREVER // 2 else f"{self.num_samples:,} {what}"
            parts = [f"mix(seed={request.seed}) of {', '.join(request.names)}, {length}"]
            if request.asked is not None:
                order = request.asked.order
                parts.append(f"shuffle({'window' if order is None else order.name!r}, seed={request.asked.seed})")
        elif isinstance(resolved, ResolvedGrowing):
            parts = [resolved.growing.summary]
        elif isinstance(self.source, Unindexed) and not self.source.is_indexed:
            parts = [f"{self.source.summary}, not indexed yet"]
        else:
            index = self.dataset("repr()").index
            parts = [f"{self.num_samples:,} {what} of {index.num_shards:,} {index.format} shards"]
        if self.sampling is not None:
            parts.append(f"sampled ({self.repeats})")
        if isinstance(request, OrderRequest):
            order = request.order
            name = "growing" if self.is_growing else "window" if order is None else order.name
            parts.append(f"order {name} with seed={request.seed}")
        parts += [verb_of(stage) for stage in self.stages if not stage.own_stages]
        if packed is not None and not packed.packing.alike:
            parts.append(f"packed into sequences of {packed.packing.longest:,} tokens")
        if batching is not None:
            size = "by length" if packed is not None and packed.packing.alike else f"of {batching.size:,}"
            parts.append(f"{'global ' if batching.is_global else ''}batches {size}")
        return ", ".join(parts)

    # ---- additions by methods of `Dataset`

    def in_order(self, request: OrderRequest) -> DatasetSpec:
        """Set the order of the samples; allowed once."""
        self._refuse_after_grouping("shuffle()")
        if isinstance(self.request, MixRequest) and not self.request.is_shuffled:
            self._refuse_after_gaps("shuffle()")
            return replace(self, request=self.request.shuffled(request))
        if self.request is not None:
            msg = "this dataset is shuffled already; a second shuffle() would hide the first"
            raise UsageError(msg, hint="a larger window= mixes more")
        self._refuse_after_gaps("shuffle()")
        if self.sampling is not None and request.has_own_length:
            msg = f"{request.order!r} decides itself how often samples come, and was asked for after sample()"
            raise UsageError(msg, hint="an order of shoal itself, such as shuffle(), takes sampled datasets")
        shuffled = replace(self, request=request)
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

    def sampled(self, **arguments: Any) -> DatasetSpec:
        """Set how often each sample comes in an epoch; allowed once."""
        self._refuse_after_grouping("sample()")
        self.dataset("sample()")
        if self.sampling is not None:
            msg = "this dataset is sampled already; a second sample() would hide the first"
            raise UsageError(msg, hint="one call, with weights that hold both")
        if self.request is not None or self.filters or self.gaps:
            before = "shuffle()" if self.request is not None else "filter()" if self.filters else "without()"
            msg = f"sample() decides which stored samples take part, and was called after {before}"
            raise UsageError(msg, hint=f"put sample() before {before}")
        return replace(self, sampling=sampling_of(self.dataset("sample()").index, self.stored, **arguments))

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
        if isinstance(self.request, MixRequest) and self.request.varies:
            msg = f"{verb} chooses positions of every epoch, and epochs of this mixture differ in length"
            raise UsageError(msg, hint=f"{verb[:-1]}...) on its sources")
        if not len(runs):
            msg = f"{verb} leaves none of {self.num_samples} samples"
            raise UsageError(msg)
        if self.request is None:
            return replace(self, stored=runs if self.stored is None else self.stored.of_members(runs))
        return replace(self, delivered=runs if self.delivered is None else self.delivered.of_members(runs))

    def then(self, stage: Stage, verb: str, *, takes_batches: bool = False) -> DatasetSpec:
        """Add the stage of a method, which may take batches as well as samples."""
        if not takes_batches or self.batching is None:
            self._refuse_after_grouping(verb)
        if self.batching is not None:
            return replace(self, batch_stages=(*self.batch_stages, stage))
        return replace(self, stages=(*self.stages, stage))

    def packed(self, sequences: SequenceRequest) -> DatasetSpec:
        """Group the samples, which are documents, by their lengths; allowed once."""
        verb = f"{sequences.packing.verb}()"
        if self.sequences is not None and self.batching is None:
            msg = f"{verb} was called after {self.sequences.packing.verb}(): the documents are packed already"
            raise UsageError(msg, hint="call one of them, once")
        if sequences.lengths is None:
            self._refuse_after_grouping(verb)
        elif any(isinstance(stage, Filter) for stage in self.stages):
            msg = f"{verb} counts documents by the index, and was called after filter(), which counts as it reads"
            as_read = "" if sequences.packing.alike else ", or pack_sequences(lengths=None) packs what a filter keeps"
            raise UsageError(msg, hint=f"select() by columns of the index instead of filter(){as_read}")
        else:
            self.refuse_selection(verb)
            if self.num_samples > FOREVER // 2:
                msg = f"{verb} counts the sequences of an epoch, and this mixture has no end"
                raise UsageError(msg, hint="mix(epoch_size=...), or pack_sequences(lengths=None)")
        sequences.fields_of(self.source, self.stages)  # an impossible field is refused here, not when iterating
        return replace(self, sequences=sequences)

    def in_batches(self, batching: Batching) -> DatasetSpec:
        """Cut the samples into batches; allowed once."""
        self._refuse_after_batch("batch()")
        if batching.balance and (self.sequences is None or self.sequences.lengths is None):
            msg = 'batch(balance="attention") weighs sequences by lengths in the index, and there are none'
            raise UsageError(msg, hint="call pack_sequences(lengths=...) before")
        if batching.num_steps is not None and not self.refills:
            msg = f"batch(steps={batching.steps!r}) is for ranks that fill their batches; those of this dataset do not"
            raise UsageError(msg, hint="leave out steps=: all ranks yield the same number of batches")
        return replace(self, batching=batching)

    def check_passes(self, world_size: int, *, in_passes: bool) -> None:
        """Raise `UsageError` if ranks would end an epoch apart without a word, or cannot end passes together."""
        batching = self.batching
        if not self.refills or batching is None:
            return
        if batching.num_steps is None and world_size > 1:
            msg = f"{self.filler} fills batches, so {world_size} ranks would yield different numbers of them, and a "
            msg += "loop over an epoch would hang at its end"
            hint = (
                "batch(..., steps=1000) gives each rank 1000 batches a pass, and carries the rest into the next one; "
            )
            raise UsageError(msg, hint=hint + f'batch(..., steps="{APART}") for loops that let ranks end apart')
        if batching.num_steps and not in_passes:
            msg = f"batch(steps={batching.num_steps}) is for iter(dataset) and shoal.torch.DataLoader, and not for this"
            raise UsageError(msg, hint=f'batch(..., steps="{APART}"), in a loop over steps')

    def read_by(self, options: ReadingOptions) -> DatasetSpec:
        """Set the reading options; allowed once."""
        if self.reading != ReadingOptions():
            msg = "reading() was called before; a second call would override the first"
            raise UsageError(msg, hint="give all options in one call")
        return replace(self, reading=options)

    def refuse_selection(self, verb: str) -> None:
        """Raise `UsageError` if samples can no longer be selected: after `batch`, `without`, `filter` or `sample`."""
        self._refuse_after_grouping(verb)
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
            by_length = self.sequences is not None and self.sequences.packing.alike
            before = "batch_by_length()" if by_length else "batch()"
            msg = f"{verb} works on samples, and was called after {before}"
            if {verb, before} == {"batch()", "batch_by_length()"}:
                raise UsageError(msg, hint="batch_by_length() makes the batches itself: leave batch() out")
            raise UsageError(msg, hint=f"put {verb} before {before}; only map() works on batches")

    def _refuse_after_grouping(self, verb: str) -> None:
        """Raise `UsageError` after `batch`, and after `pack_sequences`: there are batches or sequences, no samples."""
        self._refuse_after_batch(verb)
        if self.sequences is not None:
            before = f"{self.sequences.packing.verb}()"
            msg = f"{verb} works on documents, and was called after {before}, which makes sequences of them"
            raise UsageError(msg, hint=f"put {verb} before {before}; only map() works on batches, after batch()")

    # ---- derived properties

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch over all ranks, before any filter."""
        left = self.delivered if self.delivered is not None else self.stored
        if self.delivered is None and self.sampling is not None:
            return self.sampling.num_samples
        if isinstance(request := self.request, MixRequest) and left is None:
            return request.epoch_samples
        if isinstance(request, OrderRequest) and request.has_own_length and self.delivered is None:
            return self.resolve().num_samples
        return self.opened.index.num_samples if left is None else len(left)

    @property
    def repeats(self) -> Repeats | None:
        """Repeats and gaps of the sampling; None without one."""
        return None if self.sampling is None else self.sampling.repeats

    def dataset(self, verb: str) -> Opened:
        """Return the dataset; raise `UsageError` for a mixture, which is several."""
        opened = self.opened
        if isinstance(opened, OpenedMixture):
            msg = f"{verb} works on one dataset, and this is a mixture of {', '.join(opened.names)}"
            raise UsageError(msg, hint=f"call {verb} on its sources, before mix()")
        return opened

    @property
    def seeded_stages(self) -> tuple[Stage, ...]:
        """The stages of samples, with the seed of the order for those that have none of their own."""
        # Those of a mixture have other numbers than those of its sources, of which the first has the same ids.
        first_number = _OF_MIXTURES * self.source.depth if isinstance(self.source, OpenedMixture) else 0
        return seeded(self.stages, 0 if self.request is None else self.request.seed, first_number=first_number)

    @property
    def collates(self) -> bool:
        """True if batches have all fields of their samples; sequences have their tokens alone."""
        is_packed = self.sequences is not None and isinstance(self.sequences.fields, SequenceFields)
        return self.batching is not None and not is_packed

    @property
    def filters(self) -> bool:
        """True if the number of samples that remain is not known before they are read."""
        return any(filters_in(self.stages))

    @property
    def refills(self) -> bool:
        """True if ranks fill batches, as it is not known before what a filter keeps or how long documents are."""
        return self.packed_as_they_come is not None or any(stage.refill for stage in filters_in(self.stages))

    @property
    def filler(self) -> str:
        """The call by which ranks fill batches, for messages."""
        return "pack_sequences(lengths=None)" if self.packed_as_they_come else "filter(refill=True)"

    @property
    def packed_as_they_come(self) -> Packing | None:
        """Packing of documents whose lengths are known only when they are read; None if there is none."""
        asked = self.sequences
        if asked is None or asked.lengths is not None or not isinstance(asked.packing, Packing):
            return None
        return asked.packing

    def resolve(self) -> Resolved | ResolvedGrowing:
        """Return the order resolved to integers."""
        if self.is_growing and isinstance(self.request, OrderRequest) and not isinstance(self.source, OpenedMixture):
            return replace(growing_order(self.source, self.request), delivered=self.delivered, gaps=self.gaps)
        if (asked := self.sequences) is not None and asked.lengths is not None:
            documents = self._resolved_samples(NO_GAPS)
            return ResolvedSequences(documents, asked.packing, asked.lengths_in(documents.parts), self.gaps)
        return self._resolved_samples(self.gaps)

    def _resolved_samples(self, gaps: Gaps) -> ResolvedOrder | ResolvedMixture:
        if isinstance(self.request, MixRequest) and isinstance(self.source, OpenedMixture):
            return ResolvedMixture.of(self.request, self.source, self.delivered, gaps)
        opened, request = self.dataset("resolve()"), self.request
        asked = request if isinstance(request, OrderRequest) else OrderRequest(Sequential())
        return ResolvedOrder(
            opened.index,
            asked,
            self.stored,
            self.delivered,
            gaps,
            spills=can_spill(opened),
            sampling=self.sampling,
        )

    def partition(self, world_size: int) -> Partition:
        """Return the partition of epochs at this world size."""
        if self.batching is None:
            return Partition(world_size, world_size, batched=False)
        packing = self.packed_as_they_come
        return replace(self.batching.partition(world_size), refills=self.refills, packing=packing)
