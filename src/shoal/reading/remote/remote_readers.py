"""Reads of units from a remote store: neighbours share a request, many run at a time, and each is verified."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from shoal.formats.shard_format import Records, Sample
from shoal.index.shard_scan import Buffer
from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.checked_reads import can_fill, parse_again, read_request
from shoal.reading.checks.record_checksums import wrong_extent
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.read_buffer import LEAST_BUFFER_BYTES, ReadBuffer
from shoal.reading.remote.request_pool import FIRST_AT_A_TIME, RequestPool
from shoal.reading.remote.request_queue import PendingRequest
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request, coalesce, request_sizes, split_large
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters
from shoal.storage.files.memory_pool import MemoryPool
from shoal.storage.retry import unwrap_retries

# Responses without a buffer (from a cache, or a store that cannot fill one) are copied up to this size, from the heap
# of a thread to the heap of the consumer: they may be kept for long. A larger copy takes as long as the read.
_SMALL_BYTES = 1 << 20
# With 32 requests at first, a first batch comes a third sooner. But each thread has a heap, which is much beside a
# small window. So the read-ahead must have this much room (bench/LOG.md).
_MANY_AT_A_TIME = 32
_MUCH_AHEAD_BYTES = 12 << 20
# The read-ahead divided by this is kept for hedged requests, if they are enabled.
_HEDGED_PART = 8


@dataclass(frozen=True, slots=True)
class Promise:
    """The future bytes of a read: they begin at byte ``begin`` of the response to its request, or to its parts.

    The ``buffer`` belongs to the request, since several requests may be in flight for one extent: samples that are read
    alone may lie in the same extent.
    """

    parts: list[PendingRequest]
    begin: int
    buffer: ReadBuffer | None


class RemoteReaders:
    """Readers that make requests ahead in several threads, and keep responses and errors until they are needed.

    ``shared`` has the threads for all sources of a mixture.
    """

    def __init__(
        self,
        opened: Opened,
        counters: Counters,
        memory: MemoryBudget,
        options: ReadingOptions,
        shared: RequestPool | None = None,
    ) -> None:
        self._opened, self._memory, self._counters = opened, memory, counters
        self._stats = stats = RequestStats(counters)
        self._deadline_seconds = options.deadline_seconds or unwrap_retries(opened.store)[1].deadline_seconds
        limit = memory.ahead_limit_bytes
        hedge_bytes = limit // _HEDGED_PART if options.hedge else 0
        self._sizes = request_sizes(limit - hedge_bytes)
        memory.ahead_limit_bytes, self.group_bytes = self._sizes.ahead_bytes, self._sizes.group_bytes
        self._can_fill, self._mappings = can_fill(opened), MemoryPool()
        self._buffers: set[ReadBuffer] = set()  # of requests whose bytes nobody has taken
        first_at_a_time = _MANY_AT_A_TIME if limit >= _MUCH_AHEAD_BYTES else FIRST_AT_A_TIME
        read = partial(read_request, opened, stats)
        if shared is not None:
            self._pool = shared.of_source(read, hedge_bytes)
            return
        self._pool = RequestPool(
            read,
            stats,
            memory,
            deadline_seconds=self._deadline_seconds,
            hedge_bytes=hedge_bytes,
            # The limit of the epoch before: to find it again would take one or two tenths of a second.
            first_at_a_time=max(first_at_a_time, counters.concurrency),
        )

    def request(self, reads: Sequence[UnitRead]) -> list[Promise]:
        """Queue requests for these reads, and return their promises."""
        requests = coalesce(reads, most_bytes=self._sizes.most_bytes if self._opened.cache is None else 0)
        self._memory.reserve(sum(request.num_bytes for request in requests))
        queued: list[Request] = []
        buffers: list[ReadBuffer | None] = []  # for each queued request
        for request in requests:
            read_bytes = sum(reads[number].num_bytes for number in request.reads)
            parts = [request._replace(num_reads=len(request.reads), read_bytes=read_bytes)]
            if request.is_large:  # its one read is counted with its last part
                parts = [part._replace(read_bytes=part.num_bytes) for part in split_large(request)]
                parts[-1] = parts[-1]._replace(num_reads=1)
            buffer = None
            is_alone = self._can_fill and len(request.reads) == 1 and request.num_bytes > LEAST_BUFFER_BYTES
            if len(parts) > 1 or is_alone:
                buffer = ReadBuffer(request, self._mappings)
                self._buffers.add(buffer)
            queued += parts
            buffers += [buffer] * len(parts)
        promises: dict[int, Promise] = {}
        for pending, buffer in zip(self._pool.ask(queued, buffers), buffers, strict=True):
            for number in pending.request.reads:
                if number in promises:
                    promises[number].parts.append(pending)
                else:
                    begin = reads[number].first_byte - pending.request.first_byte
                    promises[number] = Promise([pending], begin, buffer)
        return [promises[number] for number in range(len(reads))]

    def records(self, read: UnitRead, promise: Promise) -> Records:
        """Wait for the request that covers this read, and parse its samples; request them again if that fails."""
        data = self._bytes(read, promise)
        if promise.buffer is None and len(promise.parts[0].request.reads) == 1 and len(data) <= _SMALL_BYTES:
            data = bytes(memoryview(data))  # in the heap of the consumer
        return parse_again(self._opened, read, data, self._stats)

    def read_into(self, read: UnitRead, promise: Promise, buffer: memoryview) -> None:
        """Wait for the request that covers this read, and copy its bytes into ``buffer``."""
        buffer[:] = self._bytes(read, promise)

    def sample(self, read: UnitRead, promise: Promise, sample_id: int) -> Sample:
        """Wait for the read, and return a sample of it."""
        records = parse_again(self._opened, read, self._bytes(read, promise), self._stats)
        return records.sample(sample_id - read.first_sample)

    def parts_in_turn(self, read: UnitRead) -> Iterator[bytes]:
        """Yield the bytes of a large read part by part, without the cache; memory limits the parts in flight.

        At least one part is in flight. The caller verifies extents, since an extent may span several parts.
        """
        step = self._sizes.turn_bytes
        in_flight: deque[PendingRequest] = deque()

        def oldest() -> bytes:
            pending = in_flight.popleft()
            self._memory.drop(pending.request.num_bytes)
            return self._pool.wait(pending)

        try:
            for start in range(read.first_byte, read.end_byte, step):
                end = min(start + step, read.end_byte)
                num_reads = int(end == read.end_byte)
                part = Request(read.shard, start, end, (0,), False, num_reads, end - start)
                while in_flight and not self._memory.has_room(part.num_bytes):
                    yield oldest()
                self._memory.reserve(part.num_bytes)
                # Behind the read-ahead, which is needed anyway: at the head, each part would overtake earlier parts.
                in_flight += self._pool.ask([part])
            while in_flight:
                yield oldest()
        finally:  # also if the caller gave up early
            self._memory.drop(sum(pending.request.num_bytes for pending in in_flight))

    def close(self) -> None:
        """Drop requests that have not begun, and wait briefly for requests in flight."""
        self._pool.close()
        for buffer in self._buffers:
            buffer.release()
        self._buffers.clear()
        self._mappings.clear()

    def _bytes(self, read: UnitRead, promise: Promise) -> Buffer:
        """Wait for the bytes of a read, count the time, and count the read as in use."""
        began = self._counters.wait_begins()
        try:
            if len(promise.parts[0].request.reads) > 1:
                return self._shared(read, promise)
            try:
                if promise.buffer is None:
                    return self._pool.wait(promise.parts[0])
                return self._buffered(read, promise.parts, promise.buffer)
            finally:
                self._memory.use(read.num_bytes)
        finally:
            self._counters.waited(began)

    def _shared(self, read: UnitRead, promise: Promise) -> Buffer:
        """Return the bytes of a read from the response to a shared request."""
        [pending] = promise.parts
        try:
            return self._pool.wait(pending)[promise.begin : promise.begin + read.num_bytes]
        except Exception:
            # The fault may be in another read of the request. If it took long, the store does not respond.
            if pending.took_seconds > self._deadline_seconds / 2:
                raise
            return self._alone(read, is_counted=False)
        finally:
            self._memory.hold(read.num_bytes)
            if not pending.num_waiters:
                self._memory.drop(pending.request.num_bytes)

    def _buffered(self, read: UnitRead, parts: Sequence[PendingRequest], buffer: ReadBuffer) -> Buffer:
        """Return the bytes of a read with a buffer, once all of its parts have arrived."""
        try:
            data = buffer.take({part.request.first_byte: self._pool.wait(part) for part in parts})
        finally:
            buffer.release()
            self._buffers.discard(buffer)
        # An extent may span several parts, so its checksum is compared here.
        if len(parts) == 1 or wrong_extent(self._opened.index, read.shard, read.first_byte, data) is None:
            return data
        self._stats.corrupt()
        return self._alone(read, is_counted=True)

    def _alone(self, read: UnitRead, *, is_counted: bool) -> bytes:
        """Return the bytes of a read by a request of its own; ``is_counted`` reads are not counted again."""
        request = Request(read.shard, read.first_byte, read.end_byte, (0,))
        if not is_counted:
            request = request._replace(num_reads=1, read_bytes=read.num_bytes)
        return self._pool.wait(self._pool.ask([request], at_once=True)[0])


class SharedReading(NamedTuple):
    """Threads for requests that all sources of a mixture share, None if all are local; and the ledger of all bytes."""

    requests: RequestPool | None
    memory: MemoryBudget
    num_sources: int
