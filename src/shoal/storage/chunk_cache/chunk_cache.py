"""Chunks kept on this machine, shared by all of its processes: each is fetched once, within one budget of bytes.

The processes coordinate by file locks alone: there is no server, no named memory and nothing to clean up. A chunk is a
file that appears when it is complete; the file it grows in carries the lock of the process that fetches it, and the
system releases that lock when the process ends, however it ends. design/cache.md gives the reasons for this design.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.errors import StorageError, UsageError
from shoal.storage.chunk_cache.cache_files import FOOTER_BYTES, read_checked, write_checked
from shoal.storage.chunk_cache.directory import open_folder
from shoal.storage.chunk_cache.eviction import sweep
from shoal.storage.chunk_cache.file_locks import let_go, lock_now, open_for_lock
from shoal.storage.chunk_cache.fill_locks import Claim, Claims
from shoal.storage.chunk_cache.leaving import abandon, leave, tell_now
from shoal.storage.chunk_cache.spill_file import NoRoomError, Spill, SpilledPart, SpillFile, read_part
from shoal.storage.chunk_cache.usage import Book

_log = logging.getLogger("shoal")

_LEAST_BUDGET_BYTES = 1 << 20
_WAIT_SECONDS = 30.0
_TRIES_TO_JOIN = 20
_SPILLS = 3  # attempts: chunks that others need at the same time may evict a piece before it is read


@dataclass(slots=True)
class SpillCounts:
    """Counts of what one process did with pieces kept decoded.

    ``num_fills`` pieces were decoded, to files of ``num_bytes``; ``num_reads`` samples were read from them, and
    ``num_bypasses`` samples were wanted while the cache could not take their piece.
    """

    num_fills: int = 0
    num_bytes: int = 0
    num_reads: int = 0
    num_bypasses: int = 0


class ChunkCache:
    """A directory of chunks with a budget, shared by all processes of this machine.

    Parameters
    ----------
    directory
        A directory on a disk of this machine, or in its memory. Everything is kept in a folder ``shoal-chunks`` in it,
        which only this user may enter; nothing else is touched.
    budget_bytes
        Limit for the size of the folder, counted in blocks, including files being filled. The first process to open it
        sets it; while others have it open, the smallest budget given holds for all. None: the previous budget, else
        half of the free space.
    dataset
        Text that identifies the dataset, of which only a digest is kept. Chunks of datasets that no process has open
        are evicted first.
    keep
        True if chunks stay when the last process has closed the cache.
    wait_seconds
        Time to wait for another process that fetches the same chunk, before fetching it too.

    Safe to share between threads and over a fork; a pickled copy opens the same directory. Hits write nothing and
    never wait; any failure of the cache itself only means a read without it.

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
        self.spills = SpillCounts()
        self._dataset = hashlib.blake2b(dataset.encode(), digest_size=8).hexdigest()
        for is_last_try in (*[False] * _TRIES_TO_JOIN, True):
            self._folder, self.path = open_folder(directory)
            self._files = Claims(self._folder, self.path, budget_bytes=budget_bytes or 0, wait_seconds=wait_seconds)
            users: list[int] = []
            try:
                self._join(budget_bytes, users)
            except FileNotFoundError as error:
                if not is_last_try:  # another process was the last to leave, and removed the folder since we opened it
                    abandon(self._folder, users)
                    continue
                self._files.trouble(error)
            except OSError as error:
                self._files.trouble(error)
            break
        self._ledger, self.counts = self._files.ledger, self._files.counts
        self._finalizer = weakref.finalize(
            self, leave, users, self._files, keep=keep, pid=os.getpid(), dataset=self._dataset
        )
        self._pid = os.getpid()
        _open.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (*self._asked, self._files.expected_bytes)

    @property
    def budget_bytes(self) -> int:
        """The budget that holds for all processes, as last seen by this one."""
        return self._files.budget_bytes

    # ---- reading

    def read(self, key: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Return the ``num_bytes`` bytes called ``key``: from the cache, else from ``fetch``, and then kept.

        Of all processes and threads that ask for the same key at a time, one fetches and the others wait. An error of
        ``fetch`` is raised; the next one that waits then fetches.
        """
        name = self._name(key)
        found: bytes | Claim | None = None
        if not self._files.is_lost:
            take = partial(read_checked, name=name, num_bytes=num_bytes)
            try:
                found = self._files.hit(name, take)
                if found is None and self._files.is_welcome(name, num_bytes):
                    found = self._files.hit_or_claim(name, num_bytes + FOOTER_BYTES, take)
            except OSError as error:
                self._files.trouble(error)
        if isinstance(found, bytes):
            self.counts.num_hits += 1
            return found
        if found is not None:
            return self._fill(found, num_bytes, fetch)
        self.counts.num_bypasses += 1
        return fetch()

    def read_again(self, key: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Drop the cached bytes and `read` again: they were stored correctly, and yet were not those wanted."""
        if not self._files.is_lost:
            try:
                self._files.drop(self._name(key))
            except OSError as error:
                self._files.trouble(error)
        return self.read(key, num_bytes, fetch)

    def read_spilled(self, key: str, sample: int, spill: Spill | None, *, expected_bytes: int) -> SpilledPart | None:
        """Return the part of a decoded piece that holds a sample, by its number in the piece; ``spill`` decodes it.

        Without ``spill`` the part is only looked up.

        As in `read`, one process decodes and the others wait, for as long as its file grows. ``expected_bytes`` is its
        approximate size; space beyond it is reserved as it grows. None if the cache cannot take it: it is full of
        chunks that others use, or has failed. An error of ``spill`` is raised.
        """
        name = self._name(key)
        found: SpilledPart | Claim | None = None
        take = partial(read_part, name=name, sample=sample)
        for _ in range(_SPILLS):
            found = None  # not the claim of the file filled before, which is closed
            if self._files.is_lost:
                break
            try:
                found = self._files.hit(name, take)
                if found is not None or spill is None:
                    break
                found = self._files.hit_or_claim(name, max(1, expected_bytes), take, insists=True)
            except OSError as error:
                self._files.trouble(error)
            if spill is None or not isinstance(found, Claim):
                break
            if not self._fill_spilled(found, spill):
                found = None
                break
        if isinstance(found, SpilledPart):
            self.spills.num_reads += 1
            return found
        self.spills.num_bypasses += 1
        return None

    def has(self, key: str) -> bool:
        """Return True if a file exists for ``key``; its contents are not checked. 2 us."""
        try:
            os.stat(f"chunks/{self._name(key)}", dir_fd=self._folder)
        except OSError:
            return False
        return True

    def expect(self, window_bytes: int) -> None:
        """Set how many bytes the processes of this machine share at a time; as many of the newest bytes are kept.

        Raises
        ------
        UsageError
            The budget is smaller: chunks would be evicted before the second process has read them.
        """
        if 0 < self.budget_bytes < window_bytes:
            msg = (
                f"the chunk cache {self.path} may take {self.budget_bytes:,} bytes, and the windows of this machine "
                f"hold {window_bytes:,}: chunks would go before all processes have read them"
            )
            hint = f'give cache={{"directory": ..., "budget": {2 * window_bytes}}}, a smaller window=, or no cache'
            raise UsageError(msg, hint=hint)
        self._files.expected_bytes = window_bytes

    def tell(self) -> None:
        """Add this process's new counts to the shared counts; deferred while another process holds them."""
        tell_now(self._files)

    def close(self) -> None:
        """Release the cache; its chunks stay, unless opened with ``keep=False`` and no other process has it open."""
        self._finalizer()
        self._files.is_lost = True

    def close_as_heir(self) -> None:
        """Close the cache after the parent was killed, perhaps while filling; close what the parent had open, too."""
        self._files.is_lost = True
        self._files.abandon_all()
        self.close()
        if self._pid != os.getpid():  # its locks are shared with the parent, and with all of the parent's forks
            _restore(*self._asked, self._files.expected_bytes).close()

    # ---- filling

    def _name(self, key: str) -> str:
        return f"{self._dataset}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

    def _fill(self, claim: Claim, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Fetch into the claimed file; return the fetched bytes whatever happens to the file."""
        is_done = False
        try:
            data = fetch()
            try:
                if len(data) == num_bytes:
                    write_checked(claim.descriptor, data, claim.name)
                    is_done = self._files.finish(claim)
            except OSError as error:
                self._files.trouble(error)
            if is_done:
                self.counts.num_fills += 1
            else:
                self.counts.num_bypasses += 1
            return data
        finally:
            self._files.let_go(claim, is_done=is_done)

    def _fill_spilled(self, claim: Claim, spill: Spill) -> bool:
        """Decode into the claimed file; return True if it was completed."""
        is_done = False
        try:
            file = SpillFile(claim.descriptor, claim.name, partial(self._files.reserve, claim.descriptor, insists=True))
            try:
                file.finish(spill(file))
                self._files.give_back(claim.descriptor, file.num_bytes)
                is_done = self._files.finish(claim)
            except NoRoomError as error:
                if error.reason is not None:
                    self._files.trouble(error.reason)
            except StorageError:
                raise
            except OSError as error:
                self._files.trouble(error)
            if is_done:
                self.spills.num_fills += 1
                self.spills.num_bytes += file.num_bytes
            return is_done
        finally:
            self._files.let_go(claim, is_done=is_done)

    # ---- joining

    def _join(self, budget_bytes: int | None, users: list[int]) -> None:
        """Agree on a budget with the processes that have the cache open, and register: adds our locks to ``users``."""
        with self._files.ledger.held() as book:
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
            self._files.budget_bytes = book.budget_bytes
            self._files.evictions.make_room(book, 0, guard_bytes=0)


_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _half_of_free(folder: int, book: Book) -> int:
    found = os.fstatvfs(folder)
    return max(_LEAST_BUDGET_BYTES, (found.f_bavail * found.f_frsize + book.used_bytes) // 2)


def _locks_do_nothing(folder: int) -> bool:
    """Return True if "users", which is locked, can be locked a second time."""
    descriptor = open_for_lock("users", os.O_RDWR, directory=folder)
    try:
        return lock_now(descriptor)
    finally:
        let_go(descriptor)


_open: weakref.WeakSet[ChunkCache] = weakref.WeakSet()


def close_all_as_heir() -> None:
    """Call `ChunkCache.close_as_heir` on every cache that this process has open."""
    for cache in list(_open):
        with contextlib.suppress(StorageError, UsageError, OSError):
            cache.close_as_heir()


def _restore(*asked: Any) -> ChunkCache:
    directory, budget_bytes, dataset, keep, wait_seconds, expected_bytes = asked
    cache = ChunkCache(directory, budget_bytes=budget_bytes, dataset=dataset, keep=keep, wait_seconds=wait_seconds)
    cache._files.expected_bytes = expected_bytes  # noqa: SLF001  # the same class
    return cache
