"""Reads one sample at a time from files of this machine, where the system reads ahead when it is told what comes.

The consumer reads, and nothing is held. Headers and payloads come apart, without a copy in between. What is done here
is done for each sample, beside 15 us for 100 KB from the page cache: so it is one loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter as _clock

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.plan.units import UnitRead, Units
from shoal.shards.protocol import Sample, Stretch, reading_alone
from shoal.stream.counters import Counters
from shoal.stream.indexing.opening import Opened
from shoal.stream.reading.damage import damage_or_raise
from shoal.stream.reading.local_reads import SLOW_READ_SECONDS, SLOW_SECONDS_PER_BYTE, LocalReads
from shoal.stream.reading.options import ReadingOptions
from shoal.stream.reading.shard_readers import ShardReaders
from shoal.stream.reading.unit_bytes import parse_unit
from shoal.stream.stages import Damaged

__all__ = ["LocalSingles"]

_PLANNED_AT_ONCE = 256
_LARGE_BYTES = 16 << 10  # from here on, one more read costs less than one more copy
_new = tuple.__new__


class LocalSingles:
    """Samples by id, each with a read of its own.

    Parameters
    ----------
    ahead_limit_bytes
        Of how many bytes the system may be told before they are used.
    """

    def __init__(
        self, opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
    ) -> None:
        self._opened, self._units, self._counters, self._skips = opened, units, counters, options.skips
        self._ahead_limit_bytes = ahead_limit_bytes
        self._local = LocalReads(opened, counters, options)
        self._readers = ShardReaders(opened)

    def samples(self, ids: Sequence[int], units: NDArray[np.int64]) -> Iterator[Sample | Damaged]:
        """The samples with these ids, in turn; ``units`` are the reads they are in."""
        opened, counters, local, readers = self._opened, self._counters, self._local, self._readers
        in_one, alone = local.in_one, reading_alone(opened.format)
        wanted = iter(ids)
        for reads, ahead in self._planned(units):
            # Of the ids, those behind the last of these reads are wanted next.
            for at, (read, sample_id) in enumerate(zip(reads, wanted, strict=False)):
                _, shard, first_byte, end_byte, first_sample, num_samples = read
                num_bytes = end_byte - first_byte
                began = _clock()
                if local.to_tell > 0:
                    ahead.tell(local, at)
                try:
                    if in_one or num_bytes < _LARGE_BYTES or num_samples > 1:
                        sample: Sample | Damaged = parse_unit(opened, read, local.data(read)).sample(
                            sample_id - first_sample
                        )
                    else:
                        reader, name, head = readers[shard]
                        # As the class would make it, in a third of the time.
                        sample = alone(reader, end_byte, _new(Stretch, (name, first_byte, 1, None, head)))
                        reader.confirm()
                except ShardError as error:
                    if not self._skips:
                        raise
                    sample = damage_or_raise(opened, read, error)
                seconds = _clock() - began
                if seconds > SLOW_READ_SECONDS + num_bytes * SLOW_SECONDS_PER_BYTE:
                    local.was_slow()
                counters.wait_seconds += seconds
                counters.num_reads += 1
                counters.read_bytes += num_bytes
                counters.num_requests += 1
                counters.requested_bytes += num_bytes
                yield sample

    def close(self) -> None:
        """Nothing runs; let go of open files."""
        self._readers.clear()

    def _planned(self, units: NDArray[np.int64]) -> Iterator[tuple[list[UnitRead], _Ahead]]:
        """Some reads after the other, each time with what is told of them and of those that follow."""
        starts = range(0, len(units), _PLANNED_AT_ONCE)
        parts = (self._units.reads(units[start : start + _PLANNED_AT_ONCE]) for start in starts)
        reads, following = next(parts, []), next(parts, [])
        num_told = 0
        while reads:
            most_bytes = max([read.end_byte - read.first_byte for read in reads])
            self._counters.peak_held_bytes = max(self._counters.peak_held_bytes, most_bytes)
            ahead = _Ahead([*reads, *following], num_told, max(1, self._ahead_limit_bytes // max(1, most_bytes)))
            yield reads, ahead
            num_told = max(0, ahead.num_told - len(reads))
            reads, following = following, next(parts, [])


class _Ahead:
    """Reads that follow each other, of which the system was told the first ``num_told``."""

    __slots__ = ("_most", "_reads", "num_told")

    def __init__(self, reads: list[UnitRead], num_told: int, most: int) -> None:
        self._reads, self.num_told, self._most = reads, num_told, most

    def tell(self, local: LocalReads, at: int) -> None:
        """Tell of those that come behind the one at this place, as many as may be."""
        first, end = max(self.num_told, at), min(at + self._most, len(self._reads))
        if first < end:
            local.tell(self._reads[first:end])
            self.num_told = end
