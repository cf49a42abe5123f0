"""Reads of one sample at a time from local files, where the system reads ahead on advice.

The consumer reads, and nothing is held. Headers and payloads are read separately, without a copy in between. All of it
is one loop because it runs for every sample, beside 15 us for reading 100 KB from the page cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from time import perf_counter as _clock

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.shard_format import Sample, Span, reading_alone
from shoal.indexing.open_source import Opened
from shoal.reading.checks.checked_readers import ShardReaders
from shoal.reading.checks.damaged import Damaged, sound_or_lost
from shoal.reading.checks.verified_read import parse_unit
from shoal.reading.local.read_advice import SLOW_READ_SECONDS, SLOW_SECONDS_PER_BYTE, LocalReads
from shoal.reading.options import ReadingOptions
from shoal.reading.schedule.units import UnitRead, Units
from shoal.stats.counters import Counters

_PLANNED_AT_ONCE = 256
_LARGE_BYTES = 16 << 10  # from here on, one more read costs less than one more copy
_new = tuple.__new__


class LocalSingles:
    """Local samples by id, each with a read of its own.

    Parameters
    ----------
    ahead_limit_bytes
        Bytes of which the system may be advised before they are used.
    """

    def __init__(
        self, opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
    ) -> None:
        self._opened, self._units, self._counters, self._skips = opened, units, counters, options.skips
        self._ahead_limit_bytes = ahead_limit_bytes
        self._local = LocalReads(opened, counters, options)
        self._readers = ShardReaders(opened, counters)

    def samples(self, ids: Sequence[int], units: NDArray[np.int64]) -> Iterator[Sample | Damaged]:
        """Yield the samples with these ids in order; ``units`` are the reads that hold them."""
        opened, counters, local, readers = self._opened, self._counters, self._local, self._readers
        in_one, alone = local.in_one, reading_alone(opened.format)
        ahead = _Ahead(self._units, units, local)
        wanted = iter(ids)
        for start in range(0, len(units), _PLANNED_AT_ONCE):
            # Columns instead of an object for each read: the garbage collector would traverse all of them.
            columns = self._units.columns(units[start : start + _PLANNED_AT_ONCE])
            most_bytes = int((columns[3] - columns[2]).max())
            counters.peak_held_bytes = max(counters.peak_held_bytes, most_bytes)
            most_ahead = max(1, self._ahead_limit_bytes // max(1, most_bytes))
            # Not strict: the ids that follow the last of these reads belong to the next reads.
            rows = zip(itertools.count(start), *(column.tolist() for column in columns), wanted, strict=False)
            for at, unit, shard, first_byte, end_byte, first_sample, num_samples, sample_id in rows:
                num_bytes = end_byte - first_byte
                began = _clock()
                if local.to_tell > 0:
                    ahead.tell(at, at + most_ahead)
                try:
                    if in_one or num_bytes < _LARGE_BYTES or num_samples > 1:
                        read = UnitRead(unit, shard, first_byte, end_byte, first_sample, num_samples)
                        records = parse_unit(opened, read, local.data(read))
                        sample: Sample | Damaged = records.sample(sample_id - first_sample)
                    else:
                        reader, name, head = readers[shard]
                        # Same as calling the class, in a third of the time.
                        sample = alone(reader, end_byte, _new(Span, (name, first_byte, 1, None, head)))
                        reader.confirm()
                except ShardError as error:
                    if not self._skips:
                        raise
                    read = UnitRead(unit, shard, first_byte, end_byte, first_sample, num_samples)
                    sample = sound_or_lost(opened, read, sample_id, error)
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
        """Release open files; nothing else is running."""
        self._readers.clear()


class _Ahead:
    """Advice to the system on coming reads, given once for each."""

    def __init__(self, units: Units, numbers: NDArray[np.int64], local: LocalReads) -> None:
        self._units, self._numbers, self._local = units, numbers, local
        self._num_told = 0

    def tell(self, at: int, end: int) -> None:
        """Advise the system of the reads at places ``[at, end)``, except those already advised."""
        first, end = max(self._num_told, at), min(end, len(self._numbers))
        if first < end:
            self._local.tell(self._units.reads(self._numbers[first:end]))
            self._num_told = end
