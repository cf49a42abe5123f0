"""Files of scanned bytes in one folder that the processes of a machine share, within one budget.

Each file holds one range of a shard, appears under the name of the range when it is whole, and never changes: reading
needs no lock and no checksum. Files are created, named and removed while the ledger is held, which counts their space
before it is taken. Each process holds a shared lock on ``users``. A process that joins alone removes the files of
killed processes; the last process to leave removes everything. design/cache.md says why these are not chunks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.storage.chunk_cache.chunk_files import write_all
from shoal.storage.chunk_cache.directory import is_shared_directory, open_folder
from shoal.storage.chunk_cache.file_locks import lock_now, open_for_lock, release
from shoal.storage.chunk_cache.ledger import BASE_BYTES, LEDGER, Book, Ledger, charge_bytes
from shoal.storage.storage_errors import os_failure
from shoal.storage.store_protocol import Buffer

FOLDER = "shoal-scanned"
_FILLING, _SHARDS, _USERS = "filling", "shards", "users"
_TRIES_TO_JOIN = 20
_LOCK_SECONDS = 1.0  # then a scan or a stream goes on without these files
_NUM_REMOVED_AT_ONCE = 8  # while the ledger is held: on a busy disk, each may take 10 ms
_DIRECTORY_BYTES = 4 << 10  # share of a file in the directory of its shard
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class ScannedFiles:
    """The files in the folder `FOLDER` of ``directory``, opened by this process, which becomes a user.

    Raises `UsageError` if the folder cannot be trusted, `StorageError` if it cannot be created or locked.
    """

    def __init__(self, directory: str, *, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._new_files: deque[_NewFile] = deque()
        self._adding = threading.Lock()
        for is_last_try in (*[False] * _TRIES_TO_JOIN, True):
            self._folder, self.path = open_folder(directory, folder=FOLDER, subfolders=(_FILLING, _SHARDS))
            self._ledger = Ledger(self._folder, partial(_count, self._folder))
            self._users = -1
            try:
                self._join()
            except OSError as error:
                self._release_users()
                os.close(self._folder)
                # The last process to leave may have removed the folder since it was opened.
                if is_last_try or not isinstance(error, FileNotFoundError):
                    raise os_failure(error, self.path, verb="use") from error
                continue
            break
        # Not in `leave`: threads of a closed stream may still read.
        weakref.finalize(self, os.close, self._folder).atexit = False

    def _join(self) -> None:
        with self._ledger.held(_LOCK_SECONDS) as book:
            self._users = open_for_lock(_USERS, os.O_RDWR | os.O_CREAT, directory=self._folder)
            if lock_now(self._users):
                _remove_all(self._folder)
                book.used_bytes = BASE_BYTES
            book.budget_bytes = max(book.budget_bytes, self._budget_bytes, 1)  # 0 would mean a ledger without contents
            lock_now(self._users, shared=True)

    def leave(self) -> None:
        """Stop using the files; remove all of them if no other process uses them."""
        try:
            with self._ledger.held(_LOCK_SECONDS) as book:
                self._release_users()
                lock = open_for_lock(_USERS, os.O_RDWR, directory=self._folder)
                try:
                    if lock_now(lock):
                        _remove_all(self._folder)
                        book.used_bytes = BASE_BYTES
                        self._remove_folder()
                finally:
                    release(lock)
        except OSError:
            pass  # the next process that joins alone removes them
        finally:
            self._release_users()

    def has_room(self, num_bytes: int) -> bool:
        """Return True if a file of this size probably fits; takes no lock."""
        book = self._ledger.peek()
        return book is None or self._fits(book, num_bytes)

    def add(self, shard: str, name: str, data: Buffer) -> bool:
        """Add a file to a shard; return False if there is no room. Raises `OSError`.

        Files that threads add at the same time are added in one go: each thread alone would wait for the ledger behind
        all others, and a thread that holds the ledger waits for the interpreter's lock.
        """
        new = _NewFile(f"{_SHARDS}/{shard}/{name}", memoryview(data))
        self._new_files.append(new)
        with self._adding:
            if not new.is_done:
                batch = [self._new_files.popleft() for _ in range(len(self._new_files))]
                try:
                    self._add_all(batch)
                except OSError as error:
                    for other in batch:
                        other.error = other.error or error
                finally:
                    for other in batch:
                        other.is_done = True
                        release(other.descriptor)
        if new.error is not None:
            raise new.error
        return new.is_added

    def _add_all(self, batch: Sequence[_NewFile]) -> None:
        with self._ledger.held(_LOCK_SECONDS) as book:
            for new in batch:
                if self._fits(book, len(new.data)) and new.begin(self._folder):
                    book.used_bytes += _charge_bytes(len(new.data))
        begun = [new for new in batch if new.descriptor >= 0]
        for new in begun:
            new.write(self._folder)
        if begun:
            with self._ledger.held(_LOCK_SECONDS) as book:
                for new in begun:
                    if not new.finish(self._folder):
                        book.used_bytes -= _charge_bytes(len(new.data))

    def names(self, shard: str) -> list[str]:
        """Return the names of all files of a shard."""
        try:
            return _listed(self._folder, f"{_SHARDS}/{shard}")
        except OSError:
            return []

    def read_into(self, buffer: memoryview, shard: str, name: str, first_byte: int) -> bool:
        """Fill a buffer with the bytes of a file from ``first_byte`` on; return False if they are gone."""
        try:
            descriptor = os.open(f"{_SHARDS}/{shard}/{name}", _READ_FLAGS, dir_fd=self._folder)
        except OSError:
            return False
        try:
            num_read = 0
            while num_read < len(buffer):
                if not (num_more := os.preadv(descriptor, [buffer[num_read:]], first_byte + num_read)):
                    return False
                num_read += num_more
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def remove(self, shard: str, names: Iterable[str]) -> None:
        """Remove files of a shard. Raises `OSError`."""
        with self._ledger.held(_LOCK_SECONDS) as book:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    book.used_bytes -= _removed_bytes(self._folder, f"{_SHARDS}/{shard}/{name}")

    def drop(self, shards: Sequence[str]) -> None:
        """Remove the files of some shards, and half-written files of killed processes. Raises `OSError`."""
        left = deque(shards)
        while left:
            with self._ledger.held(_LOCK_SECONDS) as book:
                num_removed = 0
                while left and num_removed < _NUM_REMOVED_AT_ONCE:
                    path, names = f"{_SHARDS}/{left[0]}", self.names(left[0])
                    some = names[: _NUM_REMOVED_AT_ONCE - num_removed]
                    for name in some:
                        book.used_bytes -= _removed_bytes(self._folder, f"{path}/{name}")
                    num_removed += len(some) + 1
                    if len(some) == len(names):
                        with contextlib.suppress(FileNotFoundError):
                            os.rmdir(path, dir_fd=self._folder)
                        left.popleft()
                if not left:
                    self._sweep(book)

    def _fits(self, book: Book, num_bytes: int) -> bool:
        """Return True if a file fits into the budget, and leaves as much of the disk free as all files take."""
        charge, file_system = _charge_bytes(num_bytes), os.fstatvfs(self._folder)
        free_bytes = file_system.f_bavail * file_system.f_frsize - charge
        return book.used_bytes + charge <= min(self._budget_bytes, free_bytes)

    def _sweep(self, book: Book) -> None:
        """Remove half-written files of ended processes; the caller holds the ledger."""
        for name in _listed(self._folder, _FILLING):
            path = f"{_FILLING}/{name}"
            descriptor = open_for_lock(path, os.O_RDWR, directory=self._folder)
            try:
                if lock_now(descriptor):
                    book.used_bytes -= _removed_bytes(self._folder, path)
            finally:
                release(descriptor)

    def _remove_folder(self) -> None:
        # The ledger last: newcomers wait for it, and then see that it has no name.
        for name in (_FILLING, _SHARDS):
            os.rmdir(name, dir_fd=self._folder)
        for name in (_USERS, LEDGER):
            os.unlink(name, dir_fd=self._folder)
        os.rmdir(self.path)
        if is_shared_directory(os.path.dirname(self.path)):
            os.rmdir(os.path.dirname(self.path))

    def _release_users(self) -> None:
        release(self._users)
        self._users = -1  # the next opened file may get this number


@dataclass(slots=True, eq=False)
class _NewFile:
    """A file that a thread adds, first under a ``temporary`` name."""

    target: str
    data: memoryview
    temporary: str = ""
    descriptor: int = -1
    error: OSError | None = None
    is_added: bool = False
    is_done: bool = False

    def begin(self, folder: int) -> bool:
        """Create the file, with the ledger held; return False if that failed.

        Its lock shows that its process lives; a recount of the ledger uses its size.
        """
        self.temporary = f"{_FILLING}/{os.urandom(16).hex()}"
        try:
            descriptor = open_for_lock(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, directory=folder)
            try:
                lock_now(descriptor)
                os.ftruncate(descriptor, len(self.data))
            except BaseException:
                os.unlink(self.temporary, dir_fd=folder)
                release(descriptor)
                raise
        except OSError as error:
            self.error = error
            return False
        self.descriptor = descriptor
        return True

    def write(self, folder: int) -> None:
        """Write the bytes, and create the directory of the shard."""
        try:
            write_all(self.descriptor, self.data, 0)
            self._make_directory(folder)
        except OSError as error:
            self.error = error

    def finish(self, folder: int) -> bool:
        """Give a written file its name, or remove it, with the ledger held; return True if it takes more space now."""
        if self.error is not None:
            os.unlink(self.temporary, dir_fd=folder)
            return False
        # Scanned twice: by two processes, or again after a failure. The same name means the same size.
        is_new = not os.access(self.target, os.F_OK, dir_fd=folder)
        try:
            os.rename(self.temporary, self.target, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:  # another thread has dropped the shard meanwhile, and its directory
            self._make_directory(folder)
            os.rename(self.temporary, self.target, src_dir_fd=folder, dst_dir_fd=folder)
        self.is_added = True
        return is_new

    def _make_directory(self, folder: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self.target), 0o700, dir_fd=folder)


def _charge_bytes(num_bytes: int) -> int:
    """Return the most bytes that a file takes, with its share of its directory."""
    return charge_bytes(num_bytes) + _DIRECTORY_BYTES


def _listed(folder: int, path: str) -> list[str]:
    """Return the names in a directory below the open ``folder``."""
    descriptor = os.open(path, _DIRECTORY_FLAGS, dir_fd=folder)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: int) -> Iterator[str]:
    """Yield the path of each file, whole or not, below the open ``folder``; the ledger is held."""
    for name in _listed(folder, _FILLING):
        yield f"{_FILLING}/{name}"
    for shard in _listed(folder, _SHARDS):
        for name in _listed(folder, f"{_SHARDS}/{shard}"):
            yield f"{_SHARDS}/{shard}/{name}"


def _count(folder: int, book: Book) -> None:
    """Count all files into the book, with the ledger held."""
    sizes = (os.stat(path, dir_fd=folder, follow_symlinks=False).st_size for path in _files(folder))
    book.used_bytes = BASE_BYTES + sum(map(_charge_bytes, sizes))


def _removed_bytes(folder: int, path: str) -> int:
    """Remove a file, and return its charge."""
    num_bytes = os.stat(path, dir_fd=folder, follow_symlinks=False).st_size
    os.unlink(path, dir_fd=folder)
    return _charge_bytes(num_bytes)


def _remove_all(folder: int) -> None:
    """Remove all files, with the ledger held and no other user."""
    for path in list(_files(folder)):
        os.unlink(path, dir_fd=folder)
    for shard in _listed(folder, _SHARDS):
        os.rmdir(f"{_SHARDS}/{shard}", dir_fd=folder)
