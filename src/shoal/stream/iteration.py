"""One run through the rest of an epoch on one rank: samples or batches out, and a position that counts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ForkError, UsageError
from shoal.order.partition import Partition, Share
from shoal.order.protocol import BoundOrder
from shoal.plan.lookahead import stretch_positions
from shoal.plan.units import RecordUnits
from shoal.shards.protocol import ColumnarFormat
from shoal.stream import forks
from shoal.stream.arrangement import Arrangement
from shoal.stream.collate import collate
from shoal.stream.columns.choosing import gathers, with_chosen
from shoal.stream.columns.formatting import Formatting
from shoal.stream.columns.gathering import Gathering
from shoal.stream.counters import Counters
from shoal.stream.decoding import Decoders, Threaded
from shoal.stream.deliveries import NOTHING, Ledger, Proof, RecordHashes
from shoal.stream.heap import keep_for_next
from shoal.stream.indexing.opening import Opened
from shoal.stream.pace import Pace
from shoal.stream.progress_line import ProgressLine
from shoal.stream.reading.budgeting import Budget, budget_of
from shoal.stream.reading.damage import forgiving_sample, verified_sample
from shoal.stream.reading.fetch import Fetch
from shoal.stream.reading.options import ReadingOptions
from shoal.stream.reading.pins import Pins
from shoal.stream.reading.retrying import StoppedError
from shoal.stream.reading.singles import Singles, singles_of
from shoal.stream.reading.skips import SKIPPED, Skips, skips_of
from shoal.stream.reading.unit_bytes import read_records
from shoal.stream.reading.views import with_views
from shoal.stream.stages import DROPPED, Damaged, Stage, run_stages
from shoal.stream.stretches import Gathered, Stretch, gathered, planned, unplanned
from shoal.stream.worker_share import some_batches

__all__ = ["Iteration", "Place", "Recipe", "read_sample", "shares_of"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What becomes of samples: stages of one, batches or not, stages of a batch; and who makes which batches.

    Worker ``worker`` of ``num_workers`` makes those of the rank's batches whose step leaves this remainder.
    ``threaded`` says which of the stages are run in threads; None for none. ``allocate`` makes the arrays of batches
    that are gathered from columns.
    """

    partition: Partition
    rank: int
    stages: tuple[Stage, ...]
    batch_stages: tuple[Stage, ...]
    collate: Callable[[list[Any]], Any] = collate
    worker: int = 0
    num_workers: int = 1
    formatting: Formatting = field(default_factory=Formatting)
    threaded: Threaded | None = None
    allocate: Callable[..., NDArray[Any]] = np.empty

    @property
    def stacks(self) -> bool:
        """Whether batches can be made of columns, with nothing done to a sample that cannot be done to its columns."""
        return self.partition.batched and gathers(self.stages) and self.collate is collate


@dataclass(slots=True)
class Place:
    """Where an iterator is: how many global batches of an epoch, counted from a start, it has yielded."""

    epoch: int
    start: int
    partition: Partition
    num_samples: int
    num_yielded: int = 0
    is_over: bool = False  # nothing more is wanted
    ledger: Ledger | None = None
    received: Proof = NOTHING

    @property
    def proof(self) -> Proof:
        """What was yielded, summed up: by the ledger of who makes it, else as the receiver noted it."""
        return self.received if self.ledger is None else self.ledger.up_to(self.num_yielded)

    @property
    def end(self) -> int:
        """The position after all that was yielded, in this epoch."""
        if not self.num_yielded:
            return self.start
        return self.partition.end_of(self.num_yielded - 1, self.num_samples, self.start)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and position of what comes next; (epoch + 1, 0) after the last."""
        if self.num_yielded >= self.partition.num_batches(self.num_samples, self.start):
            return self.epoch + 1, 0
        return self.epoch, self.end


class Iteration:
    """The batches (or samples) of one rank from a position to the end of an epoch.

    `place` says what comes after everything yielded so far. Close it, use it in a ``with``, or let go of it: no thread
    is left in any case. After an error it raises the same error again: an epoch that failed must not look like one
    that ended.
    """

    def __init__(
        self,
        opened: Opened,
        arrangement: Arrangement,
        recipe: Recipe,
        counters: Counters,
        options: ReadingOptions,
        *,
        epoch: int,
        start: int,
        ended: Callable[[Place], None],
        state: Callable[[int, int], dict[str, Any]],
        first_step: int = 0,
    ) -> None:
        self._ended, self._state = ended, state
        opened = with_chosen(opened, recipe.stages)
        if not options.copy:
            opened = _viewed(opened, counters)
        order = arrangement.epoch(epoch)
        ledger = Ledger(RecordHashes(opened.index), epoch)
        self.place = Place(epoch, start, recipe.partition, order.num_samples, first_step, ledger=ledger)
        reading = singles_of if arrangement.by_singles else Fetch
        skips = skips_of(options, opened.index, counters)
        is_far, verifies = not opened.store.reads_ahead, options.verify == "always"
        budget = budget_of(arrangement, options.memory_limit_bytes, is_far=is_far, verifies=verifies)
        self._reading = reading(opened, budget.units, counters, ahead_limit_bytes=budget.ahead_bytes, options=options)
        shares = ledger.noting(shares_of(order, arrangement, recipe, self.place))
        self._decoders = _decoders_of(recipe, skips)
        source = _Source(opened, arrangement, recipe, counters, self.place, ledger, skips, self._decoders)
        self._results: Iterator[Any]
        if isinstance(self._reading, Singles):
            deliver = _batches if recipe.partition.batched else _samples
            self._results = deliver(unplanned(shares, budget, self._reading, skips), source)
        elif (gathering := _gathering(source, budget, self._reading, options)) is not None:
            self._results = _gathered_batches(gathered(shares, budget, self._reading, gathering), source)
        else:
            deliver = _batches if recipe.partition.batched else _samples
            self._results = deliver(planned(shares, budget, self._reading, skips), source)
        if recipe.partition.batched:
            rank_batch = recipe.partition.global_batch / recipe.partition.world_size
            mean_bytes = int(opened.index.extent_decoded_bytes.sum()) / max(1, opened.index.num_samples)
            keep_for_next(int(rank_batch * mean_bytes))
        self._num_steps = recipe.partition.num_batches(order.num_samples, start)
        self._failure: BaseException | None = None
        self._closed = False
        self._generation = forks.generation
        self._pace = counters.pace = Pace(counters)
        self._counters = counters
        shows = options.progress and recipe.rank == 0 and recipe.worker == 0
        self._line = ProgressLine() if shows else None

    def state_dict(self) -> dict[str, Any]:
        """The state after everything this iterator has yielded; see `Dataset.state_dict`."""
        return self._state(*self.place.position)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if forks.generation != self._generation:
            msg = "this iterator was made by the parent of this process, and is the parent's to go on with"
            raise ForkError(msg, hint="call iter() in the child: the dataset itself may be used there")
        pace = self._pace
        began = perf_counter()
        try:
            result = next(self._results)
        except ValueError as error:
            if "already executing" not in str(error):
                raise self._failed(error) from None
            msg = "two threads asked one iterator for its next batch at the same time"
            raise UsageError(msg, hint="one iterator for each thread, or a lock around next()") from None
        except StopIteration:
            if self._failure is not None:
                raise self._failure from None
            if not self._closed:
                self.close()
                self._ended(self.place)
            raise
        except BaseException as error:  # an interrupt too: the samples at hand are lost, and to go on would skip them
            self._failed(error)
            raise
        pace.last = ended = perf_counter()
        if pace.first is None:
            pace.first = began
        self._counters.make_seconds += ended - began
        if self._line is not None and self._line.is_due():
            self._show(self._line)
        if self.place.num_yielded >= self._num_steps:
            self._end_line()
            self._ended(self.place)  # now, since a loop that counts to len() never asks for more
        return result

    def _show(self, line: ProgressLine) -> None:
        place = self.place
        share = place.num_yielded / max(1, place.partition.num_batches(place.num_samples, place.start))
        line.show(self._counters.as_dict(), epoch=place.epoch, share=share)

    def _end_line(self) -> None:
        if self._line is not None:
            if self._line.is_due_at_end():
                self._show(self._line)
            self._line.close()

    def _failed(self, error: BaseException) -> BaseException:
        """Remember what went wrong, and stop."""
        self._failure = error
        self.close()
        return error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading, and yield nothing more; the threads are gone when this returns."""
        self._closed = self.place.is_over = True  # perhaps while a thread makes what comes next
        self._results = iter(())
        self._reading.close()
        if self._decoders is not None:
            self._decoders.close()
        self._end_line()


def _decoders_of(recipe: Recipe, skips: Skips | None) -> Decoders | None:
    forgiving = skips is not None and skips.finds
    return Decoders(recipe.stages, recipe.threaded, forgiving=forgiving) if recipe.threaded is not None else None


def _viewed(opened: Opened, counters: Counters) -> Opened:
    """The dataset with values that are views, if it can, and their bytes counted."""
    pins = counters.pins or Pins()
    viewed = with_views(opened, pins)
    if viewed is not opened:
        counters.pins = pins
    return viewed


@dataclass(frozen=True, slots=True)
class _Source:
    """What samples are made of and with, and where the counts go."""

    opened: Opened
    arrangement: Arrangement
    recipe: Recipe
    counters: Counters
    place: Place
    ledger: Ledger
    skips: Skips | None
    decoders: Decoders | None

    def samples(self, stretch: Stretch) -> Iterator[Any]:
        """The samples of a stretch, with those stages behind them that are run in threads."""
        return stretch.samples if self.decoders is None else self.decoders.samples(stretch.samples, stretch.ids)

    @property
    def made(self) -> Callable[[Any, int], Any] | None:
        """What becomes of such a sample, given with its id; None where it stays what it is."""
        threaded = self.recipe.threaded
        stages = self.recipe.stages[0 if threaded is None else threaded.num_stages :]
        if self.skips is not None:
            return partial(self.skips.made, stages)
        return partial(run_stages, stages) if stages else None


# From here on there are functions and no methods: a generator that knew its iteration would keep it, and with it its
# threads, alive when nobody else does.


def _samples(stretches: Iterator[Stretch], source: _Source) -> Iterator[Any]:
    """Sample after sample, without those that a filter dropped or that are damaged."""
    made, counters, place = source.made, source.counters, source.place
    formatting = source.recipe.formatting
    formatted = None if formatting.name is None else formatting.sample
    for stretch in stretches:
        after = stretch.steps.stop
        # The last position of an epoch may have no sample for this rank.
        for step, sample_id, sample in zip(stretch.steps, stretch.ids, source.samples(stretch), strict=False):
            result = made(sample, sample_id) if made else sample
            place.num_yielded = step + 1
            if result is SKIPPED or result is DROPPED:
                counters.num_filtered += result is DROPPED
                source.ledger.dropped(step, 0)
                continue
            counters.num_samples += 1
            yield formatted(result) if formatted else result
        place.num_yielded = after


def _batches(stretches: Iterator[Stretch], source: _Source) -> Iterator[Any]:
    """Batch after batch."""
    made, place = source.made, source.place
    for stretch in stretches:
        stored = source.samples(stretch)
        for step, (begin, end) in zip(stretch.steps, itertools.pairwise(stretch.batch_first), strict=True):
            place.num_yielded = step
            samples: list[Any] = list(itertools.islice(stored, end - begin))
            if made:
                named = zip(samples, stretch.ids[begin:end], strict=True)
                samples = [made(sample, sample_id) for sample, sample_id in named if not place.is_over]
            if place.is_over:
                msg = "the stream was closed while a batch was made"
                raise StoppedError(msg)
            batch = _collated(samples, stretch.repeated[begin:end], source)
            place.num_yielded = step + 1  # only now: what failed was not yielded
            yield batch


def _gathering(source: _Source, budget: Budget, fetch: Fetch, options: ReadingOptions) -> Gathering | None:
    """What makes batches of columns; None where they are to be made of samples.

    So they are where damaged samples are skipped, since these are told one by one, and where memory is limited.
    """
    opened, recipe = source.opened, source.recipe
    if not (recipe.stacks and options.copy and source.skips is None and budget.keeping is None):
        return None
    if not isinstance(opened.format, ColumnarFormat):
        return None
    num_units = budget.units.num_units
    unit_rows = opened.index.num_samples / max(1, num_units)
    formatting, allocate = recipe.formatting, recipe.allocate
    return Gathering(fetch, num_units=num_units, unit_rows=unit_rows, formatting=formatting, allocate=allocate)


def _gathered_batches(stretches: Iterator[Gathered], source: _Source) -> Iterator[Any]:
    """Batch after batch, made of columns."""
    stages = source.recipe.stages
    for stretch in stretches:
        ids, repeated = stretch.share.ids, stretch.share.repeated
        for step, (begin, end) in zip(
            stretch.steps, itertools.pairwise(stretch.share.batch_first.tolist()), strict=True
        ):
            source.place.num_yielded = step
            batch = next(stretch.batches)
            if isinstance(batch, list):
                named = zip(batch, ids[begin:end].tolist(), strict=True)
                batch = collate([run_stages(stages, sample, sample_id) for sample, sample_id in named])
            else:
                for stage in stages:
                    batch = stage(batch, ids[begin:end])  # type: ignore[arg-type]  # one id for each row
            delivered = _delivered(batch, repeated[begin:end], source)
            source.place.num_yielded = step + 1  # only now: what failed was not yielded
            yield delivered


def _collated(samples: list[Any], repeated: list[bool], source: _Source) -> Any:
    kept = [
        (sample, again)
        for sample, again in zip(samples, repeated, strict=True)
        if sample is not DROPPED and sample is not SKIPPED
    ]
    num_filtered = 0
    if len(kept) < len(samples):
        num_filtered = sum(sample is DROPPED for sample in samples)
        for number, sample in enumerate(samples):
            if sample is DROPPED or sample is SKIPPED:
                source.ledger.dropped(source.place.num_yielded, number)
    if not kept:
        kept = [(_nearest_kept(source), True)]
    batch = source.recipe.collate([sample for sample, _ in kept])
    delivered = _delivered(batch, np.array([again for _, again in kept]), source)
    source.counters.num_filtered += num_filtered
    return delivered


def _delivered(batch: Any, repeated: NDArray[np.bool_], source: _Source) -> Any:
    """A batch with its repeats marked, in its format, after the stages of batches; counted."""
    num_repeats = int(np.count_nonzero(repeated))
    if isinstance(batch, dict) and "__pad__" in batch:  # in all batches, so that it does not wait for the last
        msg = "the samples have a field '__pad__', by which batches mark their repeats"
        raise UsageError(msg, hint='.rename(padding="__pad__") before batch() keeps it under another name')
    if num_repeats and isinstance(batch, dict):
        batch["__pad__"] = repeated
    batch = source.recipe.formatting.finished(batch)
    try:
        for stage in source.recipe.batch_stages:
            batch = stage(batch, -1)
    except Exception as error:
        place = source.place
        number = place.start + place.num_yielded * place.partition.global_batch
        start = source.arrangement.position_of(place.epoch, number)
        error.add_note(f"shoal: in {stage!r} of the global batch at position {start} of epoch {place.epoch}")
        raise
    counters = source.counters
    counters.num_batches += 1
    counters.num_samples += len(repeated)
    counters.num_repeats += num_repeats
    return batch


def _nearest_kept(source: _Source) -> Any:
    """The nearest sample before a batch, cyclically, that is kept: what a rank gets instead of nothing.

    Found from the order alone, so that a resumed run finds the same.
    """
    place, arrangement = source.place, source.arrangement
    order = arrangement.epoch(place.epoch)
    begin = place.start + place.num_yielded * place.partition.global_batch
    for step in range(1, place.num_samples + 1):
        position = (begin - step) % place.num_samples
        sample = _alone(source, int(arrangement.stored_ids(order.ids(position, position + 1))[0]))
        if sample is not DROPPED and sample is not SKIPPED:
            return sample
    if source.skips is None:
        msg = f"filter() keeps none of the {place.num_samples} samples of the epoch"
        raise UsageError(msg, hint="try the function on ds[0]")
    msg = f"all {place.num_samples} samples of the epoch are damaged, or dropped by filter()"
    raise UsageError(msg, hint='without reading(on_error="skip") the first error is raised')


def _alone(source: _Source, sample_id: int) -> Any:
    """A sample that was not due, through all stages; not counted if it is damaged."""
    opened, arrangement, stages, skips = source.opened, source.arrangement, source.recipe.stages, source.skips
    if skips is None:
        return run_stages(stages, read_sample(opened, arrangement, sample_id), sample_id)
    if skips.among(np.array([sample_id]))[0]:
        return SKIPPED
    sample = forgiving_sample(opened, sample_id) if skips.finds else read_sample(opened, arrangement, sample_id)
    made = run_stages(stages, sample, sample_id, forgiving=skips.finds)
    return SKIPPED if type(made) is Damaged else made


def read_sample(opened: Opened, arrangement: Arrangement, sample_id: int, *, verifies: bool = False) -> Any:
    """One sample by id, read on its own; with ``verifies`` in its whole extent, if that has a checksum."""
    if verifies and arrangement.index.extent_checksum is not None:
        return verified_sample(opened, sample_id)
    read = RecordUnits(arrangement.index).reads(np.array([sample_id]))[0]
    return read_records(opened, read).sample(sample_id - read.first_sample)


def shares_of(
    order: BoundOrder, arrangement: Arrangement, recipe: Recipe, place: Place
) -> Iterator[tuple[Share, range]]:
    """What a rank, or one of its workers, gets, stretch by stretch, with stored sample ids; and at which steps."""
    partition, num_workers = recipe.partition, recipe.num_workers
    start, begin = place.start, place.num_yielded
    num_batches = partition.num_batches(order.num_samples, start)
    batches = max(1, stretch_positions(order.parameters, partition.world_size) // partition.global_batch)
    for first in range(begin, num_batches, batches):
        stop = min(first + batches, num_batches)
        share = partition.share(order, recipe.rank, first, stop, start)
        steps = range(first, stop)
        if num_workers > 1:
            steps = range(first + (recipe.worker - first) % num_workers, stop, num_workers)
            share = some_batches(share, np.arange(steps.start - first, stop - first, num_workers))
        yield replace(share, ids=arrangement.stored_ids(share.ids)), steps
