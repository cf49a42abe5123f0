"""Reads of units from a remote store: neighbours share a request, many run at a time, each verified on arrival."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shoal.formats.shard_format import Records, Sample
from shoal.index.shard_scan import Buffer
from shoal.indexing.open_source import Opened
from shoal.reading.checks.record_checksums import wrong_extent
from shoal.reading.checks.verified_read import fills, parse_again, read_bytes
from shoal.reading.options import ReadingOptions
from shoal.reading.remote.answer_buffers import LEAST_ROOM_BYTES, Room
from shoal.reading.remote.parts import Whole
from shoal.reading.remote.request_pool import FIRST_AT_A_TIME, Arrival, Arrivals
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.coalescing import Request, coalesce
from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.request_sizes import in_parts, request_sizes
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters
from shoal.storage.files.memory_pool import MemoryPool
from shoal.storage.retry import unwrap_retries

# Responses without a buffer of their own (from a cache, or a store that cannot fill one) are copied up to this size:
# bytes that may be kept for long move from the heap of a thread to that of the consumer. Copying larger ones would take
# as long as reading them.
_SMALL_BYTES = 1 << 20
# The read-ahead divided by this is kept for hedged requests, if they are enabled.
_HEDGED_PART = 8


class _Placed(Request):
    """A request whose response goes to a buffer of its own, as long as a consumer waits for it.

    The buffer belongs to the request and not to its bytes: if samples are read alone, several may lie in one extent,
    which is then requested again while the first response is in flight.
    """

    into: Room | Whole | None = None


class _InTurn(Request):
    """A request for a part of a large read; the caller assembles the parts, or keeps none."""


class Promise:
    """The future response with a read, from byte ``begin`` on; or the responses with its parts."""

    __slots__ = ("arrival", "begin", "parts")

    def __init__(self, arrival: Arrival, begin: int) -> None:
        self.arrival, self.begin = arrival, begin
        self.parts: list[Arrival] | None = None


class FarReaders:
    """Readers that make requests ahead in several threads, and keep responses and errors until they are needed."""

    reads_ahead = True

    def __init__(self, opened: Opened, counters: Counters, ledger: MemoryBudget, options: ReadingOptions) -> None:
        self._opened, self._ledger, self._counters = opened, ledger, counters
        self._traffic = traffic = RequestStats(counters)
        self._deadline_seconds = options.deadline_seconds or unwrap_retries(opened.store)[1].deadline_seconds
        limit = ledger.ahead_limit_bytes
        hedge_bytes = limit // _HEDGED_PART if options.hedge else 0
        self._sizes = request_sizes(limit - hedge_bytes)
        ledger.ahead_limit_bytes, self.group_bytes = self._sizes.ahead_bytes, self._sizes.group_bytes

        self._fills = fills(opened)
        self._memories = MemoryPool()
        self._placed: dict[int, _Placed] = {}  # by identity: requests that a consumer waits for

        without_cache = replace(opened, cache=None)

        def carry_out(request: Request) -> bytes:
            if isinstance(request, _InTurn):
                return read_bytes(without_cache, *request[:3], traffic)
            into = _place_of(request)
            if isinstance(into, Room) and (buffer := into.claim()) is not None:
                with buffer:
                    return read_bytes(opened, *request[:3], traffic, buffer=buffer)
            del into  # no reference is held while the request runs: the consumer may give the buffer up
            data = read_bytes(opened, *request[:3], traffic)
            if not isinstance(whole := _place_of(request), Whole):
                return data
            whole.put(request, data)
            return b""

        self._arrivals = Arrivals(
            carry_out,
            traffic,
            deadline_seconds=self._deadline_seconds,
            hedge_bytes=hedge_bytes,
            # The limit found in the epoch before: finding it again would take one or two tenths of a second per epoch.
            first_at_a_time=max(FIRST_AT_A_TIME, counters.concurrency),
        )

    def ask(self, reads: Sequence[UnitRead]) -> list[Promise]:
        """Queue requests for these reads, and return their promises."""
        requests = coalesce(reads, most_bytes=self._sizes.most_bytes if self._opened.cache is None else 0)
        self._ledger.reserve(sum(request.num_bytes for request in requests))
        promises: dict[int, Promise] = {}
        asked: list[Request] = []
        for request in requests:
            into: Room | Whole | None = None
            if len(parts := in_parts(request)) > 1:
                into = Whole(request, self._memories)
            elif self._fills and len(request.places) == 1 and request.num_bytes > LEAST_ROOM_BYTES:
                into = Room(request.num_bytes, self._memories)
            asked += parts if into is None else [self._put_into(part, into) for part in parts]
        for arrival in self._arrivals.ask(asked):
            for place in arrival.request.places:
                begin = reads[place].first_byte - arrival.request.first_byte
                promise = promises.setdefault(place, Promise(arrival, begin))
                if isinstance(_place_of(arrival.request), Whole):
                    promise.parts = [*(promise.parts or ()), arrival]
        return [promises[place] for place in range(len(reads))]

    def get(self, read: UnitRead, promise: Promise) -> Buffer:
        """Wait for the request that covers this read, and return its bytes."""
        return self._get(read, promise, to_keep=True)

    def _get(self, read: UnitRead, promise: Promise, *, to_keep: bool) -> Buffer:
        """Return the bytes of a read; with ``to_keep`` in the heap of the consumer, or in memory of their own."""
        if promise.parts is not None:
            return self._together(read, promise.parts)
        arrival = promise.arrival
        if len(arrival.request.places) == 1:
            self._ledger.use(read.num_bytes)
            into = _place_of(arrival.request)
            try:
                data = self._arrivals.wait(arrival)
            finally:
                self._leave(arrival.request)
            if not data and isinstance(into, Room):
                return into.taken()
            return bytes(memoryview(data)) if to_keep and len(data) <= _SMALL_BYTES else data
        self._ledger.copy(read.num_bytes)
        try:
            data = self._arrivals.wait(arrival)
        except Exception:
            # The fault may be in another read of the request, unless it took long: then the store does not respond.
            if arrival.took_seconds > self._deadline_seconds / 2:
                raise
            data = self._alone(read)
        else:
            data = data[promise.begin : promise.begin + read.num_bytes]
        if not arrival.num_takers:
            self._ledger.drop(arrival.request.num_bytes)
        return data

    def get_into(self, read: UnitRead, promise: Promise, buffer: memoryview) -> None:
        """Wait for the request that covers this read, and copy its bytes into ``buffer``."""
        began = time.perf_counter()
        try:
            buffer[:] = self.get(read, promise)
        finally:
            self._counters.wait_seconds += time.perf_counter() - began

    def parse(self, read: UnitRead, data: Buffer) -> Records:
        """Parse the samples in the bytes of a read, which is repeated if they cannot be parsed."""
        return parse_again(self._opened, read, data, self._traffic)

    def sample(self, read: UnitRead, promise: Promise, sample_id: int) -> Sample:
        """Wait for the read, and return a sample of it."""
        began = time.perf_counter()
        try:
            data = self._get(read, promise, to_keep=False)
            return self.parse(read, data).sample(sample_id - read.first_sample)
        finally:
            self._counters.wait_seconds += time.perf_counter() - began

    def in_turn(self, read: UnitRead) -> Iterator[bytes]:
        """Yield the bytes of a large read part by part, with as many in flight as there is room for; past the cache.

        At least one is always in flight, since it is needed now. The caller verifies checksums, since an extent may
        span several parts.
        """
        step = self._sizes.turn_bytes
        under_way: deque[Arrival] = deque()
        try:
            for start in range(read.first_byte, read.end_byte, step):
                request = _InTurn(read.shard, start, min(start + step, read.end_byte), (0,))
                while under_way and not self._ledger.has_room(request.num_bytes):
                    yield self._next_in_turn(under_way)
                self._ledger.reserve(request.num_bytes)
                # Queued behind the read-ahead, which is needed anyway: at the head of the queue each part would
                # overtake those before it.
                under_way += self._arrivals.ask([request])
            while under_way:
                yield self._next_in_turn(under_way)
        finally:  # also if the caller gave up early
            self._ledger.drop(sum(arrival.request.num_bytes for arrival in under_way))

    def close(self) -> None:
        """Drop requests that have not begun, and wait a little for those in flight."""
        self._arrivals.close()
        for request in list(self._placed.values()):
            self._leave(request)
        self._memories.clear()

    def _put_into(self, request: Request, into: Room | Whole) -> Request:
        """Return the request, with its response directed to a buffer."""
        placed = _Placed(*request)
        placed.into = into
        self._placed[id(placed)] = placed
        return placed

    def _leave(self, request: Request) -> None:
        """Release the buffer of a request for which nobody waits, unless a thread has begun to fill it."""
        if isinstance(request, _Placed):
            self._placed.pop(id(request), None)
            request.into = None

    def _together(self, read: UnitRead, parts: Sequence[Arrival]) -> Buffer:
        """Wait for all parts of a read, and return its bytes."""
        self._ledger.use(read.num_bytes)
        whole = _place_of(parts[0].request)
        try:
            for part in parts:
                self._arrivals.wait(part)
        finally:
            for part in parts:
                self._leave(part.request)
        data = whole.taken() if isinstance(whole, Whole) else b""
        # An extent may span several parts, so its checksum is compared here.
        if wrong_extent(self._opened.index, read.shard, read.first_byte, data) is None:
            return data
        self._traffic.corrupt()
        return self._alone(read)

    def _next_in_turn(self, under_way: deque[Arrival]) -> bytes:
        arrival = under_way.popleft()
        self._ledger.drop(arrival.request.num_bytes)
        return self._arrivals.wait(arrival)

    def _alone(self, read: UnitRead) -> bytes:
        request = Request(read.shard, read.first_byte, read.end_byte, (0,))
        return self._arrivals.wait(self._arrivals.ask([request], at_once=True)[0])


def _place_of(request: Request) -> Room | Whole | None:
    return request.into if isinstance(request, _Placed) else None
