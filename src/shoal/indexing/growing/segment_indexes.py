"""The indexes of segments: parts of an index that is known, or made one after the other in a thread."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.index.assembly import joined, subset
from shoal.index.table import Index
from shoal.indexing.growing.segments_ahead import IndexingAhead, SegmentJob
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.index_making import IndexMaking
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.processes.job_rank import JobRank
from shoal.storage.passing_bytes.passing_bytes import PassingBytes

_SEGMENTS_KEPT = 4  # those that are read, and those that are indexed ahead


class SegmentIndexes(Protocol):
    """The indexes of the segments of a dataset: segment ``s`` has permuted shards from ``borders[s]`` on."""

    borders: Sequence[int]

    @property
    def num_made(self) -> int:
        """Number of segments whose index is at hand: the first ones."""
        ...

    def begin(self, me: JobRank | None) -> None:
        """Begin to index as one rank of a job, None if there is no other; at once or ahead of use."""
        ...

    def need(self, segment: int) -> None:
        """Announce that segments up to this one are used now, so that those behind it are wanted soon."""
        ...

    @property
    def traffic(self) -> ScanTraffic:
        """Traffic of the scans of remote shards in this process, not of others that share the work."""
        ...

    @property
    def passing(self) -> PassingBytes | None:
        """The bytes that scans have left for the stream; None if they leave none."""
        ...

    def index(self, segment: int, is_stopped: Callable[[], bool] | None = None) -> Index:
        """Return the index of one segment, waiting until it is made; raise `StoppedError` if it is not wanted."""
        ...

    def whole(self) -> Index:
        """Return the index of all segments, waiting until it is made."""
        ...


class KnownSegments:
    """Segments of shards whose index is known."""

    passing = None

    def __init__(self, index: Index, order: NDArray[np.int64], borders: Sequence[int]) -> None:
        self.borders, self._index, self._order = borders, index, order
        self.traffic = ScanTraffic()

    @property
    def num_made(self) -> int:
        """All segments."""
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
    """Segments of shards without an index, which a thread of each process that uses them makes ahead.

    Pickled or forked, it begins anew, with the parts that any process of the machine has left.
    """

    def __init__(self, shards: Unindexed, order: NDArray[np.int64], borders: Sequence[int]) -> None:
        self.borders, self._shards, self._order = borders, shards, order
        self.traffic = ScanTraffic()
        self.passing = _passing(shards.making, order, borders)
        self._ahead: IndexingAhead | None = None
        self._me: JobRank | None = None
        self._pid = os.getpid()
        self._stop: Callable[[], Any] = _nothing

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to begin anew."""
        return {**self.__dict__, "_ahead": None, "_me": None, "_stop": _nothing}

    @property
    def num_made(self) -> int:
        """Number of segments whose index is at hand; asking for it begins nothing."""
        return 0 if self._ahead is None or self._pid != os.getpid() else self._ahead.num_made

    def begin(self, me: JobRank | None) -> None:
        """Begin to index as one rank of a job, unless it has begun; begin again where an error has ended it."""
        self._me = self._me or me
        if self._ahead is not None and self._ahead.has_failed:
            self._ahead = None  # the store may be there again, and the shard repaired
        _ = self._running

    def need(self, segment: int) -> None:
        """Announce that segments up to this one are used now."""
        self._running.need(segment)

    def index(self, segment: int, is_stopped: Callable[[], bool] | None = None) -> Index:
        """Return the index of one segment, waiting until it is made; raise `StoppedError` if it is not wanted."""
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
            self._stop = weakref.finalize(self, self._ahead.stop)
        return self._ahead


def _passing(making: IndexMaking, order: NDArray[np.int64], borders: Sequence[int]) -> PassingBytes | None:
    """Return a place for scanned bytes of remote shards in the cache of this machine, for a few segments."""
    if making.store.reads_ahead:
        return None
    sizes = np.array([info.num_bytes for info in making.infos], dtype=np.int64)[order]
    largest = int(np.add.reduceat(sizes, borders[:-1]).max())
    directory = Path(making.cache_dir, "passing")  # one for all runs, which thus find what killed ones have left
    return PassingBytes(str(directory), budget_bytes=_SEGMENTS_KEPT * largest)


def _nothing() -> None:
    pass
