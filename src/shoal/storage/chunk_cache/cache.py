"""Chunks kept on this machine, shared by all of its processes: each is fetched once, within one budget of bytes.

The processes know of each other by locks on files alone: there is no server, no named memory and nothing to clean up.
A chunk is a file that appears when it is whole; the file it grows in carries the lock of who fetches it, and the system
lets go of that when the process ends in whatever way. design/cache.md says why it is as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from shoal.errors import UsageError
from shoal.storage.chunk_cache.eviction import USED_MODE, Evictions, chunks_in, count, sweep
from shoal.storage.chunk_cache.files import FOOTER_BYTES, allocate, read_checked, write_checked
from shoal.storage.chunk_cache.ledger import Book, Ledger, charge_bytes
from shoal.storage.chunk_cache.locks import let_go, lock_now, open_for_lock
from shoal.storage.chunk_cache.place import open_folder

__all__ = ["CacheCounts", "ChunkCache"]

_log = logging.getLogger("shoal")

_LEAST_BUDGET_BYTES = 1 << 20
_WAIT_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.01
_LOOKS = 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True)
class CacheCounts:
    """What one process did with a cache.

    ``num_hits`` reads were answered from it, ``num_fills`` were fetched and put into it, ``num_bypasses`` were fetched
    and not kept; ``num_damaged`` files were dropped because they did not hold what was put there. Threads count without
    a lock: where the interpreter lets them run at once, one may be missed.
    """

    num_hits: int = 0
    num_fills: int = 0
    num_bypasses: int = 0
    num_damaged: int = 0


class ChunkCache:
    """One directory of chunks with a budget, for all processes of this machine.

    Parameters
    ----------
    directory
        Where: on a disk of this machine, or in its memory. All is kept in a folder ``shoal-chunks`` in it, which only
        this user may enter; nothing else is touched.
    budget_bytes
        The most that the folder may take, counted in blocks, with what is being filled. Whoever opens it first sets it;
        while others have it open, the smallest budget given holds for all. None: what it was before, else half of what
        is free.
    dataset
        Chunks of datasets that no process has open are the first to go; this text, of which only a digest is kept,
        says which belong together.
    keep
        Whether chunks stay when the last process has closed the cache.
    wait_seconds
        How long to wait for another process that fetches the same chunk, before fetching it too.

    Safe to share between threads and over a fork; a pickled copy opens the same directory. Hits write nothing and wait
    for nobody; all that goes wrong with the cache itself is a read without it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     cache = ChunkCache(directory, budget_bytes=8 << 20)
    ...     first = cache.read("a.tar, bytes 0 to 5", 5, lambda: b"bytes")
    ...     again = cache.read("a.tar, bytes 0 to 5", 5, lambda: b"never asked")
    ...     cache.close()
    >>> first, again, cache.counts.num_hits
    (b'bytes', b'bytes', 1)

    Raises
    ------
    UsageError
        The directory belongs to somebody else or its file system cannot be trusted, or the budget is below 1 MiB.
    StorageError
        The directory cannot be made.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        budget_bytes: int | None = None,
        dataset: str = "",
        keep: bool = True,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        if budget_bytes is not None and budget_bytes < _LEAST_BUDGET_BYTES:
            msg = f"a chunk cache of {budget_bytes} bytes was asked for; the least is {_LEAST_BUDGET_BYTES}"
            raise UsageError(msg, hint='for example cache={"directory": ..., "budget": "200GiB"}')
        self._asked = (os.fspath(directory), budget_bytes, dataset, keep, wait_seconds)
        self.counts = CacheCounts()
        self._told = CacheCounts()
        self._pid = os.getpid()
        self._wait_seconds = wait_seconds
        self._dataset = hashlib.blake2b(dataset.encode(), digest_size=8).hexdigest()
        self._expected_bytes = 0
        self._is_lost = False
        self._folder, self.path = open_folder(directory)
        # Not a method of this object, or who closes a forgotten cache would remember it.
        self._ledger = Ledger(self._folder, partial(count, self._folder))
        self._evictions = Evictions(self._folder)
        self.budget_bytes = budget_bytes or 0
        users: list[int] = []
        try:
            self._join(budget_bytes, users)
        except OSError as error:
            self._trouble(error)
        self._finalizer = weakref.finalize(
            self, _close, self._folder, users, self._ledger, keep=keep, pid=self._pid, dataset=self._dataset
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (*self._asked, self._expected_bytes)

    # ---- reading

    def read(self, key: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """The bytes called ``key``, ``num_bytes`` of them: from the cache, else from ``fetch``, which is then kept.

        Of all processes and threads that ask for the same at a time, one fetches and the others wait for it. What
        ``fetch`` raises is raised; the next one who waits then fetches.
        """
        name = self._name(key)
        found: bytes | int | None = None
        if not self._is_lost:
            try:
                found = self._hit(name, num_bytes)
                if found is None:
                    found = self._hit_or_claim(name, num_bytes)
            except OSError as error:
                self._trouble(error)
        if isinstance(found, bytes):
            self.counts.num_hits += 1
            return found
        if found is not None:
            return self._fill(found, name, num_bytes, fetch)
        self.counts.num_bypasses += 1
        return fetch()

    def read_again(self, key: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """The same, but what the cache has is dropped first: it was well kept, and yet not what was wanted."""
        if not self._is_lost:
            try:
                self._drop(self._name(key))
            except OSError as error:
                self._trouble(error)
        return self.read(key, num_bytes, fetch)

    def has(self, key: str) -> bool:
        """Whether a file is there for ``key``; what it holds is not looked at. 2 us."""
        try:
            os.stat(f"chunks/{self._name(key)}", dir_fd=self._folder)
        except OSError:
            return False
        return True

    def expect(self, window_bytes: int) -> None:
        """Say how many bytes the processes of this machine share at a time; so much of what is new stays.

        Raises
        ------
        UsageError
            The budget is smaller: chunks would go before the second process has read them.
        """
        if 0 < self.budget_bytes < window_bytes:
            msg = (
                f"the chunk cache {self.path} may take {self.budget_bytes:,} bytes, and the windows of this machine "
                f"hold {window_bytes:,}: chunks would go before all processes have read them"
            )
            hint = f'give cache={{"directory": ..., "budget": {2 * window_bytes}}}, a smaller window=, or no cache'
            raise UsageError(msg, hint=hint)
        self._expected_bytes = window_bytes

    def close(self) -> None:
        """Let go of the cache; what it holds stays, unless it was opened with ``keep=False`` and nobody else has it."""
        with contextlib.suppress(OSError):
            if not self._is_lost:
                with self._ledger.held() as book:
                    self._tell(book)
        self._is_lost = True
        self._finalizer()

    # ---- hits

    def _name(self, key: str) -> str:
        return f"{self._dataset}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

    def _hit(self, name: str, num_bytes: int) -> bytes | None:
        is_damaged = False
        for _ in range(_LOOKS):
            try:
                descriptor = os.open(f"chunks/{name}", _READ_FLAGS, dir_fd=self._folder)
            except FileNotFoundError:
                return None
            try:
                # Who deletes locks first, and cuts the file only then: what is read stays whole until it is closed.
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                data = read_checked(descriptor, name, num_bytes)
                found = os.fstat(descriptor)
                if data is not None:
                    if not found.st_mode & 0o100:
                        os.fchmod(descriptor, USED_MODE)
                    return data
                is_damaged = found.st_nlink > 0  # else it was deleted between opening and locking
            except BlockingIOError:
                pass  # it is being deleted, or somebody who waited for it has not noticed yet that it is there
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
            if is_damaged:
                self.counts.num_damaged += 1
                _log.warning("a chunk in %s is damaged; it is fetched again", self.path)
                self._drop(name)
                return None
            time.sleep(_FIRST_PAUSE_SECONDS)
        return None

    def _drop(self, name: str) -> None:
        with self._ledger.held() as book:
            self._tell(book)
            self._evictions.evict(book, name)

    # ---- misses

    def _hit_or_claim(self, name: str, num_bytes: int) -> bytes | int | None:
        """The bytes, if another brings them meanwhile; else the locked file to fill; None to read without the cache."""
        if not self._is_welcome(name, num_bytes):
            return None
        path = f"filling/{name}"
        until = time.monotonic() + self._wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            descriptor = open_for_lock(path, os.O_RDWR | os.O_CREAT, directory=self._folder)
            is_claimed = False
            try:
                if lock_now(descriptor) and self._is_named(descriptor, path):
                    # Done by another, after we looked and before we had the lock?
                    if (data := self._hit(name, num_bytes)) is not None:
                        self._abandon(descriptor, path)
                        return data
                    is_claimed = self._reserve(descriptor, num_bytes)
                    if not is_claimed:
                        self._abandon(descriptor, path)
                        return None
                    return descriptor
            finally:
                if not is_claimed:
                    let_go(descriptor)
            if time.monotonic() > until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            if (data := self._hit(name, num_bytes)) is not None:
                return data

    def _is_welcome(self, name: str, num_bytes: int) -> bool:
        """Whether a full cache takes this chunk in, the same for all processes; see `Book`."""
        charge = charge_bytes(num_bytes + FOOTER_BYTES)
        book = self._ledger.look()
        if book is None:
            return True
        if charge > book.budget_bytes // 2:
            return False
        is_full = book.used_bytes + charge > book.budget_bytes
        return not (is_full and int(name[-4:], 16) % (1 << min(book.rarity, 16)))

    def _is_named(self, descriptor: int, path: str) -> bool:
        """Whether the locked file is still the one of that name, and was not finished or swept before we locked it."""
        try:
            return os.stat(path, dir_fd=self._folder).st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            return False

    def _reserve(self, descriptor: int, num_bytes: int) -> bool:
        """Take the space that the chunk needs; whether it could be had."""
        size = num_bytes + FOOTER_BYTES
        guard = self._guard_bytes
        with self._ledger.held() as book:
            self._tell(book)
            book.budget_bytes = book.budget_bytes or self.budget_bytes
            had = os.fstat(descriptor).st_size  # left by a process that was killed
            needed = charge_bytes(size) - charge_bytes(had)
            if not self._evictions.make_room(book, needed, guard_bytes=guard):
                return False
            for _ in range(2):
                try:
                    allocate(descriptor, size)
                except OSError as error:
                    os.ftruncate(descriptor, min(had, size))
                    if error.errno not in _FULL:
                        raise
                    # The disk is full before the budget is: go on with what we have of it.
                    wanted = book.used_bytes - charge_bytes(size)
                    while book.used_bytes > wanted and self._evictions.evict_next(book, guard_bytes=guard):
                        pass
                    if book.used_bytes > wanted:
                        break
                else:
                    book.used_bytes += needed
                    return True
            book.used_bytes += charge_bytes(os.fstat(descriptor).st_size) - charge_bytes(had)
        return False

    def _fill(self, descriptor: int, name: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Fetch into the claimed file; whatever happens with the file, what was fetched is handed out."""
        path = f"filling/{name}"
        is_done = False
        try:
            data = fetch()
            try:
                if len(data) == num_bytes:
                    write_checked(descriptor, data, name)
                    # What two looks at it agree on is its name; another may have cleared the directory.
                    if self._is_named(descriptor, path):
                        os.rename(path, f"chunks/{name}", src_dir_fd=self._folder, dst_dir_fd=self._folder)
                        is_done = True
            except OSError as error:
                self._trouble(error)
            if is_done:
                self.counts.num_fills += 1
            else:
                self.counts.num_bypasses += 1
            return data
        finally:
            if not is_done:
                with contextlib.suppress(OSError):
                    self._abandon(descriptor, path)
            let_go(descriptor)

    def _abandon(self, descriptor: int, path: str) -> None:
        """Delete a file that we have locked, and give back its space."""
        num_bytes = os.fstat(descriptor).st_size
        if not num_bytes:
            if self._is_named(descriptor, path):
                os.unlink(path, dir_fd=self._folder)
            return
        with self._ledger.held() as book:
            self._tell(book)
            if self._is_named(descriptor, path):
                os.unlink(path, dir_fd=self._folder)
                os.ftruncate(descriptor, 0)
                book.used_bytes -= charge_bytes(num_bytes)

    # ---- the whole

    @property
    def _guard_bytes(self) -> int:
        return min(max(self._expected_bytes, self.budget_bytes // 4), self.budget_bytes * 3 // 4)

    def _join(self, budget_bytes: int | None, users: list[int]) -> None:
        """Agree on a budget with those who have the cache open, and show that we have: what is added to ``users``."""
        with self._ledger.held() as book:
            sweep(self._folder, book)
            descriptor = os.open("users", _LOCK_FLAGS, 0o600, dir_fd=self._folder)
            users.append(descriptor)
            before = book.budget_bytes
            if lock_now(descriptor):
                book.budget_bytes = budget_bytes or before or _half_of_free(self._folder, book)
                if _locks_do_nothing(self._folder):
                    raise OSError(errno.ENOLCK, "locks on files do nothing in this directory")
            elif budget_bytes is not None and budget_bytes != before:
                book.budget_bytes = min(budget_bytes, before or budget_bytes)
                text = "%s: opened with a budget of %d bytes, and by others with %d: for all it is now %d"
                _log.warning(text, self.path, budget_bytes, before, book.budget_bytes)
            lock_now(descriptor, shared=True)
            path = f"datasets/{self._dataset}"
            dataset = os.open(path, _LOCK_FLAGS, 0o600, dir_fd=self._folder)
            users.append(dataset)
            lock_now(dataset, shared=True)
            os.utime(dataset)
            self.budget_bytes = book.budget_bytes
            self._evictions.make_room(book, 0, guard_bytes=0)

    def _tell(self, book: Book) -> None:
        """Add what this process counted since it last said so to the counts of all."""
        if os.getpid() != self._pid:  # the parent says what it counted before the fork
            self._pid = os.getpid()
            self._told = CacheCounts(*(getattr(self.counts, one.name) for one in fields(CacheCounts)))
        for one in fields(CacheCounts):
            now = getattr(self.counts, one.name)
            setattr(book, one.name, getattr(book, one.name) + now - getattr(self._told, one.name))
            setattr(self._told, one.name, now)
        self.budget_bytes = book.budget_bytes or self.budget_bytes

    def _trouble(self, error: OSError) -> None:
        """The cache failed and the reads go on; if it is gone for good, it is not asked again."""
        try:
            os.stat("chunks", dir_fd=self._folder)
            os.stat("filling", dir_fd=self._folder)
            is_there = error.errno not in (errno.EROFS, errno.ESTALE, errno.ENOLCK)
        except OSError:
            is_there = False
        if is_there:
            _log.debug("%s: read without the cache (%s)", self.path, error)
        elif not self._is_lost:
            self._is_lost = True
            _log.warning("%s: the chunk cache cannot be used any more (%s); reading goes on without", self.path, error)


_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _half_of_free(folder: int, book: Book) -> int:
    found = os.fstatvfs(folder)
    return max(_LEAST_BUDGET_BYTES, (found.f_bavail * found.f_frsize + book.used_bytes) // 2)


def _locks_do_nothing(folder: int) -> bool:
    """Whether "users", which is locked, can be locked a second time."""
    descriptor = open_for_lock("users", os.O_RDWR, directory=folder)
    try:
        return lock_now(descriptor)
    finally:
        let_go(descriptor)


def _close(folder: int, users: list[int], ledger: Ledger, *, keep: bool, pid: int, dataset: str) -> None:
    """Let go; the last one out clears what nobody wants to keep. A forked child has its parent's locks in common."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.utime(f"datasets/{dataset}", dir_fd=folder)
    if os.getpid() == pid and not keep and users:
        with contextlib.suppress(OSError), ledger.held() as book:
            for descriptor in users:
                os.close(descriptor)
            users.clear()
            descriptor = open_for_lock("users", os.O_RDWR, directory=folder)
            try:
                if lock_now(descriptor):
                    for chunk in list(chunks_in(folder)):
                        Evictions(folder).evict(book, chunk.name)
                    sweep(folder, book)
            finally:
                let_go(descriptor)
    for descriptor in (*users, folder):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _restore(*asked: Any) -> ChunkCache:
    directory, budget_bytes, dataset, keep, wait_seconds, expected_bytes = asked
    cache = ChunkCache(directory, budget_bytes=budget_bytes, dataset=dataset, keep=keep, wait_seconds=wait_seconds)
    cache._expected_bytes = expected_bytes  # noqa: SLF001  # the same class
    return cache
