"""Index files: written whole, mapped when read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Protocol

from shoal.errors import IndexFileError, StorageError
from shoal.index.consistency import validate
from shoal.index.index_file import confirm, decode, encode
from shoal.index.table import Index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.index_cache.bounds import keep_within, mark_used
from shoal.storage.index_cache.place import alone
from shoal.storage.sources.named_files import INDEX_NAME
from shoal.storage.store import MapRange, ObjectInfo, Put, Stat
from shoal.storage.urls import join, scheme_of

__all__ = ["INDEX_NAME", "MapFile", "bound_cache", "load_index", "save_index"]

# 10^8 samples take 0.4 GB, most datasets a few MB.
_CACHE_BYTES = 4 << 30
_CACHE_FILES = 500
_CACHE_NOTES = 100_000

_log = logging.getLogger("shoal")

_confirmed: dict[str, ObjectInfo] = {}  # files of this machine, as they were when their bytes were compared


class MapFile(MapRange, Stat, Protocol):
    """What reading an index needs of a store."""


def save_index(index: Index, where: str | os.PathLike[str], *, store: Put) -> str:
    """Write ``index`` to a file, or as ``shoal.index`` into a directory; visible at once or not at all; says where.

    Raises
    ------
    StorageError
        It could not be written.
    """
    path = os.fspath(where)
    if path.endswith("/") or (not scheme_of(path) and Path(path).is_dir()):
        path = join(path, INDEX_NAME)
    store.put(path, encode(index))
    return path


def load_index(path: str, *, store: MapFile, trusted: bool = False, cache_dir: str | None = None) -> Index:
    """The index in the file ``path``, whose columns stay mapped and are shared by all processes of a machine.

    A remote one is copied to ``cache_dir`` first, once for every version of it, or else read into memory.
    O(samples) in two passes that look for contradictions and for bytes that changed (4 ns a sample, 0.4 ns a byte).
    When ``trusted``, as the files are that this machine made for itself, no contradictions are looked for, and bytes
    that changed once in each process: a disk, or a memory, may lie all the same.

    Raises
    ------
    StorageError
        The file is not there, or may not be read.
    IndexFileError
        It is not an index, or a damaged one.
    """
    try:
        data = store.map(path) if cache_dir is None else _mapped_copy(path, store, cache_dir)
        if trusted:
            _confirm_file(path, data, required=True)  # before anything in it is believed
            return decode(data)
        index = decode(data)
        validate(index)
        confirm(data)
    except IndexFileError as error:
        msg = f"{path}: {error.message}"
        raise IndexFileError(msg, hint=error.hint or "make it again with `shoal index`") from error
    return index


def _confirm_file(path: str, data: memoryview, *, required: bool = False) -> None:
    """Compare the bytes of a file of this machine with their checksum, once in this process as long as it stays."""
    state = LocalStore().stat(path)
    if _confirmed.get(path) != state:
        confirm(data, required=required)
        _confirmed[path] = state


def _mapped_copy(path: str, store: MapFile, cache_dir: str) -> memoryview:
    """The index from a copy on this machine, which is made if need be; read into memory where that cannot be."""
    info = store.stat(path) if scheme_of(path) else None
    if info is None or not info.version:
        return store.map(path)
    key = hashlib.blake2b(json.dumps([path, info.num_bytes, info.version]).encode(), digest_size=16).hexdigest()
    copy, local = str(Path(cache_dir, "indexes", f"{key}.copy")), LocalStore()
    with alone(f"{copy}.lock", what=f"copies {path}"):
        mark_used(copy)
        if local.find(copy) is None or not _is_sound(copy, local):
            data = store.map(path)
            try:
                local.put(copy, data)
            except StorageError as error:
                _log.info("the index is not kept on this machine: %s", error.message)
                return data
            bound_cache(cache_dir)
        return local.map(copy)


def _is_sound(copy: str, local: LocalStore) -> bool:
    """Whether a copy is what was copied, as far as its own checksum tells; it is made again if not."""
    try:
        _confirm_file(copy, local.map(copy))
    except (IndexFileError, StorageError) as error:
        _log.warning("this machine's copy of an index cannot be used and is made again: %s", error)
        local.close()
        return False
    return True


def bound_cache(cache_dir: str) -> None:
    """Let go of what this machine keeps and has not used for the longest time.

    At most 4 GiB and 500 indexes stay, and 100 000 notes on shards that were found to be those of their index.
    """
    indexes, accepted = str(Path(cache_dir, "indexes")), str(Path(cache_dir, "accepted"))
    keep_within(indexes, suffixes=(".index", ".copy"), limit_bytes=_CACHE_BYTES, limit_files=_CACHE_FILES)
    keep_within(accepted, suffixes=(".same",), limit_bytes=_CACHE_BYTES, limit_files=_CACHE_NOTES)
