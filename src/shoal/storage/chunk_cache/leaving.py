"""A process's exit from a chunk cache: the last one removes what is not to be kept, down to the last folder.

A process that opens the cache meanwhile finds that a file or a folder is missing, and opens it once more: names are
removed only while the ledger is held and there is no other user, and a ledger without a name is ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from shoal.storage.chunk_cache.directory import SUBFOLDERS, is_place_for_sharing
from shoal.storage.chunk_cache.eviction import VICTIMS, Evictions, chunks_in, sweep
from shoal.storage.chunk_cache.file_locks import let_go, lock_now, open_for_lock
from shoal.storage.chunk_cache.fill_locks import Claims
from shoal.storage.chunk_cache.usage import LEDGER

_SECONDS_TO_TELL = 0.2  # a process that leaves a loop waits no longer; its counts are reported the next time
_DATASET = re.compile("[0-9a-f]{16}")


def leave(users: list[int], files: Claims, *, keep: bool, pid: int, dataset: str) -> None:
    """Release the cache. A forked child shares its parent's locks, and only closes."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.utime(f"datasets/{dataset}", dir_fd=files.folder)
        tell_now(files)
    if os.getpid() == pid and not keep and users:
        with contextlib.suppress(OSError):
            _clear_if_last(users, files)
    abandon(files.folder, users)


def tell_now(files: Claims) -> None:
    """Add this process's counts to the shared counts, unless another process holds the ledger."""
    if files.has_news and not files.is_lost:
        with contextlib.suppress(OSError), files.ledger.held(_SECONDS_TO_TELL) as book:
            files.tell(book)


def abandon(folder: int, users: Sequence[int]) -> None:
    """Close the descriptors that a process has open of a cache."""
    for descriptor in (*users, folder):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _clear_if_last(users: list[int], files: Claims) -> None:
    folder = files.folder
    with files.ledger.held() as book:
        for descriptor in users:
            os.close(descriptor)
        users.clear()
        alone = open_for_lock("users", os.O_RDWR, directory=folder)
        try:
            if lock_now(alone):
                for chunk in list(chunks_in(folder)):
                    Evictions(folder).evict(book, chunk.name)
                sweep(folder, book)
                with contextlib.suppress(OSError):  # other files are in it
                    _remove_folder(folder, files.path)
        finally:
            let_go(alone)


def _remove_folder(folder: int, path: str) -> None:
    """Remove the folder, and the directory made for it alone; stop at the first that is not empty."""
    datasets = os.open("datasets", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    try:
        for name in filter(_DATASET.fullmatch, os.listdir(datasets)):
            os.unlink(name, dir_fd=datasets)
    finally:
        os.close(datasets)
    for name in SUBFOLDERS:
        os.rmdir(name, dir_fd=folder)
    # The ledger last: until then, newcomers wait for it.
    for name in ("users", VICTIMS, LEDGER):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    os.rmdir(path)
    above = os.path.dirname(path)
    if is_place_for_sharing(above):
        os.rmdir(above)
