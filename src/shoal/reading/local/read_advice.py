"""Timed reads of local files by the consumer; while they are slow, the system is advised of those to come.

Advice costs a tenth of a read from memory, so it is given only for a while after a slow read.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.errors import ShardError
from shoal.indexing.open_source import Opened
from shoal.reading.cached_ranges import is_cached
from shoal.reading.checks.record_checksums import wrong_extent
from shoal.reading.checks.verified_read import read_unit
from shoal.reading.options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters

_TOLD_AFTER_A_SLOW_READ = 256  # reads
# Reads slower than this came from a device and not from memory.
SLOW_READ_SECONDS = 100e-6
SLOW_SECONDS_PER_BYTE = 1e-9


class LocalReads:
    """Reader of whole local units, which verifies their checksums on request.

    Attributes
    ----------
    in_one
        True if a unit is always read in one piece, as required for verifying or caching it.
    to_tell
        Number of coming reads of which the system is to be advised.
    """

    def __init__(self, opened: Opened, counters: Counters, options: ReadingOptions) -> None:
        self._opened, self._counters, self._traffic = opened, counters, RequestStats(counters)
        self._verifies = options.verify == "always"
        self.in_one = self._verifies or opened.cache is not None
        self.to_tell = _TOLD_AFTER_A_SLOW_READ

    def tell(self, reads: Iterable[UnitRead]) -> None:
        """Advise the system of reads that come soon, except for those in the cache."""
        opened = self._opened
        for read in reads:
            self.to_tell -= 1
            if opened.cache is None or not is_cached(opened, read):
                opened.store.advise(opened.paths[read.shard], read.first_byte, read.end_byte)

    def was_slow(self) -> None:
        """Resume advice after a slow read."""
        self.to_tell = _TOLD_AFTER_A_SLOW_READ

    def data(self, read: UnitRead) -> bytes:
        """Read the bytes of a unit.

        Raises
        ------
        ShardError
            Their checksum differs from the index.
        """
        data = read_unit(self._opened, read, traffic=self._traffic)
        if self._verifies:
            self._verify(read, data)
        return data

    def _verify(self, read: UnitRead, data: bytes) -> None:
        index = self._opened.index
        if (wrong := wrong_extent(index, read.shard, read.first_byte, data)) is not None:
            self._counters.num_corrupt += 1
            msg = f"bytes [{wrong[0]}, {wrong[1]}) do not have the checksum in the index"
            hint = "the file was changed or damaged after it was indexed: restore it, or index it again"
            raise ShardError(msg, shard=index.shard_names[read.shard], byte=wrong[0], hint=hint)
