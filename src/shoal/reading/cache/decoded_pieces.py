"""Samples of pieces that are too large for the window: decoded once into the chunk cache, and read there one by one.

If the cache cannot take a piece (it is full of files that others use, its disk is broken), the piece is decoded into
memory, one piece at a time, and that is counted: slower, with more memory, but the samples are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from zlib import crc32

from shoal.errors import ShardError
from shoal.formats.shard_format import ReadBytes, Records, Span, Spilled
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.cached_ranges import range_key
from shoal.reading.checks.checked_reads import MOST_PARSES, check_shard, parse_again, parse_unit, read_unit
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.units import UnitRead, extent_of, extent_read
from shoal.stats.counters import Counters
from shoal.storage.chunk_cache.spill_files import SpilledPart, SpillFile
from shoal.storage.retry import RetryControl, current_retry_control, retry_control

# Stored bytes up to which a piece is read as a whole; a larger one is read in ranges, as its format asks for them.
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
        retried = self._stats.retried
        return retry_control(
            RetryControl(lambda s: self._is_closed or here.pause(s), retried, self._options.deadline_seconds)
        )

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
        # A piece that is evicted again and again has no room beside what others need.
        spill = partial(self._spill, piece) if self._num_spills[piece.unit] < _MOST_SPILLS else None
        return opened.cache.read_spilled(self._key(piece), number, spill, expected_bytes=expected_bytes)

    def _key(self, piece: UnitRead) -> str:
        place = range_key(self._opened, (piece.shard, piece.first_byte, piece.end_byte))
        return f"{place}\n{self._format.spilled_as}"

    def _comes_in_turn(self, piece: UnitRead) -> bool:
        return self._is_remote and piece.num_bytes > _WHOLE_BYTES

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
        self._stats.arrived(num_reads=1, read_bytes=0)
        return partial(self._range, piece.shard)

    def _fetch_into(self, file: SpillFile, piece: UnitRead) -> None:
        """Fetch the stored bytes of a piece from a remote store into a file, and verify their checksum."""
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
        """Count bytes that have arrived; requests over a network are counted where they are made."""
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
        """Decode a piece into memory, in place of the one before."""
        if self._whole is None or self._whole[0] != piece.unit:
            self._whole = None
            data = self._bytes_of(piece)
            if self._is_remote:
                self._whole = piece.unit, parse_again(self._plain, piece, data, self._stats)
            else:
                self._whole = piece.unit, parse_unit(self._plain, piece, data)
        return self._whole[1]
