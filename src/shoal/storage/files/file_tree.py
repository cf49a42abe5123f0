"""Many files of this machine in little memory: the last parts of their names joined, sizes and times as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class FileTree:
    """Files below ``root``, in runs that lie in one directory each; about 50 bytes a file.

    Run ``r`` has the files ``[first_file[r], first_file[r + 1])`` of ``directories[r]``, which is empty or ends with a
    slash. ``joined`` has the rest of their names, each ended by a NUL; file ``i`` begins at ``starts[i]``, shape
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
        """Return the part after the directory of each name."""
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

    def directory_of_each(self) -> NDArray[np.int64]:
        """Return the run of each file; shape (num_files,)."""
        return np.repeat(np.arange(len(self.directories)), np.diff(self.first_file))

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
        """Return the files of these numbers, in this order."""
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
    """Build a tree from runs: of each directory its name, number of files, and their names joined by NUL."""
    kept = [run for run in runs if run[1]]
    joined = b"\0".join([names for _, _, names in kept]) + b"\0" if kept else b""
    ends = np.flatnonzero(np.frombuffer(joined, dtype=np.uint8) == 0) + 1
    starts = np.concatenate([[0], ends]).astype(np.int64)
    first_file = np.concatenate([[0], np.cumsum([count for _, count, _ in kept])]).astype(np.int64)
    return FileTree(root, [directory for directory, _, _ in kept], first_file, joined, starts, num_bytes, modified_ns)


def tree_named(
    root: str, names: Sequence[str], num_bytes: NDArray[np.int64], modified_ns: NDArray[np.int64]
) -> FileTree:
    """Build a tree from names below the root."""
    runs = [
        (directory, [name[len(directory) :] for name in some])
        for directory, some in groupby(names, key=lambda name: name[: name.rfind("/") + 1])
    ]
    joined = [(directory, len(parts), "\0".join(parts).encode("utf-8", "surrogateescape")) for directory, parts in runs]
    return tree_of(root, joined, num_bytes, modified_ns)
