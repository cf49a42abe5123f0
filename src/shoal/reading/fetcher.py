"""Carries out a plan of reads under a budget: asks for units ahead of their use, and keeps them until they are let go.

Whatever order answers come in, the consumer gets exactly the unit it asks for, so the stream is the same every time.
An error of a read is raised when its unit is needed, at the sample it belongs to.

Units are asked for in groups: to hand over one costs more than reading 64 KiB from the page cache, and neighbours that
are remote can share a request. Samples are looked for when a unit is first taken, and each when it is wanted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.shard_format import Buffer, Records, Sample
from shoal.indexing.open_source import Opened
from shoal.reading.checks.damaged import Damaged, ForgivingRecords, forgiving_records
from shoal.reading.local.local_readers import Readers, readers_of
from shoal.reading.options import ReadingOptions
from shoal.reading.schedule.groups import groups_with_room
from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead, Units
from shoal.reading.spilled.spill import with_spills
from shoal.stats.counters import Counters

__all__ = ["Fetch"]

_PLANNED_AT_ONCE = 256  # units; a stretch may have one for every sample


_Records = Records | ForgivingRecords


class _Elsewhere:
    """Stands for records that whoever took them has."""

    def __len__(self) -> int:
        return 0

    def layout_crcs(self) -> NDArray[np.uint32]:
        return np.zeros(0, dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        msg = f"sample {number} was asked of records that were handed over"
        raise AssertionError(msg)


_ELSEWHERE: Records = _Elsewhere()


class Fetch:
    """Reads units ahead of their use and keeps them until they are let go.

    Parameters
    ----------
    ahead_limit_bytes
        How many bytes may be asked for or waiting to be used for the first time.
    """

    def __init__(
        self, opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
    ) -> None:
        self._options = options
        self.opened, self._units, self._counters = opened, units, counters
        self._ledger = MemoryBudget(ahead_limit_bytes=ahead_limit_bytes)
        readers = readers_of(opened, counters, self._ledger, options)
        self._readers: Readers = with_spills(readers, units, opened, counters, self._ledger, options)
        self._planned: deque[NDArray[np.int64]] = deque()
        self._pending: deque[UnitRead] = deque()
        self._asked: dict[int, tuple[UnitRead, Any]] = {}
        self._taken: dict[int, tuple[_Records, int, int]] = {}  # records, the id of the first, bytes
        self._met = bytearray((units.num_units >> 3) + 1)  # one bit a unit

    def follow(self, units: NDArray[np.int64]) -> None:
        """Read these units next, after those given before."""
        self._planned.extend(units[i : i + _PLANNED_AT_ONCE] for i in range(0, len(units), _PLANNED_AT_ONCE))
        self._read_ahead()

    def samples(
        self, ids: Sequence[int], units: Sequence[int], last: Sequence[bool], drops: Sequence[int] = ()
    ) -> Iterator[Sample | Damaged]:
        """The samples with these ids, in turn; ``units`` hold them, and are let go after the sample where ``last``.

        ``drops`` are let go before the first.
        """
        taken = self._taken
        for unit in drops:
            self.release(unit)
        for sample_id, unit, is_last in zip(ids, units, last, strict=True):
            records, first_sample, _ = taken.get(unit) or self._first_taken(unit)
            sample = records.sample(sample_id - first_sample)
            if is_last:
                self.release(unit)
            yield sample

    def take(self, unit: int, place: Callable[[UnitRead], memoryview | None]) -> tuple[UnitRead, _Records | None]:
        """The read of a unit that is in use from now on, and its records, to be kept by whoever asked.

        ``place`` says where the bytes of the read are to go; where it gives None they are parsed. It is asked once.
        """
        read, promise = self._due(unit)
        buffer = place(read)
        if buffer is None:
            records = self._readers.parse(read, self._get(read, promise))
            self._kept(read, _ELSEWHERE)
            return read, records
        self._readers.get_into(read, promise, buffer)
        self._taken[unit] = _ELSEWHERE, read.first_sample, len(buffer)
        self._read_ahead()
        return read, None

    def release(self, unit: int) -> None:
        """Let go of a unit that was taken."""
        self._ledger.release(self._taken.pop(unit)[2])
        if self._pending and self._pending[0].unit == unit:  # it is to be read once more, and others wait behind it
            self._read_ahead()

    def close(self) -> None:
        """Stop: reads that have not begun are dropped, and no thread is left when this returns."""
        self._readers.close()
        for kept in (self._planned, self._pending, self._asked, self._taken):
            kept.clear()

    def _first_taken(self, unit: int) -> tuple[_Records, int, int]:
        read, promise = self._due(unit)
        get, parse = partial(self._get, read, promise), self._readers.parse
        skips = self._options.skips
        return self._kept(read, forgiving_records(self.opened, read, get, parse=parse) if skips else parse(read, get()))

    def _due(self, unit: int) -> tuple[UnitRead, Any]:
        """The read of a unit that is to be used now, and what it was promised."""
        if unit not in self._asked:  # there was no room for it, so nothing else is ahead
            if self._pending and self._pending[0].unit == unit:
                self._pending.popleft()
            self._ask(self._units.reads(np.array([unit])))
        return self._asked.pop(unit)

    def _kept(self, read: UnitRead, records: _Records) -> tuple[_Records, int, int]:
        """Count what was read as in use."""
        held_bytes = self._units.held_bytes(read)
        if held_bytes > read.num_bytes:  # what is decoded takes the place of what was read
            self._ledger.copy(held_bytes - read.num_bytes)
            self._counters.peak_held_bytes = max(self._counters.peak_held_bytes, self._ledger.peak_bytes)
        taken = self._taken[read.unit] = records, read.first_sample, max(held_bytes, read.num_bytes)
        self._read_ahead()
        return taken

    def _get(self, read: UnitRead, promise: Any) -> Buffer:
        """The bytes of a unit, waited for."""
        began = time.perf_counter()
        try:
            return self._readers.get(read, promise)
        finally:
            self._counters.wait_seconds += time.perf_counter() - began

    def _read_ahead(self) -> None:
        """Ask for the next units in groups, as long as they fit into what may be read ahead."""
        group_bytes, take = self._readers.group_bytes, self._pending.popleft
        for group in groups_with_room(self._ledger, group_bytes, first=self._next, take=take):
            self._ask(group)

    def _next(self) -> UnitRead | None:
        """The read that would be asked for next; None where there is none, or it must wait."""
        if not self._pending:
            if not self._planned:
                return None
            self._pending.extend(self._units.reads(self._planned.popleft()))
        read = self._pending[0]
        # One that is there is let go before it is read once more.
        return None if read.unit in self._asked or read.unit in self._taken else read

    def _ask(self, group: Sequence[UnitRead]) -> None:
        counters = self._counters
        counters.read_bytes += sum(read.num_bytes for read in group)
        counters.num_reads += len(group)
        counters.num_rereads += sum(self._met_before(read.unit) for read in group)
        for read, promise in zip(group, self._readers.ask(group), strict=True):
            self._asked[read.unit] = read, promise
        counters.peak_held_bytes = max(counters.peak_held_bytes, self._ledger.peak_bytes)

    def _met_before(self, unit: int) -> bool:
        """Whether this object read the unit before."""
        byte, bit = unit >> 3, 1 << (unit & 7)
        met = bool(self._met[byte] & bit)
        self._met[byte] |= bit
        return met
