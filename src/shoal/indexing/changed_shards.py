"""Comparison of shards with their index: a shard may have changed since, or not be in the index at all.

A shard with the size and version in the index is unchanged. Any other shard is scanned again before its first use,
including its payloads if the index has checksums: a dataset that was copied or touched is still the same dataset, and a
changed dataset must never yield a wrong sample.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from posixpath import basename
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, ShardError, StorageError
from shoal.formats.metadata.scanning import scan_again, without_pointer
from shoal.formats.shard_format import Format, ReadBytes
from shoal.index.assembly import SNAPSHOT
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index
from shoal.indexing.build import SCAN_RULE
from shoal.indexing.manifests_beside import needed_beside
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import reading_one
from shoal.indexing.tables.snapshot_protocol import missing_file
from shoal.storage.cache_directory import Scratch
from shoal.storage.retry import CountedReads, Counting
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import ObjectInfo, Store, nanoseconds_of, same_time

_log = logging.getLogger("shoal")

_STATS_THAT_AGREE = 3  # before a shard counts as changed
_STATS_OF_ONE_TIME = 2  # that must agree on an unknown version, if the time equals the indexed time
_MOST_STATS = 24

_HINT = "the shard changed after it was indexed: restore it, or run `shoal index` again (then old states do not fit)"
_SAME_SIZE_HINT = f"copy it again if it is a copy, since the copy may have lost bytes; else {_HINT}"


def looks_indexed(index: Index, shard: int, info: ObjectInfo) -> bool:
    """Return True if size and version match the index; without a version in the index, the size alone decides.

    A time is as good as a version: shards indexed as local files match the same files on a server that reports their
    modification times, to the second (`same_time`).
    """
    if _has_version(index, shard, info):
        return True
    is_of_that_time = same_time(nanoseconds_of(index.shard_versions[shard]), info.modified_ns)
    return is_of_that_time and info.num_bytes == int(index.shard_bytes[shard])


def _has_version(index: Index, shard: int, info: ObjectInfo) -> bool:
    known = index.shard_versions[shard]
    return info.num_bytes == int(index.shard_bytes[shard]) and known in ("", info.version)


class ShardCheck:
    """Gatekeeper that accepts a shard once it is known to match the index.

    ``paths`` has one path per shard of ``index``. Thread-safe: each shard is checked once, while other threads wait for
    it. A forked child inherits accepted shards; a pickled copy checks for itself. Shards accepted by a scan are also
    noted below ``cache_dir``, for other processes of this machine and later runs.
    """

    def __init__(
        self,
        index: Index,
        paths: Sequence[str],
        *,
        store: Store,
        format: Format,  # noqa: A002
        cache_dir: str | None = None,
    ) -> None:
        self._index, self._paths, self._store, self._format = index, paths, store, format
        self._cache_dir = cache_dir
        self._notes = None if cache_dir is None else Scratch(f"{cache_dir}/accepted", suffix=".same")
        self._costs = ReadCosts()
        self._accepted = bytearray(index.num_shards)  # 1 for a shard that may be used
        self._versions: dict[int, str] = {}
        self._renew_locks()
        _checks.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        create = partial(ShardCheck, store=self._store, format=self._format, cache_dir=self._cache_dir)
        return create, (self._index, self._paths)

    def of_part(self, index: Index, paths: Sequence[str]) -> ShardCheck:
        """Return a check of other shards of the same store and format, such as a part of these shards."""
        return ShardCheck(index, paths, store=self._store, format=self._format, cache_dir=self._cache_dir)

    def check(self, shard: int, counting: Counting | None = None) -> None:
        """Return if shard number ``shard`` may be used; raise otherwise.

        O(1) once accepted; else one stat and, if size or version differ, a scan, counted by ``counting``. Raises
        `ShardError`: the shard has changed; the error names the first byte that differs; `StorageError`: it cannot be
        read.
        """
        if self._accepted[shard]:
            return
        with self._locks.setdefault(shard, threading.Lock()):
            if not self._accepted[shard]:
                self._check(shard, counting)
                self._accepted[shard] = 1
        self._locks.pop(shard, None)  # a folder has as many shards as samples

    def version(self, shard: int) -> str:
        """Return the version that the store reported when the shard was checked; "" if it reported none."""
        return self._versions.get(shard, self._index.shard_versions[shard] if self._accepted[shard] else "")

    def is_accepted(self, shard: int, info: ObjectInfo) -> bool:
        """Return True if a shard of this size and version may be used without a scan."""
        return looks_indexed(self._index, shard, info) or self._was_accepted(shard, info)

    def _check(self, shard: int, counting: Counting | None) -> None:
        path = self._paths[shard]
        try:
            # Open the file before stat: from now on the store raises if the file is replaced.
            self._store.read_range(path, 0, 0)
            info = self._store.stat(path)
        except StorageError as error:
            raise missing_file(error, path, self._index.metadata.get(SNAPSHOT)) from None
        if self._is_known(shard, info):
            return
        if not self._store.reads_ahead:
            # Several servers behind one name may report different versions: wait until enough of them agree.
            stats = Counter([info])
            while stats[info] < (_STATS_OF_ONE_TIME if looks_indexed(self._index, shard, info) else _STATS_THAT_AGREE):
                if stats.total() == _MOST_STATS:
                    raise _no_agreement(path, info, len(stats))
                info = self._store.stat_again(path)
                stats[info] += 1
                if self._is_known(shard, info):
                    return
        if looks_indexed(self._index, shard, info):
            return
        self._scan(shard, info, self._store if counting is None else CountedReads(self._store, counting))
        if self._notes is not None:
            self._notes.put(self._note_of(shard, info), [])

    def _is_known(self, shard: int, info: ObjectInfo) -> bool:
        """Return True if the shard in this state has the indexed version, or a scan has accepted it."""
        self._versions.pop(shard, None)
        if info.version != self._index.shard_versions[shard]:
            self._versions[shard] = info.version
        return _has_version(self._index, shard, info) or self._was_accepted(shard, info)

    def _was_accepted(self, shard: int, info: ObjectInfo) -> bool:
        """Return True if a scan on this machine has accepted the shard."""
        return self._notes is not None and self._notes.get(self._note_of(shard, info)) is not None

    def _note_of(self, shard: int, info: ObjectInfo) -> str:
        """Return the name of the note that a scan has accepted this very file."""
        rows, head = rows_of(self._index, shard), _head_text(self._index.shard_heads.get(shard, {}))
        words = [SCAN_RULE, self._format.name, info.path, info.num_bytes, info.version, head]
        digest = hashlib.blake2b(json.dumps(words).encode(), digest_size=16)
        for column in (rows.first_byte, rows.end_byte, rows.num_samples):
            digest.update(column.astype("<i8").tobytes())
        for crcs in (rows.layout_crc, rows.checksums):
            digest.update(b"" if crcs is None else crcs.astype("<u4").tobytes())
        return digest.hexdigest() + ".same"

    def _scan(self, shard: int, info: ObjectInfo, store: Store | CountedReads) -> None:
        name, indexed_bytes = self._index.shard_names[shard], int(self._index.shard_bytes[shard])
        rows, head = rows_of(self._index, shard), self._index.shard_heads.get(shard, {})
        hint = _SAME_SIZE_HINT if info.num_bytes == indexed_bytes else _HINT
        _log.info("%s differs in size or time from its index: scanning it again", info.path)
        sizes = f"{info.num_bytes} bytes" + (f" ({indexed_bytes} when indexed)" * (info.num_bytes != indexed_bytes))
        with reading_one(store, info.path, info.num_bytes, costs=self._costs) as read_any:
            read = without_pointer(read_any, info.num_bytes, shard=name)
            try:
                beside = needed_beside(info.path, self._format, self._store)
                scan = scan_again(self._format, read, info.num_bytes, shard=name, head=head, **beside)
            except ShardError as error:
                what = f"is not the one that was indexed, and cannot be scanned: {error.args[0]}"
                msg = f"this shard, now of {sizes}, {what}"
                raise ShardError(msg, shard=name, byte=error.byte, hint=hint) from error
            difference = first_difference(rows, head, scan) or _first_wrong_checksum(rows, read)
        if difference is not None:
            byte, what = difference
            msg = f"this shard, now of {sizes}, is not the one that was indexed: {what}"
            raise ShardError(msg, shard=name, byte=byte, hint=hint)

    def _renew_locks(self) -> None:
        self._locks: dict[int, threading.Lock] = {}


_checks: weakref.WeakSet[ShardCheck] = weakref.WeakSet()


def _renew_all_locks() -> None:
    """Replace all locks in a forked child, where nobody would release a lock of a thread of the parent."""
    for check in list(_checks):
        check._renew_locks()  # noqa: SLF001 - the same module


os.register_at_fork(after_in_child=_renew_all_locks)


def _no_agreement(path: str, info: ObjectInfo, num_versions: int) -> StorageError:
    msg = (
        f"{path}: {_MOST_STATS} requests for the version of this shard had {num_versions} answers, the last "
        f"{info.version!r}, and none came {_STATS_THAT_AGREE} times: it cannot be compared with its index"
    )
    hint = "does the server make up an etag or a date for each answer? Serve the shards by another server"
    return StorageError(msg, hint=hint)


def _first_wrong_checksum(rows: ExtentRows, read: ReadBytes) -> tuple[int, str] | None:
    """Return the first extent whose checksum differs from the index; reads the whole shard, extent by extent."""
    for number, checksum in enumerate(rows.checksums if rows.checksums is not None else ()):
        first, end = int(rows.first_byte[number]), int(rows.end_byte[number])
        if zlib.crc32(read(first, end)) != int(checksum):
            return first, f"bytes [{first}, {end}) do not have the checksum in the index"
    return None


def _head_text(head: Mapping[str, Any]) -> str:
    """Return the head of a shard, which describes all its samples, as text for a comparison."""
    return json.dumps(head, sort_keys=True, default=dict)


@dataclass(frozen=True, slots=True)
class ExtentRows:
    """The extents of one shard, as arrays of equal length."""

    first_byte: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    layout_crc: NDArray[np.uint32]
    checksums: NDArray[np.uint32] | None = None


def rows_of(index: Index, shard: int) -> ExtentRows:
    """Return the rows of an index that belong to one shard; O(log num_extents)."""
    first, end = np.searchsorted(index.extent_shard, np.array([shard, shard + 1], dtype=np.int32))
    rows = slice(int(first), int(end))
    return ExtentRows(
        first_byte=index.extent_first_byte[rows],
        end_byte=index.extent_end_byte[rows],
        num_samples=index.extent_num_samples[rows],
        layout_crc=index.extent_layout_crc[rows],
        checksums=None if index.extent_checksum is None else index.extent_checksum[rows],
    )


def first_difference(indexed: ExtentRows, head: Mapping[str, Any], scan: ShardScan) -> tuple[int, str] | None:
    """Return the first byte where a scan disagrees with the extents and head in an index, and a message; else None.

    Extents are aligned with the scan by counting samples, so the rule that cut them does not matter.
    """
    starts, ends = scan.sample_starts, scan.ends
    cuts = np.concatenate([[0], np.cumsum(indexed.num_samples)])
    before = scan.samples_before()
    pieces = np.searchsorted(before, cuts)
    counts = f"the index has {cuts[-1]} samples, but the shard has {scan.num_samples}"
    for extent in range(len(indexed.num_samples)):
        first, end = int(cuts[extent]), int(cuts[extent + 1])
        expected = [int(indexed.first_byte[extent]), int(indexed.end_byte[extent])]
        if end > scan.num_samples:
            return max(expected[0], min(expected[1], int(starts[-1]))), counts
        first_piece, end_piece = int(pieces[extent]), int(pieces[extent + 1])
        seen = [int(starts[first_piece]), int(ends[end_piece - 1])]
        if [before[first_piece], before[end_piece]] != [first, end]:
            return expected[0], f"the index has a piece of samples {first} to {end - 1}, but the shard has none"
        if seen != expected:
            samples, side = f"samples {first} to {end - 1} of the shard", int(seen[0] == expected[0])
            where = f"[{expected[0]}, {expected[1]}) in the index, [{seen[0]}, {seen[1]}) now"
            return min(expected[side], seen[side]), f"{samples} lie at bytes {where}"
        crc, known = zlib.crc32(scan.layout_crcs[first_piece:end_piece].astype("<u4").tobytes()), indexed.layout_crc
        if crc != int(known[extent]):
            what = f"the layout of bytes [{expected[0]}, {expected[1]}) has CRC-32 {known[extent]:08x} in the index"
            return expected[0], f"{what}, and {crc:08x} now"
    if scan.num_samples > cuts[-1]:
        return int(starts[pieces[-1]]), counts
    if _head_text(scan.head) != _head_text(head):
        return 0, "the description of all samples in its head differs from the index"
    return None


_OTHER_DIRECTORY = "name the directory that the index was made for"


def describes(index: Index, source: Source, infos: Sequence[ObjectInfo]) -> bool:
    """Return True if the index has every shard of ``source`` with these ``infos`` and, for a directory, no other."""
    numbers = {name: number for number, name in enumerate(index.shard_names)}
    if not numbers.keys() >= set(source.names) or (source.complete and len(numbers) > len(source.names)):
        return False
    return all(looks_indexed(index, numbers[name], info) for name, info in zip(source.names, infos, strict=True))


def match_all(index: Index, source: Source, *, index_path: str) -> list[int]:
    """Return the number in ``index`` of every shard of ``source``, found by relative name, else by unique base name.

    Raises `IndexFileError`: a shard is unknown, or its base name ambiguous; two shards match the same entry; or the
    source is a whole directory and lacks shards of the index.
    """
    by_name = {name: number for number, name in enumerate(index.shard_names)}
    by_base: dict[str, list[int]] = {}
    for name, number in by_name.items():
        by_base.setdefault(basename(name), []).append(number)
    numbers, unknown = [], []
    for name, path in zip(source.names, source.paths, strict=True):
        candidates = [by_name[name]] if name in by_name else by_base.get(basename(name), [])
        if len(candidates) > 1:
            both = " and ".join(index.shard_names[number] for number in candidates[:2])
            raise IndexFileError(f"{path} could be either of {both} in the index {index_path}", hint=_OTHER_DIRECTORY)
        numbers.extend(candidates)
        unknown += [] if candidates else [path]
    if unknown:
        msg = f"the index {index_path} does not know {len(unknown)} of {len(source.paths)} shards, first {unknown[0]}"
        raise IndexFileError(msg, hint=f"run `shoal index {source.root}` again")
    if twice := [number for number, count in Counter(numbers).items() if count > 1]:
        msg = f"{source.typed}: two shards have the name {index.shard_names[twice[0]]} of the index {index_path}"
        raise IndexFileError(msg, hint=_OTHER_DIRECTORY)
    num_known = len(index.shard_names)
    if source.complete and len(numbers) < num_known:
        absent = sorted(set(range(num_known)) - set(numbers))
        lacking = f"{source.root} lacks {len(absent)} of the {num_known} shards that the index {index_path} names"
        msg = f"{lacking}, first {index.shard_names[absent[0]]}"
        hint = f"restore them, name by a glob those you want, or run `shoal index {source.root}`"
        raise IndexFileError(msg, hint=hint)
    return numbers
