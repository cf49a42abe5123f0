"""Batches filled with the kept samples of a rank's share, for ``filter(refill=True)``.

The share comes in parts: the kept samples of each global batch. Worker processes make parts, and the receiving process
cuts the batches; so batches do not depend on the number of workers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.order.states.deals import RankPlace
from shoal.pipeline.quarantine import SKIPPED
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.reading.resolved_epochs import Source
from shoal.storage.retry import StoppedError
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.batcher import Batcher, Received
from shoal.stream.iterating.rows import Rows
from shoal.stream.iterating.shares import ReadSpan, Shares
from shoal.stream.iterating.single_samples import KEPT
from shoal.stream.iterating.source_reading import Reading
from shoal.stream.states.delivery_sums import Proof
from shoal.stream.states.iterator_position import Cursor, Position, place_in
from shoal.stream.states.sequence_hashes import hashes_of
from shoal.stream.verbs.dataset_requests import APART, Batching


class Part(NamedTuple):
    """The kept samples of a rank's share of one global batch, and the hash of each for certificates.

    ``counts`` numbers each kept sample in the share, from 1, dropped samples included; ``filtered`` has the numbers of
    the samples that a filter dropped.
    """

    samples: list[Any]
    counts: list[int]
    hashes: NDArray[np.uint64]
    filtered: Sequence[int] = ()


@dataclass(frozen=True)
class FilledBatches(Batcher):
    """Batches that each rank fills with the kept samples of its share."""

    counts_share = True
    verb = "filter(refill=True)"
    unknown = KEPT

    def partition(self, batching: Batching | None, world_size: int) -> Partition:
        """Return the partition for ranks that fill batches."""
        return replace(super().partition(batching, world_size), refills=batching is not None)

    def check_passes(self, batching: Batching | None, world_size: int, *, in_passes: bool) -> None:
        """Raise `UsageError` if ranks may end an epoch or a pass at different steps without permission."""
        if batching is None:
            raise UsageError(f"{self.verb} fills batches, but this dataset has none", hint="call batch() after it")
        if batching.num_steps is None and world_size > 1:
            msg = f"{self.verb} fills batches, so {world_size} ranks would yield different numbers of batches, and a "
            msg += "loop over an epoch would hang at its end"
            hint = "batch(..., steps=1000) gives each rank 1000 batches per pass, and the next pass continues; "
            hint += f'batch(..., steps="{APART}") for loops in which ranks may end at different steps'
            raise UsageError(msg, hint=hint)
        if batching.num_steps and not in_passes:
            msg = f"batch(steps={batching.num_steps}) is only for iter(dataset) and shoal.torch.DataLoader"
            raise UsageError(msg, hint=f'batch(..., steps="{APART}"), in a loop over steps')

    def refuse_steps(self, verb: str) -> None:
        """Raise `UsageError`: the samples of a batch are known only after reading."""
        msg = f"{verb} counts batches, but only reading shows the samples in batches of {self.verb}"
        raise UsageError(msg, hint="with_ids() shows it in each batch; give positions, not steps")

    def start(self, cursor: Cursor, partition: Partition, rank: int) -> tuple[int, int, RankPlace | None]:
        """Return the epoch, the position after the taken part of the rank's share, and the place of the rank."""
        if not partition.batched:
            return super().start(cursor, partition, rank)
        return place_in(partition, rank, cursor.epoch, cursor.start, cursor.later)

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the batches."""
        return self.filler(context, self.parts(shares, reading, context))

    def parts(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Part]:
        """Return an iterator over the kept samples of each global batch."""
        return _parts_made(reading.spans(shares, context.quarantine), context, self.kept(context))

    def kept(self, context: BatchContext) -> Callable[[Any, int, int], Sequence[Any]] | None:  # noqa: ARG002
        """Return the function from a sample, its id and its position to what waits for a batch; None for the sample."""
        return None

    def filler(self, context: BatchContext, parts: Iterator[Part]) -> BatchFiller:
        """Return the filler that cuts parts of the share into batches."""
        return BatchFiller(context, parts)

    def of_worker(self) -> Batcher:
        """Return the batcher that makes parts only: the process that receives the parts cuts the batches."""
        return _Parts(self)

    def received(
        self,
        position: Position,  # noqa: ARG002
        context: Callable[[], BatchContext],
        finish: Callable[[Any], Any] | None,
    ) -> Received:
        """Return the receiver of parts, which cuts them into batches."""
        return _CutHere(self.filler(context(), iter(())), finish)

    def settings(self, loaded: str, steps: int | str | None) -> dict[str, Any]:
        """Return the place of ranks and the steps of a pass; ranks may be in different epochs."""
        place = f"the rank's own in the merged state {loaded}" if loaded else "the rank's own"
        return {"epoch": place, "position": place, "steps": steps}


class FilledRows(Rows):
    """Rows of one kept sample each; each rank fills its batches with kept samples."""

    __slots__ = ()

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool) -> Batcher:  # noqa: ARG002
        """Return the maker of batches."""
        return FilledBatches()


@dataclass(frozen=True)
class _Parts(Batcher):
    """The parts of a rank's share that a worker process makes of ``filled`` batches."""

    filled: FilledBatches

    @property
    def counts_tokens(self) -> bool:  # type: ignore[override]
        """True if the process that receives the parts counts tokens."""
        return self.filled.counts_tokens

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the parts."""
        return self.filled.parts(shares, reading, context)


class _CutHere:
    """Batches cut from the parts of worker processes, and converted."""

    def __init__(self, filler: BatchFiller, finish: Callable[[Any], Any] | None) -> None:
        self._filler, self._finish = filler, finish

    @property
    def is_full(self) -> bool:
        """True if the parts fill a batch."""
        return self._filler.is_full

    def add(self, made: Any, proof: Proof) -> None:  # noqa: ARG002  # the filler sums up what it takes
        """Append a part."""
        self._filler.add(made)

    def batch(self) -> Any:
        """Return the next full batch."""
        batch = next(self._filler)
        return batch if self._finish is None else self._finish(batch)

    def last(self) -> Iterator[Any]:
        """Return an iterator over the batches that are left."""
        return self._filler if self._finish is None else map(self._finish, self._filler)


def _parts_made(
    spans: Iterator[ReadSpan], context: BatchContext, kept_of: Callable[[Any, int, int], Sequence[Any]] | None
) -> Iterator[Part]:
    """Yield the parts of a rank's share, from the position of an iterator on; ``kept_of`` as `FilledBatches.kept`."""
    process, position, hashes = context.process, context.position, hashes_of(context.resolved)
    size, num_taken, in_a_row = position.partition.size_of(context.pipeline.rank), position.num_taken, 0
    for span in spans:
        share, stored, ids = span.share, context.samples(span), span.share.ids.tolist()
        positions = share.positions.tolist()
        hashes_of_share = hashes.of(position.epoch, share.positions, share.ids)
        for step, (begin, end) in zip(span.steps, itertools.pairwise(share.batch_first.tolist()), strict=True):
            samples: list[Any] = []
            kept: list[int] = []
            filtered: list[int] = []
            for number, sample_id in enumerate(ids[begin:end], begin):
                sample = next(stored)
                result = process(sample, sample_id) if process else sample
                if position.is_over:
                    raise StoppedError("the stream was closed while a batch was made")
                if result is DROPPED or result is SKIPPED:
                    filtered += [number] * (result is DROPPED)
                    in_a_row += 1
                    context.check_dropped(in_a_row, step)
                    continue
                in_a_row = 0
                rows = [result] if kept_of is None else kept_of(result, sample_id, positions[number])
                samples += rows
                kept += [number] * len(rows)
            before = step * size + num_taken + 1 - begin
            num_taken = 0
            if position.rank is None:
                position.num_yielded = step + 1
            counts = ([before + number for number in numbers] for numbers in (kept, filtered))
            yield Part(samples, next(counts), hashes_of_share[kept], next(counts))


class BatchFiller(Iterator[Any]):
    """The batches that are cut from ``parts``, and from parts added besides; each moves the position."""

    def __init__(self, context: BatchContext, parts: Iterator[Part]) -> None:
        self._context, self._position, self._parts = context, context.position, parts
        self._size = context.position.partition.size_of(context.pipeline.rank)
        self._collated, self._deliver = context.pipeline.collator, context.deliverer
        self._waiting = Part([], [], np.zeros(0, dtype=np.uint64))
        self._filtered: deque[int] = deque()
        self._first, self._has_kept = context.position.num_yielded, False

    def add(self, part: Part) -> None:
        """Append a part, without samples that were taken before."""
        new = bisect_right(part.counts, self._position.num_yielded)
        self._filtered += (count for count in part.filtered if count > self._position.num_yielded)
        samples, counts, hashes, _ = self._waiting
        samples += part.samples[new:]
        counts += part.counts[new:]
        self._waiting = Part(samples, counts, np.concatenate([hashes, part.hashes[new:]]))
        self._has_kept = self._has_kept or bool(samples)

    def close(self) -> None:
        """Handle the end of the parts."""

    @property
    def num_ready(self) -> int:
        """Number of samples waiting for a batch."""
        return len(self._waiting.samples)

    @property
    def is_full(self) -> bool:
        """True if `batch` can return a full batch."""
        return self.num_ready >= self._size

    def _num_rows(self) -> int:
        """Take parts until a batch is full, and return its number of rows; StopIteration after the last batch."""
        while not self.is_full and (part := next(self._parts, None)) is not None:
            self.add(part)
        if not self.is_full:
            self.close()
        if not self.is_full and (not self.num_ready or self._position.partition.remainder == "drop"):
            self.end()
            raise StopIteration
        return min(self.num_ready, self._size)

    def __next__(self) -> Any:
        """Return the next batch; ``remainder="pad"`` fills the last one with repeats."""
        num_samples = self._num_rows()
        samples, counts, hashes, _ = self._waiting
        repeated = self._repeated(num_samples)
        chosen = itertools.islice(itertools.cycle(samples[:num_samples]), len(repeated))
        batch = self._deliver(self._collated([*chosen]), repeated)
        self._count_rows(num_samples, is_last=num_samples < self._size)  # only now: a failed batch is not yielded
        self._waiting = Part(samples[num_samples:], counts[num_samples:], hashes[num_samples:])
        return batch

    def _count_rows(self, num_rows: int, *, is_last: bool) -> None:
        """Move to the position after this many waiting samples, or to the end of the share, and count them."""
        position, (_, counts, hashes, _) = self._position, self._waiting
        count = position.num_steps if is_last else counts[num_rows - 1]  # of the share, after the batch
        self._context.counters.num_refilled += count - position.num_yielded - num_rows
        self._go_to(count)
        position.received = position.received.plus(Proof(num_rows, int(hashes[:num_rows].sum(dtype=np.uint64))))

    def _repeated(self, num_rows: int) -> list[bool]:
        """Return the marks of repeats for a batch of ``num_rows`` rows, padded to a whole batch if ranks pad."""
        missing = self._size - num_rows if self._position.partition.remainder == "pad" else 0
        return [False] * num_rows + [True] * missing

    def end(self) -> None:
        """Record the end of the share; `UsageError` if the filter kept no sample of a whole epoch."""
        position = self._position
        is_whole = not (self._first or position.start or self._context.resolved.deals)
        if is_whole and not self._has_kept and position.num_steps:
            msg = (
                f"filter() or flat_map() keeps none of the {position.num_steps} samples that rank {position.rank} gets "
            )
            msg += f"in epoch {position.epoch}"
            hint = (
                "try the function on ds[0]; if few samples are kept, use fewer ranks, or filter() without refill=True"
            )
            raise UsageError(msg, hint=hint)
        self._go_to(position.num_steps)

    def _go_to(self, count: int) -> None:
        """Move to the position after this many samples of the share, and count the dropped samples before it."""
        self._position.num_yielded = count
        while self._filtered and self._filtered[0] <= count:
            self._filtered.popleft()
            self._context.counters.num_filtered += 1
