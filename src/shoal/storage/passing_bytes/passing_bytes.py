"""Bytes that a scan has read, left in files of this machine for the stream that needs them next.

An index of tars of small members is made from every one of their bytes, and a stream that follows the indexing reads
the same bytes some seconds later. So a scan leaves what it reads, as far as there is room, and the stream fetches only
what is not there: its bytes cross the network once. design/cache.md gives the reasons for how this is done.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from shoal.errors import StorageError, UsageError
from shoal.storage.passing_bytes.passing_store import FillAndStat, PassingStore, ReadAndStat, Reads
from shoal.storage.passing_bytes.scanned_files import ScannedFiles
from shoal.storage.passing_bytes.scanned_ranges import (
    Range,
    ScannedRanges,
    file_name,
    folder_of,
    names_with,
    ranges_named,
    version_digest,
)
from shoal.storage.retry import RetryingStore, current_retry_control
from shoal.storage.storage_errors import DISK_FULL
from shoal.storage.store_protocol import Buffer, ObjectInfo, Stat, Store

_log = logging.getLogger("shoal")

# A scan of headers alone reads spans of 16 KiB, between which it skips payloads that the stream needs with them.
SMALLEST_BYTES = 64 << 10
_MOST_SHARDS_KNOWN = 4096


@dataclass(slots=True)
class PassingCounts:
    """Bytes that passed through one process.

    Of those that scans have read, ``noted_bytes`` were left in files and ``refused_bytes`` were not, for want of room.
    Of those that were asked of a serving store, ``served_bytes`` came from files, and ``fetched_bytes`` from the store.
    """

    noted_bytes: int = 0
    refused_bytes: int = 0
    served_bytes: int = 0
    fetched_bytes: int = 0


class PassingBytes:
    """Bytes of remote shards that pass from scans to streams of this machine, through files in ``directory``.

    Processes that name the same directory share the files; ``budget_bytes`` limits them all together. What a full
    directory has is needed sooner than what a scan reads now, since streams read in the order in which shards are
    scanned: so it takes nothing more until a shard is dropped. It also leaves as much of the disk free as it takes.

    Bytes are kept by path, size and version (etag) of their shard. Those of objects without a version are not kept.
    No failure of the files is an error of a scan or a stream: then bytes are not kept, or fetched.

    Safe to share between threads and over a fork; a pickled copy uses the same directory, and counts on its own.

    >>> import tempfile
    >>> from shoal.storage.memory_store import MemoryStore
    >>> store = MemoryStore()
    >>> store.put("memory://passing/a", b"0123456789")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     passing = PassingBytes(directory, budget_bytes=1 << 20)
    ...     _ = passing.noting(store).read_range("memory://passing/a", 0, 8)
    ...     passing.serving(store).read_range("memory://passing/a", 4, 10)
    ...     passing.close()
    b'456789'
    >>> passing.counters
    PassingCounts(noted_bytes=8, refused_bytes=0, served_bytes=4, fetched_bytes=2)
    """

    def __init__(self, directory: str, *, budget_bytes: int) -> None:
        self._directory, self._budget_bytes = directory, budget_bytes
        self.counters = PassingCounts()
        self._known: dict[str, _Shard] = {}
        self._is_usable = self._takes_more = True
        self._by_process: dict[int, ScannedFiles] = {}
        self._finalizer = weakref.finalize(self, _leave, self._by_process)
        self._files()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(PassingBytes, budget_bytes=self._budget_bytes), (self._directory,)

    def noting(self, store: Store) -> Store:
        """Return a store that reads from ``store``, and leaves what it reads in files; a local one as it is."""
        return _by_way_of(NotedReads(self), store)

    def serving(self, store: Store) -> Store:
        """Return a store that reads from files what is there, and the rest from ``store``; a local one as it is."""
        return _by_way_of(ServedReads(self), store)

    def drop(self, path: str) -> None:
        """Remove what there is of a shard, in all versions: no process of this machine needs it any more."""
        self._known.pop(path, None)
        if (files := self._files()) is not None:
            try:
                files.drop(folder_of(path))
            except OSError as error:
                _log.debug("scanned bytes of %s cannot be removed (%s)", path, error)

    def close(self) -> None:
        """Read and leave nothing more; the last process that has the directory open removes all files."""
        self._is_usable = False
        self._finalizer()

    def note(self, info: ObjectInfo, first_byte: int, data: Buffer) -> None:
        """Leave bytes of the shard ``info`` in a file, if there is room."""
        end_byte = first_byte + len(data)
        is_large = len(data) >= SMALLEST_BYTES or first_byte == 0 or end_byte == info.num_bytes
        files = self._files()
        if files is None or not (data and info.version and is_large):
            return
        folder, name = folder_of(info.path), file_name(version_digest(info), Range(first_byte, end_byte))
        is_noted = False
        if self._takes_more and files.has_room(len(data)):
            try:
                is_noted = files.add(folder, name, data)
            except OSError as error:
                self._takes_more = error.errno not in DISK_FULL
                text = "%s: scanned bytes are not kept for the stream (%s)"
                (_log.debug if self._takes_more else _log.warning)(text, files.path, error)
        if is_noted:
            self.counters.noted_bytes += len(data)
        else:
            self.counters.refused_bytes += len(data)

    def distrust(self, path: str, doubted: Range) -> None:
        """Remove the files with any of these bytes of a shard, in all versions: they are not those that were wanted.

        They may have been damaged on their way to the scan.
        """
        self._known.pop(path, None)
        if (files := self._files()) is not None:
            folder = folder_of(path)
            try:
                files.remove(folder, names_with(files.names(folder), doubted))
            except OSError as error:
                self._is_usable = False  # rather all bytes from the store than these from here
                _log.warning("scanned bytes are not kept for the stream (%s)", error)

    def found(self, info: ObjectInfo, wanted: Range) -> Found | None:
        """Return what files hold of the ``wanted`` bytes of the shard ``info``; None for nothing."""
        files = self._files()
        if files is None or not info.version or wanted.first_byte >= wanted.end_byte:
            return None
        shard = self._known.get(info.path)
        if shard is not None and shard.info == info:
            found = shard.found(files, wanted)
            if not found.num_missing:
                return found
        version = version_digest(info)
        names = files.names(folder_of(info.path))
        shard = _Shard(info, folder_of(info.path), version, ScannedRanges(ranges_named(names, version)))
        if len(self._known) >= _MOST_SHARDS_KNOWN:
            self._known.clear()
        self._known[info.path] = shard
        found = shard.found(files, wanted)
        return found if found.head or found.tail else None

    def _files(self) -> ScannedFiles | None:
        """Return the files as this process has opened them; a forked child opens them anew."""
        if not self._is_usable:
            return None
        pid = os.getpid()
        if (files := self._by_process.get(pid)) is not None:
            return files
        for other in [other for other in list(self._by_process) if other != pid]:
            self._by_process.pop(other, None)  # inherited; its locks were closed when this process was forked
        try:
            made = ScannedFiles(self._directory, budget_bytes=self._budget_bytes)
        except (StorageError, UsageError) as error:
            self._is_usable = False
            _log.warning("scanned bytes are not kept for the stream: %s", error.message)
            return None
        files = self._by_process.setdefault(pid, made)
        if files is not made:  # another thread was faster
            made.leave()
        return files


class Found(NamedTuple):
    """Parts of wanted bytes that files hold, at the beginning and at the end; ``missing`` lies between them."""

    head: bytes
    missing: Range
    tail: bytes

    @property
    def num_missing(self) -> int:
        """Number of bytes that no file has."""
        return self.missing.end_byte - self.missing.first_byte


class _Shard(NamedTuple):
    """A shard, and the ranges of it that were in files at the latest look."""

    info: ObjectInfo
    folder: str
    version: str
    ranges: ScannedRanges

    def found(self, files: ScannedFiles, wanted: Range) -> Found:
        """Read what files have of the wanted bytes."""
        first_byte, end_byte = wanted
        head, tail = [], []
        for part in self.ranges.covering(first_byte, end_byte):
            if (data := self._read(files, part)) is None:
                break
            head.append(data)
            first_byte = part.end_byte
        for part in reversed(self.ranges.covering_backwards(first_byte, end_byte)):
            if (data := self._read(files, part)) is None:
                break
            tail.append(data)
            end_byte = part.first_byte
        return Found(_joined(head), Range(first_byte, end_byte), _joined(tail[::-1]))

    def _read(self, files: ScannedFiles, part: Range) -> bytes | None:
        kept = self.ranges.file_with(part)
        first_byte, end_byte = (byte - kept.first_byte for byte in part)
        return files.read(self.folder, file_name(self.version, kept), first_byte, end_byte)


class NotedReads(NamedTuple):
    """Reads of a store that leave in files what they read."""

    passing: PassingBytes

    def read_range(self, store: ReadAndStat, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``."""
        info = store.stat(path)
        data = store.read_range(path, first_byte, end_byte)
        self._note(store, info, first_byte, data)
        return data

    def fill(self, store: FillAndStat, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on."""
        info = store.stat(path)
        store.fill(path, first_byte, buffer)
        self._note(store, info, first_byte, buffer)

    def distrust(self, path: str, first_byte: int, end_byte: int) -> None:
        """Remove files with any of these bytes."""
        self.passing.distrust(path, Range(first_byte, end_byte))

    def _note(self, store: Stat, info: ObjectInfo, first_byte: int, data: Buffer) -> None:
        # Known before and after, since another thread may have looked again meanwhile, and found another version.
        if store.stat(info.path) == info:
            self.passing.note(info, first_byte, data)


class ServedReads(NamedTuple):
    """Reads of what scans have left in files, and of the rest from a store."""

    passing: PassingBytes

    def read_range(self, store: ReadAndStat, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``."""
        info = store.stat(path)
        if (found := self.passing.found(info, Range(first_byte, end_byte))) is not None:
            middle = store.read_range(path, *found.missing) if found.num_missing else b""
            if self._is_one_version(store, info, found):
                return _joined([part for part in (found.head, middle, found.tail) if part])
        data = store.read_range(path, first_byte, end_byte)
        self.passing.counters.fetched_bytes += len(data)
        return data

    def fill(self, store: FillAndStat, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on."""
        info = store.stat(path)
        if (found := self.passing.found(info, Range(first_byte, first_byte + len(buffer)))) is not None:
            begin, end = len(found.head), len(buffer) - len(found.tail)
            buffer[:begin], buffer[end:] = found.head, found.tail
            if found.num_missing:
                store.fill(path, found.missing.first_byte, buffer[begin:end])
            if self._is_one_version(store, info, found):
                return
        store.fill(path, first_byte, buffer)
        self.passing.counters.fetched_bytes += len(buffer)

    def distrust(self, path: str, first_byte: int, end_byte: int) -> None:
        """Remove files with any of these bytes."""
        self.passing.distrust(path, Range(first_byte, end_byte))

    def _is_one_version(self, store: Stat, info: ObjectInfo, found: Found) -> bool:
        """Return True if what was fetched is of the version that files hold, and count both."""
        counters = self.passing.counters
        counters.fetched_bytes += found.num_missing
        if found.num_missing and store.stat(info.path) != info:
            return False
        num_served = len(found.head) + len(found.tail)
        counters.served_bytes += num_served
        current_retry_control().served(num_served)
        return True


def _by_way_of(reads: Reads, store: Store) -> Store:
    """Return the store, read by way of ``reads`` inside of its retries; a local one as it is."""
    if store.reads_ahead:
        return store
    if isinstance(store, RetryingStore):
        return RetryingStore(PassingStore(store.store, reads), store.rule)
    return PassingStore(store, reads)


def _joined(parts: Sequence[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _leave(by_process: dict[int, ScannedFiles]) -> None:
    """Leave the files of this process; those of a parent are its own."""
    if (files := by_process.pop(os.getpid(), None)) is not None:
        files.leave()
