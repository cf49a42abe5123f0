"""Limits on the size of the index cache: the least recently used files are removed first.

Every file concerned can be rebuilt, was named by shoal (32 hexadecimal digits and a suffix), and stays readable for
processes that have it open or mapped when it is removed.
"""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH107

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence

_LOCK = ".lock"


def mark_used(path: str) -> None:
    """Record that a file is in use now; its contents and modification time stay."""
    with contextlib.suppress(OSError):
        # Set the access time, which many mounts do not update by themselves and nothing here compares.
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))  # noqa: PTH116


def keep_within(directory: str, *, suffixes: Sequence[str], limit_bytes: int, limit_files: int) -> int:
    """Remove the least recently used files of ``directory`` until the rest fits; return the number removed.

    Only files named by 32 hexadecimal digits and one of ``suffixes`` count, each with its lock file. The newest one
    stays even if it alone is too large: its maker wants it. A directory that cannot be read or written is left as it
    is. O(files log files).
    """
    wanted = re.compile(rf"[0-9a-f]{{32}}({'|'.join(map(re.escape, suffixes))})")
    found = sorted(_files(directory, wanted), reverse=True)
    kept_bytes = num_removed = 0
    for place, (_, num_bytes, path) in enumerate(found):
        kept_bytes += num_bytes
        if place == 0 or (kept_bytes <= limit_bytes and place < limit_files):
            continue
        kept_bytes -= num_bytes
        with contextlib.suppress(OSError):
            os.remove(path)
            num_removed += 1
            with contextlib.suppress(FileNotFoundError):
                os.remove(path + _LOCK)
    return num_removed


def _files(directory: str, wanted: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Yield last use (ns), size and path of each matching file."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if wanted.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    yield max(found.st_atime_ns, found.st_mtime_ns), found.st_size, entry.path
