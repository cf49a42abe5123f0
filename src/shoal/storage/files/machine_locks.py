"""Locks between processes of this machine that end with their holder, even if it is killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from shoal.errors import StorageError
from shoal.storage.storage_errors import os_failure

_log = logging.getLogger("shoal")

_POLL_SECONDS = 0.1
_LIFE_SECONDS = 5.0
_HOLDER_BYTES = 512


@contextlib.contextmanager
def machine_lock(path: str, *, what: str, limit_seconds: float = 300.0) -> Iterator[Callable[[], None]]:
    """Wait until no other process of this machine holds the lock file ``path``, which is never deleted.

    If locking does not work (a read-only directory, some network mounts), every process goes ahead: the work is
    repeated, with correct results. A process also goes ahead if the holder has ended and only a child still holds the
    file, or if the holder was silent for ``limit_seconds``. The holder shows life by calling the function that
    `machine_lock` yields.
    """
    with contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            lock_file = stack.enter_context(open(path, "rb+", buffering=0, opener=_open_or_create))
            if _wait_for_lock(lock_file, limit_seconds):
                file = lock_file
                # Unlocking also covers descriptors that a child has inherited.
                stack.callback(_unlock, file)
                file.write(f"{os.getpid()} {socket.gethostname()} {what}".encode(errors="replace")[:_HOLDER_BYTES])
                file.truncate()  # after the write: ext4 takes a millisecond or more to empty a file
        yield partial(_show_life, file)


def _open_or_create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _wait_for_lock(file: io.FileIO, limit_seconds: float) -> bool:
    """Return True once the lock is taken, False if the wait ended without it."""
    began_seconds = time.time()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = os.pread(file.fileno(), _HOLDER_BYTES, 0).decode(errors="replace").split(" ", 2)
            pid, host, what = words if len(words) == 3 else ("(unknown)", "this machine", "has the lock")
        else:
            return True
        waited_seconds = time.time() - began_seconds
        if waited_seconds < _POLL_SECONDS:
            _log.info("waiting for process %s of %s, which %s", pid, host, what)
        silent_seconds = time.time() - max(began_seconds, os.fstat(file.fileno()).st_mtime)
        if host == socket.gethostname() and _is_gone(pid):
            _log.warning("process %s, which %s, has ended, but its child still holds the lock: not waiting", pid, what)
            return False
        if silent_seconds > limit_seconds:
            text = "process %s of %s, which %s, has shown no sign of life for %.0f s: no longer waiting"
            _log.warning(text, pid, host, what, silent_seconds)
            return False
        time.sleep(min(_POLL_SECONDS, 0.005 + waited_seconds / 10))


def _is_gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (OSError, ValueError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def _show_life(file: io.FileIO | None) -> None:
    if file is not None and time.time() - os.fstat(file.fileno()).st_mtime > _LIFE_SECONDS:
        os.utime(file.fileno())


def _unlock(file: io.FileIO) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


class InheritedLock:
    """A lock that ends with the processes that hold it: this one, and children that inherit its ``descriptor``.

    Children get the descriptor by ``pass_fds``. If locking does not work (some network mounts), every process holds the
    lock. Raises `StorageError` if another process still holds it after ``wait_seconds``.
    """

    def __init__(self, path: str, *, wait_seconds: float) -> None:
        self.path = path
        self.descriptor = -1
        deadline = time.monotonic() + wait_seconds
        try:
            while not (is_taken := self._try_to_take()) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS / 2)
        except OSError as error:
            raise os_failure(error, path, verb="lock") from error
        if not is_taken:
            msg = f"{os.path.dirname(path)}: another process is working here"
            raise StorageError(msg, hint="wait until it ends, or end it; its finished shards are kept")

    def release(self) -> None:
        """Release the lock; children that inherited it may still hold it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _try_to_take(self) -> bool:
        """Try to lock; return True on success. A lock on a file that was removed meanwhile does not count."""
        directory = os.path.dirname(self.path)
        os.makedirs(directory, exist_ok=True)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if os.path.islink(self.path):
                raise
            return False  # another process has just finished, and removed the directory
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
