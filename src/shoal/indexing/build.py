"""Building of an index: every shard is scanned once, several at a time, and a killed build resumes where it was.

Scanning local files is CPU-bound parsing, at which threads would only take turns: shards go to worker processes
(`scan_worker`), one whole shard at a time. Scanning remote shards is mostly waiting, for which threads suit
(`scan.threads`), and the fewer requests or bytes the better (`scan.ranges`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.errors import ShoalError, UsageError
from shoal.formats.compressed.reader import Compressed
from shoal.formats.folder.folder_index import index_of_files
from shoal.formats.folder.reader import Folder
from shoal.formats.known_formats import format_named, options_of
from shoal.formats.metadata.manifests import Expected
from shoal.formats.metadata.scanning import STALE_INDEXES, checked_scan
from shoal.formats.shard_format import Format, ReadBytes, VersionedFormat
from shoal.index.assembly import ScannedShard, assemble
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.table import Index
from shoal.indexing.manifests_beside import foreign_indexes
from shoal.indexing.scan.pipe_frames import scan_from, scan_to_buffers
from shoal.indexing.scan.processes import WORKERS_VARIABLE, ScanTask, scan_in_processes
from shoal.indexing.scan.ranges import ScanReads, ScanTraffic
from shoal.indexing.scan.threads import scan_in_threads
from shoal.storage.cache_directory import Scratch, cache_directory
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import stat_all
from shoal.storage.store import Advise, Find, ReadRange, Stat

_log = logging.getLogger("shoal")

# Below this, starting processes (a few tenths of a second each) costs more than they save, and no scans are kept.
SMALL_BYTES = 256 << 20

# From here on the scans of remote shards are kept: starting over costs more there.
SMALL_FAR_BYTES = 16 << 20

# From here on the index leaves out the size of each sample, which takes 4 bytes per sample.
MANY_SAMPLES = 10**8

ENTRY_SUFFIX = ".scan"

# Incremented when the scans of formats find other samples than before; a format may also have its own rule.
SCAN_RULE = 3

# Key of the format's options in the metadata of an index.
OPTIONS = "format_options"

# Bytes between two progress reports of an inline scan.
REPORT_EVERY_BYTES = 64 << 20

Progress = Callable[[int, int, int], None]


class IndexStore(ReadRange, Stat, Find, Advise, Protocol):
    """Store methods needed for indexing."""


def build_index(
    source: Source,
    *,
    store: IndexStore,
    format: Format,  # noqa: A002 - the word of the public interface
    extent_bytes: int = EXTENT_BYTES,
    workers: int | None = None,
    progress: Progress | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    traffic: ScanTraffic | None = None,
    expected: Mapping[str, Expected] | None = None,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
) -> Index:
    """Build the index of the shards of ``source``; samples are numbered in the order of its shards.

    ``workers`` is the number of scanning processes; with 0 this process scans. The default is one per processor that
    this process may use ($SHOAL_INDEX_WORKERS overrides it), or 0 if there is less than 256 MiB to scan. ``progress``
    is called in this thread with bytes done, bytes in total and samples found. A large build keeps finished scans below
    ``cache_dir`` (see `shoal.storage.cache_directory`), and the same call resumes from them after a kill; they are
    removed at the end.

    ``expected`` says by path what shards should hold; a shard that differs is refused. ``rows`` maps the names of
    single files to their rows in the tables beside them.

    Remote shards are scanned by threads, 32 requests at a time, without processes: headers only, or all bytes,
    whichever costs less. The traffic is logged, and added to ``traffic``.

    O(samples) memory, plus up to 200 MB for requests in flight to a remote store; about as fast as one processor
    parses, times ``workers``.

    Raises `ShardError`: a shard cannot be parsed; the error names the shard and the byte; `StorageError`: bytes could
    not be read; `ShoalError`: a worker was killed; the error names the shard and the signal.
    """
    infos = stat_all(source.paths, store)
    options = options_of(format)
    metadata = {OPTIONS: options} if options else {}
    if isinstance(format, Folder):
        num_bytes = np.array([info.num_bytes for info in infos], dtype=np.int64)
        versions = [info.version for info in infos]
        return index_of_files(format.name, source.names, num_bytes, versions, rows=rows or {}, metadata=metadata)
    indexes = foreign_indexes(source.paths, format, store)
    tasks = [
        ScanTask(
            number,
            name,
            info.path,
            info.num_bytes,
            info.version,
            expected=(expected or {}).get(info.path),
            index=indexes.get(info.path),
        )
        for number, (name, info) in enumerate(zip(source.names, infos, strict=True))
    ]
    total_bytes = sum(task.num_bytes for task in tasks)
    workers = _num_workers(workers, total_bytes)
    traffic = ScanTraffic() if traffic is None else traffic
    scratch = None
    if workers or total_bytes >= (SMALL_BYTES if store.reads_ahead else SMALL_FAR_BYTES):
        scratch = Scratch(str(Path(cache_directory(cache_dir), "scans", _key(tasks, format))), suffix=ENTRY_SUFFIX)
    scans: dict[int, ShardScan] = {}
    scanning = _Scanning(store, format, workers, _Report(progress, total_bytes), traffic)
    with closing(_scan_all(tasks, scanning, scratch)) as results:
        for task, scan in results:
            scans[task.number] = scan
    if num_stale := sum(scan.notes.get(STALE_INDEXES, 0) for scan in scans.values()):
        text = "%s: %d of %d indexes of other tools do not fit their shards, and were not used"
        _log.warning(text, source.asked, num_stale, len(indexes))
    if traffic.num_requests:
        _log.info("%s: %s", source.asked, traffic)
    shards = [ScannedShard(task.name, task.num_bytes, task.version, scans[task.number]) for task in tasks]
    keep = sum(scan.num_samples for scan in scans.values()) < MANY_SAMPLES
    index = assemble(format.name, shards, extent_bytes=extent_bytes, keep_sample_bytes=keep, metadata=metadata)
    if scratch is not None:
        scratch.clear()
    return index


def scan_rules(format: Format) -> list[int]:  # noqa: A002
    """Return the versions of the scan rules for this format; scans kept or cached under other versions are not used."""
    formats = (format, format.inner) if isinstance(format, Compressed) else (format,)
    return [SCAN_RULE, *(each.scan_rule for each in formats if isinstance(each, VersionedFormat))]


def _entry(task: ScanTask) -> str:
    return _digest([task.path, task.num_bytes, task.version]) + ENTRY_SUFFIX


def _key(tasks: Sequence[ScanTask], format: Format) -> str:  # noqa: A002
    # Depends on the paths but not on sizes or versions, so that a shard that changed since the kill costs one scan.
    return _digest([*scan_rules(format), format.name, options_of(format), *(task.path for task in tasks)])


def _digest(words: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def _num_workers(asked: int | None, total_bytes: int) -> int:
    if asked is None and (text := os.environ.get(WORKERS_VARIABLE)):
        if not text.isdecimal():
            msg = f"{WORKERS_VARIABLE}={text!r} is not a number of worker processes"
            raise UsageError(msg, hint="0 scans in the process itself")
        asked = int(text)
    if asked is not None:
        if asked < 0:
            msg = f"workers={asked} is not a number of worker processes"
            raise UsageError(msg, hint="0 scans in the process itself")
        return asked
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if total_bytes < SMALL_BYTES or processors == 1 else processors


class _Report:
    """Progress of a build, added up over shards; of unfinished ones the bytes that their workers have done count."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._done_samples = 0
        self._under_way: dict[int, int] = {}
        self._said_bytes = 0

    def came_to(self, task: ScanTask, done_bytes: int) -> None:
        self._under_way[task.number] = min(done_bytes, task.num_bytes)
        self._say()

    def finished(self, task: ScanTask, scan: ShardScan) -> None:
        self._under_way.pop(task.number, None)
        self._done_bytes += task.num_bytes
        self._done_samples += scan.num_samples
        self._say()

    def _say(self) -> None:
        if self._progress is not None:
            # A scan may go back to read something again; the progress shown does not.
            self._said_bytes = max(self._said_bytes, self._done_bytes + sum(self._under_way.values()))
            self._progress(self._said_bytes, self._total_bytes, self._done_samples)


@dataclass(frozen=True, slots=True)
class _Scanning:
    """Settings of a build's scans."""

    store: IndexStore
    format: Format
    workers: int
    report: _Report
    traffic: ScanTraffic


def _scan_all(tasks: list[ScanTask], how: _Scanning, scratch: Scratch | None) -> Generator[tuple[ScanTask, ShardScan]]:
    """Yield the scans kept by an earlier build, then the others in the order in which they finish."""
    missing = []
    for task in tasks:
        kept = scratch.get(_entry(task)) if scratch is not None else None
        if kept is None:
            missing.append(task)
        else:
            scan = scan_from(kept)
            how.report.finished(task, scan)
            yield task, scan
    with closing(_scan_missing(missing, how)) as results:
        for task, scan in results:
            if scratch is not None:
                scratch.put(_entry(task), scan_to_buffers(scan))
            how.report.finished(task, scan)
            yield task, scan


def _scan_missing(tasks: list[ScanTask], how: _Scanning) -> Generator[tuple[ScanTask, ShardScan]]:
    store, shard_format, report = how.store, how.format, how.report
    # Worker processes open files themselves, so they suit only a plain local store and a format known by name.
    if how.workers and tasks and type(store) is LocalStore and _known_by_name(shard_format) and sys.executable:
        yield from scan_in_processes(tasks, shard_format, num_workers=how.workers, came_to=report.came_to)
    elif not store.reads_ahead:
        reads = ScanReads(store, traffic=how.traffic)
        yield from scan_in_threads(tasks, shard_format, reads, came_to=report.came_to)
    else:
        for task in tasks:
            read = _reading(store, task, report)
            index = None if task.index is None else partial(store.read_range, task.index[0], 0, task.index[1])
            scan = checked_scan(
                shard_format, read, task.num_bytes, shard=task.name, expected=task.expected, index=index
            )
            yield task, scan


def _known_by_name(format: Format) -> bool:  # noqa: A002
    """True if a worker that is passed only the name would use the same format; it cannot know a user's own."""
    try:
        return format_named(format.name, options_of(format)) is format
    except ShoalError:
        return False


def _reading(store: IndexStore, task: ScanTask, report: _Report) -> ReadBytes:
    said_bytes = 0

    def read(first_byte: int, end_byte: int) -> Buffer:
        nonlocal said_bytes
        if first_byte - said_bytes >= REPORT_EVERY_BYTES:
            said_bytes = first_byte
            report.came_to(task, first_byte)
        return store.read_range(task.path, first_byte, end_byte)

    return read
