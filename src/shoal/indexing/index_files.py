"""Index files: written atomically, memory-mapped when read, copied from remote stores, published beside shards.

A published index is a by-product of opening: it is used only while it describes exactly the existing shards, and is
rebuilt otherwise. An index from `shoal index` is trusted, and any difference from it is an error.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import IndexFileError, StorageError
from shoal.hints import MOST_POINTER_BYTES, pointer_in
from shoal.index.assembly import validate
from shoal.index.index_file import begins_as_index, confirm, decode, encode
from shoal.index.table import Index
from shoal.storage.cache_directory import keep_within, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.objects.object_options import OBJECT_SCHEMES
from shoal.storage.retry import with_retries
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import Source
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, scheme_of

# The index of 10^8 samples takes 0.4 GB, that of most datasets a few MB.
_CACHE_BYTES = 4 << 30
_CACHE_FILES = 500
_CACHE_NOTES = 100_000
_BY_OPENING = "left_by_opening"  # in the metadata of a published index
# In other stores a write may mean more: a commit, for instance.
_PLAIN_STORES = (*OBJECT_SCHEMES, "memory")

_log = logging.getLogger("shoal")

_copies: dict[str, str] = {}  # the local copy of each remote index that this process has mapped
_confirmed: dict[str, ObjectInfo] = {}  # by path: the state of a local file when its checksum was verified


def save_index(index: Index, where: str | os.PathLike[str], *, store: Store) -> str:
    """Write ``index`` atomically to a file, or as ``shoal.index`` into a directory; return its path."""
    path = os.fspath(where)
    if path.endswith("/") or (not scheme_of(path) and Path(path).is_dir()):
        path = join(path, INDEX_NAME)
    store.put(path, encode(index))
    return path


def load_index(path: str, *, store: Store, trusted: bool = False, cache_dir: str | None = None) -> Index:
    """Load the index in the file ``path``; its columns stay mapped, and all processes of a machine share them.

    A remote index is first copied to ``cache_dir``, once per version, or else read into memory. Two passes check
    consistency and the checksum (4 ns per sample, 0.4 ns per byte). A ``trusted`` file, made by this machine, is not
    checked for consistency, and its checksum only once in each process, since disks and memory can still fail.

    Raises `StorageError`: the file cannot be read; `IndexFileError`: it is not an index, or is damaged.
    """
    try:
        data = store.map(path) if cache_dir is None else _mapped_copy(path, store, cache_dir)
        if pointer := pointer_in(bytes(data[: MOST_POINTER_BYTES + 1])):
            raise IndexFileError(pointer[0], hint=pointer[1])  # with its path below
        if trusted:
            _confirm_file(path, data, required=True)  # before anything in it is used
            return decode(data)
        index = decode(data)
        validate(index)
        confirm(data)
    except IndexFileError as error:
        msg = f"{path}: {error.message}"
        raise IndexFileError(msg, hint=error.hint or "make it again with `shoal index`") from error
    return index


def is_sent_instead(path: str, store: Store) -> bool:
    """Return True if a web server sends something else than an index, as some servers do for missing files.

    Return False for an index that is damaged or cut short, and for a pointer to an index.
    """
    if scheme_of(path) not in ("http", "https"):
        return False
    beginning = bytes(store.read_range(path, 0, min(store.stat(path).num_bytes, 64)))
    if is_other := not begins_as_index(beginning) and pointer_in(beginning) is None:
        _log.warning("%s: the server sends something else in the place of an index: %.40r", path, beginning)
    return is_other


def _confirm_file(path: str, data: memoryview, *, required: bool = False) -> None:
    """Verify the checksum of a local file, once per process as long as the file does not change."""
    state = LocalStore().stat(path)
    if _confirmed.get(path) != state:
        confirm(data, required=required)
        _confirmed[path] = state


def _mapped_copy(path: str, store: Store, cache_dir: str) -> memoryview:
    """Map a local copy of the index, and make it if needed; read the index into memory if no copy can be made.

    The version of the index identifies a copy. Without a version its bytes do, and each process reads them.
    """
    if not scheme_of(path):
        return store.map(path)
    info = store.stat(path)
    data = None if info.version else store.map(path)
    words = [path, info.num_bytes, info.version or hashlib.blake2b(data or b"").hexdigest()]
    key = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()
    copy, local = str(Path(cache_dir, "indexes", f"{key}.copy")), LocalStore()
    with machine_lock(f"{copy}.lock", what=f"copies {path}"):
        mark_used(copy)
        try:
            if local.find(copy) is not None:
                _confirm_file(copy, local.map(copy))
                _copies[path] = copy
                return local.map(copy)
        except (IndexFileError, StorageError) as error:
            _log.warning("this machine's copy of an index cannot be used and is made again: %s", error)
            local.close()
        data = store.map(path) if data is None else data
        try:
            local.put(copy, data)
        except StorageError as error:
            _log.warning("the index is not kept on this machine, and each process holds its own: %s", error.message)
            return data
        bound_cache(cache_dir)
        _copies[path] = copy
        return local.map(copy)


def local_file_of(path: str) -> str:
    """Return the local file that this process mapped for an index, or for its copy; "" if there is none."""
    return _copies.get(path, "") if scheme_of(path) else path


def bound_cache(cache_dir: str) -> None:
    """Evict the least recently used files: 4 GiB, 500 indexes and 100 000 notes on accepted shards may stay."""
    indexes, accepted = str(Path(cache_dir, "indexes")), str(Path(cache_dir, "accepted"))
    keep_within(indexes, suffixes=(".index", ".copy"), limit_bytes=_CACHE_BYTES, limit_files=_CACHE_FILES)
    keep_within(accepted, suffixes=(".same",), limit_bytes=_CACHE_BYTES, limit_files=_CACHE_NOTES)


def publish_beside(
    index: Index, *, source: Source, store: Store, replaces: ObjectInfo | None, is_asked: bool
) -> str | None:
    """Write the index beside the shards, if they are a whole directory of an object store; return its path or None.

    Without ``is_asked``, only log how to publish it. ``replaces`` is an outdated index there. An index that another
    machine has written since stays, since it may know newer shards; but a store without conditional writes overwrites
    it. A refusal by the store is only logged.
    """
    if not source.complete or scheme_of(source.root) not in _PLAIN_STORES:
        return None
    if not is_asked:
        _log.info("%s: publish_index=True keeps the index beside the shards, for other machines to find", source.typed)
        return None
    path = join(source.root, INDEX_NAME)
    try:
        is_ours = _write(replace(index, metadata={**index.metadata, _BY_OPENING: True}), path, store, replaces)
    except StorageError as error:
        _log.warning("the index is not published beside the shards: %s", error.message)
        return None
    if not is_ours:
        _log.info("another machine has published an index meanwhile, which is not replaced: %s", path)
        return None
    _log.info("the index is published beside the shards: %s", path)
    return path


def store_of_published(source: Source, storage_options: Mapping[str, Any] | None) -> Store | None:
    """Return a new store for the place where `publish_beside` writes; None if it would not write there."""
    if not source.complete or scheme_of(source.root) not in _PLAIN_STORES:
        return None
    return with_retries(open_store(source.root, storage_options), storage_options)


def _write(index: Index, path: str, store: Store, replaces: ObjectInfo | None) -> bool:
    """Write an index unless another index is there; return True if it was written."""
    try:
        if scheme_of(path):
            return store.put_if(path, encode(index), replaces=replaces)
    except StorageError as error:
        if error.errno != errno.ENOTSUP:
            raise
        text = "%s is written without a condition, and would replace a new index of another machine: %s"
        _log.info(text, path, error.message)
    store.put(path, encode(index))
    return True


def made_on_purpose(index: Index) -> Index:
    """Return the index without the mark of a published index: nothing replaces it silently any more."""
    return replace(index, metadata={name: value for name, value in index.metadata.items() if name != _BY_OPENING})


def was_left_by_opening(index: Index) -> bool:
    """Return True if opening a dataset published this index, and not `shoal index`."""
    return bool(index.metadata.get(_BY_OPENING))
