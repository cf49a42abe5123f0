"""Readers of units: the consumer itself where the system reads ahead on advice, threads otherwise.

Threads suit remote stores (`remote_readers`). For local files they only get in the way: each of their reads has to
wait for the interpreter lock, up to 5 ms while the consumer runs, and records of 100 KB streamed three times slower
than without threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from time import perf_counter as _clock
from typing import Any, Protocol

from shoal.formats.shard_format import Records
from shoal.index.shard_scan import Buffer
from shoal.indexing.open_source import Opened
from shoal.reading.checks.checked_readers import ShardReaders
from shoal.reading.checks.verified_read import parse_unit
from shoal.reading.local.read_advice import SLOW_READ_SECONDS, SLOW_SECONDS_PER_BYTE, LocalReads
from shoal.reading.options import ReadingOptions
from shoal.reading.remote.remote_readers import FarReaders
from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters

_GROUPS_AHEAD = 4  # groups into which the reads advised to the system are split


class Readers(Protocol):
    """A way of reading units, which counts the bytes read ahead of their first use in a ledger."""

    group_bytes: int
    """Bytes that are requested at a time, as soon as there is room for them."""

    @property
    def reads_ahead(self) -> bool:
        """True if bytes are in this process's memory before they are needed."""
        ...

    def ask(self, reads: Sequence[UnitRead]) -> Iterable[Any]:
        """Announce reads that are needed soon, in this order, and return for each the promise to pass to `get`."""
        ...

    def get(self, read: UnitRead, promise: Any) -> Buffer:
        """Return the bytes of a read, which are in use from now on; raise if the read failed."""
        ...

    def get_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """Write the bytes of a read into a buffer, otherwise like `get`; the time is counted as waiting."""
        ...

    def parse(self, read: UnitRead, data: Buffer) -> Records:
        """Parse the samples in the bytes of a read."""
        ...

    def close(self) -> None:
        """Stop; no thread is left when this returns, unless its request gets no response for half a second."""
        ...


class ToldReaders:
    """Readers of local files: the system is advised of coming reads, and the consumer reads when it needs them."""

    reads_ahead = False

    def __init__(self, opened: Opened, counters: Counters, ledger: MemoryBudget, options: ReadingOptions) -> None:
        self._opened, self._counters, self._ledger = opened, counters, ledger
        self.group_bytes = max(1, ledger.ahead_limit_bytes // _GROUPS_AHEAD)
        self._local = LocalReads(opened, counters, options)
        self._shards = ShardReaders(opened, counters)
        self._fills = hasattr(opened.store, "read_into") and not self._local.in_one

    def ask(self, reads: Sequence[UnitRead]) -> Iterable[None]:
        """Reserve room for the reads, and advise the system of them unless reads are fast anyway, from memory."""
        num_bytes = sum(read.num_bytes for read in reads)
        self._ledger.reserve(num_bytes)
        self._counters.num_requests += len(reads)
        self._counters.requested_bytes += num_bytes
        if self._local.to_tell > 0:
            self._local.tell(reads)
        return itertools.repeat(None, len(reads))

    def get(self, read: UnitRead, promise: None) -> bytes:  # noqa: ARG002
        """Read the bytes of a unit."""
        self._ledger.use(read.num_bytes)
        began = _clock()
        data = self._local.data(read)
        if _clock() - began > SLOW_READ_SECONDS + len(data) * SLOW_SECONDS_PER_BYTE:
            self._local.was_slow()
        return data

    def get_into(self, read: UnitRead, promise: None, buffer: memoryview) -> None:
        """Read the bytes of a unit into a buffer; without a copy unless they are verified or cached."""
        began = _clock()
        if not self._fills:
            buffer[:] = self.get(read, promise)
            self._counters.wait_seconds += _clock() - began
            return
        num_bytes = len(buffer)
        self._ledger.use(num_bytes)
        try:
            # A store with `read_into` has readers with `fill`.
            self._shards[read.shard].reader.fill(read.first_byte, buffer)  # type: ignore[attr-defined]
        except Exception as error:
            path = self._opened.paths[read.shard]
            error.add_note(f"shoal: reading bytes [{read.first_byte}, {read.end_byte}) of {path}")
            raise
        seconds = _clock() - began
        self._counters.wait_seconds += seconds
        if seconds > SLOW_READ_SECONDS + num_bytes * SLOW_SECONDS_PER_BYTE:
            self._local.was_slow()

    def parse(self, read: UnitRead, data: Buffer) -> Records:
        """Parse the samples in the bytes of a read."""
        return parse_unit(self._opened, read, data)

    def close(self) -> None:
        """Release open files; nothing else is running."""
        self._shards.clear()


def readers_of(opened: Opened, counters: Counters, ledger: MemoryBudget, options: ReadingOptions) -> Readers:
    """Return the readers that suit the store: `ToldReaders` if it reads ahead on advice, else `FarReaders`."""
    kind: type[ToldReaders | FarReaders] = ToldReaders if opened.store.reads_ahead else FarReaders
    return kind(opened, counters, ledger, options)
