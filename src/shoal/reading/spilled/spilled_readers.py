"""Samples of pieces that are too large for the window: decoded once into the chunk cache, and read there one by one.

If the cache cannot take a piece (it is full of files that others use, its disk is broken), the piece is decoded into
memory, one piece at a time, and that is counted: slower, with more memory, but the samples are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns
from shoal.formats.shard_format import ColumnRecords, ReadBytes, Records, Sample, Span, Spilled, SpillingFormat
from shoal.index.shard_scan import Buffer
from shoal.indexing.open_source import Opened
from shoal.reading.cached_ranges import place_key
from shoal.reading.checks.damaged import checked_unit
from shoal.reading.checks.verified_read import MOST_PARSES, check_shard, parse_again, parse_unit, read_unit
from shoal.reading.local.local_readers import Readers
from shoal.reading.options import ReadingOptions
from shoal.reading.remote.due_room import Due
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import SlicedUnits, UnitRead, extent_of, extent_read
from shoal.stats.counters import Counters
from shoal.storage.chunk_cache.chunk_files import SpilledPart, SpillFile
from shoal.storage.retry import RetryControl, current_retry_control, retry_control

# Stored bytes up to which a piece is read as a whole; a larger one is read in ranges, as its format asks for them.
_WHOLE_BYTES = 8 << 20
_MOST_SPILLS = 4  # times that one iterator spills the same piece
_ENTRY_BYTES = 12  # overhead for each sample beside its decoded bytes


def with_spills(
    readers: Readers, units: Any, opened: Opened, counters: Counters, ledger: MemoryBudget, options: ReadingOptions
) -> Readers:
    """Wrap readers such that spilled samples of ``units`` are read from the cache; unchanged if none are spilled."""
    if not (isinstance(units, SlicedUnits) and units.spills):
        return readers
    return SpillingReaders(readers, units, opened, counters, ledger, options)


class SpillingReaders:
    """Readers that delegate whole chunks to others, and read spilled samples from their decoded piece."""

    def __init__(
        self,
        readers: Readers,
        units: SlicedUnits,
        opened: Opened,
        counters: Counters,
        ledger: MemoryBudget,
        options: ReadingOptions,
    ) -> None:
        self._readers, self._num_chunks = readers, units.num_chunks
        self._pieces = _Pieces(opened, counters, options, getattr(readers, "in_turn", None))
        self._due = Due(ledger, self._pieces.will_come_in_turn)
        self.group_bytes = readers.group_bytes
        self._found: dict[int, tuple[Records, int]] = {}

    @property
    def reads_ahead(self) -> bool:
        """True if bytes are in this process's memory before they are needed."""
        return self._readers.reads_ahead

    def ask(self, reads: Sequence[UnitRead]) -> Iterable[Any]:
        """Announce whole chunks and samples of pieces that are needed soon; return their promises."""
        promises = iter(self._readers.ask([read for read in reads if not self._is_spilled(read)]))
        self._due.ask(filter(self._is_spilled, reads))
        return [None if self._is_spilled(read) else next(promises) for read in reads]

    def get(self, read: UnitRead, promise: Any) -> Buffer:
        """Return the bytes of a chunk; a spilled sample is looked up here, and returned by `parse`."""
        if not self._is_spilled(read):
            return self._readers.get(read, promise)
        with self._due.get(read):
            self._found[read.unit] = self._pieces.find(read.first_sample)
        return b""

    def get_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """Delegate to the other readers: records of fixed length are never spilled."""
        self._readers.get_into(read, promise, buffer)

    def parse(self, read: UnitRead, data: Buffer) -> Records:
        """Parse the samples in the bytes of a chunk, or return the spilled sample that was looked up."""
        return _One(*self._found.pop(read.unit)) if self._is_spilled(read) else self._readers.parse(read, data)

    def close(self) -> None:
        """Stop, and release what is in memory."""
        self._found.clear()
        self._pieces.close()
        self._readers.close()

    def _is_spilled(self, read: UnitRead) -> bool:
        return read.unit >= self._num_chunks


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


class _Pieces:
    """Lookup of samples in the pieces of a dataset, which are spilled on first use."""

    def __init__(
        self,
        opened: Opened,
        counters: Counters,
        options: ReadingOptions,
        in_turn: Callable[[UnitRead], Iterator[bytes]] | None,
    ) -> None:
        self._opened, self._counters, self._options = opened, counters, options
        self._fetched = in_turn
        self._plain = replace(opened, cache=None)
        self._format = cast("SpillingFormat", opened.format)
        self._traffic = RequestStats(counters)
        self._is_far = not opened.store.reads_ahead
        self._damaged: dict[int, ShardError] = {}  # by extent, so that damage is not detected again for each sample
        self._num_spills: Counter[int] = Counter()
        self._whole: tuple[int, Records] | None = None
        self._is_closed = False

    def will_come_in_turn(self, sample_id: int) -> bool:
        """True if the piece of a sample is to be fetched part by part, as far as known before its shard is checked."""
        piece = extent_read(self._opened.index, extent_of(self._opened.index, sample_id))
        cache = self._opened.cache
        if not self._comes_in_turn(piece) or cache is None:
            return False
        return not cache.has(self._key(piece))

    def find(self, sample_id: int) -> tuple[Records, int]:
        """Find the records that hold a sample, and its number among them.

        Raises
        ------
        ShardError
            Its piece cannot be decoded, or the shard is not the one that was indexed.
        StorageError
            Its bytes could not be read.
        """
        extent = extent_of(self._opened.index, sample_id)
        if extent in self._damaged:
            raise self._damaged[extent].with_traceback(None)
        piece = extent_read(self._opened.index, extent)
        number = sample_id - piece.first_sample
        try:
            with self._patience():
                part = self._part(piece, number)
                if part is None:
                    return self._decoded(piece), number
        except ShardError as error:
            self._damaged[extent] = error
            raise
        return self._format.parse_part(part.data, self._span(piece, part)), part.number

    def close(self) -> None:
        """Release what is in memory, and give up retries."""
        self._is_closed = True
        self._whole = None

    def _patience(self) -> AbstractContextManager[None]:
        """Return a context in which requests of this thread are retried until the stream's deadline, and counted."""
        here = current_retry_control()
        retried = self._traffic.retried
        return retry_control(
            RetryControl(lambda s: self._is_closed or here.pause(s), retried, self._options.deadline_seconds)
        )

    def _part(self, piece: UnitRead, number: int) -> SpilledPart | None:
        """Return the part of a piece that holds one of its samples; None if the cache cannot take the piece."""
        opened = self._opened
        if self._is_far:
            check_shard(opened, piece.shard, self._traffic)
        else:
            opened.check.check(piece.shard, self._traffic)
        if opened.cache is None or not opened.check.version(piece.shard):
            return None
        expected_bytes = int(opened.index.extent_decoded_bytes[piece.unit]) + _ENTRY_BYTES * piece.num_samples
        expected_bytes += piece.num_bytes if self._comes_in_turn(piece) else 0
        # A piece that is evicted again and again has no room beside what others need.
        spill = partial(self._spill, piece) if self._num_spills[piece.unit] < _MOST_SPILLS else None
        return opened.cache.read_spilled(self._key(piece), number, spill, expected_bytes=expected_bytes)

    def _key(self, piece: UnitRead) -> str:
        place = place_key(self._opened, (piece.shard, piece.first_byte, piece.end_byte))
        return f"{place}\n{self._format.spilled_as}"

    def _comes_in_turn(self, piece: UnitRead) -> bool:
        return self._is_far and piece.num_bytes > _WHOLE_BYTES

    def _span(self, piece: UnitRead, part: SpilledPart | None = None) -> Span:
        """Return the `Span` that describes a piece, or a part of one, to its format."""
        index = self._opened.index
        name = index.shard_names[piece.shard]
        if part is None:
            return Span(name, piece.first_byte, piece.num_samples, None, index.shard_heads.get(piece.shard, {}))
        return Span(name, part.first_byte, part.num_samples, None, part.head)

    def _spill(self, piece: UnitRead, file: SpillFile) -> Spilled:
        """Decode a piece into a file; from a remote store with retries, since bytes may be damaged in transit."""
        self._num_spills[piece.unit] += 1
        num_left = MOST_PARSES - 1 if self._is_far else 0
        while True:
            try:
                return self._format.spill(self._ranges(piece, file), piece.end_byte, self._span(piece), file)
            except ShardError:
                if not num_left:
                    raise
                num_left -= 1
                self._traffic.corrupt()
                file.restart()

    def _ranges(self, piece: UnitRead, file: SpillFile) -> ReadBytes:
        """Return a function that reads a piece: from memory if it is small or must be verified, else range by range.

        A large piece of a remote store is first fetched into the file, over as many connections as other reads, since
        its format would ask for one range after the other.
        """
        has_checksum = self._opened.index.extent_checksum is not None and self._options.verify == "always"
        if self._comes_in_turn(piece):
            self._fetch_into(file, piece)

            def stored(first_byte: int, end_byte: int, /) -> bytes:
                return file.read_before(first_byte - piece.first_byte, end_byte - piece.first_byte)

            return stored
        if has_checksum or piece.num_bytes <= _WHOLE_BYTES:
            data = self._bytes_of(piece)

            def part(first_byte: int, end_byte: int, /) -> memoryview:
                return memoryview(data)[first_byte - piece.first_byte : end_byte - piece.first_byte]

            return part
        self._counters.num_reads += 1
        return partial(self._range, piece.shard)

    def _fetch_into(self, file: SpillFile, piece: UnitRead) -> None:
        """Fetch the stored bytes of a piece from a remote store into a file, and verify their checksum."""
        self._counters.num_reads += 1
        self._count(piece.num_bytes)
        checksums, crc = self._opened.index.extent_checksum, 0
        for data in self._fetched(piece) if self._fetched is not None else ():
            crc = crc32(data, crc)
            file.append(data)
        if checksums is not None and crc != checksums[piece.unit]:
            self._traffic.corrupt()
            file.restart()
            file.append(read_unit(self._plain, piece, traffic=self._traffic))
        file.begin_here()

    def _count(self, num_bytes: int) -> None:
        """Count bytes that are needed; requests over a network are counted where they are made."""
        self._counters.read_bytes += num_bytes
        if not self._is_far:
            self._counters.num_requests += 1
            self._counters.requested_bytes += num_bytes

    def _range(self, shard: int, first_byte: int, end_byte: int, /) -> bytes:
        self._count(end_byte - first_byte)
        return self._opened.store.read_range(self._opened.paths[shard], first_byte, end_byte)

    def _bytes_of(self, piece: UnitRead) -> bytes:
        self._counters.num_reads += 1
        self._count(piece.num_bytes)
        if not self._is_far and self._options.verify == "always":
            return checked_unit(self._plain, piece)
        return read_unit(self._plain, piece, traffic=self._traffic)

    def _decoded(self, piece: UnitRead) -> Records:
        """Decode a piece into memory, in place of the one before."""
        if self._whole is None or self._whole[0] != piece.unit:
            self._whole = None
            data = self._bytes_of(piece)
            if self._is_far:
                self._whole = piece.unit, parse_again(self._plain, piece, data, self._traffic)
            else:
                self._whole = piece.unit, parse_unit(self._plain, piece, data)
        return self._whole[1]
