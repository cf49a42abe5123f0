"""Chunks kept on this machine, shared by all its processes: each is fetched once, within one budget of bytes.

The processes coordinate by file locks alone: there is no server, no named memory and nothing to clean up. A chunk is a
file that appears when it is complete. The fetching process locks the file that grows, and the system releases the lock
when the process ends, even if it is killed. design/cache.md gives the reasons for this design.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.errors import StorageError, UsageError
from shoal.storage.chunk_cache.chunk_files import FOOTER_BYTES, read_checked, write_checked
from shoal.storage.chunk_cache.directory import SUBFOLDERS, is_shared_directory, open_folder
from shoal.storage.chunk_cache.eviction import VICTIMS, Evictions, chunks_in, sweep
from shoal.storage.chunk_cache.file_locks import lock_now, open_for_lock, release
from shoal.storage.chunk_cache.fill_locks import Claim, Claims
from shoal.storage.chunk_cache.ledger import LEDGER
from shoal.storage.chunk_cache.spill_files import NoRoomError, Spill, SpilledPart, SpillFile, read_part

_log = logging.getLogger("shoal")

LEAST_BUDGET_BYTES = 1 << 20
_REPORT_SECONDS = 0.2  # the longest wait at the end of a loop; the next report includes the counts
_LAST_REPORT_SECONDS = 5.0  # the longest wait at the end of a process, whose counts nobody reports later
_TRIES_TO_JOIN = 20
_TRIES_TO_SPILL = 3  # chunks of other processes may evict a piece before it is read
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DATASET = re.compile("[0-9a-f]{16}")


@dataclass(slots=True)
class SpillCounts:
    """Counts of one process's work with decoded pieces."""

    num_fills: int = 0  # pieces decoded to files
    num_bytes: int = 0  # of these files
    num_reads: int = 0  # samples read from them
    num_bypasses: int = 0  # samples whose piece the cache could not take


class ChunkCache:
    """A directory of chunks with a budget, shared by all processes of this machine.

    ``directory`` is on a disk of this machine, or in its memory. All files are in its folder ``shoal-chunks``; only
    this user may enter it, and nothing else is touched. ``budget_bytes`` limits the size of the folder in blocks, with
    growing files. The first process to open the folder sets the budget; while several processes have it open, the
    smallest budget holds for all. None: the previous budget, else half of the free space. ``dataset`` is any text that
    identifies the dataset; the cache keeps its digest, and evicts chunks of datasets that no process has open first.
    With ``keep``, chunks stay when the last process has closed the cache. ``wait_seconds`` limits the wait for another
    process that fetches the same chunk; then this process fetches it, too.

    Safe to share between threads and over a fork; a pickled copy opens the same directory. Hits write nothing and
    never wait. If the cache fails, reads go on without it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     cache = ChunkCache(directory, budget_bytes=8 << 20)
    ...     first = cache.read("a.tar, bytes 0 to 5", 5, lambda: b"bytes")
    ...     again = cache.read("a.tar, bytes 0 to 5", 5, lambda: b"never fetched")
    ...     cache.close()
    >>> first, again, cache.counts.num_hits
    (b'bytes', b'bytes', 1)

    Raises `UsageError` if the directory belongs to another user, its file system cannot be trusted, or the budget is
    below 1 MiB; `StorageError` if the directory cannot be made.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        budget_bytes: int | None = None,
        dataset: str = "",
        keep: bool = True,
        wait_seconds: float = 30.0,
    ) -> None:
        if budget_bytes is not None and budget_bytes < LEAST_BUDGET_BYTES:
            msg = f"asked for a chunk cache of {budget_bytes} bytes; the least is {LEAST_BUDGET_BYTES}"
            raise UsageError(msg, hint='for example cache={"directory": ..., "budget": "200GiB"}')
        self._options = {
            "directory": os.fspath(directory),
            "budget_bytes": budget_bytes,
            "dataset": dataset,
            "keep": keep,
            "wait_seconds": wait_seconds,
        }
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
                    _close_all(self._folder, users)
                    continue
                self._files.handle_failure(error)
            except OSError as error:
                self._files.handle_failure(error)
            break
        self._ledger, self.counts = self._files.ledger, self._files.counts
        self._pid = pid = os.getpid()
        self._finalizer = weakref.finalize(self, _leave, users, self._files, keep, pid, self._dataset)
        _open.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._options, self._files.expected_bytes)

    @property
    def budget_bytes(self) -> int:
        """The budget of all processes, as last seen by this process."""
        return self._files.budget_bytes

    def read(self, key: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Return the ``num_bytes`` bytes of ``key`` from the cache; on a miss, call ``fetch`` and cache the result.

        If several processes or threads read one key at a time, one fetches and the others wait. An error of ``fetch``
        is raised; then the next waiter fetches.
        """
        name = self._name(key)
        outcome: bytes | Claim | None = None
        if not self._files.is_disabled:
            take = partial(read_checked, name=name, num_bytes=num_bytes)
            try:
                outcome = self._files.hit(name, take)
                if outcome is None and self._files.is_admitted(name, num_bytes):
                    outcome = self._files.hit_or_claim(name, num_bytes + FOOTER_BYTES, take)
            except OSError as error:
                self._files.handle_failure(error)
        if isinstance(outcome, bytes):
            self.counts.num_hits += 1
            return outcome
        if outcome is not None:
            return self._fill(outcome, num_bytes, fetch)
        self.counts.num_bypasses += 1
        return fetch()

    def read_again(self, key: str, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Drop the cached bytes and `read` again: the cached bytes equal the stored bytes, but are wrong."""
        if not self._files.is_disabled:
            try:
                self._files.drop(self._name(key))
            except OSError as error:
                self._files.handle_failure(error)
        return self.read(key, num_bytes, fetch)

    def read_spilled(self, key: str, sample: int, spill: Spill | None, *, expected_bytes: int) -> SpilledPart | None:
        """Return the part of a decoded piece that holds its sample number ``sample``; ``spill`` decodes the piece.

        Without ``spill`` the part is only looked up. As in `read`, one process decodes, and the others wait as long as
        the file grows. ``expected_bytes`` is the approximate size of the file; more space is reserved as the file
        grows. Returns None if the cache is full of chunks in use, or has failed. An error of ``spill`` is raised.
        """
        name = self._name(key)
        outcome: SpilledPart | Claim | None = None
        take = partial(read_part, name=name, sample=sample)
        for _ in range(_TRIES_TO_SPILL):
            outcome = None  # drop the claim of the previous try, whose file is closed
            if self._files.is_disabled:
                break
            try:
                outcome = self._files.hit(name, take)
                if outcome is not None or spill is None:
                    break
                outcome = self._files.hit_or_claim(name, max(1, expected_bytes), take, must_fit=True)
            except OSError as error:
                self._files.handle_failure(error)
            if spill is None or not isinstance(outcome, Claim):
                break
            if not self._fill_spilled(outcome, spill):
                outcome = None
                break
        if isinstance(outcome, SpilledPart):
            self.spills.num_reads += 1
            return outcome
        self.spills.num_bypasses += 1
        return None

    def has(self, key: str) -> bool:
        """Return True if there is a file for ``key``; does not check its contents. 2 us."""
        try:
            os.stat(f"chunks/{self._name(key)}", dir_fd=self._folder)
        except OSError:
            return False
        return True

    def expect(self, window_bytes: int) -> None:
        """Set the bytes that the processes of this machine share at a time; at least the newest ``window_bytes`` stay.

        Raises `UsageError` if the budget is smaller: chunks would be evicted before the second process has read them.
        """
        if 0 < self.budget_bytes < window_bytes:
            msg = (
                f"the chunk cache {self.path} may take {self.budget_bytes:,} bytes, but the windows of this machine "
                f"hold {window_bytes:,}: chunks would be evicted before all processes have read them"
            )
            hint = f'give cache={{"directory": ..., "budget": {2 * window_bytes}}}, a smaller window=, or no cache'
            raise UsageError(msg, hint=hint)
        self._files.expected_bytes = window_bytes

    def report_counts(self) -> None:
        """Add this process's new counts to the shared counts; later if another process holds the ledger."""
        _report_now(self._files)
        self._files.log_failures()

    @property
    def num_failures(self) -> int:
        """Reads of this process that a full or failing disk could not keep; also among the bypasses."""
        return self._files.num_failures

    def close(self) -> None:
        """Release the cache; its chunks stay, unless opened with ``keep=False`` and no other process has it open."""
        self._finalizer()
        self._files.is_disabled = True

    def close_as_orphan(self) -> None:
        """Close the cache after the parent was killed, perhaps while filling a file; also close the parent's cache."""
        self._files.is_disabled = True
        self._files.abandon_all()
        self.close()
        if self._pid != os.getpid():  # the parent and all its forks share these locks
            _reopen(self._options, self._files.expected_bytes).close()

    def _name(self, key: str) -> str:
        return f"{self._dataset}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"

    def _fill(self, claim: Claim, num_bytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Fetch into the claimed file; return the fetched bytes even if the file fails."""
        is_done = False
        try:
            data = fetch()
            try:
                if len(data) == num_bytes:
                    write_checked(claim.descriptor, data, claim.name)
                    is_done = self._files.finish(claim)
            except OSError as error:
                self._files.handle_failure(error)
            self.counts.num_fills += is_done
            self.counts.num_bypasses += not is_done
            return data
        finally:
            self._files.release(claim, is_done=is_done)

    def _fill_spilled(self, claim: Claim, spill: Spill) -> bool:
        """Decode into the claimed file; return True if it was completed."""
        is_done = False
        try:
            reserve = partial(self._files.reserve, claim.descriptor, must_fit=True)
            file = SpillFile(claim.descriptor, claim.name, reserve)
            try:
                file.finish(spill(file))
                self._files.give_back(claim.descriptor, file.num_bytes)
                is_done = self._files.finish(claim)
            except NoRoomError as error:
                if error.reason is not None:
                    self._files.handle_failure(error.reason)
            except StorageError:
                raise
            except OSError as error:
                self._files.handle_failure(error)
            if is_done:
                self.spills.num_fills += 1
                self.spills.num_bytes += file.num_bytes
            return is_done
        finally:
            self._files.release(claim, is_done=is_done)

    def _join(self, budget_bytes: int | None, users: list[int]) -> None:
        """Agree on a budget with the other users of the cache, and register: add our locks to ``users``."""
        with self._files.ledger.held() as book:
            sweep(self._folder, book)
            descriptor = os.open("users", _LOCK_FLAGS, 0o600, dir_fd=self._folder)
            users.append(descriptor)
            before = book.budget_bytes
            if lock_now(descriptor):
                file_system = os.fstatvfs(self._folder)
                half_of_free = (file_system.f_bavail * file_system.f_frsize + book.used_bytes) // 2
                book.budget_bytes = budget_bytes or before or max(LEAST_BUDGET_BYTES, half_of_free)
                again = open_for_lock("users", os.O_RDWR, directory=self._folder)
                try:
                    if lock_now(again):
                        raise OSError(errno.ENOLCK, "file locks have no effect in this directory")
                finally:
                    release(again)
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


_open: weakref.WeakSet[ChunkCache] = weakref.WeakSet()


def close_all_as_orphan() -> None:
    """Call `ChunkCache.close_as_orphan` on every cache that this process has open."""
    for cache in list(_open):
        with contextlib.suppress(StorageError, UsageError, OSError):
            cache.close_as_orphan()


def _reopen(options: dict[str, Any], expected_bytes: int) -> ChunkCache:
    cache = ChunkCache(**options)
    cache._files.expected_bytes = expected_bytes  # noqa: SLF001  # the same module
    return cache


# The exit of a process: the last one removes all files and folders, unless they are to be kept. A process that opens
# the cache meanwhile misses a file or a folder, and opens the cache once more: names are removed only while the ledger
# is held and there is no other user, and a ledger without a name is ignored.


def _leave(users: list[int], files: Claims, keep: bool, pid: int, dataset: str) -> None:  # noqa: FBT001  # a finalizer
    """Release the cache. A forked child shares its parent's locks, and only closes."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.utime(f"datasets/{dataset}", dir_fd=files.folder)
        _report_now(files, _LAST_REPORT_SECONDS)
        files.log_failures()
        if not keep and users:
            with contextlib.suppress(OSError):
                _clear_if_last(users, files)
    _close_all(files.folder, users)


def _report_now(files: Claims, limit_seconds: float = _REPORT_SECONDS) -> None:
    """Add this process's counts to the shared counts, unless another process holds the ledger for too long."""
    if files.has_unreported and not files.is_disabled:
        with contextlib.suppress(OSError), files.ledger.held(limit_seconds) as book:
            files.report(book)


def _close_all(folder: int, users: Sequence[int]) -> None:
    for descriptor in (*users, folder):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _clear_if_last(users: list[int], files: Claims) -> None:
    folder = files.folder
    with files.ledger.held() as book:
        for descriptor in users:
            os.close(descriptor)
        users.clear()
        lock = open_for_lock("users", os.O_RDWR, directory=folder)
        try:
            if lock_now(lock):
                for chunk in list(chunks_in(folder)):
                    Evictions(folder).evict(book, chunk.name)
                sweep(folder, book)
                with contextlib.suppress(OSError):  # other files are in it
                    _remove_folder(folder, files.path)
        finally:
            release(lock)


def _remove_folder(folder: int, path: str) -> None:
    """Remove the folder, then its parent if made for the folder alone; stop at a directory that is not empty."""
    datasets = os.open("datasets", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    try:
        for name in filter(_DATASET.fullmatch, os.listdir(datasets)):
            os.unlink(name, dir_fd=datasets)
    finally:
        os.close(datasets)
    for name in SUBFOLDERS:
        os.rmdir(name, dir_fd=folder)
    # The ledger last: until then, newcomers wait for it.
    for name in ("users", VICTIMS, LEDGER):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    os.rmdir(path)
    if is_shared_directory(os.path.dirname(path)):
        os.rmdir(os.path.dirname(path))
