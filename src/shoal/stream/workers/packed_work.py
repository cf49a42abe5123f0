"""The work of a worker process as bytes: an index in a local file is mapped there, not copied."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

from shoal.errors import IndexFileError, ShoalError
from shoal.index.table import Index
from shoal.indexing.index_files import load_index, local_file_of
from shoal.indexing.opened_dataset import Opened, each_opened
from shoal.processes.main_module import MainUnpickler, RecordingPickler
from shoal.storage.files.local_store import LocalStore
from shoal.stream.iterating.iterator_specs import WorkerSpec

_SMALL_ROWS = 100_000  # extents and samples; below, a few megabytes are sent faster than a file is opened


def pack(work: WorkerSpec, *others: Any) -> tuple[bytes, set[str]]:
    """Return the work and other objects as bytes for `unpack` on this machine, and the packages of their names.

    An index of ten million extents takes some hundred megabytes. Pickled by value, every worker would hold a copy;
    mapped from its file, all workers share one.
    """
    buffer = io.BytesIO()
    pickler = RecordingPickler(buffer)
    parts = [*each_opened(work.opened.parts)]
    parts += [part.derivation.rows for part in parts if part.derivation is not None]
    named = {id(part.index): (path, part.index.fingerprint) for part in parts if (path := _path_of(part))}
    pickler.persistent_id = lambda thing: named.get(id(thing))  # type: ignore[method-assign]
    pickler.dump((work, *others))
    return buffer.getvalue(), pickler.packages


def packages_of(thing: Any) -> set[str]:
    """Return the packages of all names in an object's pickle; some other name if the object cannot be pickled."""
    pickler = RecordingPickler(io.BytesIO())
    try:
        pickler.dump(thing)
    except Exception:  # noqa: BLE001  # a foreign class may raise anything when it is taken apart
        return {"unknown"}
    return pickler.packages


def unpack(data: bytes, main: dict[str, Any] | None = None) -> Any:
    """Return the packed objects; `IndexFileError` if the index file now holds another index.

    ``main`` is the place of the parent's main module, which is imported if an object needs it.
    """
    unpickler = MainUnpickler(data, main or {})
    unpickler.persistent_load = cache(_load)  # type: ignore[method-assign]  # all references share one object
    return unpickler.load()


def _load(named: tuple[str, str]) -> Index:
    path, fingerprint = named
    index = load_index(path, store=LocalStore(), trusted=True)
    if index.fingerprint != fingerprint:
        msg = f"{path} now holds the index of dataset {index.fingerprint}, but held the index of {fingerprint}"
        raise IndexFileError(msg, hint="do not replace the index while a run uses it")
    return index


def _path_of(opened: Opened) -> str:
    """Return the local file with exactly this index; "" if the index is small, or in no local file."""
    index, path = opened.index, local_file_of(opened.index_path or "")
    if not path or index.num_extents + index.num_samples < _SMALL_ROWS:
        return ""
    try:
        same = load_index(path, store=LocalStore(), trusted=True)
    except ShoalError:  # a missing or changed file: the index is pickled
        return ""
    # The index of a selection of its shards has another fingerprint.
    return path if same.fingerprint == index.fingerprint else ""
