"""The first requests of a scan, which reveal its kind: from header to header, through all bytes, or by a footer.

The scan of the format begins and gives up after a few ranges, so this works for every format. A scan decides by the
usual costs of a remote store, not by measured costs: so all machines that probe a shard agree.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from shoal.errors import ShardError
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import Buffer
from shoal.indexing.scan.costs import REACH_BYTES, CostComparison, ReadCosts
from shoal.indexing.scan.scan_task import ScanTask, scan_shard
from shoal.indexing.scan.speculative_reads import NO_WALKS, WalkPlan, Walks
from shoal.storage.store_protocol import Store

MOST_REQUESTS = 8
"""Most requests for one shard, one after another; for a file, 64 reads."""
_MOST_READS = 64
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FirstRequests:
    """The beginning of a scan: its requests and bytes up to ``reached_bytes`` of its shard.

    ``is_whole`` is True if the scan came to its end. ``streams`` is True if large requests for all bytes are cheaper
    than going on. ``request_seconds`` is the median time of a request; 0 without requests. ``walks`` would read ahead
    of the rest of the scan.
    """

    num_requests: int
    read_bytes: int
    reached_bytes: int
    is_whole: bool
    streams: bool
    request_seconds: float
    walks: Walks


def first_requests(
    tasks: Sequence[ScanTask],
    format: Format,  # noqa: A002
    store: Store,
    *,
    num_at_once: int,
) -> list[FirstRequests]:
    """Begin the scans of some shards, all at the same time, and return their first requests.

    At most 8 requests and 4 MiB are made for each shard. A stream of one of these shards may have ``num_at_once``
    requests in flight. A shard that cannot be scanned counts as read whole. Raises `StorageError`: bytes could not be
    read.
    """

    def begin(task: ScanTask) -> FirstRequests:
        walks_ahead = format.can_start_midway and not store.reads_ahead
        plan = WalkPlan(ReadCosts(), task.num_bytes, most_walks=num_at_once - 1 if walks_ahead else 0)
        return _Beginning(task, store, num_at_once, plan).of(format)

    if store.reads_ahead or len(tasks) < 2:
        return [begin(task) for task in tasks]
    with ThreadPoolExecutor(len(tasks), thread_name_prefix="shoal-look") as pool:
        return list(pool.map(begin, tasks))


class _EnoughError(Exception):
    """Ends the scan of a shard after enough requests."""


@dataclass(slots=True)
class _Beginning:
    """Reader of one shard that gives up after some requests."""

    task: ScanTask
    store: Store
    num_at_once: int
    plan: WalkPlan
    walks: Walks = NO_WALKS
    seconds: list[float] = field(default_factory=list)  # of each request
    read_bytes: int = 0
    reached_bytes: int = 0
    gave_up: bool = False
    comparison: CostComparison = field(init=False)
    held: tuple[int, Buffer] = (0, b"")  # the latest bytes, and where they begin

    def __post_init__(self) -> None:
        self.comparison = CostComparison(ReadCosts(), self.task.num_bytes, num_at_once=self.num_at_once)

    def of(self, format: Format) -> FirstRequests:  # noqa: A002
        is_whole, is_small = True, self.comparison.streams
        try:
            scan_shard(self.task, format, self, read_range=self.store.read_range, on_progress=lambda _: None)
        except (ShardError, _EnoughError):
            is_whole = False
        except Exception:
            if not self.gave_up:
                raise
            is_whole = False
        num_requests, read_bytes, reached_bytes = len(self.seconds), self.read_bytes, self.reached_bytes
        # The preference of a scan at its end means nothing if the scan was shorter than a probe.
        streams = is_small or (not is_whole and (self.comparison.streams or not reached_bytes))
        request_seconds = statistics.median(self.seconds) if self.seconds else 0.0
        return FirstRequests(num_requests, read_bytes, reached_bytes, is_whole, streams, request_seconds, self.walks)

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)`` of the shard, or give up."""
        if first_byte == end_byte:
            return b""
        would_pay = self.plan.record(first_byte, end_byte)
        self.walks = self.walks if self.walks.num_walks else self.plan.expected(first_byte)
        self.comparison.record(first_byte, end_byte, headers_at_once=would_pay or self.walks.num_walks > 0)
        self.reached_bytes = first_byte  # not the farthest byte: some formats read their end first
        at, data = self.held
        if not at <= first_byte <= end_byte <= at + len(data):
            at, data = self.held = first_byte, self._fetched(first_byte, end_byte)
        return memoryview(data)[first_byte - at : end_byte - at]

    def _fetched(self, first_byte: int, end_byte: int) -> Buffer:
        if not self.store.reads_ahead:
            end_byte = min(self.task.num_bytes, max(end_byte, first_byte + REACH_BYTES))
        most_requests = _MOST_READS if self.store.reads_ahead else MOST_REQUESTS
        if len(self.seconds) == most_requests or self.read_bytes + end_byte - first_byte > _MOST_BYTES:
            self.gave_up = True
            raise _EnoughError
        began_seconds = time.perf_counter()
        data = self.store.read_range(self.task.path, first_byte, end_byte)
        self.seconds.append(time.perf_counter() - began_seconds)
        self.read_bytes += len(data)
        return data
