"""Execution of a plan of reads under a budget: units are requested ahead of their use and kept until released.

The order of responses does not matter: the consumer gets exactly the unit that it needs, so the stream is always the
same. An error of a read is raised at the sample that needs the unit.

Units are requested in groups: handing over a unit costs more than reading 64 KiB from the page cache, and neighbours in
a remote store can share a request. Samples are located when their unit is first taken, and parsed when needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.rows.records import Piece
from shoal.formats.shard_format import Records, Sample
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.spilled_pieces import SpillingReaders
from shoal.reading.checks.damaged_samples import Damaged, SalvagedRecords, salvage
from shoal.reading.local.local_readers import LocalReaders
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.fetching_readers import waiting_readers
from shoal.reading.remote.remote_readers import SharedReading
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_ledger import MemoryBudget, groups_with_room
from shoal.reading.schedule.units import UnitRead, UnitReaders, Units
from shoal.stats.counters import Counters
from shoal.stats.run_events import IGNORED

_PLANNED_AT_ONCE = 256  # units; a span of the order may have one for every sample
_PARTS = 32  # units taken early are at most a 32nd of those in use
_NO_UNITS = np.zeros(0, dtype=np.int64)
_Records = Records | SalvagedRecords
Due = tuple[UnitRead, Any]
"""A read, and the promise of its bytes."""

RUN_BYTES = 256 << 10
"""Approximate bytes of the samples that are made together."""
_MOST_IN_RUN, _LEAST_IN_RUN = 64, 16


def most_in_run(num_samples: int, num_bytes: int, run_bytes: int = RUN_BYTES) -> int:
    """Return how many samples may be made together, if ``num_samples`` have ``num_bytes``.

    A sample of 16 KiB is made when it is due: nothing is saved, and it is best written over the sample before it, which
    is still in the cache of the processor.

    >>> most_in_run(100, 100 << 10), most_in_run(100, 800 << 10), most_in_run(10, 200 << 10)
    (64, 32, 1)
    """
    most = min(_MOST_IN_RUN, run_bytes * num_samples // max(1, num_bytes))
    return most if most > _LEAST_IN_RUN else 1


class _Taken(NamedTuple):
    """A unit in use: the first sample id, a function from number to sample, the bytes held, and the most in a run.

    ``piece`` and ``first_sample`` come first, as `Piece` demands.
    """

    piece: Piece | None
    first_sample: int
    sample: Callable[[int], Sample | Damaged]
    num_bytes: int
    most_in_run: int


_taken = partial(tuple.__new__, _Taken)  # same as calling the class, in a third of the time


def _elsewhere(number: int) -> Sample:
    raise AssertionError(f"sample {number} is in records that the caller of `take` keeps")


class Fetcher:
    """Reader of units ahead of their use; the fetcher keeps each unit until it is released.

    At most ``ahead_limit_bytes`` are requested or unused.
    """

    def __init__(
        self,
        opened: Opened,
        units: Units,
        counters: Counters,
        *,
        ahead_limit_bytes: int,
        options: ReadingOptions,
        shared: SharedReading | None = None,
    ) -> None:
        self._options = options
        # Views keep their chunk alive: each is made when it is due.
        self._run_bytes = RUN_BYTES // (1 if shared is None else shared.num_sources) if options.copy else 0
        self.opened, self._units, self._counters = opened, units, counters
        total, requests = (None, None) if shared is None else (shared.memory, shared.requests)
        self._memory = MemoryBudget(ahead_limit_bytes=ahead_limit_bytes, total=total)
        self._readers: UnitReaders
        if opened.waits:
            self._readers = waiting_readers(opened, counters, self._memory, options, requests)
        else:
            self._readers = LocalReaders(opened, counters, self._memory, options)
        making = partial(SpillingReaders, opened=opened, counters=counters, memory=self._memory, options=options)
        self._readers = units.readers(self._readers, making)
        self._reads_together = isinstance(self._readers, LocalReaders) and options.memory_limit_bytes is None
        self._together: Any = getattr(self._readers, "read_all", None)
        self._stats = RequestStats(counters)
        self._planned: deque[NDArray[np.int64]] = deque()
        self._pending: deque[UnitRead] = deque()
        self._requested: dict[int, Due] = {}
        self._taken: dict[int, _Taken] = {}
        self._seen = bytearray((units.num_units >> 3) + 1)  # one bit a unit

    def read_ahead(self, units: NDArray[np.int64] = _NO_UNITS) -> None:
        """Plan to read these units next; request as many planned units as fit into the read-ahead."""
        self._planned.extend(units[i : i + _PLANNED_AT_ONCE] for i in range(0, len(units), _PLANNED_AT_ONCE))
        if not self._memory.has_room(self._readers.group_bytes):  # the usual case, tested for each unit
            return
        for group in groups_with_room(
            self._memory, self._readers.group_bytes, pending=self._pending, is_due=self._is_due
        ):
            for read, promise in zip(group, self._readers.request(group), strict=True):
                self._requested[read.unit] = read, promise

    def runs(
        self, ids: list[int], units: list[int], last: list[bool], drops: Sequence[int] = ()
    ) -> Iterator[list[Sample | Damaged]]:
        """Yield the samples with these ids, in order, in lists of samples that are in memory together.

        ``units`` hold the samples; a unit is released after the sample where ``last`` is True, and ``drops`` are
        released before the first sample. Local units are read on the way; a list ends before a sample whose remote unit
        has not arrived. An error is raised at its sample.
        """
        taken, waits = self._taken, self.opened.waits
        for unit in drops:
            self.release(unit)
        run: list[Sample | Damaged] = []
        at, most, num_samples = 0, 0, len(ids)
        while at < num_samples:
            held = taken.get(units[at])
            if held is None and waits and run:
                yield run
                run = []
            try:
                held = held or self._first_taken(units[at : max(at + 1, at + most - len(run))])
                most = held.most_in_run
                piece, stop = held.piece, min(at + most - len(run), num_samples)
                samples = [] if piece is None else piece.cut(taken, ids, units, last, at, stop)
                run += samples or [held.sample(ids[at] - held.first_sample)]
                at += len(samples) or 1
            except Exception:
                if run:
                    yield run
                raise
            if last[at - 1]:
                self.release(units[at - 1])
            if len(run) >= most:
                yield run
                run = []
        if run:
            yield run

    def due(self, units: list[int]) -> list[Due]:
        """Return the read of the first unit, which is needed now, and of others that are best read together with it."""
        due = [self._due(units[0])]
        if self._reads_together and self._counters.events is IGNORED:  # a trace shows each read
            for unit in units[1:]:
                if (requested := self._requested.pop(unit, None)) is None:
                    break
                due.append(requested)
        return due

    def take(self, due: list[Due], buffers: list[memoryview | None]) -> list[_Records | None]:
        """Mark the units of `due` as in use; copy each into its buffer, or parse it and return its records without one.

        The caller keeps the records. The list is shorter if a unit after the first fails: the rest can be taken again.
        """
        taken: list[Any]
        if self._reads_together:
            taken = self._together([read for read, _ in due], buffers)
            self._not_taken(due, len(taken))
        elif buffers[0] is None:
            taken = [self._readers.records(*due[0])]
        else:
            taken = [self._readers.read_into(*due[0], buffers[0])]  # type: ignore[func-returns-value]
        for (read, _), buffer in zip(due[: len(taken)], buffers, strict=False):
            held_bytes = self._held_bytes(read) if buffer is None else self._counted(read)
            self._taken[read.unit] = _taken((None, read.first_sample, _elsewhere, held_bytes, 0))
        self._counters.heights(self._memory.peak_bytes, self._memory.peak_claimed_bytes)
        self.read_ahead()
        return taken

    def release(self, unit: int) -> None:
        """Release a unit that was taken."""
        self._memory.release(self._taken.pop(unit).num_bytes)
        if self._pending and self._pending[0].unit == unit:  # it is read again, and other units wait behind it
            self.read_ahead()

    def close(self) -> None:
        """Stop: drop reads that have not begun; no thread is left when this returns."""
        self._readers.close()
        for collection in (self._planned, self._pending, self._requested, self._taken):
            collection.clear()

    def _first_taken(self, units: list[int]) -> _Taken:
        """Take the first unit into use, and others that are best read together with it; return the first."""
        due = self.due([units[0]] if self._options.skips else self._early(units))
        taken: list[Any]
        if self._options.skips:
            taken = [salvage(self.opened, due[0][0], partial(self._readers.records, *due[0]), self._stats)]
        elif self._reads_together:
            taken = self._together([read for read, _ in due], [None] * len(due))
            self._not_taken(due, len(taken))
        else:
            taken = [self._readers.records(*due[0])]
        for (read, _), records in zip(due, taken, strict=False):
            held_bytes = self._held_bytes(read)
            most = most_in_run(read.num_samples, held_bytes, self._run_bytes)
            piece = getattr(records, "piece", None) if most > 1 else None
            self._taken[read.unit] = _taken((piece, read.first_sample, records.sample, held_bytes, most))
        self._counters.heights(self._memory.peak_bytes, self._memory.peak_claimed_bytes)
        self.read_ahead()
        return self._taken[units[0]]

    def _early(self, units: list[int]) -> list[int]:
        """Return the first unit, and some of the others that are not in use yet."""
        return [unit for unit in dict.fromkeys(units) if unit not in self._taken][: 1 + len(self._taken) // _PARTS]

    def _not_taken(self, due: list[Due], num_taken: int) -> None:
        """Keep the promises of units that could not be read together with the first."""
        for read, promise in due[num_taken:]:
            self._requested[read.unit] = read, promise

    def _due(self, unit: int) -> Due:
        """Return the read of a unit that is needed now, and the promise of its bytes."""
        if unit not in self._requested:  # there was no room for it, so nothing behind it was read ahead
            if self._pending and self._pending[0].unit == unit:
                self._pending.popleft()
            (read,) = self._units.reads(np.array([unit]))
            (promise,) = self._readers.request([read])
            return read, promise
        return self._requested.pop(unit)

    def _held_bytes(self, read: UnitRead) -> int:
        """Count and return the bytes of a unit in use: decoded data replaces the bytes that were read."""
        held_bytes = max(read.num_bytes, self._units.held_bytes(read))
        if held_bytes > read.num_bytes:
            self._memory.hold(held_bytes - read.num_bytes)
        self._counted(read)
        return held_bytes

    def _is_due(self) -> bool:
        """Return True if there is a next read, and it need not wait."""
        pending = self._pending
        if not pending and self._planned:
            pending.extend(self._units.reads(self._planned.popleft()))
        # A unit that is already in memory is released before it is read again.
        return bool(pending) and pending[0].unit not in self._requested and pending[0].unit not in self._taken

    def _counted(self, read: UnitRead) -> int:
        """Count a unit that was read before; return the bytes of the read."""
        seen, byte, bit = self._seen, read.unit >> 3, 1 << (read.unit & 7)
        if seen[byte] & bit:
            self._counters.num_rereads += 1
        seen[byte] |= bit
        return read.end_byte - read.first_byte
