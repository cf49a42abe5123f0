"""Many small files of this machine: lists in little memory, and reads of whole files, each in four system calls."""

from __future__ import annotations

import glob
import os
import stat as stat_bits
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError, StorageError
from shoal.hints import MOST_POINTER_BYTES, pointer_in
from shoal.storage.files.local_store import read_fully
from shoal.storage.files.scandir import wrap_int64
from shoal.storage.storage_errors import os_failure

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a named pipe would otherwise wait for its writer
_AT_ONCE_BYTES = 1 << 30
_OPEN_FILES = 64  # at the same time
_WORTH_A_DESCRIPTOR = 4  # files of one directory; opening it costs as much as resolving this many paths


@dataclass(frozen=True, slots=True, eq=False)
class FileTree:
    """Files below ``root``, in runs of one directory each; about 50 bytes a file.

    Run ``r`` has the files ``[first_file[r], first_file[r + 1])`` of ``directories[r]``, which is empty or ends with a
    slash. ``joined`` has the last parts of their names, each ended by a NUL; part ``i`` begins at ``starts[i]``, shape
    (num_files + 1,). ``num_bytes`` and ``modified_ns``, shape (num_files,), are as of the listing; the size is -1 for
    entries that failed in stat.
    """

    root: str
    directories: Sequence[str]
    first_file: NDArray[np.int64]
    joined: bytes
    starts: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    modified_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.num_bytes)

    def last_parts(self) -> list[bytes]:
        """Return the last part of each name."""
        return self.joined.split(b"\0")[:-1]

    def names(self) -> list[str]:
        """Return all names below the root, as text."""
        parts = self.joined.decode("utf-8", "surrogateescape").split("\0")
        borders = self.first_file.tolist()
        return [
            directory + part
            for run, directory in enumerate(self.directories)
            for part in parts[borders[run] : borders[run + 1]]
        ]

    def part(self, start: int, stop: int) -> FileTree:
        """Return the files ``[start, stop)``; O(1) except for copies of their names."""
        first_run = int(np.searchsorted(self.first_file, start, side="right")) - 1
        last_run = max(first_run + 1, int(np.searchsorted(self.first_file, stop, side="left")))
        borders = np.clip(self.first_file[first_run : last_run + 1], start, stop) - start
        begin, end = int(self.starts[start]), int(self.starts[stop])
        return FileTree(
            self.root,
            self.directories[first_run:last_run],
            borders,
            self.joined[begin:end],
            self.starts[start : stop + 1] - begin,
            self.num_bytes[start:stop],
            self.modified_ns[start:stop],
        )

    def take(self, numbers: NDArray[np.int64]) -> FileTree:
        """Return the files with these numbers, in this order."""
        if not len(numbers):
            return self.part(0, 0)
        if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 and bool((np.diff(numbers) == 1).all()):
            return self.part(int(numbers[0]), int(numbers[-1]) + 1)
        runs = np.searchsorted(self.first_file, numbers, side="right") - 1
        changes = np.flatnonzero(np.diff(runs)) + 1
        borders = np.concatenate([[0], changes, [len(numbers)]]).astype(np.int64)
        begins, ends = self.starts[numbers], self.starts[numbers + 1]
        joined = b"".join([self.joined[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)])
        return FileTree(
            self.root,
            [self.directories[run] for run in runs[borders[:-1]].tolist()],
            borders,
            joined,
            np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64),
            self.num_bytes[numbers],
            self.modified_ns[numbers],
        )


def tree_of(
    root: str, runs: Sequence[tuple[str, int, bytes]], num_bytes: NDArray[np.int64], modified_ns: NDArray[np.int64]
) -> FileTree:
    """Build a tree from runs: name of a directory, its number of files, and their names joined by NUL."""
    full_runs = [run for run in runs if run[1]]
    joined = b"\0".join([names for _, _, names in full_runs]) + b"\0" if full_runs else b""
    ends = np.flatnonzero(np.frombuffer(joined, dtype=np.uint8) == 0) + 1
    starts = np.concatenate([[0], ends]).astype(np.int64)
    first_file = np.concatenate([[0], np.cumsum([count for _, count, _ in full_runs])]).astype(np.int64)
    return FileTree(
        root, [directory for directory, _, _ in full_runs], first_file, joined, starts, num_bytes, modified_ns
    )


@dataclass(frozen=True, slots=True, eq=False)
class FileList:
    """Files below ``root``: their names, sizes and modification times in ns, as of the listing."""

    root: str
    names: Sequence[str]
    num_bytes: NDArray[np.int64]
    modified_ns: NDArray[np.int64]


def stat_files(root: str, names: Sequence[str]) -> FileList:
    """Return files by their names below ``root`` (or absolute), in order; the size is -1 if stat failed."""
    num_bytes = np.full(len(names), -1, dtype=np.int64)
    modified_ns = np.zeros(len(names), dtype=np.int64)
    for number, name in enumerate(names):
        try:
            status = os.stat(os.path.join(root, name))
        except OSError:
            continue
        if stat_bits.S_ISREG(status.st_mode):
            num_bytes[number], modified_ns[number] = status.st_size, wrap_int64(status.st_mtime_ns)
    return FileList(root, names, num_bytes, modified_ns)


def glob_files(pattern: str, *, root: str) -> FileTree:
    """Return the files that match a glob (``**``: any directories), at least one, with names below ``root``."""
    # Keep matches that are neither file nor directory: reading them raises an error, or skips and lists them.
    matches = (path for path in glob.iglob(pattern, recursive=True) if not os.path.isdir(path))
    paths = sorted({*matches, *lost_directories(pattern)})
    if not paths:
        raise SourceError(f"{pattern}: matches no files", hint="** matches any directories, as in 'photos/**/*.jpg'")
    files = stat_files(root, [os.path.relpath(path, root).replace(os.sep, "/") for path in paths])
    runs = []
    for directory, names in groupby(files.names, key=lambda name: name[: name.rfind("/") + 1]):
        parts = [name[len(directory) :] for name in names]
        runs.append((directory, len(parts), "\0".join(parts).encode("utf-8", "surrogateescape")))
    return tree_of(root, runs, files.num_bytes, files.modified_ns)


def is_lost_directory(path: str) -> bool:
    """Return True for a dangling link without a suffix: its target may have been a directory with data."""
    return "." not in os.path.basename(path) and os.path.islink(path) and not os.path.exists(path)


def lost_directories(pattern: str) -> Iterator[str]:
    """Yield the dangling links that match the directories of a `glob` pattern."""
    parts = pattern.split(os.sep)
    for number in range(1, len(parts)):
        if glob.has_magic(parts[number - 1]):
            yield from filter(is_lost_directory, glob.iglob(os.sep.join(parts[:number]), recursive=True))


def read_small(path: str, num_bytes: int, modified_ns: int) -> bytes:
    """Return the whole file; raise `StorageError` if it is unreadable, a pointer, or changed since the listing."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            # Read one byte more than expected, which reveals a file that grew. Entries that were no files in the
            # listing are not read: a device has no end.
            data = os.read(descriptor, min(num_bytes + 1, _AT_ONCE_BYTES)) if num_bytes >= 0 else b""
            if len(data) == _AT_ONCE_BYTES:
                data += read_fully(descriptor, len(data), num_bytes + 1)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise os_failure(error, path, verb="read") from error
    except MemoryError:
        msg = f"could not read {path}: there is not enough memory for its {num_bytes} bytes"
        raise StorageError(msg, hint="each process holds a file: reduce num_workers=, or use on_error='skip'") from None
    if len(data) <= MOST_POINTER_BYTES and (pointer := pointer_in(data)):
        raise StorageError(f"{path}: {pointer[0]}", hint=pointer[1])
    if len(data) == num_bytes == status.st_size and wrap_int64(status.st_mtime_ns) == modified_ns:
        return data
    if not stat_bits.S_ISREG(status.st_mode):
        msg = f"could not read {path}: it is a directory, a pipe, a socket or a device, not a file"
        raise StorageError(msg, hint="name files; on_error='skip' leaves out unreadable files, and lists them")
    now = f"now it has {status.st_size}"
    if num_bytes == status.st_size:
        now = "it was written to" if wrap_int64(status.st_mtime_ns) != modified_ns else f"{len(data)} could be read"
    msg = f"{path}: this file changed while it was being packed: it had {num_bytes} bytes when it was listed, and {now}"
    raise StorageError(msg, hint="do not change inputs while they are packed; run the same command again")


def read_tree_into(files: FileTree, buffer: memoryview, offsets: Sequence[int]) -> bool:
    """Read all files, each to its offset in a buffer; return True if all were as listed. 4 us a file.

    False as soon as a file has changed or cannot be read: `read_small` raises its error.
    """
    last_parts, sizes, times = files.last_parts(), files.num_bytes.tolist(), files.modified_ns.tolist()
    borders = files.first_file.tolist()

    def read(parent: int | None, names: Sequence[bytes], first: int) -> bool:
        for start in range(0, len(names), _OPEN_FILES):
            part = names[start : start + _OPEN_FILES]
            numbers = slice(first + start, first + start + len(part))
            if not _read_some(parent, part, offsets[numbers], sizes[numbers], times[numbers], buffer):
                return False
        return True

    try:
        for run, directory in enumerate(files.directories):
            names = last_parts[borders[run] : borders[run + 1]]
            path = os.fsencode(f"{files.root}/{directory}")
            if len(names) < _WORTH_A_DESCRIPTOR:
                if not read(None, [path + name for name in names], borders[run]):
                    return False
                continue
            parent = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if not read(parent, names, borders[run]):
                    return False
            finally:
                os.close(parent)
    except OSError:
        return False
    return True


def _read_some(
    parent: int | None,
    names: Sequence[bytes],
    offsets: Sequence[int],
    sizes: Sequence[int],
    times: Sequence[int],
    buffer: memoryview,
) -> bool:
    """Read files into a buffer: one kind of call for all files, then the next kind, which is a tenth faster."""
    descriptors: list[int] = []
    try:
        # If one cannot be opened, the list already has the descriptors before it, and they are closed.
        descriptors.extend(os.open(name, _FLAGS, dir_fd=parent) for name in names)
        targets = zip(descriptors, offsets, sizes, strict=True)
        if [os.readv(file, (buffer[offset : offset + size],)) for file, offset, size in targets] != list(sizes):
            return False
        small = [(offset, size) for offset, size in zip(offsets, sizes, strict=True) if size <= MOST_POINTER_BYTES]
        if any(pointer_in(bytes(buffer[offset : offset + size])) for offset, size in small):
            return False
        # After reading: a write in between has changed the time.
        statuses = map(os.fstat, descriptors)
        return [(status.st_size, status.st_mtime_ns) for status in statuses] == list(zip(sizes, times, strict=True))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
