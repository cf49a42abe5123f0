"""An object for a remote store, whose bytes wait on this machine until all of them are there.

A store shows an object when it is whole, so bytes could be sent as they come. But an upload in parts that is killed
stays in the bucket, unseen and paid for, and a slow one keeps whoever makes the bytes waiting. A file without a name is
gone with the process, and waits for nobody.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from typing import IO

from shoal.storage.files.os_errors import explained
from shoal.storage.store import Buffer, Put

__all__ = ["SpooledObject"]

_HELD_BYTES = 8 << 20


class SpooledObject:
    """An object that is put when it is finished: from memory up to 8 MiB, else from a file without a name.

    The file lies where temporary files do ($TMPDIR), and its pages are the system's, which takes them back when it is
    short of memory.
    """

    def __init__(self, path: str, store: Put) -> None:
        self._path, self._store = path, store
        self._buffers: list[Buffer] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Add bytes to its end.

        Raises
        ------
        StorageError
            There is no room for them on this machine; the object is abandoned.
        """
        self._buffers += buffers
        self._held_bytes += sum(map(len, buffers))
        if self._held_bytes > _HELD_BYTES or self._file is not None:
            try:
                self._spool()
            except OSError as error:
                self.abandon()
                kept = f"what is to be {self._path} in {tempfile.gettempdir()}"
                raise explained(error, kept, verb="keep") from error

    def finish(self) -> None:
        """Put it.

        Raises
        ------
        StorageError
            It could not be put.
        """
        try:
            if self._file is None:
                self._store.put(self._path, self._buffers)
                return
            # Not closed but let go of: a client may still hold what it has sent.
            self._store.put(self._path, memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Forget it."""
        self._buffers, self._held_bytes = [], 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spool(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # until it is finished, or abandoned
        for buffer in self._buffers:
            rest = memoryview(buffer)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._buffers, self._held_bytes = [], 0
