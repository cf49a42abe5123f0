"""Pickling of work for another process of this machine, without its index if that process can map it itself.

An index of ten million extents takes some hundred megabytes. Pickled by value, every worker would hold a copy of its
own; mapped from its file, all of them share one.
"""

from __future__ import annotations

import io
import pickle
from functools import cache

from shoal.errors import IndexFileError, ShoalError
from shoal.index.table import Index
from shoal.indexing.index_files import load_index, local_file_of
from shoal.indexing.opened_dataset import Opened
from shoal.storage.files.local_store import LocalStore
from shoal.stream.iterating.iterator_specs import WorkerSpec

_SMALL_ROWS = 100_000  # extents and samples; below, a few megabytes are sent faster than a file is opened


def pack(work: WorkerSpec) -> bytes:
    """Return the work as bytes that `unpack` restores on this machine."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    named = {id(part.index): (path, part.index.fingerprint) for part in work.opened.parts if (path := _path_of(part))}
    pickler.persistent_id = lambda thing: named.get(id(thing))  # type: ignore[method-assign]
    pickler.dump(work)
    return buffer.getvalue()


def unpack(data: bytes) -> WorkerSpec:
    """Return the work that was packed.

    Raises
    ------
    IndexFileError
        The file of the index holds another one by now.
    """
    unpickler = pickle.Unpickler(io.BytesIO(data))  # noqa: S301  # of a process of this run
    unpickler.persistent_load = cache(_load)  # type: ignore[method-assign]  # one object for all references to it
    work: WorkerSpec = unpickler.load()
    return work


def _load(named: tuple[str, str]) -> Index:
    path, fingerprint = named
    index = load_index(path, store=LocalStore(), trusted=True)
    if index.fingerprint != fingerprint:
        msg = f"{path} now holds the index of dataset {index.fingerprint}, and held that of {fingerprint}"
        raise IndexFileError(msg, hint="do not replace the index while a run uses it")
    return index


def _path_of(opened: Opened) -> str:
    """Return the local file that holds exactly this index; "" if it is small, or there is no such file."""
    index, path = opened.index, local_file_of(opened.index_path or "")
    if not path or index.num_extents + index.num_samples < _SMALL_ROWS:
        return ""
    try:
        same = load_index(path, store=LocalStore(), trusted=True)
    except ShoalError:  # gone, or changed: then the index is pickled
        return ""
    # The index of a selection of its shards has another fingerprint.
    return path if same.fingerprint == index.fingerprint else ""
