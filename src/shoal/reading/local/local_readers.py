"""Reads of whole units from local files: the system is advised of the next reads, and the consumer makes them itself.

Threads would get in the way: each of their reads waits for the interpreter lock, up to 5 ms while the consumer runs,
and samples of 100 KB streamed three times slower. Advice costs a tenth of a read from memory, so it is given only for a
while after a slow read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.formats.shard_format import Records
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.cached_ranges import is_cached
from shoal.reading.checks.checked_reads import read_unit, span_of
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters
from shoal.storage.files.local_store import LocalStore
from shoal.storage.store_protocol import Reader

_MOST_READERS = 64


class ShardReader(NamedTuple):
    """The reader of a shard, its name, and its head in the index."""

    reader: Reader
    name: str
    head: Mapping[str, Any]


class ShardReaders(dict[int, ShardReader]):
    """Bounded cache of readers by shard number; a dict, since every read looks up a reader.

    The first lookup of a shard raises `ShardError` if the shard has changed.
    """

    def __init__(self, opened: Opened, counters: Counters) -> None:
        super().__init__()
        self._opened, self._traffic = opened, RequestStats(counters)

    def __missing__(self, shard: int) -> ShardReader:
        opened = self._opened
        opened.check.check(shard, self._traffic)
        if len(self) >= getattr(opened.store, "most_readers", _MOST_READERS):
            self.clear()
        index = opened.index
        reader = opened.store.reader(opened.paths[shard])
        shard_reader = self[shard] = ShardReader(reader, index.shard_names[shard], index.shard_heads.get(shard, {}))
        return shard_reader


_GROUPS_AHEAD = 4  # groups into which the reads advised to the system are split
_ADVISED_AFTER_A_SLOW_READ = 256  # reads
# Reads slower than this came from a device and not from memory.
SLOW_READ_SECONDS = 100e-6
SLOW_SECONDS_PER_BYTE = 1e-9


class ReadAdvice:
    """Advice to the system on the next reads; ``num_to_give`` reads are still to be advised."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self.num_to_give = _ADVISED_AFTER_A_SLOW_READ

    def give(self, reads: Iterable[UnitRead]) -> None:
        """Advise the system of the next reads, except reads from the cache."""
        opened = self._opened
        for read in reads:
            self.num_to_give -= 1
            if opened.cache is None or not is_cached(opened, read):
                opened.store.advise(opened.paths[read.shard], read.first_byte, read.end_byte)

    def resume(self) -> None:
        """Give advice again, after a slow read."""
        self.num_to_give = _ADVISED_AFTER_A_SLOW_READ


class LocalReaders:
    """Readers of units in local files."""

    def __init__(self, opened: Opened, counters: Counters, memory: MemoryBudget, options: ReadingOptions) -> None:
        self._opened, self._counters, self._memory = opened, counters, memory
        self.group_bytes = max(1, memory.ahead_limit_bytes // _GROUPS_AHEAD)
        self._advice, self._stats = ReadAdvice(opened), RequestStats(counters)
        self._verifies = options.verify == "always"
        self._shards = ShardReaders(opened, counters)
        self._reads_in_place = isinstance(opened.store, LocalStore) and not self._verifies and opened.cache is None

    def request(self, reads: Sequence[UnitRead]) -> Iterable[None]:
        """Reserve room for the reads, and advise the system of them unless reads are fast, from memory."""
        self._memory.reserve(sum(read.num_bytes for read in reads))
        if self._advice.num_to_give > 0:
            self._advice.give(reads)
        return itertools.repeat(None, len(reads))

    def records(self, read: UnitRead, promise: None) -> Records:  # noqa: ARG002
        """Read a unit, and parse its samples."""
        began = self._counters.wait_begins()
        self._memory.use(read.num_bytes)
        data = read_unit(self._opened, read, stats=self._stats, verify=self._verifies)
        self._count(began, len(data), 1)
        return self._opened.format.parse(data, span_of(self._opened.index, read))

    def read_into(self, read: UnitRead, promise: None, buffer: memoryview) -> None:  # noqa: ARG002
        """Read the bytes of a unit into a buffer, without a copy unless they are verified or cached."""
        began = self._counters.wait_begins()
        self._memory.use(read.num_bytes)
        self._fill(read, buffer)
        self._count(began, len(buffer), 1)

    def read_all(self, reads: Sequence[UnitRead], buffers: Sequence[memoryview | None]) -> list[Records | None]:
        """Read units into buffers, or parse the units without one; a list of records, shorter if a later unit fails.

        The units are counted together: counting a unit takes as long as reading it.
        """
        opened, began = self._opened, self._counters.wait_begins()
        stored: list[bytes | None] = []
        try:
            for read, buffer in zip(reads, buffers, strict=True):
                data = None
                if buffer is None:
                    data = read_unit(opened, read, stats=self._stats, verify=self._verifies)
                else:
                    self._fill(read, buffer)
                stored.append(data)
        except Exception:
            if not stored:
                raise
        num_bytes = sum([read.end_byte - read.first_byte for read in reads[: len(stored)]])
        self._memory.use(num_bytes)
        self._count(began, num_bytes, len(stored))
        records: list[Records | None] = []
        try:
            for read, data in zip(reads, stored, strict=False):
                records.append(None if data is None else opened.format.parse(data, span_of(opened.index, read)))
        except Exception:
            if not records:
                raise
            for read in reads[len(records) : len(stored)]:  # they are read again when they are due
                self._memory.release(read.num_bytes)
                self._memory.reserve(read.num_bytes)
        return records

    def _fill(self, read: UnitRead, buffer: memoryview) -> None:
        if not self._reads_in_place:
            buffer[:] = read_unit(self._opened, read, stats=self._stats, verify=self._verifies)
            return
        try:
            # Readers of a `LocalStore` have `fill`.
            self._shards[read.shard].reader.fill(read.first_byte, buffer)  # type: ignore[attr-defined]
        except Exception as error:
            path = self._opened.paths[read.shard]
            error.add_note(f"shoal: reading bytes [{read.first_byte}, {read.end_byte}) of {path}")
            raise

    def _count(self, began: float, num_bytes: int, num_reads: int) -> None:
        counters = self._counters
        seconds = counters.waited(began, num_bytes)
        counters.num_reads += num_reads
        counters.read_bytes += num_bytes
        counters.num_requests += num_reads
        counters.requested_bytes += num_bytes
        if seconds > num_reads * SLOW_READ_SECONDS + num_bytes * SLOW_SECONDS_PER_BYTE:
            self._advice.resume()

    def close(self) -> None:
        """Release open files."""
        self._shards.clear()
