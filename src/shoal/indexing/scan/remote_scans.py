"""Scanning of remote shards in threads, through requests for single headers or through a stream of all bytes.

A scan asks for ranges of bytes, mostly in ascending order. `ScanReading` returns bytes from earlier reads, or reads
them in the cheaper way according to `shoal.indexing.scan.costs`. Scans mostly wait for responses, and the headers of a
shard are read one after another, so many shards are scanned in parallel. For few shards,
`shoal.indexing.scan.speculative_reads` are in flight as well.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

from shoal.errors import StorageError
from shoal.formats.shard_format import Format, ReadBytes
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.indexing.scan.costs import REACH_BYTES, CostComparison, ReadCosts
from shoal.indexing.scan.scan_task import ScanTask, scan_shard
from shoal.indexing.scan.speculative_reads import SpeculativeReads, WalkPlan
from shoal.storage.files.memory_pool import MemoryPool
from shoal.storage.retry import RetryControl, StoppedError, current_retry_control, retry_control
from shoal.storage.store_protocol import Store
from shoal.storage.urls import without_secrets

# Size of a request of a stream: so large that latency costs little, and so small that 32 stay below 100 MB.
BLOCK_BYTES = 2 << 20

NUM_REQUESTS = 32
"""Most requests in flight, and so the most shards that are scanned in parallel."""
_NUM_REQUESTS_ALONE = 4  # in flight for a shard that is scanned alone
_LOOK_SECONDS = 0.5

_Answer = tuple[ScanTask, ShardScan | Exception | int]


@dataclass(slots=True)
class ScanTraffic:
    """Traffic of scans: requests, bytes read, and the bytes of all scanned shards."""

    num_requests: int = 0
    read_bytes: int = 0
    shard_bytes: int = 0
    num_retries: int = 0

    def add(self, other: ScanTraffic) -> None:
        """Add the traffic of other scans."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        what = "headers only" if 2 * self.read_bytes < self.shard_bytes else "payloads too"
        read, whole = self.read_bytes / 1e6, self.shard_bytes / 1e6
        retries = f", {self.num_retries:,} of them tried again" if self.num_retries else ""
        return f"{what}: read {read:,.1f} MB of {whole:,.1f} MB in {self.num_requests:,} requests{retries}"


class ScanReads:
    """Requests of scans to one store: measured, counted, and refused once ``stopping`` is set. Thread-safe.

    ``control`` controls retries; by default their pauses end once ``stopping`` is set.
    """

    def __init__(
        self,
        store: Store,
        costs: ReadCosts | None = None,
        *,
        traffic: ScanTraffic | None = None,
        control: RetryControl | None = None,
    ) -> None:
        self.store = store
        self.costs = ReadCosts() if costs is None else costs
        self.traffic = ScanTraffic() if traffic is None else traffic
        self.stopping = threading.Event()
        self._control = RetryControl(pause=self.stopping.wait, retried=self._retried) if control is None else control
        self._lock = threading.Lock()

    def fetch(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Fetch the bytes ``[first_byte, end_byte)`` of ``path`` in one request."""
        with self._request(path, end_byte - first_byte):
            return self.store.read_range(path, first_byte, end_byte)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> memoryview:
        """Fill a buffer with the bytes of ``path`` from ``first_byte`` on in one request; return the buffer."""
        with self._request(path, len(buffer)):
            self.store.fill(path, first_byte, buffer)
        return buffer

    @contextmanager
    def _request(self, path: str, num_bytes: int) -> Iterator[None]:
        if self.stopping.is_set():
            raise StoppedError(f"{without_secrets(path)}: the scan was given up")
        began_seconds = time.perf_counter()
        with retry_control(self._control):
            yield
        self.costs.measured(num_bytes, time.perf_counter() - began_seconds)
        with self._lock:
            self.traffic.num_requests += 1
            self.traffic.read_bytes += num_bytes

    def take_traffic(self) -> ScanTraffic:
        """Return the traffic so far, and begin again from zero."""
        with self._lock:
            traffic, self.traffic = self.traffic, ScanTraffic()
        return traffic

    def _retried(self, _: StorageError) -> None:
        with self._lock:
            self.traffic.num_retries += 1


class _Block(NamedTuple):
    """Bytes ``[first_byte, end_byte)`` of the shard, already read or in flight."""

    first_byte: int
    end_byte: int
    data: Buffer | Future[memoryview]

    def view(self, first_byte: int, end_byte: int) -> memoryview:
        """Return the part of the shard's ``[first_byte, end_byte)`` that lies in this block."""
        data = self.data.result() if isinstance(self.data, Future) else self.data
        return memoryview(data)[max(0, first_byte - self.first_byte) : end_byte - self.first_byte]

    def cancel(self) -> None:
        """Cancel the request if it has not begun."""
        if isinstance(self.data, Future):
            self.data.cancel()


class ScanReading:
    """Callable that reads one shard for `Format.scan`, in any order; reading forward is fastest.

    ``threads`` run the requests of a stream, about ``num_at_once`` requests ahead of the requested range; or, if
    ``format`` can guess the starts of headers, the walks that read headers ahead. A stream fills ``memories``, which
    the calling thread may use for one shard after another.
    """

    def __init__(
        self,
        reads: ScanReads,
        path: str,
        num_bytes: int,
        *,
        threads: Executor,
        num_at_once: int,
        memories: MemoryPool,
        format: Format | None = None,  # noqa: A002
    ) -> None:
        self._num_bytes, self._threads, self._memories = num_bytes, threads, memories
        self._fetch, self._fill = partial(reads.fetch, path), partial(reads.fill, path)
        self._ahead: SpeculativeReads | None = None
        if num_at_once > 1 and format is not None and format.can_start_midway:
            plan = WalkPlan(reads.costs, num_bytes, most_walks=num_at_once - 1)
            self._ahead = SpeculativeReads(self._fetch, format, num_bytes, plan=plan, threads=threads)
        self._ahead_bytes = num_at_once * BLOCK_BYTES
        self._comparison = CostComparison(reads.costs, num_bytes, num_at_once=num_at_once)
        self._blocks: deque[_Block] = deque()  # consecutive, without gaps

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)`` of the shard."""
        if first_byte == end_byte:
            return b""
        ahead = self._ahead
        headers_at_once = ahead is not None and ahead.record(first_byte, end_byte)
        self._comparison.record(first_byte, end_byte, headers_at_once=headers_at_once)
        blocks = self._blocks
        while blocks and blocks[0].end_byte <= first_byte:
            blocks.popleft().cancel()
        if blocks and first_byte < blocks[0].first_byte:
            self._drop_blocks()
        first = blocks[-1].end_byte if blocks else first_byte
        if self._comparison.streams and not blocks and self._num_bytes - first <= BLOCK_BYTES:
            # The only block: this thread would wait for another one to read it.
            blocks.append(_Block(first, self._num_bytes, self._fill(first, self._memory(self._num_bytes - first))))
        elif self._comparison.streams:
            if ahead is not None:
                ahead.close()
            while first < min(end_byte + self._ahead_bytes, self._num_bytes):
                end = min(first + BLOCK_BYTES, self._num_bytes)
                blocks.append(_Block(first, end, self._threads.submit(self._fill, first, self._memory(end - first))))
                first = end
        elif not blocks or first < end_byte:
            data = None if blocks or ahead is None else ahead.window(first_byte, end_byte)
            if data is None:
                data = self._fetch(first, min(self._num_bytes, max(end_byte, first + REACH_BYTES)))
            blocks.append(_Block(first, first + len(data), data))
        parts = [block.view(first_byte, end_byte) for block in blocks if block.first_byte < end_byte]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Drop all bytes and requests."""
        if self._ahead is not None:
            self._ahead.close()
        self._drop_blocks()

    def _memory(self, num_bytes: int) -> memoryview:
        """Return memory for a block; all are of one size, so that they are reused."""
        return memoryview(self._memories.take(BLOCK_BYTES))[:num_bytes]

    def _drop_blocks(self) -> None:
        while self._blocks:
            self._blocks.pop().cancel()


@contextmanager
def reading_one(store: Store, path: str, num_bytes: int, *, costs: ReadCosts) -> Iterator[ReadBytes]:
    """Yield a function that reads one shard alone, local or remote; no thread is left at the end.

    Requests are retried like all requests of the calling thread (`shoal.storage.retry.retry_control`).
    """
    if store.reads_ahead:
        yield partial(store.read_range, path)
        return
    reads = ScanReads(store, costs, control=current_retry_control())
    threads = ThreadPoolExecutor(_NUM_REQUESTS_ALONE, thread_name_prefix="shoal-scan-read")
    try:
        yield ScanReading(
            reads, path, num_bytes, threads=threads, num_at_once=_NUM_REQUESTS_ALONE, memories=MemoryPool()
        )
    finally:
        reads.stopping.set()
        threads.shutdown(wait=True, cancel_futures=True)


def scan_in_threads(
    tasks: Sequence[ScanTask],
    format: Format,  # noqa: A002
    reads: ScanReads,
    *,
    on_progress: Callable[[ScanTask, int], None],
    on_wait: Callable[[], None] = lambda: None,
    num_requests: int = NUM_REQUESTS,
) -> Iterator[tuple[ScanTask, ShardScan]]:
    """Scan every shard through ``reads``, and yield the scans in the order in which they finish.

    ``on_progress`` is called now and then, in this thread, with the bytes done of a shard, and ``on_wait`` while
    nothing comes; either may raise, to end the scans. At any end of the iteration, no thread is left. Memory: at most 3
    blocks of 2 MiB for each of ``num_requests``. Raises `ShardError`: a shard cannot be parsed; `StorageError`: bytes
    could not be read.
    """
    side_by_side = min(num_requests, len(tasks))
    answers = answers_in_threads(
        iter(tasks), format, reads, side_by_side=side_by_side, num_requests=num_requests, on_wait=on_wait
    )
    with closing(answers):
        for task, answer in answers:
            if isinstance(answer, int):
                on_progress(task, answer)
            elif isinstance(answer, Exception):
                raise answer
            else:
                yield task, answer


def answers_in_threads(
    tasks: Iterator[ScanTask],
    format: Format,  # noqa: A002
    reads: ScanReads,
    *,
    side_by_side: int,
    num_requests: int,
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[_Answer]:
    """Scan shards through ``reads``, several side by side; yield the bytes done of a shard, its scan, or its error.

    Several threads take tasks from the iterator. At any end of the iteration, no thread is left.
    """
    if not side_by_side:
        return
    answers: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()
    scanners = ThreadPoolExecutor(side_by_side, thread_name_prefix="shoal-scan")
    streams = ThreadPoolExecutor(num_requests, thread_name_prefix="shoal-scan-read")
    num_at_once = num_requests // side_by_side

    def scan_each() -> None:
        memories = MemoryPool()
        try:
            for task in tasks:
                if reads.stopping.is_set():
                    return
                reading = ScanReading(
                    reads, task.path, task.num_bytes, threads=streams, num_at_once=num_at_once,
                    memories=memories, format=format,
                )  # fmt: skip
                _scan(task, format, reading, reads, answers.put)
        finally:
            answers.put(None)

    try:
        for _ in range(side_by_side):
            scanners.submit(scan_each)
        left = side_by_side
        while left:
            try:
                answer = answers.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                on_wait()
                continue
            if answer is None:
                left -= 1
                continue
            if isinstance(answer[1], ShardScan):
                reads.traffic.shard_bytes += answer[0].num_bytes
            yield answer
    finally:
        # Also on Ctrl-C, and if the consumer stops early.
        reads.stopping.set()
        for threads in (scanners, streams):
            threads.shutdown(wait=False, cancel_futures=True)
        for threads in (scanners, streams):
            threads.shutdown(wait=True)


def _scan(
    task: ScanTask,
    format: Format,  # noqa: A002
    reading: ScanReading,
    reads: ScanReads,
    answer: Callable[[_Answer], None],
) -> None:
    def on_progress(done_bytes: int) -> None:
        answer((task, done_bytes))

    try:
        scan = scan_shard(task, format, reading, read_range=reads.fetch, on_progress=on_progress, is_local=False)
        answer((task, scan))
    except Exception as error:  # noqa: BLE001  # raised in the thread that consumes the scans
        answer((task, error))
    finally:
        reading.close()
