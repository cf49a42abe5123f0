"""An object for a remote store, whose bytes wait on this machine until it is complete.

A store shows an object when it is whole, so bytes could be sent as they come. But a multipart upload that is killed
stays in the bucket, invisible and billed, and a slow one keeps the producer of the bytes waiting. A file without a name
is gone with the process, and makes nobody wait.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from typing import IO

from shoal.storage.storage_errors import os_failure
from shoal.storage.store import Buffer, Put

_HELD_BYTES = 8 << 20


class SpooledObject:
    """An object that is uploaded when it is finished: from memory up to 8 MiB, else from a file without a name.

    The file lies in the temporary directory ($TMPDIR), and its pages are page cache, which the system reclaims when it
    is short of memory.
    """

    def __init__(self, path: str, store: Put) -> None:
        self._path, self._store = path, store
        self._buffers: list[Buffer] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append bytes.

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
                raise os_failure(error, kept, verb="keep") from error

    def finish(self) -> None:
        """Upload the object.

        Raises
        ------
        StorageError
            It could not be put.
        """
        try:
            if self._file is None:
                self._store.put(self._path, self._buffers)
                return
            # Dropped, not closed: a client may still hold the bytes that it has sent.
            self._store.put(self._path, memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Discard the bytes."""
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
