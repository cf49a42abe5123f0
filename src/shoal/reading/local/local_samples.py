"""Reads of one sample at a time from local files, where the system reads ahead on advice.

The consumer reads, and nothing is held. Headers and payloads are read separately, without a copy. One loop does it all,
since it runs for every sample, beside 15 us for 100 KB from the page cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.shard_format import Sample, Span
from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.checked_reads import parse_unit, read_unit
from shoal.reading.checks.damaged_samples import Damaged, salvage_one
from shoal.reading.local.local_readers import SLOW_READ_SECONDS, SLOW_SECONDS_PER_BYTE, ReadAdvice, ShardReaders
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.units import UnitRead, Units
from shoal.stats.counters import Counters

_PLANNED_AT_ONCE = 256
_LARGE_BYTES = 16 << 10  # from this size on, one more read costs less than one more copy
_new = tuple.__new__


class LocalSamples:
    """Samples of local files by id, each with a read of its own; ``ahead_limit_bytes`` may be advised ahead."""

    def __init__(
        self, opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
    ) -> None:
        self._opened, self._units, self._counters, self._options = opened, units, counters, options
        self._ahead_limit_bytes = ahead_limit_bytes
        self._advice, self._stats = ReadAdvice(opened), RequestStats(counters)
        self._readers = ShardReaders(opened, counters)

    def samples(self, ids: Sequence[int], units: NDArray[np.int64]) -> Iterator[Sample | Damaged]:
        """Yield the samples with these ids in order; ``units`` are the reads that hold them."""
        opened, counters, advice, readers = self._opened, self._counters, self._advice, self._readers
        verifies, read_alone = self._options.verify == "always", opened.format.read_sample
        in_one = verifies or opened.cache is not None
        num_advised, sample_ids = 0, iter(ids)
        for start in range(0, len(units), _PLANNED_AT_ONCE):
            # Columns instead of an object for each read: the garbage collector would traverse all of them.
            columns = self._units.columns(units[start : start + _PLANNED_AT_ONCE])
            most_bytes = int((columns[3] - columns[2]).max())
            most_ahead = max(1, self._ahead_limit_bytes // max(1, most_bytes))
            # Not strict: later ids belong to the next reads.
            rows = zip(itertools.count(start), *(column.tolist() for column in columns), sample_ids, strict=False)
            for at, unit, shard, first_byte, end_byte, first_sample, num_samples, sample_id in rows:
                num_bytes = end_byte - first_byte
                began = counters.wait_begins()
                # In groups: the columns of one unit take as long as its read.
                if advice.num_to_give > 0 and num_advised <= min(at + most_ahead // 2, len(units) - 1):
                    first, num_advised = max(num_advised, at), min(at + most_ahead, len(units))
                    advice.give(self._units.reads(units[first:num_advised]))
                try:
                    if in_one or num_bytes < _LARGE_BYTES or num_samples > 1:
                        read = UnitRead(unit, shard, first_byte, end_byte, first_sample, num_samples)
                        data = read_unit(opened, read, stats=self._stats, verify=verifies)
                        sample: Sample | Damaged = parse_unit(opened, read, data).sample(sample_id - first_sample)
                    else:
                        reader, name, head = readers[shard]
                        # Same as calling the class, in a third of the time.
                        sample = read_alone(reader, end_byte, _new(Span, (name, first_byte, 1, None, head)))
                        reader.confirm()
                except ShardError as error:
                    if not self._options.skips:
                        raise
                    read = UnitRead(unit, shard, first_byte, end_byte, first_sample, num_samples)
                    sample = salvage_one(opened, read, sample_id, error, self._stats)
                seconds = counters.waited(began, num_bytes)
                if seconds > SLOW_READ_SECONDS + num_bytes * SLOW_SECONDS_PER_BYTE:
                    advice.resume()
                counters.heights(num_bytes, num_bytes)
                counters.num_reads += 1
                counters.read_bytes += num_bytes
                counters.num_requests += 1
                counters.requested_bytes += num_bytes
                yield sample

    def close(self) -> None:
        """Release open files."""
        self._readers.clear()
