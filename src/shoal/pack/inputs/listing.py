"""Listing of all files below a directory, in several processes if there are many, always in the same order."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from shoal.errors import WorkerError
from shoal.storage.files import scandir
from shoal.storage.files.scandir import Found, scan_directory
from shoal.storage.files.small_files import FileTree, tree_of
from shoal.storage.sources.shard_selection import warn_of_hidden
from shoal.storage.storage_errors import os_failure

_ALONE_FILES = 4096  # listing this many files takes as long as starting an interpreter
_AT_ONCE_DIRECTORIES = 64
_AT_ONCE_LETTERS = 8192  # of their names; two pending requests fit into a pipe
_AHEAD = 2


def files_below(root: str, *, num_workers: int = 1) -> FileTree:
    """List all files at any depth, sorted by name, without hidden files and the contents of hidden directories.

    Links are followed, except links to a directory above. 2.7 us per file and process, 60 bytes per file. Raises
    `StorageError` if a directory cannot be listed.
    """
    listings: dict[str, Found] = {}
    pending: deque[_Request] = deque([("", ())])
    num_files = 0
    try:
        while pending and (num_workers <= 1 or num_files < _ALONE_FILES):
            directory, above = pending.popleft()
            num_files += _store(scan_directory(root, directory, above), above, listings, pending)
    except OSError as error:
        raise os_failure(error, f"{root}/{directory}", verb="list") from error
    if pending:
        _list_in_processes(root, pending, listings, num_workers)
    if hidden := [(f"{root}/{answer[0]}{answer[-1]}", answer[-2]) for answer in listings.values() if answer[-2]]:
        warn_of_hidden(root, sum(count for _, count in hidden), min(hidden)[0])
    ordered = list(_in_order(listings, ""))
    sizes = b"".join([size for _, _, _, size, _ in ordered])
    times = b"".join([time for _, _, _, _, time in ordered])
    runs = [(directory, count, names) for directory, count, names, _, _ in ordered]
    return tree_of(root, runs, np.frombuffer(sizes, np.int64), np.frombuffer(times, np.int64))


_Request = tuple[str, tuple[tuple[int, int], ...]]


def _store(
    answer: Found | None, above: tuple[tuple[int, int], ...], listings: dict[str, Found], pending: deque[_Request]
) -> int:
    """Store the listing of a directory, queue its subdirectories, and return its number of files."""
    if answer is None:
        return 0
    directory, count, _, _, _, inside, identity = answer[:7]
    listings[directory] = answer
    deeper = (*above, identity)
    pending.extend((f"{directory}{name}/", deeper) for _, name in inside)
    return count


def _list_in_processes(root: str, pending: deque[_Request], listings: dict[str, Found], num_workers: int) -> None:
    listers = [_Lister() for _ in range(num_workers)]
    try:
        while pending or any(lister.requests for lister in listers):
            for lister in listers * _AHEAD:
                if pending and len(lister.requests) < _AHEAD:
                    lister.ask(root, _some(pending, len(listers)))
            busy = [lister for lister in listers if lister.requests]
            ready = wait([lister.answers for lister in busy])
            for lister in busy:
                if lister.answers in ready:
                    for above, answer in lister.received(root):
                        _store(answer, above, listings, pending)
    finally:
        for lister in listers:
            lister.end()


def _some(pending: deque[_Request], num_listers: int) -> list[_Request]:
    """Take a fair share of the directories still to be listed."""
    most = min(_AT_ONCE_DIRECTORIES, 1 + len(pending) // (2 * _AHEAD * num_listers))
    some, letters = [pending.popleft()], 0
    while pending and len(some) < most and letters < _AT_ONCE_LETTERS:
        some.append(pending.popleft())
        letters += len(some[-1][0])
    return some


class _Lister:
    """A process that lists directories."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # this very interpreter
            [sys.executable, "-I", "-S", scandir.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self.answers: Any = self._process.stdout
        self.requests: deque[list[_Request]] = deque()
        self._buffer = bytearray()

    def ask(self, root: str, some: list[_Request]) -> None:
        """Send a request to list some directories."""
        self.requests.append(some)
        pipe: Any = self._process.stdin
        with suppress(BrokenPipeError):  # a dead process is noticed when its answer is read
            pipe.write(scandir.frame((root, some)))

    def received(self, root: str) -> Iterator[tuple[tuple[tuple[int, int], ...], Found | None]]:
        """Yield listings that have arrived since the last call; none while an answer is incomplete."""
        data = self.answers.read(1 << 20)
        if not data:
            msg = f"{root}: the process that lists it ended with exit status {self._process.wait()}"
            raise WorkerError(msg, hint="out of memory? num_workers=1 lists in one process")
        self._buffer += data
        for answers in scandir.parsed_frames(self._buffer):
            request = self.requests.popleft()
            if answers and answers[0] is not None and len(answers[0]) == 3:
                failed, number, words = answers[0]
                raise os_failure(OSError(number, words), f"{root}/{failed}", verb="list")
            for (_, above), answer in zip(request, answers, strict=True):
                yield above, answer

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _in_order(listings: dict[str, Found], directory: str) -> Iterator[tuple[str, int, bytes, bytes, bytes]]:
    """Yield runs of files sorted by full name: files of a subdirectory come between the files beside it."""
    if directory not in listings:
        return
    _, count, joined, sizes, times, inside = listings.pop(directory)[:6]
    is_split = any(before not in (0, count) for before, _ in inside)
    names = joined.split(b"\0") if is_split else []
    first = 0
    for end, name in [*inside, (count, "")]:
        if end > first:
            part = joined if end - first == count else b"\0".join(names[first:end])
            yield directory, end - first, part, sizes[8 * first : 8 * end], times[8 * first : 8 * end]
            first = end
        if name:
            yield from _in_order(listings, f"{directory}{name}/")
