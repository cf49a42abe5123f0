"""Where on this machine things are kept that can be made again: indexes, and the half-done work of making one.

Nothing here may stop a run: a cache that cannot be written is a warning, and the work is done without it.
"""

# Paths are text in this room, as they are for every other store.
# ruff: noqa: PTH103, PTH107, PTH106, PTH111, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import zlib
from collections.abc import Iterator, Sequence

from shoal.storage.atomic import write_whole
from shoal.storage.protocol import Buffer

__all__ = ["Scratch", "alone", "cache_directory"]

_log = logging.getLogger("shoal")


def cache_directory(asked: str | os.PathLike[str] | None = None) -> str:
    """The directory ``asked`` for, else $SHOAL_CACHE_DIR, $XDG_CACHE_HOME/shoal or ~/.cache/shoal; not made yet."""
    if asked is not None:
        return os.path.expanduser(os.fspath(asked))
    if own := os.environ.get("SHOAL_CACHE_DIR"):
        return os.path.expanduser(own)
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "shoal")


@contextlib.contextmanager
def alone(path: str, *, what: str) -> Iterator[None]:
    """Wait until no other process of this machine is in here with the same ``path``, a small file that stays.

    The system lets go of it when its holder ends in whatever way. Where locking does not work (a read-only
    directory, some network mounts), everybody goes ahead: they do the same work, and none of it is wrong.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = held.enter_context(open(path, "ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("waiting for another process of this machine, which %s", what)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
