"""Scanning of remote shards in threads.

Most of the time is spent waiting for responses, and the headers of a shard must be read one after another, so many
shards are scanned in parallel.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from shoal.formats.metadata.scanning import checked_scan
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.indexing.scan.processes import ScanTask
from shoal.indexing.scan.ranges import ScanReading, ScanReads

# Requests in flight at a time, and so the most shards that are scanned in parallel.
NUM_REQUESTS = 32

_PROGRESS_SECONDS = 0.5

_Answer = tuple[ScanTask, ShardScan | Exception | int]


def scan_in_threads(
    tasks: Sequence[ScanTask],
    format: Format,  # noqa: A002
    reads: ScanReads,
    *,
    came_to: Callable[[ScanTask, int], None],
    num_requests: int = NUM_REQUESTS,
) -> Iterator[tuple[ScanTask, ShardScan]]:
    """Scan every shard through ``reads``, and yield the scans in the order in which they finish.

    ``came_to`` is called now and then, in this thread, with the bytes of a shard that are done. When the iteration
    ends, for whatever reason, no thread is left. Memory: at most 3 blocks of 2 MiB for each of ``num_requests``.

    Raises `ShardError`: a shard cannot be parsed; `StorageError`: bytes could not be read.
    """
    if not tasks:
        return
    side_by_side = min(num_requests, len(tasks))
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    scanners = ThreadPoolExecutor(side_by_side, thread_name_prefix="shoal-scan")
    streams = ThreadPoolExecutor(num_requests, thread_name_prefix="shoal-scan-read")
    try:
        for task in tasks:
            num_at_once = num_requests // side_by_side
            reading = ScanReading(reads, task.path, task.num_bytes, threads=streams, num_at_once=num_at_once)
            scanners.submit(_scan, task, format, reading, answers)
        left = len(tasks)
        while left:
            task, answer = answers.get()
            if isinstance(answer, int):
                came_to(task, answer)
                continue
            if isinstance(answer, Exception):
                raise answer
            left -= 1
            reads.finished(task.num_bytes)
            yield task, answer
    finally:
        # Also on Ctrl-C, and if the consumer stops early.
        reads.stopping.set()
        for threads in (scanners, streams):
            threads.shutdown(wait=False, cancel_futures=True)
        for threads in (scanners, streams):
            threads.shutdown(wait=True)


@dataclass(slots=True)
class _Told:
    """Reads of a scan that report its progress now and then."""

    task: ScanTask
    reading: ScanReading
    answers: queue.SimpleQueue[_Answer]
    next_seconds: float

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        if time.monotonic() >= self.next_seconds:
            self.next_seconds = time.monotonic() + _PROGRESS_SECONDS
            self.answers.put((self.task, first_byte))
        return self.reading(first_byte, end_byte)


def _scan(
    task: ScanTask,
    format: Format,  # noqa: A002
    reading: ScanReading,
    answers: queue.SimpleQueue[_Answer],
) -> None:
    read = _Told(task, reading, answers, time.monotonic() + _PROGRESS_SECONDS)
    try:
        index = None if task.index is None else partial(reading.fetch_other, *task.index)
        scan = checked_scan(
            format, read, task.num_bytes, shard=task.name, expected=task.expected, index=index, is_local=False
        )
        answers.put((task, scan))
    except Exception as error:  # noqa: BLE001  # raised in the thread that consumes the scans
        answers.put((task, error))
    finally:
        reading.close()
