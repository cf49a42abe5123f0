"""Whole files, written so that no reader ever sees half of one."""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH118

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from shoal.storage.store import Buffer


def write_whole(path: str, buffers: Sequence[Buffer], *, durable: bool = True) -> None:
    """Write the buffers, one after another, to the file ``path``: all of it becomes visible at once, or nothing does.

    Missing directories are made. ``durable``: the bytes are on the disk before the name is, so after a crash of the
    machine there is the old file or the new one; without it some file systems leave an empty one, and there is no wait.
    On failure no temporary file stays behind, except after a kill; such a leftover is hidden and ends in ``.tmp``.

    Raises
    ------
    OSError
        Unchanged, from the system.
    """
    directory, name = os.path.split(os.path.abspath(path))
    # Shortened, since file systems limit names to 255 bytes.
    stem = os.fsdecode(os.fsencode(name)[:200])
    temporary = os.path.join(directory, f".{stem}.{os.urandom(6).hex()}.tmp")
    os.makedirs(directory, exist_ok=True)
    try:
        _write_new(temporary, buffers, durable=durable)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_directory(directory)


def _write_new(path: str, buffers: Sequence[Buffer], *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for buffer in buffers:
            rest = memoryview(buffer).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: str) -> None:
    """Make the new name itself survive a crash, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
