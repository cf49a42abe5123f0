"""Shards in an order that a seed has shuffled, opened segment by segment while later segments are indexed.

The indexes of segments are parts of a known index, or a thread makes them one after another.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.index.assembly import joined, subset
from shoal.index.table import Index
from shoal.indexing.growing.segments_ahead import IndexingAhead, SegmentJob
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.index_making import IndexMaking
from shoal.indexing.opened_dataset import Opened, refuse_empty
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.order.growing_segments import cut_segments, permuted_shards
from shoal.processes.job_rank import JobRank
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.passing_bytes.passing_bytes import PassingBytes

_SEGMENTS_KEPT = 4  # segments in use, and segments indexed ahead


class KnownSegments:
    """Segments of shards whose index is known; nothing is scanned."""

    passing = None

    def __init__(self, index: Index, order: NDArray[np.int64], borders: Sequence[int]) -> None:
        self.borders, self._index, self._order = borders, index, order
        self.traffic = ScanTraffic()

    @property
    def num_made(self) -> int:
        """Number of segments; all are indexed."""
        return len(self.borders) - 1

    def begin(self, me: JobRank | None) -> None:
        """Do nothing."""

    def need(self, segment: int) -> None:
        """Do nothing."""

    def index(self, segment: int, is_stopped: Callable[[], bool] | None = None) -> Index:  # noqa: ARG002
        """Return the index of one segment."""
        return subset(self._index, self._order[self.borders[segment] : self.borders[segment + 1]].tolist())

    def whole(self) -> Index:
        """Return the index of all segments."""
        return subset(self._index, self._order.tolist())


class SegmentsAhead:
    """Segments of shards without an index; each process that uses the segments has a thread that indexes ahead.

    ``traffic`` counts the scans of this process alone; ``passing`` has the bytes that scans store for the stream, None
    if scans store no bytes. A pickled or forked copy starts again, with the parts stored by processes of the machine.
    """

    def __init__(self, shards: Unindexed, order: NDArray[np.int64], borders: Sequence[int]) -> None:
        self.borders, self._shards, self._order = borders, shards, order
        self.traffic = ScanTraffic()
        self.passing = _passing(shards.making, order, borders)
        self._ahead: IndexingAhead | None = None
        self._me: JobRank | None = None
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Return the description of the shards: an unpickled copy starts indexing from the beginning."""
        return {**self.__dict__, "_ahead": None, "_me": None}

    @property
    def num_made(self) -> int:
        """Number of segments indexed so far; this property starts no indexing."""
        return 0 if self._ahead is None or self._pid != os.getpid() else self._ahead.num_made

    def begin(self, me: JobRank | None) -> None:
        """Start indexing as rank ``me`` of a job (None: no other ranks) if not started; restart after an error."""
        self._me = self._me or me
        if self._ahead is not None and self._ahead.has_failed:
            self._ahead = None  # the store may work again, and the shard may be repaired
        _ = self._running

    def need(self, segment: int) -> None:
        """Announce that segments up to this one are in use, so that later ones are needed soon."""
        self._running.need(segment)

    def index(self, segment: int, is_stopped: Callable[[], bool] | None = None) -> Index:
        """Return the index of one segment, waiting until it is made; raise `StoppedError` if nobody needs it."""
        return self._running.wait(segment, is_stopped)

    def whole(self) -> Index:
        """Return the index of all segments, waiting until it is made."""
        running, last = self._running, len(self.borders) - 2
        running.need(last)
        running.wait(last)
        return joined([running.wait(segment) for segment in range(last + 1)], metadata=running.wait(0).metadata)

    @property
    def _running(self) -> IndexingAhead:
        if self._ahead is None or self._pid != os.getpid():
            self._pid = os.getpid()
            job = SegmentJob(self._shards.making, self._order, self.borders, self._me, self.passing, self.traffic)
            self._ahead = IndexingAhead(job)
            weakref.finalize(self, self._ahead.stop)
        return self._ahead


SegmentIndexes = KnownSegments | SegmentsAhead
"""The indexes of the segments of a dataset: segment ``s`` has the permuted shards from ``borders[s]`` on."""


def _passing(making: IndexMaking, order: NDArray[np.int64], borders: Sequence[int]) -> PassingBytes | None:
    """Return space in this machine's cache for scanned bytes of a few segments; None for local shards."""
    if making.store.reads_ahead:
        return None
    sizes = np.array([info.num_bytes for info in making.infos], dtype=np.int64)[order]
    largest = int(np.add.reduceat(sizes, borders[:-1]).max())
    directory = Path(making.cache_dir, "passing")  # for all runs, so that a run finds the bytes of a killed run
    return PassingBytes(str(directory), budget_bytes=_SEGMENTS_KEPT * largest)


class Growth(NamedTuple):
    """Indexed shards of a dataset, and the samples of all shards.

    Until all shards are indexed, ``num_samples`` is an estimate with the standard error ``error``.
    """

    num_segments: int
    num_indexed_segments: int
    num_shards: int
    num_indexed_shards: int
    num_indexed_samples: int
    num_samples: int
    error: int


@dataclass(frozen=True)
class GrowingShards:
    """Shards that a seed has permuted, cut into segments for a window of ``window_bytes``.

    Sample ids follow each other in the permuted order.
    """

    shards: Opened | Unindexed
    seed: int
    window_bytes: int
    _prefixes: dict[int, Opened] = field(default_factory=dict, init=False, repr=False, compare=False)
    _dropped: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    _firsts: dict[int, tuple[int, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle for processes, without caches."""
        kept = {name: self.__dict__[name] for name in ("shards", "seed", "window_bytes")}
        return kept | {"_prefixes": {}, "_dropped": set(), "_firsts": {}}

    @cached_property
    def _listing(self) -> tuple[Sequence[str], NDArray[np.int64], Sequence[str]]:
        """Names, sizes and paths of the shards, in the order of the listing."""
        shards = self.shards
        if isinstance(shards, Opened):
            return shards.index.shard_names, shards.index.shard_bytes, shards.paths
        sizes = np.array([info.num_bytes for info in shards.making.infos], dtype=np.int64)
        return shards.making.what.source.names, sizes, shards.making.what.source.paths

    @cached_property
    def shard_order(self) -> NDArray[np.int64]:
        """The number in the listing of each shard; shape (num_shards,)."""
        return permuted_shards(len(self._listing[0]), seed=self.seed)

    @cached_property
    def shard_bytes(self) -> NDArray[np.int64]:
        """Bytes of each shard, in the permuted order; shape (num_shards,)."""
        return self._listing[1][self.shard_order]

    @cached_property
    def borders(self) -> list[int]:
        """The first shard of each segment, and the number of shards."""
        return cut_segments(self.shard_bytes, window_bytes=self.window_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the listing: a digest of its base names (an index may name directories) and sizes, in order."""
        names, sizes, _ = self._listing
        words = json.dumps([[name.rpartition("/")[2] for name in names], sizes.tolist()]).encode()
        return "listing-" + hashlib.blake2b(words, digest_size=16).hexdigest()

    @cached_property
    def segments(self) -> SegmentIndexes:
        """The indexes of the segments."""
        shards = self.shards
        if isinstance(shards, Opened):
            return KnownSegments(shards.index, self.shard_order, self.borders)
        return SegmentsAhead(shards, self.shard_order, self.borders)

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache, if there is one."""
        return self.shards.caches

    @property
    def is_local(self) -> bool:
        """True if the shards are local files."""
        shards = self.shards
        return (shards.store if isinstance(shards, Opened) else shards.making.store).reads_ahead

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.borders) - 1

    @property
    def is_indexed(self) -> bool:
        """True if all segments are indexed."""
        return self.segments.num_made == self.num_segments

    def begin(self, rank: int, world_size: int) -> None:
        """Start indexing as one of the processes that read these shards together, if not started."""
        self.segments.begin(None if world_size == 1 else JobRank(rank, world_size, world_size))

    @property
    def summary(self) -> str:
        """Number and format of the shards, and number of indexed segments, for messages; starts no indexing."""
        shards = self.shards
        if isinstance(shards, Opened):
            return f"{shards.index.num_samples:,} samples of {shards.index.num_shards:,} {shards.index.format} shards"
        return f"{shards.summary}, {self.segments.num_made:,} of {self.num_segments:,} segments indexed"

    def prefix(self, num_segments: int) -> Opened:
        """Return the first segments, waiting for their indexes; the first segment and the newest call are cached."""
        opened = self._prefixes.get(num_segments)
        if opened is None:
            opened = self._opened(self._index(num_segments))
            if isinstance(self.shards, Unindexed) and num_segments == self.num_segments:
                refuse_empty(opened.index, self.shards.making.what.source.typed)
            for other in list(self._prefixes):
                if other != 1:
                    self._prefixes.pop(other, None)  # another thread may have just removed it
            self._prefixes[num_segments] = opened
        return opened

    def num_segments_of(self, num_samples: int) -> int:
        """Return the number of segments that hold the first samples, waiting for their indexes."""
        for number in range(self.num_segments):
            if num_samples <= self._first(number)[0]:
                return number
        return self.num_segments

    def identity_of(self, num_segments: int) -> str:
        """Return the number of the first segments, and a digest of their extents and samples; waits for their indexes.

        The listing does not fix them: a new shard may have the same size, and a new index other extents.
        """
        return f"{num_segments}-{self._first(num_segments)[1]}"

    def _first(self, num_segments: int) -> tuple[int, str]:
        """Return the samples of the first segments, and their digest."""
        firsts, nothing = self._firsts, (0, "")
        for number in range(len(firsts), num_segments):
            num_samples, digest = firsts.get(number, nothing)
            index = self.segments.index(number)
            digest = hashlib.blake2b(f"{digest} {index.fingerprint}".encode(), digest_size=8).hexdigest()
            firsts[number + 1] = (num_samples + index.num_samples, digest)
        return firsts.get(num_segments, nothing)

    def drop_before(self, num_samples: int) -> None:
        """Remove scanned bytes of segments whose samples are all among the first ``num_samples``, which were read.

        A thread removes the files: on a busy disk, the stream would wait for seconds.
        """
        if (passing := self.segments.passing) is None:
            return
        first, read_shards = 0, list[int]()
        for segment in range(self.segments.num_made):
            first += self.segments.index(segment).num_samples
            if first > num_samples:
                break
            if segment not in self._dropped:
                self._dropped.add(segment)
                read_shards += self.shard_order[self.borders[segment] : self.borders[segment + 1]].tolist()
        if read_shards:
            paths = [self._listing[2][number] for number in read_shards]
            threading.Thread(target=passing.drop, args=paths, name="shoal-drop", daemon=True).start()

    @property
    def whole(self) -> Opened:
        """All shards with their index in the permuted order, waiting until it is made."""
        return self.prefix(self.num_segments)

    def with_cache(self, cache: ChunkCache | None) -> GrowingShards:
        """Return the same shards, read through a cache of this machine."""
        return GrowingShards(replace(self.shards, cache=cache), self.seed, self.window_bytes)

    def growth(self) -> Growth:
        """Return the progress of indexing, and estimate the samples of all shards; waits for the first segment.

        The indexed shards are a random sample of all, so samples per byte vary as much among the other shards. From one
        shard nothing is known about this, and the error is the estimate itself.
        """
        num_made = max(1, self.segments.num_made)
        parts = [self.segments.index(segment) for segment in range(num_made)]
        samples = np.concatenate([np.diff(part.extent_first_sample[part.shard_first_extent]) for part in parts])
        num_bytes = self.shard_bytes[: len(samples)]
        num_shards, num_known = len(self.shard_bytes), int(samples.sum())
        rate = num_known / max(1, int(num_bytes.sum()))
        rest = error = rate * int(self.shard_bytes[len(samples) :].sum())
        num_left = num_shards - len(samples)
        if len(samples) > 1:
            deviation = float((samples - rate * num_bytes).std(ddof=1))
            error = min(rest, deviation * (num_left + num_left**2 / len(samples)) ** 0.5)
        estimate = (num_known, round(num_known + rest), round(error))
        return Growth(self.num_segments, num_made, num_shards, len(samples), *estimate)

    def _index(self, num_segments: int) -> Index:
        if num_segments == self.num_segments:
            return self.segments.whole()
        parts = [self.segments.index(segment) for segment in range(num_segments)]
        return joined(parts, metadata=parts[0].metadata)

    def _opened(self, index: Index) -> Opened:
        paths = self._listing[2]
        own = [paths[number] for number in self.shard_order[: index.num_shards].tolist()]
        if isinstance(self.shards, Unindexed):
            opened, passing = self.shards.opened(index, None, own), self.segments.passing
            return opened if passing is None else replace(opened, store=passing.serving(opened.store))
        check = self.shards.check.of_part(index, own)
        return replace(self.shards, index=index, paths=tuple(own), index_path=None, check=check)
