"""Where on this machine things are kept that can be made again: indexes, and the half-done work of making one.

Nothing here may stop a run: a cache that cannot be written is a warning, and the work is done without it.
"""

# Paths are text in this room, as they are for every other store.
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

__all__ = ["Scratch", "alone", "cache_directory"]

_log = logging.getLogger("shoal")

_NOWHERE = "/dev/null/shoal"  # where nothing can be written at all
_POLL_SECONDS = 0.1
_SIGN_SECONDS = 5.0
_HOLDER_BYTES = 512
_said: set[tuple[str, str]] = set()


def cache_directory(asked: str | os.PathLike[str] | None = None) -> str:
    """The directory ``asked`` for, else $SHOAL_CACHE_DIR, $XDG_CACHE_HOME/shoal or ~/.cache/shoal; not made yet.

    Where there is no home, or nothing can be written there, it is a directory of this user alone among temporary files,
    which a warning names.
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
    """Where caches of this user are, and why nothing can be kept there, if so."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # others are to be ignored, by the rules of that variable
        place = above = os.path.join(base, "shoal")
    else:
        home = home_of_user()
        if home is None:
            return "~/.cache/shoal", "there is no home"
        place = above = os.path.join(home, ".cache", "shoal")
        if not os.path.isdir(home):
            return place, f"the home {home} is not there"
    if os.path.isdir(place):  # read where it may not be written to: somebody may have put an index there
        return place, ""
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
        return place, ""
    return place, f"nothing can be written to {above}"


def _private_place() -> str:
    """A directory of this user alone among temporary files, which other processes of the user find again."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"shoal-cache-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if stat_bits.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return path
        return _made_for_this_process()  # somebody else has made what is there
    except OSError:
        return _NOWHERE


@cache
def _made_for_this_process() -> str:
    made = tempfile.mkdtemp(prefix="shoal-cache-")
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:  # and not a child of who made it
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def alone(path: str, *, what: str, limit_seconds: float = 300.0) -> Iterator[Callable[[], None]]:
    """Wait until no other process of this machine is in here with the same ``path``, a small file that stays.

    The system lets go of it when its holder ends in whatever way. Where locking does not work (a read-only directory,
    some network mounts), everybody goes ahead: they do the same work, and none of it is wrong. So does who finds that
    the holder is gone, and a child of it has the file; and who has waited for ``limit_seconds`` since the holder last
    gave a sign of life, by calling what this gives.
    """
    with contextlib.ExitStack() as held:
        file = None
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = held.enter_context(open(path, "ab+", buffering=0))
            if _taken(file, limit_seconds):
                # Also of the descriptors that a child has inherited, who does not know of them.
                held.callback(_let_go, file)
                file.truncate(0)
                file.write(f"{os.getpid()} {socket.gethostname()} {what}".encode(errors="replace")[:_HOLDER_BYTES])
            else:
                file = None
        yield _nothing if file is None else partial(_give_sign, file)


def _taken(file: io.FileIO, limit_seconds: float) -> bool:
    """Whether a lock was had; False where it is not waited for any longer."""
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
    """Number and machine of the process that has a lock, and what it does, as it wrote them down."""
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
    """No sign is needed where nobody waits."""


def _let_go(file: io.FileIO) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


class Scratch:
    """Results kept in one directory while a long piece of work runs, so that it can be taken up after a kill.

    The names of entries end in ``suffix``, by which they are told from what others put there. Entries carry a
    CRC-32: one that a crash left half-written counts as absent.
    """

    def __init__(self, directory: str, *, suffix: str) -> None:
        self.directory = directory
        self.suffix = suffix
        self._works = True

    def get(self, name: str) -> memoryview | None:
        """The entry ``name``, or None where there is none or not all of it."""
        try:
            with open(self._path(name), "rb") as file:
                data = memoryview(file.read())
        except OSError:
            return None
        whole = len(data) >= _CRC_BYTES and zlib.crc32(data[_CRC_BYTES:]) == int.from_bytes(data[:_CRC_BYTES], "little")
        return data[_CRC_BYTES:] if whole else None

    def put(self, name: str, data: Sequence[Buffer]) -> None:
        """Keep an entry; after the first failure (read-only, disk full) only a warning, and nothing more is kept."""
        if not self._works:
            return
        crc = 0
        for buffer in data:
            crc = zlib.crc32(buffer, crc)
        try:
            # Not waiting for the disk: what a power failure tears, the CRC shows.
            write_whole(self._path(name), [crc.to_bytes(_CRC_BYTES, "little"), *data], durable=False)
        except OSError as error:
            self._works = False
            _log.warning("cannot keep work in %s (%s); if it is interrupted, it starts anew", self.directory, error)

    def clear(self) -> None:
        """Remove what was kept, also by an earlier process, and the directory if nothing else is in it."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                if name.endswith((self.suffix, ".tmp")):
                    os.remove(self._path(name))
            os.rmdir(self.directory)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


_CRC_BYTES = 4
