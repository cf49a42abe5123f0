"""Space accounting of a chunk cache: one small file, the ledger, that all processes write under one lock.

A process that changes files holds the ledger and marks it as open meanwhile. If the process is killed, the mark stays,
and the next process recounts the files on the disk. The same happens after a reboot of the machine, or if the ledger is
damaged. Otherwise no process scans the directory to count.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from shoal.storage.chunk_cache.file_locks import lock_within, open_for_lock, release

LEDGER = "ledger"
_RECORD = struct.Struct("<8s16s14Q")
_CRC = struct.Struct("<I")
_MAGIC = b"shoalcc1"
BASE_BYTES = 64 << 10  # folders, ledger, lock files
_BLOCK_BYTES = 4 << 10
_LOCK_SECONDS = 10.0


def charge_bytes(num_bytes: int) -> int:
    """Return the cost of a file of ``num_bytes``: whole blocks, and one more for its name, inode and list entries."""
    return (-(-num_bytes // _BLOCK_BYTES) + 1) * _BLOCK_BYTES if num_bytes else 0


@dataclass(slots=True)
class Book:
    """Contents of the ledger.

    ``victims_next`` and ``victims_end`` are positions in the list of chunks to evict next; ``rarity`` n means that a
    full cache admits one of 2^n chunks; the evictions in ``num_watched`` and ``num_watched_used`` set ``rarity``.
    """

    is_open: int = 0
    budget_bytes: int = 0
    used_bytes: int = BASE_BYTES
    num_chunks: int = 0
    victims_next: int = 0
    victims_end: int = 0
    rarity: int = 0
    num_watched: int = 0
    num_watched_used: int = 0
    num_hits: int = 0
    num_fills: int = 0
    num_bypasses: int = 0
    num_damaged: int = 0
    num_evicted: int = 0


_NUMBERS = tuple(field.name for field in fields(Book))


class Ledger:
    """The ledger in the open ``folder``; ``count`` recounts the files on the disk into a book."""

    def __init__(self, folder: int, count: Callable[[Book], object]) -> None:
        self._folder, self._count = folder, count
        self._boot = _boot()

    @contextlib.contextmanager
    def held(self, limit_seconds: float = _LOCK_SECONDS) -> Iterator[Book]:
        """Lock the ledger within ``limit_seconds`` and yield its book, whose changes are written at the end."""
        descriptor = open_for_lock(LEDGER, os.O_RDWR | os.O_CREAT, directory=self._folder)
        try:
            if not lock_within(descriptor, limit_seconds):
                raise OSError(errno.ETIMEDOUT, "another process holds the ledger of the chunk cache for too long")
            if not os.fstat(descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the last process that had the chunk cache open has removed it")
            book, is_true = self._read(descriptor)
            if not is_true:
                book.victims_next = book.victims_end = 0
                self._count(book)
            book.is_open = 1
            self._write(descriptor, book)
            # No cleanup on failure: the changes are unknown then, and the mark makes the next process recount.
            yield book
            book.is_open = 0
            self._write(descriptor, book)
        finally:
            release(descriptor)

    def peek(self) -> Book | None:
        """Return the current book without waiting; None if a process writes it, or it is missing."""
        try:
            descriptor = os.open(LEDGER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)
        except OSError:
            return None
        try:
            book, _ = self._read(descriptor)
        finally:
            os.close(descriptor)
        return book if book.budget_bytes else None

    def _read(self, descriptor: int) -> tuple[Book, bool]:
        """Return the book, and True if its sums can be trusted."""
        data = os.pread(descriptor, _RECORD.size + _CRC.size, 0)
        if len(data) != _RECORD.size + _CRC.size:
            return Book(), False
        record, crc = data[: _RECORD.size], data[_RECORD.size :]
        magic, boot, *numbers = _RECORD.unpack(record)
        if magic != _MAGIC or _CRC.unpack(crc)[0] != zlib.crc32(record):
            return Book(), False
        book = Book(*numbers)
        return book, boot == self._boot and not book.is_open

    def _write(self, descriptor: int, book: Book) -> None:
        # Not `astuple`, which copies deeply: 60 us.
        numbers = (max(0, getattr(book, name)) for name in _NUMBERS)
        record = _RECORD.pack(_MAGIC, self._boot, *numbers)
        os.pwrite(descriptor, record + _CRC.pack(zlib.crc32(record)), 0)


def _boot() -> bytes:
    """Return a digest that identifies this boot of the machine; constant if the system does not say."""
    text = b""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", "rb") as file:
        text = file.read(64)
    return hashlib.blake2b(text, digest_size=16).digest()
