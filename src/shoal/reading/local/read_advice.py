"""Reads of files of this machine by who needs them: timed, so that the system is told of others while they are slow.

Telling costs a tenth of reading what is in memory already, so it is done for a while after a read that took long.
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

__all__ = ["SLOW_READ_SECONDS", "SLOW_SECONDS_PER_BYTE", "LocalReads"]

_TOLD_AFTER_A_SLOW_READ = 256  # reads
# Slower than this, bytes came from a device and not from memory.
SLOW_READ_SECONDS = 100e-6
SLOW_SECONDS_PER_BYTE = 1e-9


class LocalReads:
    """Reads whole units, compared with the checksums of the index where that was asked for.

    Attributes
    ----------
    in_one
        Whether a unit is always read in one piece, as what is verified or kept in a cache must be.
    to_tell
        Of how many reads to come the system is to be told.
    """

    def __init__(self, opened: Opened, counters: Counters, options: ReadingOptions) -> None:
        self._opened, self._counters, self._traffic = opened, counters, RequestStats(counters)
        self._verifies = options.verify == "always"
        self.in_one = self._verifies or opened.cache is not None
        self.to_tell = _TOLD_AFTER_A_SLOW_READ

    def tell(self, reads: Iterable[UnitRead]) -> None:
        """These come soon; the system is told, but for what lies in the cache."""
        opened = self._opened
        for read in reads:
            self.to_tell -= 1
            if opened.cache is None or not is_cached(opened, read):
                opened.store.advise(opened.paths[read.shard], read.first_byte, read.end_byte)

    def was_slow(self) -> None:
        """A read took long."""
        self.to_tell = _TOLD_AFTER_A_SLOW_READ

    def data(self, read: UnitRead) -> bytes:
        """The bytes of a unit.

        Raises
        ------
        ShardError
            Their checksum is not that of the index.
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
