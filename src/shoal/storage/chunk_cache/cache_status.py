"""State and removal of this machine's caches: chunk caches, and indexes with their files.

Every file can be rebuilt, and may be removed while processes use it: a process that has a file open can read it to the
end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.errors import StorageError
from shoal.storage.cache_directory import UNITS, cache_directory
from shoal.storage.chunk_cache.directory import FOLDER, open_folder
from shoal.storage.chunk_cache.eviction import Evictions, chunks_in, count, sweep
from shoal.storage.chunk_cache.file_locks import is_locked_by_others
from shoal.storage.chunk_cache.ledger import Book, Ledger
from shoal.storage.files.atomic_writes import write_atomically

_INDEX_FOLDERS = ("indexes", "accepted", "scans", UNITS)
_INDEX_FILE = re.compile(r"\.?[0-9a-f]{32}\..*|.*\.tmp|\d{6,}\.part|plan")
_BOOK_FIELDS = ["budget_bytes", "used_bytes", "num_hits", "num_fills", "num_bypasses", "num_damaged", "num_evicted"]
_CHUNK_CACHES = "chunk-caches"  # folder of files that hold the path of a chunk cache each


@dataclass(frozen=True, slots=True)
class ChunkCacheStatus:
    """State of a chunk cache. The counts cover all processes since the cache was created, as far as they have reported.

    ``used_bytes`` of the budget are in use, ``oldest_seconds`` is the age of the oldest chunk, ``in_use`` is True if
    some process has the cache open, ``num_unused_datasets`` counts datasets with chunks that no process has open.
    """

    path: str
    budget_bytes: int
    used_bytes: int
    num_chunks: int
    num_datasets: int
    num_unused_datasets: int
    in_use: bool
    oldest_seconds: float | None
    num_hits: int
    num_fills: int
    num_bypasses: int
    num_damaged: int
    num_evicted: int


@dataclass(frozen=True, slots=True)
class IndexCacheStatus:
    """Indexes kept on this machine, with records of shards and of unfinished scans."""

    path: str
    num_indexes: int
    num_files: int
    num_bytes: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class Removed:
    """Directory, number and bytes of removed files."""

    path: str
    num_files: int
    num_bytes: int


def record_chunk_cache(path: str) -> None:
    """Record the cache in the folder ``path`` for `recorded_chunk_caches`; never raises."""
    name = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    record = os.path.join(cache_directory(), _CHUNK_CACHES, name)
    with contextlib.suppress(OSError):
        if not os.path.exists(record):
            write_atomically(record, [os.fsencode(path)], durable=False)


def recorded_chunk_caches() -> list[str]:
    """Return the folders of recorded caches that still exist, sorted; delete the other records."""
    folder, caches = os.path.join(cache_directory(), _CHUNK_CACHES), []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            record = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if name.startswith("."):
                    continue
                with open(record, "rb") as file:
                    path = os.fsdecode(file.read())
                if os.path.isdir(path):
                    caches.append(path)
                else:
                    os.remove(record)
    return sorted(caches)


def chunk_cache_status(directory: str) -> ChunkCacheStatus:
    """Return the state of the existing chunk cache in ``directory``, or of the cache folder itself; O(chunks)."""
    with _held(directory) as (folder, path, book):
        chunks = count(folder, book)
        datasets = {chunk.dataset for chunk in chunks}
        return ChunkCacheStatus(
            path=path,
            num_chunks=len(chunks),
            num_datasets=len(datasets),
            num_unused_datasets=sum(not is_locked_by_others(f"datasets/{name}", directory=folder) for name in datasets),
            in_use=is_locked_by_others("users", directory=folder),
            oldest_seconds=max((_age_seconds(chunk.created_ns) for chunk in chunks), default=None),
            **{name: getattr(book, name) for name in _BOOK_FIELDS},
        )


def clear_chunks(directory: str, *, unused_seconds: float | None = None) -> Removed:
    """Remove leftovers of killed processes and chunks: all, or of datasets unused for ``unused_seconds``."""
    with _held(directory) as (folder, path, book):
        num_files, num_bytes = sweep(folder, book), 0
        chunks = list(chunks_in(folder))
        is_due = {name: _is_due(folder, name, unused_seconds) for name in {chunk.dataset for chunk in chunks}}
        for chunk in chunks:
            if is_due[chunk.dataset] and Evictions(folder).evict(book, chunk.name):
                num_files, num_bytes = num_files + 1, num_bytes + chunk.num_bytes
        return Removed(path, num_files, num_bytes)


def index_cache_status() -> IndexCacheStatus:
    """Return the state of the index cache; O(files)."""
    files = list(_index_files())
    return IndexCacheStatus(
        path=cache_directory(),
        num_indexes=sum(path.endswith((".index", ".copy")) for path, _, _ in files),
        num_files=len(files),
        num_bytes=sum(num_bytes for _, num_bytes, _ in files),
        oldest_seconds=max((_age_seconds(used_ns) for _, _, used_ns in files), default=None),
    )


def clear_indexes(*, unused_seconds: float | None = None) -> Removed:
    """Remove all kept indexes, or only indexes unused for ``unused_seconds``; they are rebuilt when needed."""
    num_files = removed_bytes = 0
    for path, num_bytes, used_ns in list(_index_files()):
        if unused_seconds is None or _age_seconds(used_ns) >= unused_seconds:
            with contextlib.suppress(OSError):
                os.remove(path)
                num_files, removed_bytes = num_files + 1, removed_bytes + num_bytes
    return Removed(cache_directory(), num_files, removed_bytes)


@contextlib.contextmanager
def _held(directory: str) -> Iterator[tuple[int, str, Book]]:
    """Open a chunk cache, or its folder, and hold its ledger; yield descriptor and path of the folder, and the book."""
    plain = directory.rstrip(os.sep)
    parent = os.path.dirname(plain) if os.path.basename(plain) == FOLDER else directory
    try:
        folder, path = open_folder(parent or ".", make=False)
    except StorageError as error:
        error.hint = "shoal.open(cache=DIRECTORY) makes a chunk cache; `shoal cache` shows the existing ones"
        raise
    try:
        with Ledger(folder, lambda book: count(folder, book)).held() as book:
            yield folder, path, book
    finally:
        os.close(folder)


def _is_due(folder: int, dataset: str, unused_seconds: float | None) -> bool:
    if unused_seconds is None:
        return True
    path = f"datasets/{dataset}"
    if is_locked_by_others(path, directory=folder):
        return False
    try:
        return _age_seconds(os.stat(path, dir_fd=folder).st_mtime_ns) >= unused_seconds
    except FileNotFoundError:
        return True


def _index_files() -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of last use (ns) of every file of the index cache."""
    for name in _INDEX_FOLDERS:
        for directory, _, files in os.walk(os.path.join(cache_directory(), name)):
            for file in filter(_INDEX_FILE.fullmatch, files):
                path = os.path.join(directory, file)
                with contextlib.suppress(OSError):
                    status = os.stat(path, follow_symlinks=False)
                    yield path, status.st_size, max(status.st_atime_ns, status.st_mtime_ns)


def _age_seconds(since_ns: int) -> float:
    """Return the seconds since ``since_ns``; 0 if the clock was set back meanwhile."""
    return max(0.0, (time.time_ns() - since_ns) / 1e9)
