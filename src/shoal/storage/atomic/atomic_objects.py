"""Objects written piece by piece that appear whole or not at all; and a lock for the processes that write them."""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH103, PTH105, PTH108, PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.errors import StorageError
from shoal.storage.atomic.spooled_objects import SpooledObject
from shoal.storage.storage_errors import os_failure
from shoal.storage.store import Buffer, Put
from shoal.storage.urls import scheme_of

_AT_ONCE_BYTES = 1 << 20
_PAUSE_SECONDS = 0.05


class ObjectInMaking(Protocol):
    """An object that is invisible until it is finished; used once."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append bytes."""
        ...

    def finish(self) -> None:
        """Make it visible, replacing any object of its name."""
        ...

    def abandon(self) -> None:
        """Remove everything written; does nothing if it is finished."""
        ...


def begin_object(path: str, *, store: Put, scratch: str) -> ObjectInMaking:
    """Begin a new object at ``path``: a local one as a file below the directory ``scratch`` (of the same file system).

    The bytes of a remote one wait on this machine until it is finished (`SpooledObject`).
    """
    if scheme_of(path):
        return SpooledObject(path, store)
    return GrowingFile(path, scratch=scratch)


class GrowingFile:
    """A file with a temporary name until it is finished; its bytes are on the disk before it gets its name."""

    def __init__(self, path: str, *, scratch: str) -> None:
        self._path = path
        name = os.fsdecode(os.fsencode(os.path.basename(path))[:200])
        self._temporary = os.path.join(scratch, f"{name}.{os.urandom(6).hex()}.tmp")
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._written_bytes = 0
        try:
            os.makedirs(scratch, exist_ok=True)
            self._descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise os_failure(error, path, verb="write") from error

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append bytes.

        Raises
        ------
        StorageError
            They could not be written; the file is abandoned.
        """
        self._waiting += buffers
        self._waiting_bytes += sum(map(len, buffers))
        if self._waiting_bytes >= _AT_ONCE_BYTES:
            self._carefully(self._flush)

    def finish(self) -> None:
        """Rename the file to its final name.

        Raises
        ------
        StorageError
            It could not be written; the file is abandoned.
        """
        self._carefully(self._finish)

    def abandon(self) -> None:
        """Remove the temporary file."""
        self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)

    def _flush(self) -> None:
        waiting = self._waiting
        rest = memoryview(waiting[0] if len(waiting) == 1 else b"".join(waiting))
        self._waiting, self._waiting_bytes = [], 0
        while rest:
            written = os.write(self._descriptor, rest)
            rest = rest[written:]
            self._begin_writing_back(written)

    def _begin_writing_back(self, num_bytes: int) -> None:
        """Start writing back to disk: else the process would wait, idle, for all of these bytes at the end.

        The name of the advice says more than it does: pages that are not on the disk yet stay in memory.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, self._written_bytes, num_bytes, os.POSIX_FADV_DONTNEED)
        self._written_bytes += num_bytes

    def _finish(self) -> None:
        self._flush()
        os.fsync(self._descriptor)
        self._close()
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        os.replace(self._temporary, self._path)

    def _carefully(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self.abandon()
            raise os_failure(error, self._path, verb="write") from error
        except BaseException:
            self.abandon()
            raise

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Lock:
    """A lock of this machine that dies with the processes that hold it: this one, and children that inherit it.

    Held by `descriptor`, which children get by ``pass_fds``. Where locking does not work (some network mounts), every
    process holds it. ``wait_seconds`` limits the wait for another holder.
    """

    def __init__(self, path: str, *, wait_seconds: float) -> None:
        self.path = path
        self.descriptor = -1
        deadline = time.monotonic() + wait_seconds
        try:
            taken = self._taken()
            while not taken and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
                taken = self._taken()
        except OSError as error:
            raise os_failure(error, path, verb="lock") from error
        if not taken:
            msg = f"{os.path.dirname(path)}: another process is at work here"
            raise StorageError(msg, hint="wait until it ends, or end it; its finished shards are kept")

    def release(self) -> None:
        """Release it; children that inherited it may still hold it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _taken(self) -> bool:
        """Try to lock; return True if held now. A lock on a file that was removed meanwhile does not count."""
        directory = os.path.dirname(self.path)
        os.makedirs(directory, exist_ok=True)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if os.path.lexists(directory):
                raise
            return False  # a process that finished has just removed the directory
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(descriptor)
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.path).st_ino == os.fstat(descriptor).st_ino:
                self.descriptor = descriptor
                return True
        os.close(descriptor)
        return False
