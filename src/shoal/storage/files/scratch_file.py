"""A file for data that is larger than memory, of one computation: without a name, so it ends with its process."""

from __future__ import annotations

import os
import tempfile
from typing import IO

from shoal.errors import StorageError
from shoal.storage.storage_errors import os_failure
from shoal.storage.store_protocol import Buffer


class ScratchFile:
    """Bytes that are appended, and read by position; a kill leaves nothing behind.

    The file is in ``directory`` if that can be written, else in the temporary directory ($TMPDIR).
    """

    def __init__(self, directory: str) -> None:
        self._file: IO[bytes]
        self._directory = directory
        try:
            os.makedirs(directory, exist_ok=True)
            self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115  # closed by `close`
        except OSError:
            self._directory = tempfile.gettempdir()
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by `close`
        self.num_bytes = 0

    def append(self, data: Buffer) -> None:
        """Append bytes; raise `StorageError` if there is no room."""
        rest = memoryview(data).cast("B")
        self.num_bytes += len(rest)
        try:
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]
        except OSError as error:
            what = f"{self.num_bytes:,} bytes of a computation in {self._directory}"
            raise os_failure(error, what, verb="keep") from error

    def read_into(self, first_byte: int, buffer: Buffer) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on."""
        rest = memoryview(buffer).cast("B")
        while rest:
            num_bytes = os.preadv(self._file.fileno(), [rest], first_byte)
            if not num_bytes:
                raise StorageError(
                    f"a computation's file in {self._directory} has lost bytes", hint="is the disk full?"
                )
            rest, first_byte = rest[num_bytes:], first_byte + num_bytes

    def close(self) -> None:
        """Give the room back."""
        self._file.close()
