"""Reading of one unit: its bytes, which are verified if they come from a remote store, and its samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, StorageError
from shoal.formats.field_columns import Columns
from shoal.formats.rows.records import Piece
from shoal.formats.shard_format import ColumnRecords, Records, Sample, Span
from shoal.index.shard_scan import Buffer
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.cached_ranges import read_cached
from shoal.reading.checks.record_checksums import wrong_extent
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.read_requests import Request
from shoal.reading.schedule.units import UnitRead, starts_in
from shoal.storage.retry import describe_read, retried, unwrap_retries

# Bytes that are wrong in the same way every time are corrupt in the store, and retries would only hide it. Bytes that
# are wrong in different ways are damaged in transit, and retried until the deadline like any failed request.
_MOST_MISMATCHES = 5
MOST_PARSES = 3
_MOST_SCANS = 3
CHANGED_HINT = "the shard was changed or damaged after it was indexed: restore it, or index it again"


def span_of(index: Index, read: UnitRead) -> Span:
    """Return the description of a unit for its format."""
    name, head = index.shard_names[read.shard], index.shard_heads.get(read.shard, {})
    return Span(name, read.first_byte, read.num_samples, starts_in(index, read), head)


def parse_unit(opened: Opened, read: UnitRead, data: Buffer) -> Records:
    """Parse the samples in the bytes of one unit."""
    return opened.format.parse(data, span_of(opened.index, read))


def read_unit(
    opened: Opened, read: UnitRead, *, stats: RequestStats, again: bool = False, verify: bool = False
) -> bytes:
    """Read the bytes of one unit, after checking its shard; with ``again`` past the cache, which is refilled.

    The bytes are empty if the format reads by itself. ``stats`` counts requests to a remote store; the readers of local
    files count their reads. With ``verify``, compare the bytes with the checksums of their extents. Bytes of a remote
    store were compared on arrival, perhaps long ago if they are cached. Raises `ShardError`: a checksum differs, or the
    shard has changed; `StorageError`: the bytes could not be read.
    """
    path, store = opened.paths[read.shard], opened.store
    if not opened.format.needs_bytes:
        check_shard(opened, read.shard, stats)
        return b""
    if not store.reads_ahead:
        request = Request(read.shard, read.first_byte, read.end_byte, (0,))
        data = read_request(opened, stats, request, again=again)
    else:
        try:
            opened.check.check(read.shard, stats)
            if opened.cache is None:
                data = store.read_range(path, read.first_byte, read.end_byte)
            else:
                fetch = partial(store.read_range, path, read.first_byte, read.end_byte)
                data = read_cached(opened, read[1:4], fetch, again=again)
        except Exception as error:
            error.add_note(f"shoal: reading bytes [{read.first_byte}, {read.end_byte}) of {path}")
            raise
    if verify and (wrong := wrong_extent(opened.index, read.shard, read.first_byte, data)) is not None:
        stats.corrupt()
        msg = f"bytes [{wrong[0]}, {wrong[1]}) do not have the checksum in the index"
        raise ShardError(msg, shard=opened.index.shard_names[read.shard], byte=wrong[0], hint=CHANGED_HINT)
    return data


def read_records(opened: Opened, read: UnitRead, stats: RequestStats) -> Records:
    """Read the samples of one unit on its own."""
    if not opened.format.needs_bytes:
        return fetched_records(opened, [read], stats)[0]
    data = read_unit(opened, read, stats=stats)
    return parse_unit(opened, read, data) if opened.store.reads_ahead else parse_again(opened, read, data, stats)


def fetched_records(opened: Opened, reads: Sequence[UnitRead], stats: RequestStats) -> list[Records]:
    """Return the samples of some units whose format reads by itself, with retries.

    Raises `ShardError`: a shard has changed, or samples cannot be decoded; `StorageError`: samples could not be read
    before the deadline.
    """
    num_bytes = sum(read.num_bytes for read in reads)
    spans = [span_of(opened.index, read) for read in reads]

    def once() -> list[Records]:
        stats.began(num_bytes)
        try:
            return opened.format.parse_together(spans)
        finally:
            stats.ended(num_bytes)

    for shard in {read.shard for read in reads}:
        check_shard(opened, shard, stats)
    what = partial(describe_read, opened.paths[reads[0].shard], reads[0].first_byte, reads[0].end_byte)
    return retried(once, unwrap_retries(opened.store)[1], what=what)


def read_request(
    opened: Opened, stats: RequestStats, request: Request, buffer: ReadBuffer | None = None, *, again: bool = False
) -> bytes:
    """Read bytes of a remote shard, with retries, and compare them with the checksums in the index.

    Write the bytes to the ``buffer`` and return b"", unless another thread writes there: in place if the store can and
    there is no cache. Raises `ShardError`: the bytes differ from the index at several attempts; `StorageError`: the
    bytes could not be read before the deadline.
    """
    shard, first_byte, end_byte = byte_range = request[:3]
    path, cache = opened.paths[shard], opened.cache if request.is_cached else None
    store, rule = unwrap_retries(opened.store)
    if again:
        store.distrust(path, first_byte, end_byte)
    view = buffer.claim(request) if buffer is not None and can_fill(opened) else None
    num_mismatches: dict[int, int] = {}

    def once() -> bytes:
        stats.began(end_byte - first_byte)
        try:
            if view is None:
                data = store.read_range(path, first_byte, end_byte)
            else:
                store.fill(path, first_byte, view)
        finally:
            stats.ended(end_byte - first_byte)
        read = data if view is None else view
        if (wrong := wrong_extent(opened.index, shard, first_byte, read)) is not None:
            store.distrust(path, first_byte, end_byte)
            stats.corrupt()
            digest = crc32(read)
            num_mismatches[digest] = num_mismatches.get(digest, 0) + 1
            if stats.corrupt_in_store.get(byte_range) == digest:  # known from another sample of these bytes
                num_mismatches[digest] = _MOST_MISMATCHES
            if num_mismatches[digest] >= _MOST_MISMATCHES:
                stats.corrupt_in_store[byte_range] = digest
            raise _mismatch(opened, shard, wrong, num_mismatches[digest])
        if stats.corrupt_in_store:
            stats.corrupt_in_store.pop(byte_range, None)
        return data if view is None else b""

    what = partial(describe_read, path, first_byte, end_byte)
    try:
        check_shard(opened, shard, stats)
        # The deadline starts now, since the cache may wait for another process that gets no response either.
        fetch = partial(retried, once, rule, what=what, began_seconds=time.monotonic())
        data = fetch() if cache is None else read_cached(opened, byte_range, fetch, again=again)
    except Exception as error:
        error.add_note(f"shoal: reading {what().removeprefix('read ')}")
        raise
    finally:
        if view is not None:
            view.release()
    return data if buffer is None or not data else buffer.put(request, data)


def can_fill(opened: Opened) -> bool:
    """Return True if the store can read bytes of this dataset into a buffer in place."""
    return opened.cache is None


def check_shard(opened: Opened, shard: int, stats: RequestStats) -> None:
    """Raise `ShardError` if the shard differs from its index; retry before, since a scan may read damaged bytes."""
    for _ in range(_MOST_SCANS - 1):
        try:
            return opened.check.check(shard, stats)
        except ShardError:
            stats.corrupt()
    return opened.check.check(shard, stats)


def parse_again(opened: Opened, read: UnitRead, data: Buffer, stats: RequestStats) -> Records:
    """Parse the samples in bytes from a remote store.

    Bytes that cannot be parsed are read again before an error is raised: without checksums, only the format notices
    damage in transit.
    """

    def again() -> Records:
        stats.corrupt()
        return parse_unit(opened, read, read_unit(opened, read, stats=stats, again=True))

    for _ in range(MOST_PARSES - 1):
        try:
            return _ReadAgain(parse_unit(opened, read, data), again)
        except ShardError:
            stats.corrupt()
            data = read_unit(opened, read, stats=stats, again=True)
    return _ReadAgain(parse_unit(opened, read, data), again)


class _ReadAgain:
    """Records that are read again when a sample cannot be parsed."""

    __slots__ = ("_again", "_num_left", "_records")

    def __init__(self, records: Records, again: Callable[[], Records]) -> None:
        self._records, self._again, self._num_left = records, again, MOST_PARSES - 1

    def __len__(self) -> int:
        return len(self._records)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the layout checksums of the latest read."""
        return self._records.layout_crcs()

    @property
    def piece(self) -> Piece | None:
        """The piece of the records as first read, if they have one; bytes that it refuses are read again here."""
        return getattr(self._records, "piece", None)

    def sample(self, number: int) -> Sample:
        """Return sample ``number``."""
        while True:
            try:
                return self._records.sample(number)
            except ShardError as error:
                self._read_again(error)

    def columns(self) -> Columns | None:
        """Return the samples as columns; None if the records have none."""
        while True:
            try:
                return self._records.columns() if isinstance(self._records, ColumnRecords) else None
            except ShardError as error:
                self._read_again(error)

    def _read_again(self, error: ShardError) -> None:
        if not self._num_left:
            raise error
        self._num_left -= 1
        self._records = self._again()


def _mismatch(opened: Opened, shard: int, wrong: tuple[int, int], num_mismatches: int) -> ShardError | StorageError:
    first_byte, end_byte = wrong
    what = f"bytes [{first_byte}, {end_byte}) do not have the checksum in the index"
    name = opened.index.shard_names[shard]
    if num_mismatches < _MOST_MISMATCHES:
        hint = "the bytes were damaged in transit, or are damaged in the store"
        return StorageError(f"{name}: {what}", hint=hint, transient=True)
    msg = f"{what}, at none of {num_mismatches} attempts, which all gave the same bytes"
    hint = "the stored bytes are damaged, or the shard was rewritten: restore the shard, or index it again"
    return ShardError(msg, shard=name, byte=first_byte, hint=hint)
