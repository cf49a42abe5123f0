"""Samples of pieces that are too large for the window: decoded once into the chunk cache, and read there one by one.

If the cache cannot take a piece (the cache is full of files in use, or its disk is broken), the piece is decoded into
memory, one piece at a time, and a counter records this. The samples are the same; reading is slower and takes more
memory. Readers of units use this module for samples of such pieces, and read other chunks as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns
from shoal.formats.shard_format import ColumnRecords, ReadBytes, Records, Sample, Span, Spilled
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.cached_ranges import range_key
from shoal.reading.checks.checked_reads import MOST_PARSES, check_shard, parse_again, parse_unit, read_unit
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.remote_readers import RemoteReaders
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.units import UnitRead, UnitReaders, extent_of, extent_read
from shoal.stats.counters import Counters
from shoal.storage.chunk_cache.spill_files import SpilledPart, SpillFile
from shoal.storage.retry import RetryControl, current_retry_control, retry_control

# A piece of this many stored bytes is read as a whole; a larger piece is read in the ranges of its format.
_WHOLE_BYTES = 8 << 20
_MOST_SPILLS = 4  # times that one iterator spills the same piece
_ENTRY_BYTES = 12  # overhead for each sample beside its decoded bytes


class DecodedPieces:
    """Lookup of samples in the pieces of a dataset, which are spilled on first use."""

    def __init__(
        self,
        opened: Opened,
        counters: Counters,
        options: ReadingOptions,
        fetch_parts: Callable[[UnitRead], Iterator[bytes]] | None,
    ) -> None:
        self._opened, self._counters, self._options = opened, counters, options
        self._fetch_parts = fetch_parts
        self._plain = replace(opened, cache=None)
        self._format = opened.format
        self._stats = RequestStats(counters)
        self._is_remote = not opened.store.reads_ahead
        self._damaged: dict[int, ShardError] = {}  # by extent, so that damage is not detected again for each sample
        self._num_spills: Counter[int] = Counter()
        self._whole: tuple[int, Records] | None = None
        self._is_closed = False

    def will_come_in_turn(self, sample_id: int) -> bool:
        """Return True if the piece of a sample is expected part by part; the shard is not checked yet."""
        piece = extent_read(self._opened.index, extent_of(self._opened.index, sample_id))
        cache = self._opened.cache
        return self._comes_in_turn(piece) and cache is not None and not cache.has(self._key(piece))

    def find(self, sample_id: int) -> tuple[Records, int]:
        """Return the records that hold a sample, and its number among them.

        Raises `ShardError`: the piece cannot be decoded, or the shard has changed; `StorageError`: the piece cannot be
        read.
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
        """Release memory, and give up retries."""
        self._is_closed = True
        self._whole = None

    def _patience(self) -> AbstractContextManager[None]:
        """Return a context in which requests of this thread are retried until the stream's deadline, and counted."""
        pause, deadline_seconds = current_retry_control().pause, self._options.deadline_seconds
        control = RetryControl(lambda s: self._is_closed or pause(s), self._stats.retried, deadline_seconds)
        return retry_control(control)

    def _part(self, piece: UnitRead, number: int) -> SpilledPart | None:
        """Return the part of a piece that holds one of its samples; None if the cache cannot take the piece."""
        opened = self._opened
        if self._is_remote:
            check_shard(opened, piece.shard, self._stats)
        else:
            opened.check.check(piece.shard, self._stats)
        if opened.cache is None or not opened.check.version(piece.shard):
            return None
        expected_bytes = int(opened.index.extent_decoded_bytes[piece.unit]) + _ENTRY_BYTES * piece.num_samples
        expected_bytes += piece.num_bytes if self._comes_in_turn(piece) else 0
        # A piece that is evicted again and again has no room beside the files of others.
        spill = partial(self._spill, piece) if self._num_spills[piece.unit] < _MOST_SPILLS else None
        return opened.cache.read_spilled(self._key(piece), number, spill, expected_bytes=expected_bytes)

    def _key(self, piece: UnitRead) -> str:
        return f"{range_key(self._opened, piece[1:4])}\n{self._format.spilled_as}"

    def _comes_in_turn(self, piece: UnitRead) -> bool:
        return self._is_remote and piece.num_bytes > _WHOLE_BYTES

    def _span(self, piece: UnitRead, part: SpilledPart | None = None) -> Span:
        """Return the `Span` that describes a piece, or a part of it, to its format."""
        index = self._opened.index
        name = index.shard_names[piece.shard]
        if part is None:
            return Span(name, piece.first_byte, piece.num_samples, None, index.shard_heads.get(piece.shard, {}))
        return Span(name, part.first_byte, part.num_samples, None, part.head)

    def _spill(self, piece: UnitRead, file: SpillFile) -> Spilled:
        """Decode a piece into a file; retry pieces of a remote store, since bytes may be damaged in transit."""
        self._num_spills[piece.unit] += 1
        num_left = MOST_PARSES - 1 if self._is_remote else 0
        while True:
            try:
                return self._format.spill(self._ranges(piece, file), piece.end_byte, self._span(piece), file)
            except ShardError:
                if not num_left:
                    raise
                num_left -= 1
                self._stats.corrupt()
                file.restart()

    def _ranges(self, piece: UnitRead, file: SpillFile) -> ReadBytes:
        """Return a function that reads ranges of a piece: from memory if it is small or must be verified.

        A large piece of a remote store is first fetched into the file, over as many connections as other reads: its
        format asks for one range after another.
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
        self._stats.arrived(num_reads=1, read_bytes=0)
        return partial(self._range, piece.shard)

    def _fetch_into(self, file: SpillFile, piece: UnitRead) -> None:
        """Fetch the stored bytes of a remote piece into a file, and verify their checksum."""
        checksums, crc = self._opened.index.extent_checksum, 0
        for data in self._fetch_parts(piece) if self._fetch_parts is not None else ():
            crc = crc32(data, crc)
            file.append(data)
        if checksums is not None and crc != checksums[piece.unit]:
            self._stats.corrupt()
            file.restart()
            file.append(read_unit(self._plain, piece, stats=self._stats))
        file.begin_here()

    def _arrived(self, num_bytes: int, *, num_reads: int) -> None:
        """Count bytes that have arrived; requests to a remote store are counted elsewhere."""
        self._stats.arrived(num_reads, num_bytes)
        if not self._is_remote:
            self._counters.num_requests += 1
            self._counters.requested_bytes += num_bytes

    def _range(self, shard: int, first_byte: int, end_byte: int, /) -> bytes:
        data = self._opened.store.read_range(self._opened.paths[shard], first_byte, end_byte)
        self._arrived(end_byte - first_byte, num_reads=0)
        return data

    def _bytes_of(self, piece: UnitRead) -> bytes:
        verify = not self._is_remote and self._options.verify == "always"
        data = read_unit(self._plain, piece, stats=self._stats, verify=verify)
        self._arrived(piece.num_bytes, num_reads=1)
        return data

    def _decoded(self, piece: UnitRead) -> Records:
        """Decode a piece into memory, in place of the piece before."""
        if self._whole is None or self._whole[0] != piece.unit:
            self._whole = None
            data = self._bytes_of(piece)
            if self._is_remote:
                self._whole = piece.unit, parse_again(self._plain, piece, data, self._stats)
            else:
                self._whole = piece.unit, parse_unit(self._plain, piece, data)
        return self._whole[1]


class SpillingReaders:
    """Readers that delegate whole chunks to ``readers``, and read spilled samples from decoded pieces."""

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
        """Announce the next chunks and spilled samples; return their promises."""
        promises = iter(self._readers.request([read for read in reads if not self._is_spilled(read)]))
        self._due.announce(filter(self._is_spilled, reads))
        return [None if self._is_spilled(read) else next(promises) for read in reads]

    def records(self, read: UnitRead, promise: Any) -> Records:
        """Return the samples of a chunk, or a spilled sample."""
        if not self._is_spilled(read):
            return self._readers.records(read, promise)
        began = self._counters.wait_begins()
        try:
            with self._due.get(read):
                return _SingleRecord(*self._pieces.find(read.first_sample))
        finally:
            self._counters.waited(began)

    def read_into(self, read: UnitRead, promise: Any, buffer: memoryview) -> None:
        """Delegate to ``readers``: records of fixed length are never spilled."""
        self._readers.read_into(read, promise, buffer)

    def close(self) -> None:
        """Stop, and release memory."""
        self._pieces.close()
        self._readers.close()

    def _is_spilled(self, read: UnitRead) -> bool:
        return read.unit >= self._num_chunks


class _ReservedReadAhead:
    """The read-ahead, kept free for the parts of remote pieces that are needed soon.

    Without the reserve, later reads would fill the read-ahead, and the parts of a piece would come one after another
    (35 MB/s instead of 130 MB/s). Once a piece is announced, nothing else is read ahead until the piece has been read.
    Earlier reads have been requested already, and make room as they are used. ``comes_in_turn`` returns True for a
    sample whose piece will come part by part.
    """

    def __init__(self, memory: MemoryBudget, comes_in_turn: Callable[[int], bool]) -> None:
        self._memory, self._comes_in_turn = memory, comes_in_turn
        self._announced: set[tuple[int, int]] = set()  # by shard and first byte
        self._due: set[tuple[int, int]] = set()

    def announce(self, reads: Iterable[UnitRead]) -> None:
        """Announce the next spilled samples."""
        for read in reads:
            piece = read.shard, read.first_byte
            if piece not in self._announced:
                self._announced.add(piece)
                if self._comes_in_turn(read.first_sample):
                    self._due.add(piece)
        self._memory.is_kept_free = bool(self._due)

    @contextmanager
    def get(self, read: UnitRead) -> Iterator[None]:
        """Return a context in which the piece of a sample may use the read-ahead."""
        self._memory.is_kept_free = False
        try:
            yield
        finally:
            self._due.discard((read.shard, read.first_byte))
            self._memory.is_kept_free = bool(self._due)


class _SingleRecord:
    """Records of one sample out of many."""

    __slots__ = ("_number", "_records")

    def __init__(self, records: Records, number: int) -> None:
        self._records, self._number = records, number

    def __len__(self) -> int:
        return 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return an empty array, since decoded pieces have no layout checksums."""
        return np.zeros(0, dtype=np.uint32)

    def columns(self) -> Columns | None:
        """Return the columns of the sample; None if the records have no columns."""
        columns = self._records.columns() if isinstance(self._records, ColumnRecords) else None
        number = self._number
        return columns and Columns(columns.kinds, tuple(array[number : number + 1] for array in columns.arrays))

    def sample(self, number: int) -> Sample:
        """Return the sample."""
        return self._records.sample(self._number + number)
