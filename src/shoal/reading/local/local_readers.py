"""Who reads units: threads, or the consumer itself where the system reads ahead when it is told what comes.

Threads suit what is remote (`remote_readers`). For local files they are only in the way: each of their reads has to
wait for the interpreter, up to 5 ms while the consumer runs, and records of 100 KB streamed three times slower than
without them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from time import perf_counter as _clock
from typing import Any, Protocol

from shoal.formats.shard_format import Buffer, Records
from shoal.indexing.open_source import Opened
from shoal.reading.checks.checked_readers import ShardReaders
from shoal.reading.checks.verified_read import parse_unit
from shoal.reading.local.read_advice import SLOW_READ_SECONDS, SLOW_SECONDS_PER_BYTE, LocalReads
from shoal.reading.options import ReadingOptions
from shoal.reading.remote.remote_readers import FarReaders
from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters

__all__ = ["Readers", "ToldReaders", "readers_of"]

_GROUPS_AHEAD = 4  # what the system is told of is split into so many groups


class Readers(Protocol):
    """A way of having units read, which counts in a ledger what it holds for their first use."""

    group_bytes: int
    """So many bytes are asked for at a time, as soon as there is room for them."""

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes are in this process's memory before they are wanted."""
        ...

    def ask(self, reads: Sequence[UnitRead]) -> Iterable[Any]:
        """These are wanted soon, in this order; what `get` wants to be given for each of them."""
        ...

    def get(self, read: UnitRead, promise: Any) -> Buffer:
        """The bytes of a read, which are used from now on; raises what went wrong."""
        ...

    def get_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """As `get`, but the bytes go to a place of their own; the time it takes is counted as waiting."""
        ...

    def parse(self, read: UnitRead, data: Buffer) -> Records:
        """The samples in the bytes of a read."""
        ...

    def close(self) -> None:
        """Stop; no thread is left when this returns, unless its request is not answered for half a second."""
        ...


class ToldReaders:
    """The system is told what comes, and the consumer reads when it needs it."""

    reads_ahead = False

    def __init__(self, opened: Opened, counters: Counters, ledger: MemoryBudget, options: ReadingOptions) -> None:
        self._opened, self._counters, self._ledger = opened, counters, ledger
        self.group_bytes = max(1, ledger.ahead_limit_bytes // _GROUPS_AHEAD)
        self._local = LocalReads(opened, counters, options)
        self._shards = ShardReaders(opened, counters)
        self._fills = hasattr(opened.store, "read_into") and not self._local.in_one

    def ask(self, reads: Sequence[UnitRead]) -> Iterable[None]:
        """Tell the system, unless all is in memory anyway."""
        num_bytes = sum(read.num_bytes for read in reads)
        self._ledger.reserve(num_bytes)
        self._counters.num_requests += len(reads)
        self._counters.requested_bytes += num_bytes
        if self._local.to_tell > 0:
            self._local.tell(reads)
        return itertools.repeat(None, len(reads))

    def get(self, read: UnitRead, promise: None) -> bytes:  # noqa: ARG002
        """Read."""
        self._ledger.use(read.num_bytes)
        began = _clock()
        data = self._local.data(read)
        if _clock() - began > SLOW_READ_SECONDS + len(data) * SLOW_SECONDS_PER_BYTE:
            self._local.was_slow()
        return data

    def get_into(self, read: UnitRead, promise: None, buffer: memoryview) -> None:
        """Read; without a copy in between where nobody else looks at the bytes."""
        began = _clock()
        if not self._fills:
            buffer[:] = self.get(read, promise)
            self._counters.wait_seconds += _clock() - began
            return
        num_bytes = len(buffer)
        self._ledger.use(num_bytes)
        try:
            # Stores that can fill have readers that can.
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
        """The samples in the bytes of a read."""
        return parse_unit(self._opened, read, data)

    def close(self) -> None:
        """Nothing runs; let go of open files."""
        self._shards.clear()


def readers_of(opened: Opened, counters: Counters, ledger: MemoryBudget, options: ReadingOptions) -> Readers:
    """The readers that suit a store: one that reads ahead on its own is told what comes, and read when it has come."""
    kind: type[ToldReaders | FarReaders] = ToldReaders if opened.store.reads_ahead else FarReaders
    return kind(opened, counters, ledger, options)
