"""Files of a chunk cache: lookup, claims on files to fill, and their outcome: published or abandoned.

A chunk is a file that appears in ``chunks`` when it is complete. It grows in ``filling``, locked by its process, and
its space is charged to the ledger before it is taken.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, TypeVar

from shoal.storage.chunk_cache.chunk_files import FOOTER_BYTES
from shoal.storage.chunk_cache.eviction import USED_MODE, Evictions, count, guard_bytes_of, is_admitted
from shoal.storage.chunk_cache.file_locks import lock_now, open_for_lock, release
from shoal.storage.chunk_cache.ledger import Book, Ledger, charge_bytes
from shoal.storage.storage_errors import DISK_FULL

_log = logging.getLogger("shoal")

_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.01
_LOOKUPS = 20

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


_T = TypeVar("_T")


@dataclass(slots=True)
class CacheCounts:
    """Counts of one process's reads through a cache.

    Threads count without a lock: an interpreter that runs them in parallel may lose an increment.
    """

    num_hits: int = 0  # reads answered from the cache
    num_fills: int = 0  # reads fetched and put into it
    num_bypasses: int = 0  # reads fetched and not kept
    num_damaged: int = 0  # files dropped because their contents had changed


class Claim(NamedTuple):
    """A file that this process has locked and must fill."""

    descriptor: int
    name: str
    path: str


class Claims:
    """The files in one open ``folder``; its name ``path`` is for messages.

    The processes of this machine share ``expected_bytes`` at a time; ``is_disabled`` is True once the folder cannot be
    used any more.
    """

    def __init__(self, folder: int, path: str, *, budget_bytes: int, wait_seconds: float) -> None:
        self.folder, self.path = folder, path
        self.budget_bytes, self.expected_bytes = budget_bytes, 0
        self.is_disabled = False
        self.counts = CacheCounts()
        self.num_failures, self._failure, self._logged_failures = 0, "", 0
        self.ledger = Ledger(folder, partial(count, folder))
        self.evictions = Evictions(folder)
        self._wait_seconds = wait_seconds
        self._reported = CacheCounts()
        self._pid = os.getpid()
        self._claimed: dict[Claim, int] = {}  # to the claiming process: a forked child has no claims of its parent

    def hit(self, name: str, take: Callable[[int], _T | None]) -> _T | None:
        """Return the result of ``take`` on the descriptor of the file ``name``; None if it is missing or damaged."""
        is_damaged = False
        for _ in range(_LOOKUPS):
            try:
                descriptor = os.open(f"chunks/{name}", _READ_FLAGS, dir_fd=self.folder)
            except FileNotFoundError:
                return None
            try:
                # Deleting takes the exclusive lock before it truncates: so this file stays whole until it is closed.
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                data = take(descriptor)
                status = os.fstat(descriptor)
                if data is not None:
                    if not status.st_mode & 0o100:
                        os.fchmod(descriptor, USED_MODE)
                    return data
                is_damaged = status.st_nlink > 0  # else it was deleted between opening and locking
            except BlockingIOError:
                pass  # another process deletes it, or waited for it and still has the lock
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
            if is_damaged:
                self.counts.num_damaged += 1
                _log.warning("a chunk in %s is damaged; it is fetched again", self.path)
                self.drop(name)
                return None
            time.sleep(_FIRST_PAUSE_SECONDS)
        return None

    def drop(self, name: str) -> None:
        """Delete the file kept under this name."""
        with self.ledger.held() as book:
            self.report(book)
            self.evictions.evict(book, name)

    def hit_or_claim(
        self, name: str, size: int, take: Callable[[int], _T | None], *, must_fit: bool = False
    ) -> _T | Claim | None:
        """Return a hit if another process filled the file meanwhile, else a claim on ``size`` bytes; None to bypass."""
        path = f"filling/{name}"
        until = time.monotonic() + self._wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        growth = (-1, 0)
        while not self.is_disabled:
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT, directory=self.folder)
            claim, is_claimed = Claim(descriptor, name, path), False
            try:
                if lock_now(descriptor) and self._is_named(descriptor, path):
                    self._claimed[claim] = os.getpid()
                    # Another process may have filled it after our lookup, before we had the lock.
                    data = self.hit(name, take)
                    is_claimed = data is None and self.reserve(descriptor, size, must_fit=must_fit)
                    if not is_claimed:
                        self._abandon(descriptor, path)
                        return data
                    return claim
                # Keep waiting while the file grows.
                status = os.fstat(descriptor)
                if (now := (status.st_size, status.st_mtime_ns)) != growth:
                    growth, until = now, time.monotonic() + self._wait_seconds
            finally:
                if not is_claimed:
                    self._claimed.pop(claim, None)
                    release(descriptor)
            if time.monotonic() > until:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            if (data := self.hit(name, take)) is not None:
                return data
        return None

    def is_admitted(self, name: str, num_bytes: int) -> bool:
        """Return True if the cache would take this chunk, even when full; all processes agree. See `Book`."""
        charge = charge_bytes(num_bytes + FOOTER_BYTES)
        book = self.ledger.peek()
        return book is None or is_admitted(book, charge, int(name[-4:], 16))

    def _is_named(self, descriptor: int, path: str) -> bool:
        """Return True if the locked file still has its name: nobody finished or swept it before we locked it."""
        try:
            return os.stat(path, dir_fd=self.folder).st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            return False

    def reserve(self, descriptor: int, size: int, *, must_fit: bool = False) -> bool:
        """Reserve the space for a file; return True on success. ``must_fit`` also evicts guarded chunks."""
        guard = self.guard_bytes
        with self.ledger.held() as book:
            self.report(book)
            book.budget_bytes = book.budget_bytes or self.budget_bytes
            old_bytes = os.fstat(descriptor).st_size  # left by a killed process
            added_bytes = charge_bytes(size) - charge_bytes(old_bytes)
            if charge_bytes(size) > book.budget_bytes or self.is_disabled:
                return False  # evict nothing for a file that never fits
            has_room = self.evictions.make_room(book, added_bytes, guard_bytes=guard)
            if not has_room and not (must_fit and self.evictions.make_room_of_oldest(book, added_bytes)):
                return False
            failure = OSError()
            for _ in range(2):
                try:
                    os.ftruncate(descriptor, size)
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(descriptor, 0, size)
                except OSError as error:
                    os.ftruncate(descriptor, min(old_bytes, size))
                    if error.errno not in DISK_FULL:
                        raise
                    failure = error
                    # The disk is full before the budget is used up: evict as much as the file takes.
                    goal_bytes = book.used_bytes - charge_bytes(size)
                    while book.used_bytes > goal_bytes and self.evictions.evict_next(book, guard_bytes=guard):
                        pass
                    if book.used_bytes > goal_bytes:
                        break
                else:
                    book.used_bytes += added_bytes
                    return True
            book.used_bytes += charge_bytes(os.fstat(descriptor).st_size) - charge_bytes(old_bytes)
            self._count_failure(failure)
        return False

    def give_back(self, descriptor: int, num_bytes: int) -> None:
        """Truncate a file to its contents, and return the rest of its space."""
        with self.ledger.held() as book:
            self.report(book)
            old_bytes = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, num_bytes)
            book.used_bytes -= charge_bytes(old_bytes) - charge_bytes(num_bytes)

    def finish(self, claim: Claim) -> bool:
        """Make a filled file visible; return False if the cache was cleared before."""
        # Another process may have cleared the directory: rename the file only if it still has its name.
        if not self._is_named(claim.descriptor, claim.path):
            return False
        os.rename(claim.path, f"chunks/{claim.name}", src_dir_fd=self.folder, dst_dir_fd=self.folder)
        return True

    def release(self, claim: Claim, *, is_done: bool) -> None:
        """Release a claimed file; delete it if it was not completed."""
        if not is_done:
            with contextlib.suppress(OSError):
                self._abandon(claim.descriptor, claim.path)
        self._claimed.pop(claim, None)
        release(claim.descriptor)

    def abandon_all(self) -> None:
        """Delete the files that threads of this process are filling; their work is lost.

        The cache must be disabled, so that no thread reserves space for another file.
        """
        for claim, process in list(self._claimed.items()):
            if process == os.getpid():
                with contextlib.suppress(OSError), self.ledger.held() as book:
                    self._remove(claim.descriptor, claim.path, book)

    def _abandon(self, descriptor: int, path: str) -> None:
        """Delete a locked file, and give back its space."""
        if os.fstat(descriptor).st_size:
            with self.ledger.held() as book:
                self._remove(descriptor, path, book)
        elif self._is_named(descriptor, path):
            os.unlink(path, dir_fd=self.folder)

    def _remove(self, descriptor: int, path: str, book: Book) -> None:
        self.report(book)
        if self._is_named(descriptor, path):
            book.used_bytes -= charge_bytes(os.fstat(descriptor).st_size)
            os.unlink(path, dir_fd=self.folder)
            os.ftruncate(descriptor, 0)

    @property
    def guard_bytes(self) -> int:
        """Bytes of the newest chunks that stay when room is made."""
        return guard_bytes_of(self.budget_bytes, self.expected_bytes)

    @property
    def has_unreported(self) -> bool:
        """True if this process has unreported counts."""
        return self.counts != self._reported

    def report(self, book: Book) -> None:
        """Add this process's unreported counts to the shared counts."""
        if os.getpid() != self._pid:  # the parent reports its counts from before the fork
            self._pid = os.getpid()
            self._reported = replace(self.counts)
        for field in fields(CacheCounts):
            now = getattr(self.counts, field.name)
            setattr(book, field.name, getattr(book, field.name) + now - getattr(self._reported, field.name))
            setattr(self._reported, field.name, now)
        self.budget_bytes = book.budget_bytes or self.budget_bytes

    def _count_failure(self, error: OSError) -> None:
        self.num_failures += 1
        self._failure = error.strerror or str(error)

    def log_failures(self) -> None:
        """Log how many reads a full or failing disk could not keep, if the number has grown since the last log."""
        if self.num_failures > self._logged_failures:
            self._logged_failures = self.num_failures
            num_reads = self.counts.num_fills + self.counts.num_bypasses
            text = "%s: %d of %d reads could not be kept in the chunk cache (%s): free space there, or give cache= "
            text += "another directory or a smaller budget"
            _log.warning(text, self.path, self.num_failures, num_reads, self._failure)

    def handle_failure(self, error: OSError) -> None:
        """Count a failure: reads go on without the cache; a cache that can never be used again is disabled."""
        is_usable = False
        with contextlib.suppress(OSError):
            os.stat("chunks", dir_fd=self.folder)
            os.stat("filling", dir_fd=self.folder)
            is_usable = error.errno not in (errno.EROFS, errno.ESTALE, errno.ENOLCK)
        if is_usable:
            self._count_failure(error)
        elif not self.is_disabled:
            self.is_disabled = True
            _log.warning(
                "%s: the chunk cache cannot be used any more (%s); reading continues without",
                self.path,
                error,
            )
