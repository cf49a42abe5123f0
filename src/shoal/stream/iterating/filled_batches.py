"""Batches filled with what a filter keeps of a rank's share, for ``filter(refill=True)``.

The share comes in parts: what is left of each global batch. Worker processes make parts, and the process that receives
them cuts the batches; so batches do not depend on the number of workers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.partition import Share
from shoal.pipeline.quarantine import SKIPPED
from shoal.pipeline.stages.stage import DROPPED
from shoal.reading.remote.request_stats import RequestStats
from shoal.storage.retry import StoppedError
from shoal.stream.certificates.delivery_sums import DeliverySums, Proof, RecordHashes
from shoal.stream.certificates.sequence_hashes import hashes_of
from shoal.stream.iterating.batches import BatchContext
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.read_schedule import ReadSpan
from shoal.stream.iterator_position import Position


class Part(NamedTuple):
    """The samples that are left of a rank's share of one global batch.

    ``counts`` are the samples of the share up to each of them and with it, dropped ones included; ``hashes`` those for
    the certificate, of shape (num_samples,). ``filtered`` are such counts of the samples that a filter dropped.
    """

    samples: list[Any]
    counts: list[int]
    hashes: NDArray[np.uint64]
    filtered: Sequence[int] = ()


class SharedParts:
    """The maker of the parts of a rank's share, from the position of an iterator on.

    ``kept`` maps a sample and its id to what is kept of it; None if that is the sample.
    """

    def __init__(self, hashes: RecordHashes, position: Position, kept: Callable[[Any, int], Any] | None = None) -> None:
        self._of, self._epoch, self._kept = hashes, position.epoch, kept
        self._skipped = 0 if position.rank is None else position.num_yielded % position.partition.size_of(position.rank)
        self._noted: deque[tuple[NDArray[np.uint64], int]] = deque()

    def noted(self, shares: Iterator[tuple[Share, range]]) -> Iterator[tuple[Share, range]]:
        """Yield shares without samples that were taken before; each is read as one span, for which `made` looks."""
        for share, steps in shares:
            given, skipped, self._skipped = share, self._skipped, 0
            if skipped:
                given = Share(
                    share.ids[skipped:],
                    share.positions[skipped:],
                    share.chunks[skipped:],
                    share.repeated[skipped:],
                    np.maximum(share.batch_first - skipped, 0),
                )
            self._noted.append((self._of.of(self._epoch, given.positions, given.ids), skipped))
            yield given, steps

    def made(self, spans: Iterator[ReadSpan], source: BatchContext) -> Iterator[Part]:
        """Yield part after part."""
        made, position = source.made, source.position
        size, in_a_row = position.partition.size_of(source.pipeline.rank), 0
        for span in spans:
            hashes, skipped = self._noted.popleft()
            stored = source.samples(span)
            for step, (begin, end) in zip(span.steps, itertools.pairwise(span.batch_first), strict=True):
                samples: list[Any] = []
                kept: list[int] = []
                filtered: list[int] = []
                for number, sample_id in enumerate(span.ids[begin:end], begin):
                    sample = next(stored)
                    result = made(sample, sample_id) if made else sample
                    if position.is_over:
                        msg = "the stream was closed while a batch was made"
                        raise StoppedError(msg)
                    if result is DROPPED or result is SKIPPED:
                        filtered += [number] * (result is DROPPED)
                        in_a_row += 1
                        source.check_dropped(in_a_row, step)
                        continue
                    in_a_row = 0
                    samples.append(result if self._kept is None else self._kept(result, sample_id))
                    kept.append(number)
                before = step * size + skipped + 1 - begin
                skipped = 0
                if position.rank is None:
                    position.num_yielded = step + 1
                counts = ([before + number for number in numbers] for numbers in (kept, filtered))
                yield Part(samples, next(counts), hashes[kept], next(counts))

    def batches(self, spans: Iterator[ReadSpan], source: BatchContext, filler: BatchFiller) -> Iterator[Any]:
        """Yield batch after batch."""
        for part in self.made(spans, source):
            filler.add(part)
            while filler.is_full:
                yield filler.batch()
        yield from filler.last()


def context_of(spec: IteratorSpec, position: Position) -> BatchContext:
    """Return what batches are made with where their samples come from other processes."""
    work = spec.work.of_epoch(spec.epoch)
    sums = DeliverySums(hashes_of(work.resolved), spec.epoch)
    requests = RequestStats(spec.counters)
    return BatchContext(work.opened, work.resolved, work.pipeline, spec.counters, requests, position, sums, None, None)


class BatchFiller:
    """The cutting of parts into batches, and the position after each batch."""

    def __init__(self, source: BatchContext) -> None:
        self._source, self._position = source, source.position
        self._size = source.position.partition.size_of(source.pipeline.rank)
        self._collated, self._deliver = source.pipeline.collator, source.deliverer
        self._waiting = Part([], [], np.zeros(0, dtype=np.uint64))
        self._filtered: deque[int] = deque()
        self._first, self._has_kept = source.position.num_yielded, False

    def add(self, part: Part) -> None:
        """Append a part, without samples that were taken before."""
        new = bisect_right(part.counts, self._position.num_yielded)
        self._filtered += (count for count in part.filtered if count > self._position.num_yielded)
        samples, counts, hashes, _ = self._waiting
        samples += part.samples[new:]
        counts += part.counts[new:]
        self._waiting = Part(samples, counts, np.concatenate([hashes, part.hashes[new:]]))
        self._has_kept = self._has_kept or bool(samples)

    def last(self) -> Iterator[Any]:
        """Yield the batches that are left when there are no more parts."""
        self.close()
        while self.is_full:
            yield self.batch()
        if self.num_ready and self._position.partition.remainder != "drop":
            yield self.rest()
        self.end()

    def close(self) -> None:
        """Note that there are no more parts."""

    @property
    def num_ready(self) -> int:
        """Samples that wait for a batch."""
        return len(self._waiting.samples)

    @property
    def is_full(self) -> bool:
        """True if `batch` has one."""
        return self.num_ready >= self._size

    def batch(self) -> Any:
        """Return the next full batch."""
        return self._taken(self._size, 0, self._waiting.counts[self._size - 1])

    def rest(self) -> Any:
        """Return the last batch of the share; if it is to be padded, with repeats of its own samples."""
        num_samples = len(self._waiting.samples)
        missing = self._size - num_samples if self._position.partition.remainder == "pad" else 0
        return self._taken(num_samples, missing, self._position.num_steps)

    def end(self) -> None:
        """Record that the share is over.

        Raises
        ------
        UsageError
            Nothing was kept of a whole epoch.
        """
        position = self._position
        is_whole = not (self._first or position.start or self._source.resolved.deals)
        if is_whole and not self._has_kept and position.num_steps:
            msg = f"filter() keeps none of the {position.num_steps} samples that rank {position.rank} gets in epoch "
            msg += str(position.epoch)
            hint = "try the function on ds[0]; if it keeps few, use fewer ranks, or leave out refill=True"
            raise UsageError(msg, hint=hint)
        self._go_to(position.num_steps)

    def _go_to(self, count: int) -> None:
        """Move to the position after this many samples of the share, and count those that a filter dropped before."""
        self._position.num_yielded = count
        while self._filtered and self._filtered[0] <= count:
            self._filtered.popleft()
            self._source.counters.num_filtered += 1

    def _taken(self, num_samples: int, num_repeats: int, count: int) -> Any:
        """Return a batch of the first samples that wait, after which this many samples of the share are taken."""
        samples, counts, hashes, _ = self._waiting
        repeats = itertools.islice(itertools.cycle(samples[:num_samples]), num_repeats)
        repeated = [False] * num_samples + [True] * num_repeats
        batch = self._deliver(self._collated([*samples[:num_samples], *repeats]), repeated)
        # Only now: a batch that failed was not yielded.
        position, delivered = self._position, hashes[:num_samples]
        self._source.counters.num_refilled += count - position.num_yielded - num_samples
        self._go_to(count)
        position.received = position.received.plus(Proof(num_samples, int(delivered.sum(dtype=np.uint64))))
        self._waiting = Part(samples[num_samples:], counts[num_samples:], hashes[num_samples:])
        return batch
