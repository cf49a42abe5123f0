"""Building of an index: every shard is scanned once, several at a time, and a killed build resumes where it was.

Scans of local files are CPU-bound, and threads would only take turns: so worker processes scan them, one whole shard at
a time (`scan.processes`). Scans of remote shards mostly wait, so threads make them, with as few requests or bytes as
possible (`scan.remote_scans`). If parsing is the limit, several processes have such threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError, UsageError
from shoal.formats.compressed.reader import Compressed
from shoal.formats.folder.reader import Folder, index_of_files
from shoal.formats.format_registry import format_named, options_of
from shoal.formats.metadata.manifests import Expected
from shoal.formats.metadata.scanning import STALE_INDEXES, without_pointer
from shoal.formats.shard_format import ROW, Format
from shoal.hints import MOST_POINTER_BYTES
from shoal.index.assembly import ScannedShard, assemble, joined
from shoal.index.cutting import usual_extent_bytes
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index
from shoal.indexing.manifests_beside import third_party_indexes
from shoal.indexing.scan.processes import (
    WORKERS_VARIABLE,
    num_remote_processes,
    num_requests_each,
    scan_in_processes,
    store_for_processes,
)
from shoal.indexing.scan.remote_scans import ScanReads, ScanTraffic, scan_in_threads
from shoal.indexing.scan.scan_frames import scan_from, scan_to_buffers
from shoal.indexing.scan.scan_task import ScanTask, scan_shard
from shoal.processes.interpreters import usable_processors
from shoal.storage.cache_directory import Scratch, cache_directory
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import ObjectInfo, Store

_log = logging.getLogger("shoal")

# Below this size, processes (a few tenths of a second each) cost more than they save, and no scans are kept.
SMALL_BYTES = 256 << 20
# From this size on, scans of remote shards are kept: scanning them again costs more.
SMALL_REMOTE_BYTES = 16 << 20
# No scans are kept of this many local shards, if they are smaller than this size: a second scan takes less time than a
# kept one.
MANY_SHARDS, SMALL_SHARD_BYTES = 1000, 256 << 10
# Shards whose scans are held together, to become a part of the index.
PART_SHARDS = 1024
# An index of this many samples or more leaves out their sizes, which take 4 bytes per sample.
MANY_SAMPLES = 10**8

_LEAST_POINTER_BYTES = 64

_SCAN_SUFFIX = ".scan"
# Increment this when scans of several formats find other samples than before; a format may also have its own rule.
SCAN_RULE = 3
# Key of the format's options in the metadata of an index.
OPTIONS = "format_options"

Progress = Callable[[int, int, int], None]


def build_index(
    source: Source,
    *,
    store: Store,
    format: Format,  # noqa: A002 - the word of the public interface
    extent_bytes: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    traffic: ScanTraffic | None = None,
    expected: Mapping[str, Expected] | None = None,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
) -> Index:
    """Build the index of the shards of ``source``; samples are numbered in the order of its shards.

    ``workers`` processes scan; with 0, this process does. The default is one per usable processor ($SHOAL_INDEX_WORKERS
    overrides it), or 0 for less than 256 MiB. ``progress`` is called in this thread with the bytes done, the bytes in
    total and the samples so far. A large build keeps finished scans below ``cache_dir`` (see
    `shoal.storage.cache_directory`), and resumes from them after a kill; the end removes them.

    ``expected`` describes shards by path; a shard that differs is refused. ``rows`` maps the names of shards to their
    rows in the tables that list them; the head of a shard keeps its row.

    Threads scan remote shards by 32 requests at a time: headers only, or all bytes if that costs less. From 1 GiB in
    many shards on, several processes do so, by 128 requests in all. The traffic is logged, and added to ``traffic``.

    O(samples) memory, plus 6 MiB for each request in flight. Speed: one processor's parsing times ``workers``.

    Raises `ShardError`: a shard cannot be parsed; the error names the shard and the byte; `StorageError`: bytes could
    not be read; `ShoalError`: a worker was killed; the error names the shard and the signal.
    """
    return index_of_tasks(
        scan_tasks(source, store=store, format=format, expected=expected),
        store=store,
        format=format,
        source_name=source.typed,
        extent_bytes=extent_bytes,
        workers=workers,
        progress=progress,
        cache_dir=cache_dir,
        traffic=traffic,
        rows=rows,
    )


def scan_tasks(
    source: Source,
    *,
    store: Store,
    format: Format,  # noqa: A002
    expected: Mapping[str, Expected] | None = None,
    infos: Sequence[ObjectInfo] | None = None,
) -> list[ScanTask]:
    """Return the shards of ``source`` as tasks, with sizes and versions, and their descriptions by other tools.

    ``infos`` are the sizes and versions, if they are known. Raises `StorageError`: a shard is missing.
    """
    infos = stat_all(source.paths, store) if infos is None else infos
    known = expected or {}
    indexes = {} if isinstance(format, Folder) else third_party_indexes(source.paths, format, store)
    return [
        ScanTask(number, name, info.path, info.num_bytes, info.version, known.get(info.path), indexes.get(info.path))
        for number, (name, info) in enumerate(zip(source.names, infos, strict=True))
    ]


def index_of_tasks(
    tasks: Sequence[ScanTask],
    *,
    store: Store,
    format: Format,  # noqa: A002
    source_name: str,
    extent_bytes: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    keeps_scans: bool = True,
    traffic: ScanTraffic | None = None,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
) -> Index:
    """Build the index of some shards (see `build_index`); ``keeps_scans`` allows keeping scans for a later call."""
    if isinstance(format, Folder):
        num_bytes = np.array([task.num_bytes for task in tasks], dtype=np.int64)
        names, versions = [task.name for task in tasks], [task.version for task in tasks]
        metadata = _metadata(format)
        # One file is tested for being a pointer, since millions take long; each file is tested when it is read.
        for task in [task for task in tasks if _LEAST_POINTER_BYTES <= task.num_bytes <= MOST_POINTER_BYTES][:1]:
            without_pointer(partial(store.read_range, task.path), task.num_bytes, shard=task.name)
        return index_of_files(format.name, names, num_bytes, versions, rows=rows or {}, metadata=metadata)
    total_bytes = sum(task.num_bytes for task in tasks)
    extent_bytes = usual_extent_bytes(total_bytes) if extent_bytes is None else extent_bytes
    workers = _num_workers(workers, total_bytes)
    traffic, began_seconds = ScanTraffic() if traffic is None else traffic, time.perf_counter()
    scratch = None
    are_tiny = store.reads_ahead and len(tasks) >= MANY_SHARDS and total_bytes < len(tasks) * SMALL_SHARD_BYTES
    if keeps_scans and not are_tiny and (workers or total_bytes >= small_bytes(store)):
        # The key has the paths but no sizes or versions, so a shard that changed since the kill costs one scan.
        key = _digest([*scan_rules(format), format.name, options_of(format), *(task.path for task in tasks)])
        scratch = Scratch(str(Path(cache_directory(cache_dir), "scans", key)), suffix=_SCAN_SUFFIX)
    scanning = _Scanning(store, format, workers, _Report(progress, total_bytes), traffic)
    with closing(_scan_all(tasks, scanning, scratch)) as results:
        parts = _parts(tasks, results, format=format, extent_bytes=extent_bytes, rows=rows or {})
    if traffic.num_requests:
        _log.info("%s: %s, in %.1f s", source_name, traffic, time.perf_counter() - began_seconds)
    index = parts[0]
    if len(parts) > 1:
        index = joined(parts, metadata=index.metadata, most_samples_with_sizes=MANY_SAMPLES - 1)
    if num_stale := index.notes.get(STALE_INDEXES, 0):
        text = "%s: %d of %d indexes of other tools do not fit their shards, and were not used"
        _log.warning(text, source_name, num_stale, sum(task.index is not None for task in tasks))
    if scratch is not None:
        scratch.clear()
    return index


def _parts(
    tasks: Sequence[ScanTask],
    results: Iterable[tuple[ScanTask, ShardScan]],
    *,
    format: Format,  # noqa: A002
    extent_bytes: int,
    rows: Mapping[str, Mapping[str, Any]],
) -> list[Index]:
    """Return the indexes of consecutive shards, in order; few scans are in memory at a time."""
    groups = [tasks[first : first + PART_SHARDS] for first in range(0, len(tasks), PART_SHARDS)] or [tasks]
    group_of = {task.number: number for number, group in enumerate(groups) for task in group}
    parts: dict[int, Index] = {}
    scans: dict[int, dict[int, ShardScan]] = {number: {} for number in range(len(groups))}

    def finish(number: int) -> None:
        parts[number] = index_of_scans(
            groups[number], scans.pop(number), format=format, extent_bytes=extent_bytes, rows=rows
        )

    for task, scan in results:
        number = group_of[task.number]
        scans[number][task.number] = scan
        if len(scans[number]) == len(groups[number]):
            finish(number)
    if not tasks:
        finish(0)
    return [parts[number] for number in range(len(groups))]


def scans_of_tasks(
    tasks: Sequence[ScanTask],
    *,
    store: Store,
    format: Format,  # noqa: A002
    workers: int,
    progress: Progress | None = None,
    traffic: ScanTraffic | None = None,
) -> Generator[tuple[ScanTask, ShardScan]]:
    """Yield the scans of some shards in the order in which they finish; close it if it is not read to its end."""
    report = _Report(progress, sum(task.num_bytes for task in tasks))
    scanning = _Scanning(store, format, workers, report, ScanTraffic() if traffic is None else traffic)
    yield from _scan_all(tasks, scanning, None)


def index_of_scans(
    tasks: Sequence[ScanTask],
    scans: Mapping[int, ShardScan],
    *,
    format: Format,  # noqa: A002
    extent_bytes: int,
    rows: Mapping[str, Mapping[str, Any]],
) -> Index:
    """Assemble the index of some shards from their scans by number, with their ``rows`` by name (see `build_index`)."""
    shards = [
        ScannedShard(task.name, task.num_bytes, task.version, _with_row(scans[task.number], rows.get(task.name)))
        for task in tasks
    ]
    keep = sum(shard.scan.num_samples for shard in shards) < MANY_SAMPLES
    metadata = _metadata(format)
    return assemble(format.name, shards, extent_bytes=extent_bytes, keep_sample_bytes=keep, metadata=metadata)


def _with_row(scan: ShardScan, row: Mapping[str, Any] | None) -> ShardScan:
    return scan if row is None else replace(scan, head={**scan.head, ROW: dict(row)})


def small_bytes(store: Store) -> int:
    """Return the bytes below which indexing takes negligible time."""
    return SMALL_BYTES if store.reads_ahead else SMALL_REMOTE_BYTES


def _metadata(format: Format) -> dict[str, Any]:  # noqa: A002
    return {OPTIONS: options} if (options := options_of(format)) else {}


def scan_rules(format: Format) -> list[int]:  # noqa: A002
    """Return the versions of the scan rules for this format; scans and indexes under other versions are not used."""
    formats = (format, format.inner) if isinstance(format, Compressed) else (format,)
    return [SCAN_RULE, *(entry.scan_rule for entry in formats if entry.scan_rule)]


def _digest(words: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def _num_workers(workers: int | None, total_bytes: int) -> int:
    name = f"workers={workers}"
    if workers is None and (text := os.environ.get(WORKERS_VARIABLE)):
        name, workers = f"{WORKERS_VARIABLE}={text!r}", int(text) if text.isdecimal() else -1
    if workers is not None:
        if workers < 0:
            raise UsageError(f"{name} is not a number of worker processes", hint="0 scans in the process itself")
        return workers
    processors = usable_processors()
    return 0 if total_bytes < SMALL_BYTES or processors == 1 else processors


@dataclass(slots=True)
class _Report:
    """Progress of a build: the sum over shards; an unfinished shard counts the bytes done so far."""

    progress: Progress | None
    total_bytes: int
    done_bytes: int = 0
    done_samples: int = 0
    reported_bytes: int = 0
    unfinished: dict[int, int] = field(default_factory=dict)

    def on_progress(self, task: ScanTask, done_bytes: int) -> None:
        self.unfinished[task.number] = min(done_bytes, task.num_bytes)
        self.report()

    def finished(self, task: ScanTask, scan: ShardScan) -> None:
        self.unfinished.pop(task.number, None)
        self.done_bytes += task.num_bytes
        self.done_samples += scan.num_samples
        self.report()

    def report(self) -> None:
        """Report the progress, even if nothing is new: ``progress`` may end the build by an error."""
        if self.progress is not None:
            # A scan may go back to read something again; the reported progress does not.
            self.reported_bytes = max(self.reported_bytes, self.done_bytes + sum(self.unfinished.values()))
            self.progress(self.reported_bytes, self.total_bytes, self.done_samples)


@dataclass(frozen=True, slots=True)
class _Scanning:
    """Settings of a build's scans."""

    store: Store
    format: Format
    workers: int
    report: _Report
    traffic: ScanTraffic


def _scan_all(
    tasks: Sequence[ScanTask], settings: _Scanning, scratch: Scratch | None
) -> Generator[tuple[ScanTask, ShardScan]]:
    """Yield the scans kept by an earlier build, then new scans in the order in which they finish."""

    def entry(task: ScanTask) -> str:
        return _digest([task.path, task.num_bytes, task.version]) + _SCAN_SUFFIX

    missing = []
    for task in tasks:
        kept = scratch.get(entry(task)) if scratch is not None else None
        if kept is None:
            missing.append(task)
        else:
            scan = scan_from(kept)
            settings.report.finished(task, scan)
            yield task, scan
    with closing(_scan_missing(missing, settings)) as results:
        for task, scan in results:
            if scratch is not None:
                scratch.put(entry(task), scan_to_buffers(scan))
            settings.report.finished(task, scan)
            yield task, scan


def _scan_missing(tasks: Sequence[ScanTask], settings: _Scanning) -> Generator[tuple[ScanTask, ShardScan]]:
    store, format, on_progress = settings.store, settings.format, settings.report.on_progress  # noqa: A001
    # Worker processes open shards themselves, so they suit only plain stores and a format known by name.
    workers = settings.workers if tasks and _known_by_name(format) and sys.executable else 0
    remote = None
    if not store.reads_ahead:
        workers = num_remote_processes(workers, num_shards=len(tasks), num_bytes=sum(task.num_bytes for task in tasks))
        remote = store_for_processes(store) if workers else None
    if workers and type(store) is LocalStore:
        yield from scan_in_processes(tasks, format, num_workers=workers, on_progress=on_progress)
    elif remote is not None:
        _log.info("%d processes scan %d remote shards", workers, len(tasks))
        yield from scan_in_processes(
            tasks, format, num_workers=workers, on_progress=on_progress,
            store=remote, num_at_once=num_requests_each(workers), traffic=settings.traffic,
        )  # fmt: skip
    elif not store.reads_ahead:
        reads = ScanReads(store, traffic=settings.traffic)
        yield from scan_in_threads(tasks, format, reads, on_progress=on_progress, on_wait=settings.report.report)
    else:
        for task in tasks:
            read, report = partial(store.read_range, task.path), partial(on_progress, task)
            yield task, scan_shard(task, format, read, read_range=store.read_range, on_progress=report)


def _known_by_name(format: Format) -> bool:  # noqa: A002
    """Return True if a worker process would find the same format by name; workers do not know a user's own formats."""
    try:
        return format_named(format.name, options_of(format)) is format
    except ShoalError:
        return False
