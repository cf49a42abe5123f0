"""Text files of lines that several processes append to and none rewrites."""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH103, PTH120, PTH123

from __future__ import annotations

import errno
import os

from shoal.errors import StorageError
from shoal.storage.storage_errors import os_failure

_MOST_FILE_BYTES = 1 << 30


def append_line(path: str, line: str) -> None:
    """Append a line to the file ``path``, made if missing; lines of several processes never mix.

    The line goes out in one append, which local file systems carry out as one step.

    Raises
    ------
    StorageError
        It could not be written, or only in part.
    """
    _append(path, line.encode() + b"\n")


def make_line_file(path: str) -> None:
    """Make the file ``path`` if there is none, and check now that lines can be appended to it.

    Raises
    ------
    StorageError
        They cannot.
    """
    _append(path, b"")


def _append(path: str, data: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if data and os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise os_failure(error, path, verb="add a line to") from error


def read_lines(path: str) -> list[str] | None:
    """Return the lines of the file ``path``, blank ones too; None if there is no such file.

    Raises
    ------
    StorageError
        It cannot be read, is no text, or has more than 1 GiB.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise os_failure(error, path, verb="read") from error
    if len(data) > _MOST_FILE_BYTES:
        msg = f"{path}: a file of lines with more than {_MOST_FILE_BYTES} bytes"
        raise StorageError(msg, hint="is it the right file?")
    try:
        return data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        msg = f"{path}: byte {error.start} is no UTF-8 text"
        raise StorageError(msg, hint="is it the right file?") from None
