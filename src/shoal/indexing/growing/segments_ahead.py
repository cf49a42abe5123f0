"""Indexing of segments in a thread, ahead of their use, together with the other processes of a job.

All shards, in their permuted order, are the units of one job (`shoal.indexing.jobs`); a segment has a range of units.
Every process runs its share of the next segment's units, and takes over units that others leave undone. The parts stay
until the index is whole; it then equals the index of `shoal index`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StorageError
from shoal.figures import format_bytes
from shoal.index.assembly import joined, subset
from shoal.index.table import Index
from shoal.indexing.index_making import IndexMaking
from shoal.indexing.jobs.index_from_parts import IndexUnits, index_units
from shoal.indexing.jobs.job_units import UnitParts
from shoal.indexing.jobs.shared_indexing import KEEP_SECONDS, Sharing
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.indexing.scan.scan_task import ScanTask
from shoal.processes.job_rank import JobRank
from shoal.processes.process_ends import Stop
from shoal.storage.memory_store import MemoryStore
from shoal.storage.passing_bytes.passing_bytes import PassingBytes
from shoal.storage.retry import StoppedError
from shoal.storage.store_protocol import Store

_log = logging.getLogger("shoal")

_LOOK_SECONDS = 0.2
_AHEAD = 2  # segments beyond the segments in use: more would leave more bytes waiting than the disk may hold
_ATTEMPTS = 3
_PARTS_OF_SEGMENT = 16  # units, so that as many processes share it
_MOST_SHARDS_OF_UNIT = 64
_ALONE = JobRank(0, 1, 1)


def unit_cuts(num_bytes: Sequence[int], borders: Sequence[int]) -> tuple[list[int], list[int]]:
    """Cut shards into units that cross no border of segments; return the cuts, and the first unit of each segment.

    A segment has about 16 units, more if they would have more than 64 shards, and fewer if it has fewer shards. The
    last number of each list is the end of the last unit or segment.

    >>> unit_cuts([5, 5, 5, 5, 5], [0, 1, 5])
    ([0, 1, 2, 3, 4, 5], [0, 1, 5])
    """
    cuts, first_units = [0], [0]
    for first, stop in pairwise(borders):
        limit_bytes = sum(num_bytes[first:stop]) / _PARTS_OF_SEGMENT
        unit_bytes = 0
        for shard in range(first, stop):
            if shard > cuts[-1] and (unit_bytes >= limit_bytes or shard - cuts[-1] == _MOST_SHARDS_OF_UNIT):
                cuts.append(shard)
                unit_bytes = 0
            unit_bytes += num_bytes[shard]
        cuts.append(stop)
        first_units.append(len(cuts) - 1)
    return cuts, first_units


class IndexingAhead:
    """A thread that indexes segment after segment: all requested segments, and a few ahead of the segments in use.

    A thread that waits for a segment gets the error of this or an earlier segment.
    """

    def __init__(self, job: SegmentJob) -> None:
        self._changed = threading.Condition()
        self._stop = Stop(self._changed)
        self._made: list[Index] = []
        self._error: Exception | None = None
        self._last, self._num_segments = -1, job.num_segments  # the last segment that may be indexed
        job.stop = self._stop
        # Not a daemon: the interpreter waits for the thread at exit, and would abort if it were inside numpy.
        threading.Thread(target=self._run, args=(job,), name="shoal-index-ahead").start()

    @property
    def num_made(self) -> int:
        """Number of segments that are indexed."""
        return len(self._made)

    @property
    def has_failed(self) -> bool:
        """True if an error has ended the indexing, and some segments are missing."""
        return self._error is not None and len(self._made) < self._num_segments

    def need(self, segment: int) -> None:
        """Allow indexing of the segments after this segment."""
        self._allow(segment + _AHEAD)

    def wait(self, segment: int, is_stopped: Callable[[], bool] | None = None) -> Index:
        """Return the index of a segment once it is made; `StoppedError` soon after ``is_stopped`` returns True."""
        self._allow(segment)
        with self._changed:
            while not (len(self._made) > segment or self._error or self._stop.is_set()):
                if is_stopped is not None and is_stopped():
                    break
                self._changed.wait(_LOOK_SECONDS)
            if len(self._made) > segment:
                return self._made[segment]
            if self._error is not None:
                raise self._error
            raise StoppedError("indexing was stopped")

    def stop(self) -> None:
        """Stop soon, without waiting."""
        self._stop.set()

    def _allow(self, segment: int) -> None:
        with self._changed:
            self._last = max(self._last, segment)
            self._changed.notify_all()

    def _run(self, job: SegmentJob) -> None:
        try:
            for segment in range(self._num_segments):
                with self._changed:
                    self._changed.wait_for(partial(self._may_begin, segment))
                if self._stop.is_set():
                    return
                index = job.segment(segment)
                with self._changed:
                    self._made.append(index)
                    self._changed.notify_all()
            job.finish(self._made)
        except Exception as error:  # noqa: BLE001  # raised in the thread that waits for a segment
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_begin(self, segment: int) -> bool:
        return segment <= self._last or self._stop.is_set()


def _sharing(making: IndexMaking, me: JobRank) -> JobRank:
    """Return the rank among the ranks that share the work: all ranks with one directory, else the machine's ranks."""
    if (job := making.job_rank) is None:
        return me
    making.log_machines(job)
    if making.common is not None or job.local_size >= job.world_size:
        return me
    local_size = job.local_size * max(1, me.world_size // job.world_size)
    return JobRank(me.rank % local_size, local_size, local_size)


class SegmentJob:
    """The units of all segments, and the share of this process in them.

    Scanned bytes are left in ``passing``, and reads are counted in ``traffic``. Raises `StoppedError` soon after
    ``stop`` is set.
    """

    def __init__(
        self,
        making: IndexMaking,
        order: NDArray[np.int64],
        borders: Sequence[int],
        me: JobRank | None,
        passing: PassingBytes | None,
        traffic: ScanTraffic,
    ) -> None:
        self.num_segments, self.stop = len(borders) - 1, threading.Event()
        self._making, self._order, self._borders, self._passing = making, order, borders, passing
        self._traffic = traffic
        self._me = _sharing(making, _ALONE if me is None else me)
        self._units: IndexUnits | None = None
        self._whole: Index | None = None
        self._is_alone = self._is_in_memory = False
        self._absent: set[int] = set()

    def segment(self, segment: int) -> Index:
        """Return the index of one segment, made together with other processes.

        Raises `ShardError`: a shard cannot be parsed; `StorageError`: it cannot be read, or has changed.
        """
        first, stop = self._borders[segment], self._borders[segment + 1]
        if self._whole is None and (kept := self._making.kept_by_any_rank()) is not None:
            self._whole = kept[0]
        if self._whole is None and not segment:
            size = format_bytes(sum(task.num_bytes for task in self._permuted[:stop]))
            text = "%s: the first batch comes when %d of %d shards are indexed (%s)"
            _log.info(text, self._source, stop, len(self._order), size)
        while self._whole is None:
            units = self._begun()
            try:
                index = self._joined(units, range(self._first_units[segment], self._first_units[segment + 1]))
            except StorageError as error:
                if self._is_in_memory or not units.parts.failed:
                    raise
                self._units = self._in_memory(error.message)  # the disk may be full
            else:
                if index is not None:
                    return index
        notes = {} if segment else self._whole.notes  # the notes of all segments must add up to the whole
        return replace(subset(self._whole, self._order[first:stop].tolist()), notes=notes)

    def _joined(self, units: IndexUnits, numbers: range) -> Index | None:
        """Return the index of some units, made together with other processes; None if the parts are gone."""
        sharing = Sharing(
            units, self._rank, self._report, numbers,
            num_processors=1, traffic=self._traffic, absent=self._absent,
        )  # fmt: skip
        sharing.run_own_share()
        while units.parts.is_open():
            sharing.wait_or_take_over()
            parts = [units.part(number) for number in numbers] if sharing.is_complete() else []
            present = [part for part in parts if part is not None]
            if len(present) == len(numbers):
                self._is_alone = self._is_in_memory or sharing.is_alone
                for number in numbers if self._is_in_memory else ():
                    units.parts.drop(number)
                return joined(present, metadata=units.common_metadata(present[0]))
        # Another process has removed the parts, since the whole index is made.
        if (kept := self._making.kept_by_any_rank()) is None:
            self._units = self._in_memory("another process could not keep the whole index")
        else:
            self._whole = kept[0]
        return None

    def finish(self, segments: Sequence[Index]) -> None:
        """Store the index of all shards, in the order of the listing, unless another process stores the index."""
        units = self._begun()
        if self._whole is None and not Sharing(units, self._rank, None, range(0)).is_finished_by_another():
            permuted = joined(segments, metadata=segments[0].metadata)
            listed = subset(permuted, np.argsort(self._order).tolist())
            _, path = self._making.kept(replace(listed, notes=permuted.notes))
            _log.info("%s: all %d shards are indexed: %s", self._source, listed.num_shards, path)
        units.parts.close()

    @property
    def _source(self) -> str:
        return self._making.what.source.typed

    @property
    def _rank(self) -> JobRank:
        """The rank of this process; the only rank if all other ranks were absent last time, to avoid another wait."""
        return _ALONE if self._is_alone else self._me

    @cached_property
    def _permuted(self) -> list[ScanTask]:
        tasks = self._making.tasks()
        return [replace(tasks[shard], number=number) for number, shard in enumerate(self._order.tolist())]

    @cached_property
    def _cuts(self) -> tuple[list[int], list[int]]:
        return unit_cuts([task.num_bytes for task in self._permuted], self._borders)

    @property
    def _first_units(self) -> list[int]:
        return self._cuts[1]

    def _begun(self) -> IndexUnits:
        """Return the units, after beginning their job."""
        if self._units is None:
            failure = ""
            for directory, parts_store in self._making.part_directories() * _ATTEMPTS:
                units = self._units_in(directory, parts_store)
                try:
                    units.parts.begin(keep_seconds=KEEP_SECONDS)
                except StorageError as error:  # perhaps another process removes the parts of a whole index
                    failure = error.message
                else:
                    self._units = units
                    return units
            self._units = self._in_memory(failure)
        return self._units

    def _in_memory(self, failure: str) -> IndexUnits:
        """Return the units with their parts in the memory of this process, which then works alone."""
        text = "%s: this process indexes all shards for itself, since parts of the index cannot be kept: %s"
        _log.warning(text, self._source, failure)
        self._is_alone = self._is_in_memory = True
        units = self._units_in(f"memory://shoal-index/{os.getpid()}/{id(self)}", MemoryStore())
        units.parts.begin(keep_seconds=KEEP_SECONDS)
        return units

    def _units_in(self, directory: str, parts_store: Store) -> IndexUnits:
        making, passing = self._making, self._passing
        store = making.store if passing is None else passing.noting(making.store)
        return index_units(
            making.what, store, making.format, extent_bytes=making.extent_bytes, checksum=False,
            parts_in=partial(UnitParts, directory, store=parts_store), shards=self._permuted, cuts=self._cuts[0],
        )  # fmt: skip

    def _report(self, done_bytes: int, total_bytes: int, num_samples: int) -> None:  # noqa: ARG002
        if self.stop.is_set():
            raise StoppedError("indexing was stopped")
