"""The directory of this machine for data that can be rebuilt: indexes, and unfinished work on them.

Nothing here may stop a run: a cache that cannot be written is a warning, and the work is done without it.
"""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH100, PTH102, PTH103, PTH112, PTH117, PTH107, PTH106, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import logging
import os
import shutil
import socket
import stat as stat_bits
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from shoal.storage.atomic.whole_files import write_whole
from shoal.storage.index_cache.home import home_of_user, with_home
from shoal.storage.store import Buffer

_log = logging.getLogger("shoal")

_NOWHERE = "/dev/null/shoal"  # a path at which nothing can be written
_POLL_SECONDS = 0.1
_SIGN_SECONDS = 5.0
_HOLDER_BYTES = 512
_said: set[tuple[str, str]] = set()


def cache_directory(asked: str | os.PathLike[str] | None = None) -> str:
    """Return ``asked``, else $SHOAL_CACHE_DIR, $XDG_CACHE_HOME/shoal or ~/.cache/shoal; the directory is not made yet.

    Without a home, or if nothing can be written there, it is a private directory of this user below the temporary
    directory, and a warning names it.
    """
    if asked is not None or (asked := os.environ.get("SHOAL_CACHE_DIR")):
        return os.path.abspath(with_home(os.fspath(asked)))
    usual, what_is_wrong = _usual_place()
    if not what_is_wrong:
        return usual
    private = _private_place()
    if (usual, private) not in _said:
        _said.add((usual, private))
        text = "%s: %s; what this machine keeps is kept in %s (SHOAL_CACHE_DIR names another directory)"
        _log.warning(text, usual, what_is_wrong, private)
    return private


def _usual_place() -> tuple[str, str]:
    """Return the usual cache directory of this user, and why nothing can be kept there ("" if it can)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # relative paths must be ignored, by the XDG specification
        place = above = os.path.join(base, "shoal")
    else:
        home = home_of_user()
        if home is None:
            return "~/.cache/shoal", "there is no home"
        place = above = os.path.join(home, ".cache", "shoal")
        if not os.path.isdir(home):
            return place, f"the home {home} is not there"
    if os.path.isdir(place):  # useful even if read-only: somebody may have put an index there
        return place, ""
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
        return place, ""
    return place, f"nothing can be written to {above}"


def _private_place() -> str:
    """Return a private directory of this user below the temporary directory, which the user's other processes find."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"shoal-cache-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if stat_bits.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return path
        return _made_for_this_process()  # another user made the existing one
    except OSError:
        return _NOWHERE


@cache
def _made_for_this_process() -> str:
    made = tempfile.mkdtemp(prefix="shoal-cache-")
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def alone(path: str, *, what: str, limit_seconds: float = 300.0) -> Iterator[Callable[[], None]]:
    """Wait until no other process of this machine holds the lock file ``path``, a small file that stays.

    The system releases the lock when its holder ends, however it ends. Where locking does not work (a read-only
    directory, some network mounts), every process goes ahead: they do the same work, and none of it is wrong. A process
    also goes ahead if the holder is gone and only a child of it has the file, or after waiting ``limit_seconds``
    since the holder last called the function that this yields, as a sign of life.
    """
    with contextlib.ExitStack() as held:
        file = None
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = held.enter_context(open(path, "ab+", buffering=0))
            if _taken(file, limit_seconds):
                # Unlocking also covers descriptors that a child has inherited without knowing.
                held.callback(_let_go, file)
                file.truncate(0)
                file.write(f"{os.getpid()} {socket.gethostname()} {what}".encode(errors="replace")[:_HOLDER_BYTES])
            else:
                file = None
        yield _nothing if file is None else partial(_give_sign, file)


def _taken(file: io.FileIO, limit_seconds: float) -> bool:
    """Return True once the lock is taken, False if waiting for it was given up."""
    began_seconds = time.time()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, host, what = _holder(file)
        else:
            return True
        waited_seconds = time.time() - began_seconds
        if waited_seconds < _POLL_SECONDS:
            _log.info("waiting for process %s of %s, which %s", pid, host, what)
        silent_seconds = time.time() - max(began_seconds, os.fstat(file.fileno()).st_mtime)
        if host == socket.gethostname() and _is_gone(pid):
            _log.warning("process %s ended while it held %s, and a child of it still does: not waited for", pid, what)
            return False
        if silent_seconds > limit_seconds:
            text = "process %s of %s, which %s, has given no sign of life for %.0f s: not waited for any longer"
            _log.warning(text, pid, host, what, silent_seconds)
            return False
        time.sleep(_POLL_SECONDS)


def _holder(file: io.FileIO) -> tuple[str, str, str]:
    """Return process number and host of the lock's holder, and what it does, as it wrote them down."""
    words = os.pread(file.fileno(), _HOLDER_BYTES, 0).decode(errors="replace").split(" ", 2)
    return (words[0], words[1], words[2]) if len(words) == 3 else ("(unknown)", "this machine", "has the lock")


def _is_gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _give_sign(file: io.FileIO) -> None:
    if time.time() - os.fstat(file.fileno()).st_mtime > _SIGN_SECONDS:
        os.utime(file.fileno())


def _nothing() -> None:
    """Do nothing: without a lock no process waits for a sign of life."""


def _let_go(file: io.FileIO) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


class Scratch:
    """Results kept in one directory while a long job runs, so that it can be resumed after a kill.

    The names of entries end in ``suffix``, which tells them from other files there. Entries carry a CRC-32: one that a
    crash left half-written counts as absent.
    """

    def __init__(self, directory: str, *, suffix: str) -> None:
        self.directory = directory
        self.suffix = suffix
        self._works = True

    def get(self, name: str) -> memoryview | None:
        """Return the entry ``name``, or None if it is missing or incomplete."""
        try:
            with open(self._path(name), "rb") as file:
                data = memoryview(file.read())
        except OSError:
            return None
        whole = len(data) >= _CRC_BYTES and zlib.crc32(data[_CRC_BYTES:]) == int.from_bytes(data[:_CRC_BYTES], "little")
        return data[_CRC_BYTES:] if whole else None

    def put(self, name: str, data: Sequence[Buffer]) -> None:
        """Keep an entry; after the first failure (read-only, disk full) warn once and keep nothing more."""
        if not self._works:
            return
        crc = 0
        for buffer in data:
            crc = zlib.crc32(buffer, crc)
        try:
            # No fsync: the CRC reveals an entry torn by a power failure.
            write_whole(self._path(name), [crc.to_bytes(_CRC_BYTES, "little"), *data], durable=False)
        except OSError as error:
            self._works = False
            _log.warning("cannot keep work in %s (%s); if it is interrupted, it starts anew", self.directory, error)

    def clear(self) -> None:
        """Remove all entries, those of earlier processes too, and the directory if nothing else is in it."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                if name.endswith((self.suffix, ".tmp")):
                    os.remove(self._path(name))
            os.rmdir(self.directory)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


_CRC_BYTES = 4
