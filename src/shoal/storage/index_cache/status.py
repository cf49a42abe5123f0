"""Status and removal of this machine's caches: chunk caches, and indexes with the files that belong to them.

All of it can be rebuilt, and may be removed while others use it: a process that is reading a file keeps it until it
has been read.
"""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH107, PTH118, PTH119, PTH120

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.errors import StorageError
from shoal.storage.chunk_cache.directory import FOLDER, open_folder
from shoal.storage.chunk_cache.eviction import Evictions, chunks_in, count, sweep
from shoal.storage.chunk_cache.file_locks import is_locked_by_others
from shoal.storage.chunk_cache.usage import Usage
from shoal.storage.index_cache.place import cache_directory

_INDEX_FOLDERS = ("indexes", "accepted", "scans")
_INDEX_FILE = re.compile(r"\.?[0-9a-f]{32}\..*|.*\.tmp")


@dataclass(frozen=True, slots=True)
class ChunkCacheStatus:
    """State of a chunk cache. The counts cover all processes since it was made, as far as they have reported.

    ``used_bytes`` is its share of the budget in use, ``oldest_seconds`` the age of its oldest chunk, ``in_use`` is True
    if some process has it open, ``num_unused_datasets`` counts the datasets with chunks that no process has open.
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
    """The indexes that this machine keeps, with its records of shards and of unfinished scans."""

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


def chunk_cache_status(directory: str) -> ChunkCacheStatus:
    """Return the state of the chunk cache in ``directory`` (or the folder itself); O(chunks).

    Raises
    ------
    StorageError, UsageError
        There is none, or it belongs to somebody else.
    """
    with _opened(directory) as (folder, path), Usage(folder, lambda book: count(folder, book)).held() as book:
        chunks = count(folder, book)
        datasets = {chunk.dataset for chunk in chunks}
        unused = [name for name in datasets if not is_locked_by_others(f"datasets/{name}", directory=folder)]
        return ChunkCacheStatus(
            path=path,
            budget_bytes=book.budget_bytes,
            used_bytes=book.used_bytes,
            num_chunks=len(chunks),
            num_datasets=len(datasets),
            num_unused_datasets=len(unused),
            in_use=is_locked_by_others("users", directory=folder),
            oldest_seconds=_age_seconds(min((chunk.made_ns for chunk in chunks), default=None)),
            num_hits=book.num_hits,
            num_fills=book.num_fills,
            num_bypasses=book.num_bypasses,
            num_damaged=book.num_damaged,
            num_evicted=book.num_evicted,
        )


def clear_chunks(directory: str, *, unused_seconds: float | None = None) -> Removed:
    """Remove all chunks, or only those of datasets unused for ``unused_seconds``; and leftovers of killed processes.

    Raises
    ------
    StorageError, UsageError
        The same as for `chunk_cache_status`.
    """
    num_files = num_bytes = 0
    with _opened(directory) as (folder, path), Usage(folder, lambda book: count(folder, book)).held() as book:
        evictions = Evictions(folder)
        num_files += sweep(folder, book)
        chunks = list(chunks_in(folder))
        wanted = {name: _is_due(folder, name, unused_seconds) for name in {chunk.dataset for chunk in chunks}}
        for chunk in chunks:
            if wanted[chunk.dataset] and evictions.evict(book, chunk.name):
                num_files, num_bytes = num_files + 1, num_bytes + chunk.num_bytes
    return Removed(path, num_files, num_bytes)


def index_cache_status() -> IndexCacheStatus:
    """Return the state of the index cache; O(files)."""
    files = list(_index_files())
    indexes = [path for path, _, _ in files if path.endswith((".index", ".copy"))]
    return IndexCacheStatus(
        path=cache_directory(),
        num_indexes=len(indexes),
        num_files=len(files),
        num_bytes=sum(num_bytes for _, num_bytes, _ in files),
        oldest_seconds=_age_seconds(min((used_ns for _, _, used_ns in files), default=None)),
    )


def clear_indexes(*, unused_seconds: float | None = None) -> Removed:
    """Remove kept indexes, all or those unused for ``unused_seconds``; they are rebuilt when needed."""
    num_files = removed_bytes = 0
    for path, num_bytes, used_ns in list(_index_files()):
        if unused_seconds is None or (_age_seconds(used_ns) or 0.0) >= unused_seconds:
            with contextlib.suppress(OSError):
                os.remove(path)
                num_files, removed_bytes = num_files + 1, removed_bytes + num_bytes
    return Removed(cache_directory(), num_files, removed_bytes)


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[tuple[int, str]]:
    plain = directory.rstrip(os.sep)
    parent = os.path.dirname(plain) if os.path.basename(plain) == FOLDER else directory
    try:
        folder, path = open_folder(parent or ".", make=False)
    except StorageError as error:
        error.hint = "a chunk cache is made by shoal.open(cache=DIRECTORY); `shoal cache` shows those that are there"
        raise
    try:
        yield folder, path
    finally:
        os.close(folder)


def _is_due(folder: int, dataset: str, unused_seconds: float | None) -> bool:
    if unused_seconds is None:
        return True
    path = f"datasets/{dataset}"
    if is_locked_by_others(path, directory=folder):
        return False
    try:
        used_ns = os.stat(path, dir_fd=folder).st_mtime_ns
    except FileNotFoundError:
        return True
    return (_age_seconds(used_ns) or 0.0) >= unused_seconds


def _index_files() -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of last use (ns) of every file of the index cache."""
    for name in _INDEX_FOLDERS:
        for place, _, files in os.walk(os.path.join(cache_directory(), name)):
            for file in files:
                path = os.path.join(place, file)
                if _INDEX_FILE.fullmatch(file):
                    with contextlib.suppress(OSError):
                        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116
                        yield path, found.st_size, max(found.st_atime_ns, found.st_mtime_ns)


def _age_seconds(since_ns: int | None) -> float | None:
    """Return the seconds since then; 0 if the clock was set back meanwhile."""
    return None if since_ns is None else max(0.0, (time.time_ns() - since_ns) / 1e9)
