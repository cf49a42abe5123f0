"""The cache directory of this machine: its path, its size limits, and unfinished work in it. All data can be rebuilt.

No failure of the cache stops a run: if it cannot be written, a warning says so, and the work goes on without it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import stat as stat_bits
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import cache

from shoal.errors import UsageError
from shoal.storage.files.atomic_writes import write_atomically
from shoal.storage.store_protocol import Buffer

_log = logging.getLogger("shoal")

_warned: set[tuple[str, str]] = set()
_CRC_BYTES = 4

UNITS = "units"
"""Folder of a cache directory in which the ranks of a job exchange parts of an index."""


def cache_directory(requested: str | os.PathLike[str] | None = None) -> str:
    """Return ``requested``, else $SHOAL_CACHE_DIR, $XDG_CACHE_HOME/shoal or ~/.cache/shoal; creates no directory.

    Without a writable home, it is a private directory of this user below the temporary directory, and a warning names
    it.
    """
    if requested is not None or (requested := os.environ.get("SHOAL_CACHE_DIR")):
        return os.path.abspath(expand_home(os.fspath(requested)))
    usual, problem = _usual_directory()
    if not problem:
        return usual
    private = _private_directory()
    if (usual, private) not in _warned:
        _warned.add((usual, private))
        text = "%s: %s; the caches of this machine are in %s instead (SHOAL_CACHE_DIR names another directory)"
        _log.warning(text, usual, problem, private)
    return private


def _usual_directory() -> tuple[str, str]:
    """Return the usual cache directory of this user, and the problem with writing there ("" for none)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # relative paths must be ignored, by the XDG specification
        home = _home()
        if home is None:
            return "~/.cache/shoal", "there is no home"
        base = os.path.join(home, ".cache")
        if not os.path.isdir(home):
            return os.path.join(base, "shoal"), f"the home {home} is not there"
    directory = above = os.path.join(base, "shoal")
    if os.path.isdir(directory):  # useful even if read-only: it may hold an index
        return directory, ""
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    is_writable = os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)
    return directory, "" if is_writable else f"nothing can be written to {above}"


def _private_directory() -> str:
    """Return a private directory below the temporary directory, the same for all processes of this user."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"shoal-cache-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
        if stat_bits.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return path
        return _directory_of_this_process()  # the existing directory belongs to another user
    except OSError:
        return "/dev/null/shoal"  # nothing can be written there


@cache
def _directory_of_this_process() -> str:
    path, pid = tempfile.mkdtemp(prefix="shoal-cache-"), os.getpid()

    def remove() -> None:
        if os.getpid() == pid:  # not in a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


def _home() -> str | None:
    """Return the absolute path of this user's home, existing or not; None if it is unknown."""
    home = os.path.expanduser("~")
    return home if os.path.isabs(home) and os.environ.get("HOME") != "" else None


def expand_home(path: str) -> str:
    """Return the path of an output, with ``~`` expanded.

    Raises `UsageError` if that home is unknown: a directory called ``~`` would appear in the current directory.
    """
    expanded = os.path.expanduser(path)
    name = path.partition("/")[0]
    is_unknown = _home() is None if name == "~" else expanded.startswith("~")
    if path.startswith("~") and is_unknown:
        msg = f"{path}: there is no home {name} here (HOME={os.environ.get('HOME')!r}, user number {os.geteuid()})"
        raise UsageError(msg, hint="set HOME, or write the path in full; ./~ is a file of that name")
    return expanded


def mark_used(path: str) -> None:
    """Record that a file is in use now; its contents and modification time stay."""
    with contextlib.suppress(OSError):
        # Set the access time: many mounts do not update it, and no code compares it.
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


def keep_within(directory: str, *, suffixes: Sequence[str], limit_bytes: int, limit_files: int) -> int:
    """Remove the least recently used files of ``directory`` until the rest fits; return the number removed.

    Only files named by 32 hexadecimal digits and one of ``suffixes`` count, each with its lock file: shoal named them,
    and can rebuild them. Processes that have a removed file open can still read it. The newest file stays even if it
    alone is too large: its writer needs it. A directory that cannot be read or written stays as it is. O(files log
    files).
    """
    names = re.compile(rf"[0-9a-f]{{32}}({'|'.join(map(re.escape, suffixes))})")
    kept_bytes = num_removed = 0
    for rank, (_, num_bytes, path) in enumerate(sorted(_last_uses(directory, names), reverse=True)):
        kept_bytes += num_bytes
        if rank == 0 or (kept_bytes <= limit_bytes and rank < limit_files):
            continue
        kept_bytes -= num_bytes
        with contextlib.suppress(OSError):
            os.remove(path)
            num_removed += 1
            os.remove(f"{path}.lock")
    return num_removed


def _last_uses(directory: str, names: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Yield last use (ns), size and path of each matching file."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if names.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield max(status.st_atime_ns, status.st_mtime_ns), status.st_size, entry.path


class Scratch:
    """Results kept in one directory while a long job runs, so that it can be resumed after a kill.

    Names of entries end in ``suffix``; other files stay. Entries carry a CRC-32: a half-written entry,
    left by a crash, counts as absent.
    """

    def __init__(self, directory: str, *, suffix: str) -> None:
        self.directory, self.suffix = directory, suffix
        self._works = True

    def get(self, name: str) -> memoryview | None:
        """Return the entry ``name``, or None if it is missing or incomplete."""
        try:
            with open(os.path.join(self.directory, name), "rb") as file:
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
            path, head = os.path.join(self.directory, name), crc.to_bytes(_CRC_BYTES, "little")
            write_atomically(path, [head, *data], durable=False)
        except OSError as error:
            self._works = False
            text = "cannot keep work in %s (%s); if it is interrupted, it starts from the beginning"
            _log.warning(text, self.directory, error)

    def clear(self) -> None:
        """Remove all entries, also entries of earlier processes, and the directory if it is then empty."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                if name.endswith((self.suffix, ".tmp")):
                    os.remove(os.path.join(self.directory, name))
            os.rmdir(self.directory)
