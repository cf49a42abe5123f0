"""Alignments in files: computed once, written at once, and mapped by every process of the machine.

A file is a length of 8 bytes, a header of JSON padded to 64 bytes, and one array after another: the runs, or the
partner of each sample. The header has the counts of the matching, and the CRC-32 of the arrays.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from shoal.errors import ShoalError, StorageError
from shoal.indexing.alignment.alignment import Alignment, PartnerArray, PartnerRuns, RunCollector
from shoal.indexing.alignment.matched_keys import MatchCounts, MatchedKeys
from shoal.storage.cache_directory import cache_directory, keep_within, mark_used
from shoal.storage.files.atomic_writes import begin_object, remove_abandoned
from shoal.storage.files.local_store import LocalStore
from shoal.storage.files.machine_locks import machine_lock

_log = logging.getLogger("shoal")

_KIND, _VERSION = "shoal.alignment", 1
_HEAD_BYTES = 512
_LENGTH_BYTES = 8
_SUFFIX = ".alignment"
_CACHE_BYTES, _CACHE_FILES = 64 << 30, 200


@dataclass(frozen=True, slots=True, eq=False)
class KeptAlignment:
    """An alignment with the counts of its matching; ``path`` is its file, "" if it could not be written.

    ``doubles`` are examples of right samples with one key: the ids of the first and of a later sample. Pickled, the
    object is the path: each process maps the file.
    """

    alignment: Alignment
    counts: MatchCounts
    doubles: tuple[tuple[int, int], ...] = ()
    path: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        if self.path:
            return _mapped_again, (self.path,)
        return KeptAlignment, (self.alignment, self.counts, self.doubles)


def scratch_directory() -> str:
    """Return the directory for alignments, and for the files of their computation."""
    return str(Path(cache_directory(), "alignments"))


def kept_alignment(name: str, make: Callable[[Callable[[], None]], MatchedKeys]) -> KeptAlignment:
    """Return the alignment ``name`` (32 hexadecimal digits), from the cache or from new matches.

    One process of a machine makes it, and others wait; ``make`` gets a function to call while it works. A file that is
    damaged is made again. If the file cannot be written, the alignment stays in memory, with a warning.
    """
    directory = scratch_directory()
    path = str(Path(directory, f"{name}{_SUFFIX}"))
    with machine_lock(f"{path}.lock", what="matches the keys of two datasets") as signal_waiting:
        mark_used(path)
        try:
            if LocalStore().find(path) is not None:
                return load_alignment(path, confirms=True)
        except ShoalError as error:
            _log.warning("the cached alignment cannot be used and is made again: %s", error.message)
        _remove_abandoned(directory)
        matched = make(signal_waiting)
        try:
            return _written(matched, path, directory)
        except StorageError as error:
            _log.warning("the alignment of two datasets cannot be kept, and is in memory: %s", error.message)
            return _in_memory(matched)
        finally:
            matched.close()


def load_alignment(path: str, *, confirms: bool = False) -> KeptAlignment:
    """Map an alignment from its file; with ``confirms``, compare its bytes with the checksum, 0.4 s per GB.

    Raises `StorageError`: there is no such file, or it is damaged.
    """
    data = LocalStore().map(path)
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        head = json.loads(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length]))
        if (head["kind"], head["version"]) != (_KIND, _VERSION):
            raise ValueError("another kind or version")
        arrays, at = [], _HEAD_BYTES
        for dtype, size in head["arrays"]:
            arrays.append(np.frombuffer(data, dtype, count=size, offset=at))
            at += arrays[-1].nbytes
        if at != len(data) or (confirms and crc32(data[_HEAD_BYTES:]) != head["crc32"]):
            raise ValueError("other bytes than were written")
        counts = MatchCounts(*head["counts"])
        doubles = tuple((first, again) for first, again in head["doubles"])
        is_runs = len(arrays) > 1
        alignment = PartnerRuns(arrays[0], arrays[1], counts.num_samples) if is_runs else PartnerArray(arrays[0])
        return KeptAlignment(alignment, counts, doubles, path)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StorageError(f"{path}: the file of an alignment is damaged ({error})", hint="remove the file") from error


def _mapped_again(path: str) -> KeptAlignment:
    """Map the alignment of a pickled dataset."""
    try:
        return load_alignment(path)
    except StorageError as error:
        hint = "call join() in this process, which matches the keys again; or put SHOAL_CACHE_DIR in a shared folder"
        raise StorageError(f"the alignment of two datasets cannot be used: {error.message}", hint=hint) from error


def _written(matched: MatchedKeys, path: str, directory: str) -> KeptAlignment:
    """Write the runs of an alignment, or the array of all partners if there are many runs; then map the file."""
    counts, runs = matched.counts, RunCollector(matched.counts.num_samples)
    for block in matched.blocks():
        runs.add(block)
    file, crc = begin_object(path, store=LocalStore(), scratch=directory), 0
    try:
        file.write([bytes(_HEAD_BYTES)])
        arrays: list[tuple[str, int]] = []
        if (few := runs.runs) is not None:
            for array in (few.first_ids, few.first_partners):
                arrays.append(("<i8", len(array)))
                data = array.astype("<i8").tobytes()
                crc = crc32(data, crc)
                file.write([data])
        else:
            dtype = "<i4" if matched.most_partners < 1 << 31 else "<i8"
            arrays.append((dtype, counts.num_samples))
            for block in matched.blocks():
                data = block.astype(dtype).tobytes()
                crc = crc32(data, crc)
                file.write([data])
        file.patch(0, _head(matched, arrays, crc))
        file.finish()
    except BaseException:
        file.abandon()
        raise
    keep_within(directory, suffixes=(_SUFFIX,), limit_bytes=_CACHE_BYTES, limit_files=_CACHE_FILES)
    return load_alignment(path)


def _head(matched: MatchedKeys, arrays: list[tuple[str, int]], crc: int) -> bytes:
    words: dict[str, Any] = {"kind": _KIND, "version": _VERSION, "counts": matched.counts, "doubles": matched.doubles}
    words |= {"arrays": arrays, "crc32": crc}
    text = json.dumps(words).encode().ljust(_HEAD_BYTES - _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _in_memory(matched: MatchedKeys) -> KeptAlignment:
    runs, blocks = RunCollector(matched.counts.num_samples), list(matched.blocks())
    for block in blocks:
        runs.add(block)
    array = PartnerArray(np.concatenate([np.zeros(0, np.int64), *blocks]))
    return KeptAlignment(runs.runs or array, matched.counts, tuple(matched.doubles))


def _remove_abandoned(directory: str) -> None:
    """Remove unfinished files of processes that were killed."""
    with contextlib.suppress(StorageError):
        for info in LocalStore().list(directory):
            if info.path.endswith(".tmp"):
                remove_abandoned(info.path)
