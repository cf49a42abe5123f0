"""Reads one sample at a time: samples as large as a chunk, and orders in which no two neighbours share one.

Nothing is kept, so there is nothing to plan: the next samples are asked for a group at a time, as long as they fit into
what may be read ahead, and each is read when its turn comes. Where the consumer reads itself, headers and payloads come
apart, without a copy in between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.plan.budget import Ledger
from shoal.plan.units import UnitRead, Units
from shoal.shards.protocol import Sample
from shoal.stream.counters import Counters
from shoal.stream.indexing.opening import Opened
from shoal.stream.reading.damage import damage_or_raise
from shoal.stream.reading.options import ReadingOptions
from shoal.stream.reading.readers import Readers, readers_of
from shoal.stream.stages import Damaged

__all__ = ["Singles"]

_MOST_IN_GROUP = 256
_PLANNED_AT_ONCE = 256


class Singles:
    """Samples by id, each with a read of its own.

    Parameters
    ----------
    ahead_limit_bytes
        How many bytes may be asked for before they are used.
    """

    def __init__(
        self, opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
    ) -> None:
        self._options = options
        self._opened, self._units, self._counters = opened, units, counters
        self._ledger = Ledger(ahead_limit_bytes=ahead_limit_bytes)
        self._readers: Readers = readers_of(opened, counters, self._ledger, options)

    def samples(self, ids: Sequence[int], units: NDArray[np.int64]) -> Iterator[Sample | Damaged]:
        """The samples with these ids, in turn; ``units`` are the reads they are in."""
        coming = _Coming(self._units, units)
        asked: deque[tuple[UnitRead, Any]] = deque()
        get, counters, clock = self._readers.sample, self._counters, time.perf_counter
        ledger = self._ledger
        little_bytes = ledger.ahead_limit_bytes - self._readers.group_bytes
        for sample_id in ids:
            if ledger.ahead_bytes <= little_bytes or not asked:
                self._read_ahead(coming, asked)
            read, promise = asked.popleft()
            began = clock()
            try:
                sample: Sample | Damaged = get(read, promise, sample_id)
            except ShardError as error:
                if not self._options.skips:
                    raise
                sample = damage_or_raise(self._opened, read, error)
            counters.wait_seconds += clock() - began
            ledger.release(read.num_bytes)
            yield sample

    def close(self) -> None:
        """Stop; no thread is left when this returns."""
        self._readers.close()

    def _read_ahead(self, coming: _Coming, asked: deque[tuple[UnitRead, Any]]) -> None:
        """Ask for the next reads in groups, as long as they fit; always for the very next."""
        group_bytes, ledger = self._readers.group_bytes, self._ledger
        while ledger.has_room(group_bytes) or not asked:
            group: list[UnitRead] = []
            num_bytes, room_bytes = 0, ledger.room_bytes
            while num_bytes < group_bytes and len(group) < _MOST_IN_GROUP and (read := coming.next) is not None:
                if num_bytes + read.num_bytes > room_bytes and (group or asked):
                    break
                group.append(read)
                num_bytes += read.num_bytes
                coming.go_on()
            if not group:
                break
            self._counters.num_reads += len(group)
            self._counters.read_bytes += num_bytes
            asked.extend(zip(group, self._readers.ask(group), strict=True))
            held_bytes = ledger.peak_bytes if self._readers.reads_ahead else max(read.num_bytes for read in group)
            self._counters.peak_held_bytes = max(self._counters.peak_held_bytes, held_bytes)


class _Coming:
    """The reads of some units, one after the other; ``next`` is None after the last."""

    def __init__(self, units: Units, numbers: NDArray[np.int64]) -> None:
        blocks = (units.reads(numbers[i : i + _PLANNED_AT_ONCE]) for i in range(0, len(numbers), _PLANNED_AT_ONCE))
        self._reads = chain.from_iterable(blocks)
        self.next = next(self._reads, None)

    def go_on(self) -> None:
        """To the next one."""
        self.next = next(self._reads, None)
