"""Many small files of this machine: listed by name, and read whole, each in four system calls."""

from __future__ import annotations

import glob
import os
import stat as stat_bits
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError, StorageError
from shoal.storage.files.file_tree import FileTree, tree_named
from shoal.storage.files.scandir import wrapped
from shoal.storage.storage_errors import os_failure

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a named pipe would otherwise wait for its writer
_AT_ONCE_BYTES = 1 << 30
_WORTH_A_DESCRIPTOR = 4  # files of one directory; opening it costs as much as resolving this many paths


@dataclass(frozen=True, slots=True, eq=False)
class FileList:
    """Files below ``root``: their names, sizes and modification times in ns, as of the listing."""

    root: str
    names: Sequence[str]
    num_bytes: NDArray[np.int64]
    modified_ns: NDArray[np.int64]


def files_named(root: str, names: Sequence[str]) -> FileList:
    """Return the files of these names below ``root`` (or of absolute names), in this order.

    A file that fails in stat has the size -1: reading it raises the error.
    """
    num_bytes = np.full(len(names), -1, dtype=np.int64)
    modified_ns = np.zeros(len(names), dtype=np.int64)
    for number, name in enumerate(names):
        try:
            found = os.stat(os.path.join(root, name))
        except OSError:
            continue
        if stat_bits.S_ISREG(found.st_mode):
            num_bytes[number], modified_ns[number] = found.st_size, wrapped(found.st_mtime_ns)
    return FileList(root, names, num_bytes, modified_ns)


def files_matching(pattern: str) -> FileTree:
    """Return the files that a glob matches (``**``: any directories), named below their common directory.

    Raises
    ------
    SourceError
        There are none.
    """
    # Keep matches that are neither file nor directory: they are an error, or left out and listed.
    found = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
    if not found:
        msg = f"{pattern}: matches no files"
        raise SourceError(msg, hint="** matches any directories, as in 'photos/**/*.jpg'")
    root = os.path.commonpath([os.path.dirname(path) for path in found])
    files = files_named(root, [os.path.relpath(path, root).replace(os.sep, "/") for path in found])
    return tree_named(root, files.names, files.num_bytes, files.modified_ns)


def read_small(path: str, num_bytes: int, modified_ns: int) -> bytes:
    """Return the whole file, if it still has this size and modification time.

    Raises
    ------
    StorageError
        It cannot be read, or it changed since it was listed.
    """
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            # Read one byte more than expected, which reveals a file that grew.
            # An entry that was no file when it was listed is not read: a device has no end.
            data = os.read(descriptor, min(num_bytes + 1, _AT_ONCE_BYTES)) if num_bytes >= 0 else b""
            if len(data) == _AT_ONCE_BYTES:
                data = _read_on(descriptor, data, num_bytes)
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise os_failure(error, path, verb="read") from error
    except MemoryError:
        msg = f"could not read {path}: there is no memory for its {num_bytes} bytes"
        raise StorageError(msg, hint="each process holds one file: fewer --workers, or --on-error skip") from None
    if len(data) == num_bytes == found.st_size and wrapped(found.st_mtime_ns) == modified_ns:
        return data
    if not stat_bits.S_ISREG(found.st_mode):
        msg = f"could not read {path}: it is no file but a directory, a pipe, a socket or a device"
        raise StorageError(msg, hint="name files; --on-error skip leaves out what cannot be read, and lists it")
    now = f"now it has {found.st_size}"
    if num_bytes == found.st_size:
        now = "it was written to" if wrapped(found.st_mtime_ns) != modified_ns else f"{len(data)} could be read"
    msg = f"{path}: this file changed while it was being packed: it had {num_bytes} bytes when it was listed, and {now}"
    raise StorageError(msg, hint="let nobody write to inputs while they are packed; the same command lists them anew")


def _read_on(descriptor: int, data: bytes, num_bytes: int) -> bytes:
    """Read the rest of a large file; one system call gives at most 2 GiB."""
    parts, have = [data], len(data)
    while have <= num_bytes and (more := os.read(descriptor, _AT_ONCE_BYTES)):
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def read_tree_into(files: FileTree, buffer: memoryview, places: Sequence[int]) -> bool:
    """Read all files, each to its place in a buffer; return True if each was still as listed. 4 us a file.

    False as soon as one is not, or cannot be read: `read_small` raises the error for it.
    """
    last_parts, sizes, times = files.last_parts(), files.num_bytes.tolist(), files.modified_ns.tolist()
    borders = files.first_file.tolist()
    try:
        for run, directory in enumerate(files.directories):
            some = slice(borders[run], borders[run + 1])
            path = os.fsencode(f"{files.root}/{directory}")
            if some.stop - some.start < _WORTH_A_DESCRIPTOR:
                names = [path + name for name in last_parts[some]]
                if not _read_some(None, names, places[some], sizes[some], times[some], buffer):
                    return False
                continue
            parent = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if not _read_some(parent, last_parts[some], places[some], sizes[some], times[some], buffer):
                    return False
            finally:
                os.close(parent)
    except OSError:
        return False
    return True


def _read_some(
    parent: int | None,
    names: Sequence[bytes],
    places: Sequence[int],
    sizes: Sequence[int],
    times: Sequence[int],
    buffer: memoryview,
) -> bool:
    """Read some files into a buffer; globals are bound to locals, since packing small files spends its time here."""
    begin, readv, fstat, end, flags = os.open, os.readv, os.fstat, os.close, _FLAGS
    for name, place, num_bytes, modified_ns in zip(names, places, sizes, times, strict=True):
        descriptor = begin(name, flags, dir_fd=parent)
        try:
            have = readv(descriptor, (buffer[place : place + num_bytes],))
            # After reading: a write in between has changed the time.
            found = fstat(descriptor)
        finally:
            end(descriptor)
        if have != num_bytes or found.st_size != num_bytes or found.st_mtime_ns != modified_ns:
            return False
    return True
