"""Reads of units whose format reads by itself: threads let the format read ahead, and keep the parsed samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from shoal.formats.shard_format import Records, Sample
from shoal.indexing.opened_dataset import Opened
from shoal.processes.interpreters import usable_processors
from shoal.reading.checks.checked_reads import fetched_records
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.remote_readers import RemoteReaders
from shoal.reading.remote.request_pool import FIRST_AT_A_TIME, RequestPool
from shoal.reading.remote.request_queue import PendingRequest
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request, request_sizes
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters
from shoal.storage.retry import unwrap_retries

_MOST_REMOTE = 128
_MOST_TOGETHER, _TOGETHER_BYTES = 64, 512 << 10


class FetchingReaders:
    """Readers for a format without `Format.needs_bytes`: threads call `Format.parse` ahead of the use of samples.

    Small units share a request, since each call of a library may cost as much as reading 64 KiB. Files of this machine
    take one thread for each processor, which decodes. A ledger counts a unit by its bytes in the index.
    """

    def __init__(
        self,
        opened: Opened,
        counters: Counters,
        memory: MemoryBudget,
        options: ReadingOptions,
        shared: RequestPool | None = None,
    ) -> None:
        self._memory, self._counters = memory, counters
        sizes = request_sizes(memory.ahead_limit_bytes)
        memory.ahead_limit_bytes, self.group_bytes = sizes.ahead_bytes, sizes.group_bytes
        self._numbers, self._reads = itertools.count(), dict[int, UnitRead]()
        stats = RequestStats(counters)
        # The threads must not refer to this object: it ends them when it is dropped.
        fetch: Any = partial(_fetched, opened, stats, self._reads)
        if shared is not None:
            self._pool = shared.of_source(fetch, 0)
            return
        most = usable_processors() if opened.store.reads_ahead else _MOST_REMOTE
        self._pool = RequestPool(
            fetch,
            stats,
            memory,
            deadline_seconds=options.deadline_seconds or unwrap_retries(opened.store)[1].deadline_seconds,
            first_at_a_time=min(max(FIRST_AT_A_TIME, counters.concurrency), most),
            most_at_a_time=most,
        )

    def request(self, reads: Sequence[UnitRead]) -> list[PendingRequest]:
        """Queue the reads, and return their promises."""
        self._memory.reserve(sum(read.num_bytes for read in reads))
        requests = []
        for together in _groups(reads):
            numbers = tuple(itertools.islice(self._numbers, len(together)))
            self._reads.update(zip(numbers, together, strict=True))
            requests.append(_request_of(together, numbers))
        return [pending for pending in self._pool.ask(requests) for _ in pending.request.reads]

    def records(self, read: UnitRead, promise: PendingRequest) -> Records:
        """Wait for the samples of a read."""
        began, numbers = self._counters.wait_begins(), promise.request.reads
        number = next(number for number in numbers if self._reads.get(number) is read)
        try:
            return self._taken(promise, number)
        except Exception:
            if len(numbers) == 1:
                raise
            # The fault may be in another read of the request.
            alone = _request_of([read], (number,))._replace(num_reads=0, read_bytes=0)
            return self._taken(self._pool.ask([alone], at_once=True)[0], number)
        finally:
            self._memory.use(read.num_bytes)
            self._counters.waited(began)
            self._reads.pop(number, None)

    def _taken(self, promise: PendingRequest, number: int) -> Records:
        records: Any = self._pool.wait(promise)
        return records[number]  # type: ignore[no-any-return]

    def read_into(self, read: UnitRead, promise: PendingRequest, buffer: memoryview) -> None:
        """Raise an error: samples of such formats are no bytes of a record."""
        raise NotImplementedError(f"{read}: the format reads by itself")

    def sample(self, read: UnitRead, promise: PendingRequest, sample_id: int) -> Sample:
        """Wait for the read, and return a sample of it."""
        return self.records(read, promise).sample(sample_id - read.first_sample)

    def close(self) -> None:
        """Drop reads that have not begun, and wait briefly for reads in flight."""
        self._pool.close()
        self._reads.clear()


def waiting_readers(
    opened: Opened,
    counters: Counters,
    memory: MemoryBudget,
    options: ReadingOptions,
    shared: RequestPool | None = None,
) -> RemoteReaders | FetchingReaders:
    """Return readers of a dataset whose consumer waits for threads (`Opened.waits`)."""
    kind = RemoteReaders if opened.format.needs_bytes else FetchingReaders
    return kind(opened, counters, memory, options, shared)


def _groups(reads: Sequence[UnitRead]) -> Iterator[Sequence[UnitRead]]:
    """Yield the reads in groups of at most `_MOST_TOGETHER` reads and `_TOGETHER_BYTES`, or of one larger read."""
    first = num_bytes = 0
    for number, read in enumerate(reads):
        if number > first and (number - first == _MOST_TOGETHER or num_bytes + read.num_bytes > _TOGETHER_BYTES):
            yield reads[first:number]
            first, num_bytes = number, 0
        num_bytes += read.num_bytes
    yield reads[first:]


def _request_of(reads: Sequence[UnitRead], numbers: tuple[int, ...]) -> Request:
    """Return a request for some reads; its range has their bytes in sum, and the shard of the first."""
    num_bytes = sum(read.num_bytes for read in reads)
    return Request(reads[0].shard, 0, num_bytes, numbers, is_cached=False, num_reads=len(reads), read_bytes=num_bytes)


def _fetched(
    opened: Opened, stats: RequestStats, reads: dict[int, UnitRead], request: Request, _: ReadBuffer | None
) -> dict[int, Records]:
    together = [reads[number] for number in request.reads]
    return dict(zip(request.reads, fetched_records(opened, together, stats), strict=True))
