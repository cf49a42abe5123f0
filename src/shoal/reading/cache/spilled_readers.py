"""Readers of units of which some are samples of pieces that are too large for the window, and kept decoded on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns
from shoal.formats.shard_format import ColumnRecords, Records, Sample
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.decoded_pieces import DecodedPieces
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.remote_readers import RemoteReaders
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.units import UnitRead, UnitReaders
from shoal.stats.counters import Counters


class SpillingReaders:
    """Readers that delegate whole chunks to others, and read spilled samples from their decoded piece."""

    def __init__(
        self,
        readers: UnitReaders,
        *,
        num_chunks: int,
        opened: Opened,
        counters: Counters,
        memory: MemoryBudget,
        options: ReadingOptions,
    ) -> None:
        self._readers, self._num_chunks, self._counters = readers, num_chunks, counters
        fetch_parts = readers.parts_in_turn if isinstance(readers, RemoteReaders) else None
        self._pieces = DecodedPieces(opened, counters, options, fetch_parts)
        self._due = _ReservedReadAhead(memory, self._pieces.will_come_in_turn)
        self.group_bytes = readers.group_bytes

    def request(self, reads: Sequence[UnitRead]) -> Iterable[Any]:
        """Announce whole chunks and samples of pieces that are needed soon; return their promises."""
        promises = iter(self._readers.request([read for read in reads if not self._is_spilled(read)]))
        self._due.announce(filter(self._is_spilled, reads))
        return [None if self._is_spilled(read) else next(promises) for read in reads]

    def records(self, read: UnitRead, promise: Any) -> Records:
        """Return the samples of a chunk, or a spilled sample."""
        if not self._is_spilled(read):
            return self._readers.records(read, promise)
        began = time.perf_counter()
        try:
            with self._due.get(read):
                return _One(*self._pieces.find(read.first_sample))
        finally:
            self._counters.wait_seconds += time.perf_counter() - began

    def read_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """Delegate to the other readers: records of fixed length are never spilled."""
        self._readers.read_into(read, promise, buffer)

    def close(self) -> None:
        """Stop, and release what is in memory."""
        self._pieces.close()
        self._readers.close()

    def _is_spilled(self, read: UnitRead) -> bool:
        return read.unit >= self._num_chunks


class _ReservedReadAhead:
    """All of the read-ahead, kept free for the parts of pieces from a remote store that are needed soon.

    Otherwise reads that follow a piece would fill the read-ahead, and its parts would come one after the other (35 MB/s
    where 130 are possible). From when a piece is announced until it has been read nothing more is read ahead; all reads
    needed before it have been requested already, and make room as they are used.

    ``comes_in_turn`` returns True for a sample whose piece will be fetched part by part.
    """

    def __init__(self, memory: MemoryBudget, comes_in_turn: Callable[[int], bool]) -> None:
        self._memory, self._comes_in_turn = memory, comes_in_turn
        self._announced: set[tuple[int, int]] = set()  # by shard and first byte
        self._due: set[tuple[int, int]] = set()

    def announce(self, reads: Iterable[UnitRead]) -> None:
        """Announce samples of pieces that are needed soon."""
        for read in reads:
            piece = read.shard, read.first_byte
            if piece not in self._announced:
                self._announced.add(piece)
                if self._comes_in_turn(read.first_sample):
                    self._due.add(piece)
        self._memory.is_kept_free = bool(self._due)

    @contextmanager
    def get(self, read: UnitRead) -> Iterator[None]:
        """Open the read-ahead for the piece of a sample, for the duration of the context."""
        self._memory.is_kept_free = False
        try:
            yield
        finally:
            self._due.discard((read.shard, read.first_byte))
            self._memory.is_kept_free = bool(self._due)


class _One:
    """Records of one sample out of others."""

    __slots__ = ("_number", "_records")

    def __init__(self, records: Records, number: int) -> None:
        self._records, self._number = records, number

    def __len__(self) -> int:
        return 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return an empty array, since decoded pieces have no layout checksums."""
        return np.zeros(0, dtype=np.uint32)

    def columns(self) -> Columns | None:
        """Return the row of the sample in the columns of all; None if the records have no columns."""
        found = self._records.columns() if isinstance(self._records, ColumnRecords) else None
        number = self._number
        return found and Columns(found.kinds, tuple(array[number : number + 1] for array in found.arrays))

    def sample(self, number: int) -> Sample:
        """Return the sample."""
        return self._records.sample(self._number + number)
