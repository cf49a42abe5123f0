"""Reads of one sample at a time from a remote store: samples as large as a chunk, or whose neighbours share no chunk.

Nothing is kept, so nothing is planned: the next samples are requested in groups, as many as fit into the read-ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.shard_format import Sample
from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.damaged_samples import Damaged, salvage_one
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.fetching_readers import waiting_readers
from shoal.reading.remote.remote_readers import SharedReading
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.units import UnitRead, Units
from shoal.stats.counters import Counters

_MOST_IN_GROUP = 256
_PLANNED_AT_ONCE = 256


class RemoteSamples:
    """Remote samples by id, each with a read of its own; ``ahead_limit_bytes`` may be requested before their use."""

    def __init__(
        self,
        opened: Opened,
        units: Units,
        counters: Counters,
        *,
        ahead_limit_bytes: int,
        options: ReadingOptions,
        shared: SharedReading | None = None,
    ) -> None:
        self._options = options
        self._opened, self._units, self._counters = opened, units, counters
        total, requests = (None, None) if shared is None else (shared.memory, shared.requests)
        self._memory = MemoryBudget(ahead_limit_bytes=ahead_limit_bytes, total=total)
        self._stats = RequestStats(counters)
        self._readers = waiting_readers(opened, counters, self._memory, options, requests)

    def samples(self, ids: Sequence[int], units: NDArray[np.int64]) -> Iterator[Sample | Damaged]:
        """Yield the samples with these ids in order; ``units`` are the reads that hold them."""
        get, release, counters = self._readers.sample, self._memory.release, self._counters
        sample_ids = iter(ids)
        for group, promises in self._requested(_groups(self._units, units, self._readers.group_bytes)):
            # Not strict: later ids belong to the next groups.
            for read, promise, sample_id in zip(group.reads, promises, sample_ids, strict=False):
                try:
                    sample: Sample | Damaged = get(read, promise, sample_id)
                except ShardError as error:
                    if not self._options.skips:
                        raise
                    sample = salvage_one(self._opened, read, sample_id, error, self._stats)
                counters.heights(self._memory.peak_bytes, self._memory.peak_claimed_bytes)
                release(read.end_byte - read.first_byte)
                yield sample

    def close(self) -> None:
        """Stop; no thread is left when this returns."""
        self._readers.close()

    def _requested(self, groups: Iterator[_Group]) -> Iterator[tuple[_Group, list[Any]]]:
        """Yield the groups; before each, request as many later groups as fit into the read-ahead."""
        requested: deque[tuple[_Group, list[Any]]] = deque()
        for group in groups:
            # The caller is done with the oldest group when it asks for the next.
            while requested and not self._memory.has_room(group.num_bytes):
                yield requested.popleft()
            requested.append((group, self._readers.request(group.reads)))
        yield from requested


class _Group(NamedTuple):
    """Reads that are requested together, and their bytes."""

    reads: list[UnitRead]
    num_bytes: int


def _groups(units: Units, numbers: NDArray[np.int64], group_bytes: int) -> Iterator[_Group]:
    """Yield the reads of some units in groups of at most ``group_bytes``, or of a single larger read."""
    reads: list[UnitRead] = []
    sum_bytes = 0
    for start in range(0, len(numbers), _PLANNED_AT_ONCE):
        for read in units.reads(numbers[start : start + _PLANNED_AT_ONCE]):
            num_bytes = read.end_byte - read.first_byte
            if reads and (sum_bytes + num_bytes > group_bytes or len(reads) == _MOST_IN_GROUP):
                yield _Group(reads, sum_bytes)
                reads, sum_bytes = [], 0
            reads.append(read)
            sum_bytes += num_bytes
    if reads:
        yield _Group(reads, sum_bytes)
