"""Who reads: threads, or the consumer itself where the system reads ahead when it is told what comes.

Threads suit what is far away (`far_readers`). For local files they are only in the way: each of their reads has to wait
for the interpreter, up to 5 ms while the consumer runs, and records of 100 KB streamed three times slower than without
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter as _clock
from typing import Any, Protocol

from shoal.errors import ShardError
from shoal.plan.budget import Ledger
from shoal.plan.units import UnitRead
from shoal.shards.protocol import Records, Sample, Stretch, reading_alone
from shoal.storage.protocol import Reader
from shoal.stream.counters import Counters
from shoal.stream.indexing.opening import Opened
from shoal.stream.reading.chunk_caching import is_cached
from shoal.stream.reading.far_readers import FarReaders
from shoal.stream.reading.integrity import wrong_extent
from shoal.stream.reading.options import ReadingOptions
from shoal.stream.reading.unit_bytes import parse_unit, read_unit

__all__ = ["Readers", "ToldReaders", "readers_of"]

_GROUPS_AHEAD = 4  # what the system is told of is split into so many groups
_TOLD_AFTER_A_SLOW_READ = 256  # reads
# Slower than this, bytes came from a device and not from memory.
_SLOW_READ_SECONDS = 100e-6
_SLOW_SECONDS_PER_BYTE = 1e-9
_SHARDS_AT_HAND = 64
_new = tuple.__new__
_LARGE_BYTES = 16 << 10  # from here on, one more read costs less than one more copy


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

    def get(self, read: UnitRead, promise: Any) -> bytes:
        """The bytes of a read, which are used from now on; raises what went wrong."""
        ...

    def get_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """As `get`, but the bytes go to a place of their own; the time it takes is counted as waiting."""
        ...

    def parse(self, read: UnitRead, data: bytes) -> Records:
        """The samples in the bytes of a read."""
        ...

    def sample(self, read: UnitRead, promise: Any, sample_id: int) -> Sample:
        """One sample out of a read that is wanted for nothing else; the time it takes is counted as waiting."""
        ...

    def close(self) -> None:
        """Stop; no thread is left when this returns, unless its request is not answered for half a second."""
        ...


class ToldReaders:
    """The system is told what comes, and the consumer reads when it needs it.

    Telling costs a tenth of reading what is in memory already, so it is done for a while after a read that took long.
    """

    reads_ahead = False

    def __init__(self, opened: Opened, counters: Counters, ledger: Ledger, options: ReadingOptions) -> None:
        self._opened, self._counters, self._ledger = opened, counters, ledger
        self.group_bytes = max(1, ledger.ahead_limit_bytes // _GROUPS_AHEAD)
        self._verifies = options.verify == "always"
        # Whether a sample is always read in one piece, as what is verified or kept in a cache must be.
        self._in_one = self._verifies or opened.cache is not None
        self._fills = hasattr(opened.store, "read_into")
        self._to_tell = _TOLD_AFTER_A_SLOW_READ
        self._alone = reading_alone(opened.format)
        self._shards: dict[int, tuple[Reader, str, Mapping[str, Any]]] = {}

    def ask(self, reads: Sequence[UnitRead]) -> Iterable[None]:
        """Tell the system, unless all is in memory anyway."""
        num_bytes = sum([read.end_byte - read.first_byte for read in reads])  # a list: this is for each sample
        self._ledger.reserve(num_bytes)
        self._counters.num_requests += len(reads)
        self._counters.requested_bytes += num_bytes
        if self._to_tell > 0:
            self._to_tell -= len(reads)
            store, paths = self._opened.store, self._opened.paths
            for read in reads:
                if self._opened.cache is not None and is_cached(self._opened, read):
                    continue
                store.advise(paths[read.shard], read.first_byte, read.end_byte)
        return itertools.repeat(None, len(reads))

    def get(self, read: UnitRead, promise: None) -> bytes:  # noqa: ARG002
        """Read."""
        self._ledger.use(read.num_bytes)
        began = _clock()
        data = read_unit(self._opened, read)
        if _clock() - began > _SLOW_READ_SECONDS + len(data) * _SLOW_SECONDS_PER_BYTE:
            self._to_tell = _TOLD_AFTER_A_SLOW_READ
        if self._verifies:
            self._verify(read, data)
        return data

    def get_into(self, read: UnitRead, promise: None, buffer: memoryview) -> None:
        """Read; without a copy in between where nobody else looks at the bytes."""
        began = _clock()
        if self._in_one or not self._fills:
            buffer[:] = self.get(read, promise)
            self._counters.wait_seconds += _clock() - began
            return
        num_bytes = len(buffer)
        self._ledger.use(num_bytes)
        try:
            reader = (self._shards.get(read.shard) or self._first_of(read.shard))[0]
            reader.fill(read.first_byte, buffer)  # type: ignore[attr-defined]  # stores that can have readers that can
        except Exception as error:
            path = self._opened.paths[read.shard]
            error.add_note(f"shoal: reading bytes [{read.first_byte}, {read.end_byte}) of {path}")
            raise
        seconds = _clock() - began
        self._counters.wait_seconds += seconds
        if seconds > _SLOW_READ_SECONDS + num_bytes * _SLOW_SECONDS_PER_BYTE:
            self._to_tell = _TOLD_AFTER_A_SLOW_READ

    def parse(self, read: UnitRead, data: bytes) -> Records:
        """The samples in the bytes of a read."""
        return parse_unit(self._opened, read, data)

    def sample(self, read: UnitRead, promise: None, sample_id: int) -> Sample:
        """Read, a large sample piece by piece."""
        _, shard, first_byte, end_byte, first_sample, num_samples = read
        num_bytes = end_byte - first_byte
        began = _clock()
        if self._in_one or num_bytes < _LARGE_BYTES or num_samples > 1:
            sample = parse_unit(self._opened, read, self.get(read, promise)).sample(sample_id - first_sample)
            self._counters.wait_seconds += _clock() - began
            return sample
        self._ledger.use(num_bytes)
        reader, name, head = self._shards.get(shard) or self._first_of(shard)
        # As the class would make it, in a third of the time.
        stretch = _new(Stretch, (name, first_byte, 1, None, head))
        sample = self._alone(reader, end_byte, stretch)
        reader.confirm()
        seconds = _clock() - began
        self._counters.wait_seconds += seconds
        if seconds > _SLOW_READ_SECONDS + num_bytes * _SLOW_SECONDS_PER_BYTE:
            self._to_tell = _TOLD_AFTER_A_SLOW_READ
        return sample

    def _verify(self, read: UnitRead, data: bytes) -> None:
        if (wrong := wrong_extent(self._opened.index, read.shard, read.first_byte, data)) is not None:
            self._counters.num_corrupt += 1
            msg = f"bytes [{wrong[0]}, {wrong[1]}) do not have the checksum in the index"
            hint = "the file was changed or damaged after it was indexed: restore it, or index it again"
            raise ShardError(msg, shard=self._opened.index.shard_names[read.shard], byte=wrong[0], hint=hint)

    def _first_of(self, shard: int) -> tuple[Reader, str, Mapping[str, Any]]:
        """A reader of a shard that was checked, its name and its head."""
        opened = self._opened
        opened.check.check(shard)
        if len(self._shards) >= _SHARDS_AT_HAND:
            self._shards.clear()
        head = opened.index.shard_heads.get(shard, {})
        known = opened.store.reader(opened.paths[shard]), opened.index.shard_names[shard], head
        self._shards[shard] = known
        return known

    def close(self) -> None:
        """Nothing runs; let go of open files."""
        self._shards.clear()


def readers_of(opened: Opened, counters: Counters, ledger: Ledger, options: ReadingOptions) -> Readers:
    """The readers that suit a store: one that reads ahead on its own is told what comes, and read when it has come."""
    kind: type[ToldReaders | FarReaders] = ToldReaders if opened.store.reads_ahead else FarReaders
    return kind(opened, counters, ledger, options)
