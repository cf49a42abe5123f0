"""Bytes that a scan has read, left in files of this machine for the stream that needs them next.

To index tars of small members, a scan reads every byte, and a stream that follows the indexing reads the same bytes
some seconds later. So a scan keeps the bytes in files, within a budget, and the stream fetches only the rest: the bytes
cross the network once. design/cache.md gives the reasons for this design.
"""

from __future__ import annotations

import logging
import os
import weakref
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from shoal.errors import StorageError, UsageError
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
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store, StoreWrapper

_log = logging.getLogger("shoal")

# A scan of headers alone reads spans of 16 KiB, and skips the payloads between them, which the stream needs as well.
SMALLEST_BYTES = 64 << 10
_MOST_SHARDS_KNOWN = 4096


@dataclass(slots=True)
class PassingCounts:
    """Bytes that passed through one process.

    Scans left ``noted_bytes`` in files; there was no room for ``refused_bytes``. Streams read ``served_bytes`` from
    files, and ``fetched_bytes`` from the store.
    """

    noted_bytes: int = 0
    refused_bytes: int = 0
    served_bytes: int = 0
    fetched_bytes: int = 0


class PassingBytes:
    """Bytes of remote shards that pass from scans to streams of this machine, through files in ``directory``.

    Processes that name the same directory share the files; ``budget_bytes`` limits them all together. A full directory
    takes nothing more until a shard is dropped: streams read in the order of the scans, so the oldest files are needed
    soonest. As much of the disk stays free as the files take.

    Bytes are kept by path, size and version (etag) of their shard; without a version nothing is kept. If files fail,
    bytes are not kept, or fetched from the store: no scan and no stream raises an error.

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
        """Return a store that reads from ``store``, and leaves the bytes in files; a local store as it is."""
        return _by_way_of(self, store, _NotedStore)

    def serving(self, store: Store) -> Store:
        """Return a store that reads from files, and missing bytes from ``store``; a local store as it is."""
        return _by_way_of(self, store, _ServedStore)

    def drop(self, *paths: str) -> None:
        """Remove all files of shards, in every version: no process of this machine needs them any more."""
        for path in paths:
            self._known.pop(path, None)
        if (files := self._files()) is not None:
            try:
                files.drop([folder_of(path) for path in paths])
            except OSError as error:
                _log.debug("scanned bytes of %d shards cannot be removed (%s)", len(paths), error)

    def close(self) -> None:
        """Stop reading and writing files; the last process that has the directory open removes all files."""
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
        """Remove the files with any of these bytes of a shard, in all versions: a checksum did not match.

        The bytes may have been damaged on their way to the scan.
        """
        self._known.pop(path, None)
        if (files := self._files()) is not None:
            folder = folder_of(path)
            try:
                files.remove(folder, names_with(files.names(folder), doubted))
            except OSError as error:
                self._is_usable = False  # rather all bytes from the store than damaged bytes from files
                _log.warning("scanned bytes are not kept for the stream (%s)", error)

    def fill(self, info: ObjectInfo, first_byte: int, buffer: memoryview) -> Range | None:
        """Fill a buffer with the bytes of the shard ``info`` that files hold, at its beginning and at its end.

        Returns the range between them, which is missing and may be empty; None if files hold nothing.
        """
        files = self._files()
        if files is None or not info.version or not buffer:
            return None
        shard = self._known.get(info.path)
        if shard is not None and shard.info == info:
            missing = shard.fill(files, first_byte, buffer)
            if missing.num_bytes == 0:
                return missing
        version = version_digest(info)
        names = files.names(folder_of(info.path))
        shard = _Shard(info, folder_of(info.path), version, ScannedRanges(ranges_named(names, version)))
        if len(self._known) >= _MOST_SHARDS_KNOWN:
            self._known.clear()
        self._known[info.path] = shard
        missing = shard.fill(files, first_byte, buffer)
        return missing if missing.num_bytes < len(buffer) else None

    def _files(self) -> ScannedFiles | None:
        """Return the files as this process has opened them; a forked child reopens them."""
        if not self._is_usable:
            return None
        pid = os.getpid()
        if (files := self._by_process.get(pid)) is not None:
            return files
        for other in [other for other in list(self._by_process) if other != pid]:
            self._by_process.pop(other, None)  # inherited; the fork closed its locks in this process
        try:
            opened = ScannedFiles(self._directory, budget_bytes=self._budget_bytes)
        except (StorageError, UsageError) as error:
            self._is_usable = False
            _log.warning("scanned bytes are not kept for the stream: %s", error.message)
            return None
        files = self._by_process.setdefault(pid, opened)
        if files is not opened:  # another thread was faster
            opened.leave()
        return files


class _Shard(NamedTuple):
    """A shard, and its ranges in files at the latest listing."""

    info: ObjectInfo
    folder: str
    version: str
    ranges: ScannedRanges

    def fill(self, files: ScannedFiles, first_byte: int, buffer: memoryview) -> Range:
        """Fill the start and the end of a buffer from files, and return the range missing in between."""
        begin, end = first_byte, first_byte + len(buffer)
        for part in self.ranges.covering(begin, end):
            if not self._read(files, part, buffer[part.first_byte - first_byte : part.end_byte - first_byte]):
                break
            begin = part.end_byte
        for part in reversed(self.ranges.covering_backwards(begin, end)):
            if not self._read(files, part, buffer[part.first_byte - first_byte : part.end_byte - first_byte]):
                break
            end = part.first_byte
        return Range(begin, end)

    def _read(self, files: ScannedFiles, part: Range, buffer: memoryview) -> bool:
        stored = self.ranges.file_with(part)
        name = file_name(self.version, stored)
        return files.read_into(buffer, self.folder, name, part.first_byte - stored.first_byte)


class _PassingStore(StoreWrapper):
    """A remote store that is read through ``passing``; a pickle contains the store and ``passing``."""

    def __init__(self, store: Store, passing: PassingBytes) -> None:
        super().__init__(store)
        self.passing = passing

    def distrust(self, path: str, first_byte: int, end_byte: int) -> None:
        self.passing.distrust(path, Range(first_byte, end_byte))


class _NotedStore(_PassingStore):
    """A store that keeps the bytes of its reads in files."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        info = self.stat(path)
        data = self.store.read_range(path, first_byte, end_byte)
        self._note(info, first_byte, data)
        return data

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        info = self.stat(path)
        self.store.fill(path, first_byte, buffer)
        self._note(info, first_byte, buffer)

    def _note(self, info: ObjectInfo, first_byte: int, data: Buffer) -> None:
        # Another thread may have asked again meanwhile, and received another version.
        if self.stat(info.path) == info:
            self.passing.note(info, first_byte, data)


class _ServedStore(_PassingStore):
    """A store whose reads come from files as far as scans have left the bytes there."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        data = bytearray(end_byte - first_byte)
        self.fill(path, first_byte, memoryview(data))
        return bytes(data)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        info, counters = self.stat(path), self.passing.counters
        missing = self.passing.fill(info, first_byte, buffer)
        if missing is not None:
            if missing.num_bytes:
                begin = missing.first_byte - first_byte
                self.store.fill(path, missing.first_byte, buffer[begin : begin + missing.num_bytes])
                counters.fetched_bytes += missing.num_bytes
            # Else the fetched bytes may be of another version than the bytes in files.
            if not missing.num_bytes or self.stat(path) == info:
                num_served = len(buffer) - missing.num_bytes
                counters.served_bytes += num_served
                current_retry_control().served(num_served)
                return
        self.store.fill(path, first_byte, buffer)
        counters.fetched_bytes += len(buffer)


def _by_way_of(passing: PassingBytes, store: Store, kind: type[_PassingStore]) -> Store:
    """Wrap the store, beneath its retries if it has any; return a local store unchanged."""
    if store.reads_ahead:
        return store
    if isinstance(store, RetryingStore):
        return RetryingStore(kind(store.store, passing), store.rule)
    return kind(store, passing)


def _leave(by_process: dict[int, ScannedFiles]) -> None:
    """Stop using this process's files; after a fork, the files of the parent stay open in the parent."""
    if (files := by_process.pop(os.getpid(), None)) is not None:
        files.leave()
