"""Samples and batches of a rank: run through all stages, without dropped samples, counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.states.forms import MAX_POSITION
from shoal.pipeline.decode_pool import Decoders
from shoal.pipeline.quarantine import SKIPPED, Quarantine
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.reading.checks.salvage import Damaged, read_sample, salvaged_sample
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_sequences import Resolved
from shoal.stats.counters import Counters
from shoal.storage.retry import StoppedError
from shoal.stream.certificates.delivery_sums import DeliverySums
from shoal.stream.iterating.iterator_specs import PipelineSpec, have_no_effects
from shoal.stream.iterating.read_schedule import Gathered, ReadSpan
from shoal.stream.iterator_position import NONE_AT_HAND, Position

_DROPPED_BETWEEN_CHECKS = 1024


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Inputs for making samples and batches, counters of the results, and of requests made beside the reading.

    If they are of a piece of an epoch that grows, ``of_all`` makes those of all of it, waiting until it is indexed.
    """

    opened: Opened | OpenedMixture
    resolved: Resolved
    pipeline: PipelineSpec
    counters: Counters
    requests: RequestStats
    position: Position
    sums: DeliverySums
    quarantine: Quarantine | None
    decoders: Decoders | None
    of_all: Callable[[BatchContext], BatchContext] | None = None

    def samples(self, span: ReadSpan) -> Iterator[Any]:
        """Iterate over the samples of a span, after the stages that run in threads."""
        return span.samples if self.decoders is None else self.decoders.samples(span.samples, span.ids)

    @property
    def made(self) -> Callable[[Any, int], Any] | None:
        """The function from such a sample and its id to the result of the remaining stages; None if there are none."""
        threaded = self.pipeline.threaded
        stages = self.pipeline.stages[0 if threaded is None else threaded.num_stages :]
        if self.quarantine is not None:
            return partial(self.quarantine.made, stages)
        return partial(run_stages, stages, index=self.opened.index) if stages else None

    @property
    def made_together(self) -> Callable[[list[Any], list[int]], list[Any]] | None:
        """The function from many such samples and their ids to their results; None if each must be made by itself.

        That is so if a stage has effects or leaves samples out, also in a thread. Errors do not tell of which sample
        they are: whoever gets one makes the samples one by one.
        """
        stages = self.pipeline.stages
        alone = self.quarantine is not None or self.pipeline.threaded is not None
        return None if alone or not have_no_effects(stages) else partial(_through, stages)

    def most_dropped(self, step: int) -> int:
        """Return how many samples in a row may be dropped: those of an epoch, or if it has no end, of two rounds.

        Two, as sources do not come evenly in all mixtures; of every source, and before this step.
        """
        position, resolved = self.position, self.resolved
        if position.grows:  # those that follow may be kept
            return MAX_POSITION
        if position.num_samples <= FOREVER // 2 or not isinstance(resolved, ResolvedMixture):
            return position.num_samples
        number = position.start + step * position.partition.global_batch
        return 2 * resolved.request.round_at(resolved.request.begin(position.epoch) + number)

    def check_dropped(self, num_dropped: int, step: int) -> None:
        """Raise `UsageError` if more samples in a row were dropped; called now and then, since it takes a while."""
        if num_dropped % _DROPPED_BETWEEN_CHECKS or num_dropped < self.most_dropped(step):
            return
        what = [repr(stage) for stage in filters_in(self.pipeline.stages)]
        what += ['reading(on_error="skip")'] if self.quarantine is not None else []
        msg = f"{' and '.join(what)} left none of {num_dropped} samples in a row, in an epoch without end: more than "
        msg += "two rounds of every source"
        raise UsageError(msg, hint="try the function on ds[0]")

    @property
    def deliverer(self) -> Callable[..., Any]:
        """The function from a collated batch and the marks of its repeats to the batch that is yielded."""
        return partial(_delivered, self, self.pipeline.after_collation)


# From here on functions, not methods: a generator that referenced its iteration would keep it, and with it its threads,
# alive when nothing else does.


def samples_read(spans: Iterator[ReadSpan], source: BatchContext) -> Iterator[Any]:
    """Yield sample after sample as they are stored, or after stages that columns allow, too.

    They come from lists, which `Position.at_hand` gives to whoever takes the rest of one without asking here.
    """
    counters, position, finishing = source.counters, source.position, _finishing(source)
    left_in, none = length_hint, NONE_AT_HAND  # at the end of a process this may outlive the names of its module
    for span in spans:
        last, ids = position.num_steps - 1, iter(span.ids)
        for run in _each_finished(span.runs, ids, finishing):
            # An epoch ends with its last sample, which is noticed by who asks for it.
            ends = len(run) > 1 and position.num_made + len(run) > last
            for part in (run[:-1], run[-1:]) if ends else (run,):
                at_hand = iter(part)
                position.num_made += len(part)
                position.at_hand = at_hand
                counters.num_samples += len(part)
                counters.at_hand.add(at_hand)
                try:
                    yield from at_hand
                finally:
                    counters.at_hand.discard(at_hand)
                    counters.num_samples -= left_in(at_hand)
                    if position.at_hand is at_hand:
                        position.num_made -= left_in(at_hand)
                        position.at_hand = none
        position.num_yielded = span.steps.stop  # its last position may have no sample for this rank


def _through(stages: Sequence[Stage], samples: list[Any], ids: list[int]) -> list[Any]:
    for stage in stages:
        samples = list(map(stage, samples, ids))
    return samples


class _Finishing(NamedTuple):
    """The steps left for stored samples: for ``all_of`` a list, given their ids, or for ``one`` of them."""

    all_of: Callable[[list[Any], list[int]], list[Any]]
    one: Callable[[Any, int], Any]


def _finishing(source: BatchContext) -> _Finishing | None:
    """Return how stored samples become what is yielded; None if they are that."""
    made, together, formatting = source.made, source.made_together, source.pipeline.formatting
    formatted = None if formatting.name is None else formatting.sample
    if made is None and formatted is None:
        return None

    def one(sample: Any, sample_id: int) -> Any:
        result = sample if made is None else made(sample, sample_id)
        return result if formatted is None else formatted(result)

    def all_of(run: list[Any], ids: list[int]) -> list[Any]:
        if together is None:
            return list(map(one, run, ids))
        results = together(run, ids)
        return results if formatted is None else list(map(formatted, results))

    return _Finishing(all_of, one)


def _each_finished(runs: Iterator[list[Any]], ids: Iterator[int], finishing: _Finishing | None) -> Iterator[list[Any]]:
    """Yield the runs finished; an error comes at its sample, after those before it.

    Stages have no effects (`PipelineSpec.makes_together`), so the samples of a list that failed are made again.
    """
    if finishing is None:
        yield from runs
        return
    for run in runs:
        named = list(itertools.islice(ids, len(run)))
        try:
            done = finishing.all_of(run, named)
        except Exception:  # noqa: BLE001  # raised again, at its sample and with what is known of that
            done = []
            try:
                done.extend(map(finishing.one, run, named))
            except Exception:
                if done:
                    yield done
                raise
        yield done


def samples_made(spans: Iterator[ReadSpan], source: BatchContext) -> Iterator[Any]:
    """Yield sample after sample, without those that a filter dropped or that are damaged."""
    made, counters, position = source.made, source.counters, source.position
    formatting = source.pipeline.formatting
    formatted = None if formatting.name is None else formatting.sample
    in_a_row = 0
    for span in spans:
        after = span.steps.stop
        # The last position of an epoch may have no sample for this rank.
        for step, sample_id, sample in zip(span.steps, span.ids, source.samples(span), strict=False):
            result = made(sample, sample_id) if made else sample
            position.num_made = step + 1
            if result is SKIPPED or result is DROPPED:
                counters.num_filtered += result is DROPPED
                source.sums.dropped(step, 0)
                in_a_row += 1
                source.check_dropped(in_a_row, step)
                continue
            in_a_row = 0
            counters.num_samples += 1
            yield formatted(result) if formatted else result
        position.num_yielded = after


def batches_made(spans: Iterator[ReadSpan], source: BatchContext) -> Iterator[Any]:
    """Yield batch after batch, made of samples."""
    made, position, collated, deliver = source.made, source.position, source.pipeline.collator, source.deliverer
    together, nearest = source.made_together, _NearestKept(source)
    for span in spans:
        stored = source.samples(span)
        for step, (begin, end) in zip(span.steps, itertools.pairwise(span.batch_first), strict=True):
            position.num_yielded = step
            samples: list[Any] = list(itertools.islice(stored, end - begin))
            repeated, num_filtered = span.repeated[begin:end], 0
            if made:
                samples = _all_made(made, together, samples, span.ids[begin:end], position)
            if position.is_over:
                msg = "the stream was closed while a batch was made"
                raise StoppedError(msg)
            if together is None and any(sample is DROPPED or sample is SKIPPED for sample in samples):
                num_filtered = sum(sample is DROPPED for sample in samples)
                samples, repeated = _kept(samples, repeated, nearest)
            batch = deliver(collated(samples), repeated)
            source.counters.num_filtered += num_filtered
            position.num_yielded = step + 1  # only now: a batch that failed was not yielded
            yield batch


def _all_made(
    made: Callable[[Any, int], Any],
    together: Callable[[list[Any], list[int]], list[Any]] | None,
    samples: list[Any],
    ids: list[int],
    position: Position,
) -> list[Any]:
    """Return the samples of a batch after their stages; fewer if the stream is closed meanwhile."""
    if together is not None:
        with suppress(Exception):  # the same comes again, at its sample
            return together(samples, ids)
    return [made(sample, sample_id) for sample, sample_id in zip(samples, ids, strict=True) if not position.is_over]


def batches_gathered(spans: Iterator[Gathered], source: BatchContext) -> Iterator[Any]:
    """Yield batch after batch, made of columns."""
    collated, deliver = source.pipeline.collator, source.deliverer
    stages = [stage.on_batch_columns for stage in source.pipeline.stages]
    for span in spans:
        ids, repeated = span.share.ids, span.share.repeated
        for step, (begin, end) in zip(span.steps, itertools.pairwise(span.share.batch_first.tolist()), strict=True):
            source.position.num_yielded = step
            batch = next(span.made)
            if isinstance(batch, list):
                if stages:
                    named = zip(batch, ids[begin:end].tolist(), strict=True)
                    index = source.opened.index
                    batch = [run_stages(stages, sample, sample_id, index=index) for sample, sample_id in named]
                batch = collated(batch)
            else:
                for stage in stages:
                    batch = stage(batch, ids[begin:end])  # one id for each row
            delivered = deliver(batch, repeated[begin:end])
            source.position.num_yielded = step + 1  # only now: a batch that failed was not yielded
            yield delivered


def _kept(samples: list[Any], repeated: list[bool], nearest: _NearestKept) -> tuple[list[Any], list[bool]]:
    """Return the samples of a batch that are kept, and marks of repeats: a sample from before it if none is."""
    pairs, source = [], nearest.source
    for number, (sample, again) in enumerate(zip(samples, repeated, strict=True)):
        if sample is DROPPED or sample is SKIPPED:
            source.sums.dropped(source.position.num_yielded, number)
        else:
            pairs.append((sample, again))
    if not pairs:
        pairs = [(nearest.before_batch(), True)]
    return [sample for sample, _ in pairs], [again for _, again in pairs]


def _delivered(
    source: BatchContext,
    finish: tuple[Callable[[Any], Any], ...],
    batch: Any,
    repeated: Sequence[bool] | NDArray[np.bool_],
) -> Any:
    """Mark the repeats of a batch, format it and run the stages of batches; count it."""
    num_repeats = int(np.count_nonzero(repeated))
    if isinstance(batch, dict) and "__pad__" in batch:  # checked in all batches, not only in the last
        msg = "the samples have a field '__pad__', by which batches mark their repeats"
        raise UsageError(msg, hint='rename the field before batch(): .rename(padding="__pad__")')
    if num_repeats and isinstance(batch, dict):
        batch["__pad__"] = np.asarray(repeated)
    for function in finish:
        batch = function(batch)
    try:
        for stage in source.pipeline.batch_stages:
            batch = stage(batch, -1)
    except Exception as error:
        position = source.position
        number = position.start + position.global_batches.start * position.partition.global_batch
        start = source.resolved.position_of(position.epoch, number)
        error.add_note(f"shoal: in {stage!r} of the global batch at position {start} of epoch {position.epoch}")
        raise
    counters = source.counters
    counters.num_batches += 1
    counters.num_samples += len(repeated)
    counters.num_repeats += num_repeats
    return batch


@dataclass(slots=True)
class _NearestKept:
    """The nearest sample before a batch, cyclically, that is kept: a rank gets it instead of nothing.

    It is found from the order alone, so that a resumed run finds the same one. Each position is looked at once, however
    many batches need a repeat: behind the sample that an earlier batch found, all were dropped.
    """

    source: BatchContext
    _begin: int = 0
    _found: list[tuple[BatchContext, int]] = field(default_factory=list)  # before the position `_begin`

    def before_batch(self) -> Any:
        """Return the sample for the batch that is made now."""
        source, num_looked_at = self.source, 0
        begin = source.position.start + source.position.num_yielded * source.position.partition.global_batch
        for context, sample_id in self._candidates(begin):
            sample = _alone(context, sample_id)
            if sample is not DROPPED and sample is not SKIPPED:
                self._begin, self._found = begin, [(context, sample_id)]
                return sample
            num_looked_at += 1
            source.check_dropped(num_looked_at, source.position.num_yielded)
        if source.quarantine is None:
            msg = f"filter() keeps none of the {num_looked_at} samples of the epoch"
            raise UsageError(msg, hint="try the function on ds[0]")
        msg = f"all {num_looked_at} samples of the epoch are damaged, or dropped by filter()"
        raise UsageError(msg, hint='without reading(on_error="skip") the first error is raised')

    def _candidates(self, begin: int) -> Iterator[tuple[BatchContext, int]]:
        """Yield the samples to look at: those since the last batch, then the one found for that, then all others."""
        if self._found:
            yield from _between(self.source, self._begin, begin)
            yield from self._found
            begin = self._begin  # the sample found is dropped now: the filter does not depend on the sample alone
        yield from _before(self.source, begin)


def _between(source: BatchContext, first: int, stop: int) -> Iterator[tuple[BatchContext, int]]:
    """Yield the ids at the positions ``[first, stop)``, backwards, and how each is read."""
    order = source.resolved.epoch(source.position.epoch)
    for position in range(stop - 1, first - 1, -1):
        yield source, int(order.ids(position, position + 1)[0])


def _before(source: BatchContext, begin: int) -> Iterator[tuple[BatchContext, int]]:
    """Yield the ids of all samples, backwards from a position and cyclically, and how each is read.

    Before the first sample of an epoch comes its last one: while it grows, that waits for all of it.
    """
    position, num_samples = source.position, source.position.num_samples
    yield from _between(source, 0, begin)
    if position.grows and source.of_all is not None:
        source = source.of_all(source)
        num_samples = source.resolved.num_samples_of(position.epoch)
    yield from _between(source, begin, num_samples)


def _alone(source: BatchContext, sample_id: int) -> Any:
    """Run a sample that was not due through all stages; do not count it if it is damaged."""
    opened, stages, quarantine = source.opened, source.pipeline.stages, source.quarantine
    if quarantine is None:
        return run_stages(
            stages, read_sample(*opened.part_of(sample_id), source.requests), sample_id, index=opened.index
        )
    if quarantine.among(np.array([sample_id]))[0]:
        return SKIPPED
    sample = (salvaged_sample if quarantine.finds else read_sample)(*opened.part_of(sample_id), source.requests)
    made = run_stages(stages, sample, sample_id, index=opened.index, forgiving=quarantine.finds)
    return SKIPPED if type(made) is Damaged else made
