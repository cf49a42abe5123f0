"""Reads of a remote shard for a scan, in as few requests or as few bytes as is cheaper.

A format reads as if the bytes were local. Here its small reads become requests: one for each header, or a stream of
large ones with some in flight ahead of it, whichever `shoal.indexing.scan.costs` finds cheaper at the moment.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import StorageError
from shoal.formats.shard_format import ReadBytes
from shoal.index.shard_scan import Buffer
from shoal.indexing.scan.costs import REACH_BYTES, ReadCosts, Way
from shoal.storage.retry import RetryControl, StoppedError, current_retry_control, retry_control
from shoal.storage.store import Advise, ReadRange
from shoal.storage.urls import without_secrets

# Size of a request of a stream: large enough that latency costs little, and 32 of them stay below 100 MB.
BLOCK_BYTES = 2 << 20

_ALONE_AT_ONCE = 4  # requests in flight for a shard that is scanned on its own


@dataclass(slots=True)
class ScanTraffic:
    """Traffic of finding samples: requests made, bytes read, and the total bytes of the shards scanned."""

    num_requests: int = 0
    read_bytes: int = 0
    shard_bytes: int = 0
    num_retries: int = 0

    def __str__(self) -> str:
        what = "headers only" if 2 * self.read_bytes < self.shard_bytes else "payloads too"
        read, whole = self.read_bytes / 1e6, self.shard_bytes / 1e6
        return f"{what}: read {read:,.1f} MB of {whole:,.1f} MB in {self.num_requests:,} requests" + (
            f", {self.num_retries:,} of them tried again" if self.num_retries else ""
        )


class ScanReads:
    """Requests of scans to one store: measured, counted, and refused once ``stopping`` is set. Thread-safe.

    ``waiting`` controls the pauses between retries; by default they end when ``stopping`` is set.
    """

    def __init__(
        self,
        store: ReadRange,
        costs: ReadCosts | None = None,
        *,
        traffic: ScanTraffic | None = None,
        waiting: RetryControl | None = None,
    ) -> None:
        self.store = store
        self.costs = ReadCosts() if costs is None else costs
        self.traffic = ScanTraffic() if traffic is None else traffic
        self.stopping = threading.Event()
        self._waiting = RetryControl(pause=self.stopping.wait, retried=self._retried) if waiting is None else waiting
        self._lock = threading.Lock()

    def fetch(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Fetch the bytes ``[first_byte, end_byte)`` of ``path`` in one request."""
        if self.stopping.is_set():
            msg = f"{without_secrets(path)}: the scan was given up"
            raise StoppedError(msg)
        began_seconds = time.perf_counter()
        with retry_control(self._waiting):
            data = self.store.read_range(path, first_byte, end_byte)
        self.costs.measured(len(data), time.perf_counter() - began_seconds)
        with self._lock:
            self.traffic.num_requests += 1
            self.traffic.read_bytes += len(data)
        return data

    def _retried(self, _: StorageError) -> None:
        with self._lock:
            self.traffic.num_retries += 1

    def finished(self, num_bytes: int) -> None:
        """Record that a shard of ``num_bytes`` was scanned."""
        with self._lock:
            self.traffic.shard_bytes += num_bytes


class _Block:
    """Bytes ``[first_byte, end_byte)`` of the shard, already read or in flight."""

    __slots__ = ("_data", "end_byte", "first_byte")

    def __init__(self, first_byte: int, end_byte: int, data: bytes | Future[bytes]) -> None:
        self.first_byte, self.end_byte, self._data = first_byte, end_byte, data

    def view(self, first_byte: int, end_byte: int) -> memoryview:
        """Return the part of the shard's ``[first_byte, end_byte)`` that lies in this block."""
        if isinstance(self._data, Future):
            self._data = self._data.result()
        return memoryview(self._data)[max(0, first_byte - self.first_byte) : end_byte - self.first_byte]

    def let_go(self) -> None:
        """Cancel the request if it has not begun, since its bytes are not needed."""
        if isinstance(self._data, Future):
            self._data.cancel()


class ScanReading:
    """Callable that reads one shard for `Format.scan`.

    ``threads`` run the requests of a stream, of which about ``num_at_once`` are in flight beyond the range asked for.
    Ranges may be asked for in any order; reading forward is fastest.
    """

    def __init__(self, reads: ScanReads, path: str, num_bytes: int, *, threads: Executor, num_at_once: int) -> None:
        self._reads = reads
        self._path = path
        self._num_bytes = num_bytes
        self._threads = threads
        self._ahead_bytes = num_at_once * BLOCK_BYTES
        self._way = Way(reads.costs, num_bytes, num_at_once=num_at_once)
        self._blocks: deque[_Block] = deque()  # consecutive, without gaps

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)`` of the shard."""
        if first_byte == end_byte:
            return b""
        self._way.asked(first_byte, end_byte)
        blocks = self._blocks
        while blocks and blocks[0].end_byte <= first_byte:
            blocks.popleft().let_go()
        if blocks and first_byte < blocks[0].first_byte:
            self.close()
        if self._way.streams:
            self._stream(first_byte, end_byte + self._ahead_bytes)
        elif not blocks or blocks[-1].end_byte < end_byte:
            first = blocks[-1].end_byte if blocks else first_byte
            end = min(self._num_bytes, max(end_byte, first + REACH_BYTES))
            blocks.append(_Block(first, end, self._reads.fetch(self._path, first, end)))
        parts = [block.view(first_byte, end_byte) for block in blocks if block.first_byte < end_byte]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fetch_other(self, path: str, num_bytes: int) -> bytes:
        """Fetch all bytes of another object in one request."""
        return self._reads.fetch(path, 0, num_bytes)

    def close(self) -> None:
        """Drop all blocks, read or in flight."""
        while self._blocks:
            self._blocks.pop().let_go()

    def _stream(self, first_byte: int, end_byte: int) -> None:
        """Request everything up to ``end_byte`` that is not yet read or in flight."""
        first = self._blocks[-1].end_byte if self._blocks else first_byte
        while first < min(end_byte, self._num_bytes):
            end = min(first + BLOCK_BYTES, self._num_bytes)
            answer = self._threads.submit(self._reads.fetch, self._path, first, end)
            self._blocks.append(_Block(first, end, answer))
            first = end


class _ReadsAhead(ReadRange, Advise, Protocol):
    """Store whose ``reads_ahead`` tells a local store from a remote one."""


@contextmanager
def reading_one(store: _ReadsAhead, path: str, num_bytes: int, *, costs: ReadCosts) -> Iterator[ReadBytes]:
    """Yield a function that reads one shard on its own, local or remote; no thread is left at the end.

    Requests are retried like others of the calling thread (`shoal.storage.retry.retry_control`).
    """

    def read(first_byte: int, end_byte: int) -> Buffer:
        return store.read_range(path, first_byte, end_byte)

    if store.reads_ahead:
        yield read
        return
    reads = ScanReads(store, costs, waiting=current_retry_control())
    threads = ThreadPoolExecutor(_ALONE_AT_ONCE, thread_name_prefix="shoal-scan-read")
    try:
        yield ScanReading(reads, path, num_bytes, threads=threads, num_at_once=_ALONE_AT_ONCE)
    finally:
        reads.stopping.set()
        threads.shutdown(wait=True, cancel_futures=True)
