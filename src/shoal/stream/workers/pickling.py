"""Pickling of work for another process of this machine, without its index if that process can map it itself.

An index of ten million extents takes some hundred megabytes. Pickled by value, every worker would hold a copy of its
own; mapped from its file, all of them share one.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from shoal.errors import IndexFileError, ShoalError
from shoal.index.table import Index
from shoal.indexing.index_files import load_index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.urls import scheme_of
from shoal.stream.iterating.iterator_specs import WorkerSpec

_SMALL_ROWS = 100_000  # extents and samples; below, a few megabytes are sent faster than a file is opened


def pack(work: WorkerSpec) -> bytes:
    """Return the work as bytes that `unpack` restores on this machine."""
    buffer = io.BytesIO()
    _Packer(buffer, work).dump(work)
    return buffer.getvalue()


def unpack(data: bytes) -> WorkerSpec:
    """Return the work that was packed.

    Raises
    ------
    IndexFileError
        The file of the index holds another one by now.
    """
    found: WorkerSpec = _Unpacker(io.BytesIO(data)).load()
    return found


class _Packer(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, work: WorkerSpec) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self._index, self._path = work.opened.index, _path_of(work)

    def persistent_id(self, thing: Any) -> tuple[str, str] | None:
        """Return the file of the index in its place."""
        return (self._path, self._index.fingerprint) if self._path and thing is self._index else None


class _Unpacker(pickle.Unpickler):
    _index: Index | None = None

    def persistent_load(self, named: tuple[str, str]) -> Index:
        """Return the index of the file, one object for all references to it."""
        if self._index is None:
            self._index = self._loaded(*named)
        return self._index

    def _loaded(self, path: str, fingerprint: str) -> Index:
        index = load_index(path, store=LocalStore(), trusted=True)
        if index.fingerprint != fingerprint:
            msg = f"{path}: an index of dataset {index.fingerprint}, where {fingerprint} was just before"
            raise IndexFileError(msg, hint="leave the index as it is while a run uses it")
        return index


def _path_of(work: WorkerSpec) -> str:
    """Return the local file that holds exactly the index of this work; "" if it is small, or there is no such file."""
    index, path = work.opened.index, work.opened.index_path
    if path is None or scheme_of(path) or index.num_extents + index.num_samples < _SMALL_ROWS:
        return ""
    try:
        same = load_index(path, store=LocalStore(), trusted=True)
    except ShoalError:  # gone, or changed: then the index is pickled
        return ""
    # The index of a selection of its shards has another fingerprint.
    return path if same.fingerprint == index.fingerprint else ""
