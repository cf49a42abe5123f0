"""The scan of one shard of a build, in this process, a worker process or a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.formats.metadata.manifests import Expected
from shoal.formats.metadata.scanning import checked_scan
from shoal.formats.shard_format import Format, ReadBytes
from shoal.index.shard_scan import Buffer, ShardScan

_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One shard for a scan."""

    number: int
    name: str
    path: str
    num_bytes: int
    version: str
    expected: Expected | None = None
    index: tuple[str, int] | None = None  # another tool's index beside the shard: path and size in bytes


def scan_shard(
    task: ScanTask,
    format: Format,  # noqa: A002
    read: ReadBytes,
    *,
    read_range: Callable[[str, int, int], Buffer],
    on_progress: Callable[[int], None],
    is_local: bool = True,
) -> ShardScan:
    """Scan a shard through ``read``; call ``on_progress`` with the bytes done, at most twice a second.

    ``read_range`` reads a range of any object. With ``is_local``, small reads are cheap, so an index of another tool is
    compared with the shard at more positions.
    """
    next_seconds = time.monotonic() + _PROGRESS_SECONDS

    def reading(first_byte: int, end_byte: int, /) -> Buffer:
        nonlocal next_seconds
        if time.monotonic() >= next_seconds:
            next_seconds = time.monotonic() + _PROGRESS_SECONDS
            on_progress(first_byte)
        return read(first_byte, end_byte)

    return checked_scan(
        format,
        reading,
        task.num_bytes,
        shard=task.name,
        expected=task.expected,
        index=None if task.index is None else partial(read_range, task.index[0]),
        index_bytes=0 if task.index is None else task.index[1],
        is_local=is_local,
    )
