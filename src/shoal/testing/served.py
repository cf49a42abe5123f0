"""Objects to serve, from memory or the files of a directory, with their etags and times."""

# Paths are text here, as in the stores.
# ruff: noqa: PTH100, PTH118

from __future__ import annotations

import os
import posixpath
import zlib
from collections.abc import Iterator, Mapping

from shoal.errors import StorageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.store import Buffer

# For objects that are not files.
_SOME_TIME_NS = 1767225600 * 10**9


class InMemory:
    """Objects of a mapping from path to bytes; changes in the mapping take effect here, etag included."""

    def __init__(self, objects: Mapping[str, Buffer]) -> None:
        self._objects = objects
        self._etags: dict[str, tuple[Buffer, str]] = {}

    def get(self, path: str) -> tuple[memoryview, str, int] | None:
        """Return the bytes, the etag and the time in nanoseconds of an object, or None."""
        data = self._objects.get(path)
        if data is None:
            return None
        known = self._etags.get(path)
        if known is None or known[0] is not data:
            known = self._etags[path] = data, f"{len(data):x}-{zlib.crc32(data):08x}"
        return memoryview(data).cast("B"), known[1], _SOME_TIME_NS

    def paths(self) -> Iterator[str]:
        """Yield all paths, sorted."""
        return iter(sorted(self._objects))


class Directory:
    """The files below a directory, mapped into memory; a replaced file is served anew, with another etag."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._known: dict[str, tuple[str, memoryview]] = {}

    def get(self, path: str) -> tuple[memoryview, str, int] | None:
        """Return the bytes, the etag and the time in nanoseconds of a file, or None."""
        if not path or posixpath.normpath(path) != path or path.startswith(("/", "..")):
            return None
        full = os.path.join(self._root, path)
        try:
            info = LocalStore().stat(full)
            etag = f"{info.num_bytes:x}-{info.version}"
            known = self._known.get(path)
            if known is None or known[0] != etag:
                known = self._known[path] = etag, LocalStore().map(full)
        except StorageError:
            return None
        return known[1], etag, info.modified_ns or _SOME_TIME_NS

    def paths(self) -> Iterator[str]:
        """Yield all paths, sorted."""
        return (os.path.relpath(info.path, self._root) for info in LocalStore().list(self._root))


Served = InMemory | Directory


def served(objects: Mapping[str, Buffer] | str | os.PathLike[str]) -> Served:
    """Wrap a mapping, or the directory of that name, for serving."""
    return InMemory(objects) if isinstance(objects, Mapping) else Directory(os.fspath(objects))
