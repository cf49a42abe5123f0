"""Estimated cost of indexing, from the listing, and from the first requests of at most three scans.

The listing alone gives bounds: at least one request a shard, at most all bytes. Only the shards show the nearer bound:
a tar of large members takes a request for each member, a tar of small members all its bytes, a Parquet file its footer.
Shards of a dataset are alike, so three shards stand for all others of their size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple, Self

import numpy as np

from shoal.figures import counted, format_bytes, format_seconds
from shoal.formats.compressed.reader import Compressed
from shoal.formats.folder.reader import Folder
from shoal.formats.shard_format import Format
from shoal.indexing.scan.costs import REACH_BYTES
from shoal.indexing.scan.first_requests import FirstRequests, first_requests
from shoal.indexing.scan.processes import num_remote_processes, num_requests_in_all
from shoal.indexing.scan.remote_scans import BLOCK_BYTES, NUM_REQUESTS
from shoal.indexing.scan.scan_task import ScanTask
from shoal.processes.interpreters import usable_processors
from shoal.storage.store_protocol import Store

Way = Literal["names", "index of another tool", "footers", "headers", "all bytes", "unknown"]
"""Way to find the samples of a shard; a short front counts as a footer, and "unknown" was not probed."""

LONG_SECONDS = 5.0
"""A longer wait for an index is worth avoiding (`IndexingEstimate.takes_long`)."""

_NUM_LOOKS = 3
_COMPARISONS = 17  # of a shard with the index of another tool: at both ends, and in between
_COMPARED_WHOLE_BYTES = 8 << 20  # up to this size, the comparisons read the whole shard
_LEAST, _MOST = 0.6, 1.6  # times the estimate from the first headers of a scan
_NEARLY_ALL = 0.9
_FOOTER_REQUESTS = 3  # at most, to read a footer or a table of samples
_USUAL_PROCESSORS = 4
# One processor (bench/LOG.md): stored bytes scanned in a second, of files, from a store, and of compressed shards; and
# the seconds that any shard takes, in a file and in a store.
_LOCAL_PER_SECOND, _REMOTE_PER_SECOND, _DECOMPRESSED_PER_SECOND = 1e9, 400e6, 140e6
_SLOW_CODECS = {"bz2": 15e6, "xz": 30e6}
_LOCAL_SHARD_SECONDS, _REMOTE_SHARD_SECONDS = 0.3e-3, 0.8e-3


class _Speeds(NamedTuple):
    """Seconds of a request to a store, or of a read of a file, and the bytes that arrive in a second."""

    request_seconds: float
    bytes_per_second: float


# Fast, usual and slow. Remote: from a near store behind 10 Gbit/s to a distant store.
_REMOTE = (_Speeds(0.005, 1.25e9), _Speeds(0.03, 200e6), _Speeds(0.1, 50e6))
# Local: from files in memory to a disk that moves its head for each read.
_LOCAL = (_Speeds(5e-6, 8e9), _Speeds(20e-6, 2e9), _Speeds(5e-3, 150e6))


@dataclass(frozen=True, slots=True)
class IndexingCost:
    """Requests, bytes read, and seconds; files of this machine are read without requests."""

    num_requests: int
    read_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class IndexingEstimate:
    """Cost of indexing ``num_shards`` shards of ``num_bytes`` bytes: at least ``least``, at most ``most``.

    ``ways`` counts shards by the `Way` to their samples; ``num_looked`` shards were probed. ``usual_seconds`` assumes
    the speeds of a usual store, so all machines that list the same shards compute the same ``usual_seconds``.
    """

    num_shards: int
    num_bytes: int
    ways: Mapping[Way, int]
    num_looked: int
    least: IndexingCost
    most: IndexingCost
    usual_seconds: float

    @property
    def takes_long(self) -> bool:
        """True if indexing usually takes more than 5 seconds: the same on all machines."""
        return self.usual_seconds > LONG_SECONDS

    def __str__(self) -> str:
        low, high = self.least, self.most
        shards = f"{counted(self.num_shards, 'shard')} of {format_bytes(self.num_bytes)}"
        read = _span(format_bytes(low.read_bytes), format_bytes(high.read_bytes))
        requests = _span(f"{low.num_requests:,}", f"{high.num_requests:,}")
        requests = f" in {requests} requests" if high.num_requests else ""
        seconds = _span(format_seconds(low.seconds), format_seconds(high.seconds))
        return f"indexing {shards} reads {read}{requests}, and takes {seconds}"


def estimate_indexing(
    tasks: Sequence[ScanTask],
    *,
    store: Store,
    format: Format,  # noqa: A002 - the word of the public interface
    looks: bool | None = None,
    request_seconds: float | None = None,
    bytes_per_second: float | None = None,
    processors: int | None = None,
) -> IndexingEstimate:
    """Estimate the cost of indexing some shards, as `shoal.indexing.build.scan_tasks` lists them.

    With ``looks``, scans of up to three shards are begun: at most 8 requests and 4 MiB each, side by side, so 8 times
    the latency of the store. With None, only if the listing does not decide whether indexing takes long. A look
    measures ``request_seconds`` unless given; ``bytes_per_second`` is by default between 50 MB/s and 10 Gbit/s.
    ``processors`` (default: all usable) scan files, and remote shards from 1 GiB on.

    Raises `StorageError`: a probed shard could not be read.

    >>> from shoal.formats.format_registry import format_named
    >>> from shoal.storage.memory_store import MemoryStore
    >>> shards = [ScanTask(number, f"{number}.jsonl.gz", "", 10**9, "") for number in range(100)]
    >>> estimate = estimate_indexing(shards, store=MemoryStore(), format=format_named("jsonl.gz"), processors=4)
    >>> estimate.takes_long
    True
    >>> print(estimate)
    indexing 100 shards of 93.1 GiB reads 93.1 GiB in 47,700 requests, and takes 2:59 min to 33:20 min
    """
    is_local = store.reads_ahead
    settled, others = _settled(tasks, format)
    num_bytes = sum(task.num_bytes for task in tasks)
    codec = format.codec if isinstance(format, Compressed) else None
    clock = _Clock(is_local, codec, len(tasks), num_bytes + _index_bytes(tasks))
    least, most = settled.plus(_one_request_each(others)), settled.plus(_all_bytes(others))
    likely = least
    usual_least, usual_most = clock.usual_seconds(least), clock.usual_seconds(most)
    seen: list[FirstRequests] = []
    if others and (looks or (looks is None and usual_least <= LONG_SECONDS < usual_most)):
        groups = _groups_of_like_size(others)
        num_at_once = NUM_REQUESTS // min(NUM_REQUESTS, len(tasks))
        seen = first_requests([task for task, _ in groups], format, store, num_at_once=num_at_once)
        works = [_of_group(look, group, is_local) for look, (_, group) in zip(seen, groups, strict=True)]
        likely = settled.plus(*works)
        least, most = (settled.plus(*(work.times(factor) for work in works)) for factor in (_LEAST, _MOST))
        usual_least = usual_most = clock.usual_seconds(likely)
    if request_seconds is None and seen and not is_local:
        request_seconds = median(look.request_seconds for look in seen)
    fast, slow = (
        _Speeds(
            pace.request_seconds if request_seconds is None else request_seconds,
            pace.bytes_per_second if bytes_per_second is None else bytes_per_second,
        )
        for pace in clock.paces[::2]
    )
    processors = usable_processors() if processors is None else max(1, processors)
    return IndexingEstimate(
        num_shards=len(tasks),
        num_bytes=num_bytes,
        ways=dict(likely.ways),
        num_looked=len(seen),
        least=clock.cost(least, fast, processors),
        most=clock.cost(most, slow, processors),
        usual_seconds=usual_least if usual_least > LONG_SECONDS else usual_most,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """Requests and bytes of some scans, and the requests of the longest scan, which wait for each other.

    ``is_exact`` is False for an estimate from the first headers of a shard: later headers may differ.
    """

    num_requests: float = 0.0
    read_bytes: float = 0.0
    num_in_turn: float = 0.0
    ways: Counter[Way] = field(default_factory=Counter)
    is_exact: bool = True

    def plus(self, *others: Self) -> _Work:
        """Return the sum of this work and ``others``."""
        works = (self, *others)
        return _Work(
            sum(work.num_requests for work in works),
            sum(work.read_bytes for work in works),
            max(work.num_in_turn for work in works),
            sum((work.ways for work in works), Counter()),
        )

    def times(self, factor: float) -> _Work:
        """Return a multiple of this work; the same work if it is known exactly."""
        if self.is_exact:
            return self
        return _Work(self.num_requests * factor, self.read_bytes * factor, self.num_in_turn * factor, self.ways)


@dataclass(frozen=True, slots=True)
class _Clock:
    """Duration of work on some shards: requests wait in parallel, while bytes arrive and are scanned."""

    is_local: bool
    codec: str | None
    num_shards: int
    most_bytes: int

    @property
    def paces(self) -> tuple[_Speeds, _Speeds, _Speeds]:
        """Fast, usual and slow stores of this kind."""
        return _LOCAL if self.is_local else _REMOTE

    def usual_seconds(self, work: _Work) -> float:
        """Return the seconds of work on a usual machine and store."""
        return self.cost(work, self.paces[1], _USUAL_PROCESSORS).seconds

    def cost(self, work: _Work, speeds: _Speeds, processors: int) -> IndexingCost:
        """Return the cost of work. Threads, also those of a remote scan, take turns except at decompression."""
        num_shards = max(1, self.num_shards)
        remote = 0
        if not self.is_local:
            remote = num_remote_processes(processors, num_shards=num_shards, num_bytes=self.most_bytes)
        at_once = processors if self.is_local else num_requests_in_all(remote)
        requests = max(work.num_requests / at_once, work.num_in_turn)
        read_bytes = min(self.most_bytes, round(work.read_bytes))
        per_second = _LOCAL_PER_SECOND if self.is_local else _REMOTE_PER_SECOND
        if self.codec is not None:
            per_second = _SLOW_CODECS.get(self.codec, _DECOMPRESSED_PER_SECOND)
        shard_seconds = _LOCAL_SHARD_SECONDS if self.is_local else _REMOTE_SHARD_SECONDS
        shares = min(processors, num_shards) if self.is_local or self.codec is not None else max(1, remote)
        cpu_seconds = read_bytes / per_second + (num_shards * shard_seconds if work.num_requests else 0.0)
        seconds = max(requests * speeds.request_seconds, read_bytes / speeds.bytes_per_second, cpu_seconds / shares)
        return IndexingCost(0 if self.is_local else round(work.num_requests), read_bytes, seconds)


def _settled(tasks: Sequence[ScanTask], format: Format) -> tuple[_Work, list[ScanTask]]:  # noqa: A002
    """Return the work that the listing determines exactly, and the shards whose work it does not determine."""
    if isinstance(format, Folder):
        return _Work(ways=_counter("names", tasks)), []
    if isinstance(format, Compressed):
        return _all_bytes(tasks), []
    indexed = [task for task in tasks if task.index is not None]
    compared = [] if format.has_sidecar else indexed
    large = [task for task in compared if task.num_bytes > _COMPARED_WHOLE_BYTES]
    small = _all_bytes([task for task in compared if task.num_bytes <= _COMPARED_WHOLE_BYTES])
    num_small = len(compared) - len(large)  # their ends are read first
    work = _Work(
        len(indexed) + num_small + small.num_requests + len(large) * _COMPARISONS,
        _index_bytes(indexed) + small.read_bytes + len(large) * _COMPARISONS * REACH_BYTES,
        1 + _COMPARISONS if large else 0,
        _counter("index of another tool", indexed),
    )
    return work, [task for task in tasks if task.index is None]


def _index_bytes(tasks: Sequence[ScanTask]) -> int:
    return sum(task.index[1] for task in tasks if task.index is not None)


def _one_request_each(tasks: Sequence[ScanTask]) -> _Work:
    read_bytes = sum(min(REACH_BYTES, task.num_bytes) for task in tasks)
    return _Work(len(tasks), read_bytes, 1 if tasks else 0, _counter("unknown", tasks))


def _all_bytes(tasks: Sequence[ScanTask]) -> _Work:
    num_requests = sum(-(-task.num_bytes // BLOCK_BYTES) for task in tasks)
    return _Work(num_requests, sum(task.num_bytes for task in tasks), ways=_counter("all bytes", tasks))


def _counter(way: Way, tasks: Sequence[ScanTask]) -> Counter[Way]:
    return Counter({way: len(tasks)} if tasks else {})


def _groups_of_like_size(tasks: Sequence[ScanTask]) -> list[tuple[ScanTask, list[ScanTask]]]:
    """Return groups of shards of like size and about equal bytes, and the shard in the middle of each group's bytes."""
    by_size = sorted(tasks, key=lambda task: (task.num_bytes, task.number))
    ends = np.cumsum([task.num_bytes for task in by_size])
    cuts = [0, *(np.searchsorted(ends, ends[-1] * np.arange(1, _NUM_LOOKS) / _NUM_LOOKS) + 1), len(by_size)]
    groups = []
    for first, end in pairwise(cuts):
        if first < end:
            before = ends[first] - by_size[first].num_bytes
            middle = int(np.searchsorted(ends, (before + ends[end - 1]) / 2))
            groups.append((by_size[middle], by_size[first:end]))
    return groups


def _of_group(look: FirstRequests, tasks: Sequence[ScanTask], is_local: bool) -> _Work:  # noqa: FBT001
    """Return the work of shards that are like the probed shard."""
    if look.streams and not is_local:
        return _all_bytes(tasks)
    if look.is_whole:
        are_all = look.read_bytes > _NEARLY_ALL * look.reached_bytes
        way: Way = "footers" if look.num_requests <= _FOOTER_REQUESTS else "all bytes" if are_all else "headers"
        ways = _counter(way, tasks)
        return _Work(look.num_requests * len(tasks), look.read_bytes * len(tasks), look.num_requests, ways)
    num_bytes, largest_bytes = sum(task.num_bytes for task in tasks), max(task.num_bytes for task in tasks)
    reached_bytes = max(1, look.reached_bytes)
    per_byte, share = look.num_requests / reached_bytes, min(1.0, look.read_bytes / reached_bytes)
    # A walk starts at a header that the scan need not read, and takes over a share of the other headers.
    num_walks, at_once, search_requests, search_bytes = look.walks
    num_walks *= len(tasks)
    num_requests = max(len(tasks), per_byte * num_bytes) + num_walks * (search_requests - 1)
    read_bytes = share * num_bytes + num_walks * search_bytes
    is_exact = share > _NEARLY_ALL
    ways = _counter("all bytes" if is_exact else "headers", tasks)
    num_in_turn = per_byte * largest_bytes / (1 + at_once) + (search_requests if at_once else 0)
    return _Work(num_requests, read_bytes, num_in_turn, ways, is_exact)


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"
