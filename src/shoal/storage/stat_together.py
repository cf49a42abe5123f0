"""One look at many objects, for all processes of a machine that ask at the same time."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import time
from collections.abc import Sequence

from shoal.storage.cache_directory import keep_within
from shoal.storage.files.atomic_writes import write_atomically
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import ObjectInfo, Store

_log = logging.getLogger("shoal")

_SUFFIX = ".look"
_MOST_LOOKS = 64
_MOST_BYTES = 1 << 30


def stat_together(paths: Sequence[str], store: Store, *, cache_dir: str, num_processes: int) -> list[ObjectInfo]:
    """`stat_all`, by one of the ``num_processes`` of this machine that open the same objects.

    A process that asks while another one looks takes the sizes and versions that the other one sees, and sends no
    request. They may be as old as the beginning of that look: if an object has changed since, reading it raises an
    error. A look that ended before a process asked is not taken, nor one with another endpoint or other credentials.
    Raises the errors of `stat_all`.
    """
    asked_seconds = time.time()
    if store.reads_ahead or num_processes < 2 or (described := _described(store)) is None:
        return stat_all(paths, store)
    directory = os.path.join(cache_dir, "looks")
    key = hashlib.blake2b(described + json.dumps([*paths]).encode(), digest_size=16).hexdigest()
    look = os.path.join(directory, key + _SUFFIX)
    with machine_lock(f"{look}.lock", what=f"looks at {len(paths):,} shards"):
        infos = _look_since(asked_seconds, look, paths)
        if infos is None:
            infos = stat_all(paths, store)
            _keep(look, infos)
            keep_within(directory, suffixes=(_SUFFIX,), limit_bytes=_MOST_BYTES, limit_files=_MOST_LOOKS)
    return infos


def _described(store: Store) -> bytes | None:
    """Return bytes that differ for stores with other endpoints or credentials; None if a store cannot be described."""
    try:
        return pickle.dumps(store)
    except Exception:  # noqa: BLE001  # a filesystem of the user may raise anything
        return None


def _look_since(asked_seconds: float, look: str, paths: Sequence[str]) -> list[ObjectInfo] | None:
    """Return what a look saw that ended after ``asked_seconds``; None if there is none."""
    try:
        with open(look, "rb") as file:
            ended_seconds, *columns = json.load(file)
        if ended_seconds < asked_seconds:
            return None
        return [ObjectInfo(*info) for info in zip(paths, *columns, strict=True)]
    except (OSError, ValueError, TypeError):
        return None


def _keep(look: str, infos: Sequence[ObjectInfo]) -> None:
    columns = [[getattr(info, name) for info in infos] for name in ("num_bytes", "version", "modified_ns")]
    try:
        write_atomically(look, [json.dumps([time.time(), *columns]).encode()], durable=False)
    except OSError as error:
        _log.warning("each process of this machine looks at all shards itself: %s", error)
