"""Store of objects in the memory of this process, for tests and examples: ``memory://...``."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.errors import StorageError
from shoal.storage.storage_errors import check_range
from shoal.storage.store_protocol import Buffer, KnownObjects, ObjectInfo, Store, as_one_buffer, check_length


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: str


_objects: dict[str, _Object] = {}
# Forked children share this identity with their parent; a spawned process has its own.
_family = os.urandom(16)


class MemoryStore(Store):
    """Store of objects with URLs ``memory://anything/name``; all stores of a process share them.

    A forked child sees the objects that existed when it was forked. A spawned process sees none, and a store pickled
    for it raises an error.

    >>> store = MemoryStore()
    >>> store.put("memory://docs/a.bin", b"0123456789")
    >>> store.read_range("memory://docs/a.bin", 2, 5)
    b'234'
    """

    def __init__(self, _created_in: bytes = _family) -> None:
        self._created_in = _created_in
        self._known = KnownObjects()

    def __repr__(self) -> str:
        return "MemoryStore()"

    def __reduce__(self) -> tuple[object, ...]:
        return MemoryStore, (self._created_in,)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``."""
        check_range(path, first_byte, end_byte)
        data = self._object(path, verb=f"read bytes [{first_byte}, {end_byte}) of").data
        part = data[first_byte:end_byte]
        check_length(path, first_byte, end_byte, len(part), len(data))
        return part

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of an object."""
        stored = self._object(path, verb="look at")
        return self._known.check(path, len(stored.data), stored.version)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``, sorted by path."""
        self._check_process(prefix)
        directory = prefix if prefix.endswith("/") else f"{prefix}/"
        return iter([self.stat(path) for path in sorted(_objects) if path.startswith(directory)])

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Keep an object, replacing any object of its name."""
        self._check_process(path)
        whole = bytes(as_one_buffer(data))
        _objects[path] = _Object(whole, hashlib.blake2b(whole, digest_size=8).hexdigest())
        self._known.forget(path)

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Store an object if the stored object is ``replaces`` (None: no object is stored); return True if stored."""
        self._check_process(path)
        self._known.forget(path)
        stored = _objects.get(path)
        if (stored and stored.version) != (replaces and replaces.version):
            return False
        self.put(path, data)
        return True

    def delete(self, path: str) -> None:
        """Remove the object, if it exists."""
        self._check_process(path)
        _objects.pop(path, None)
        self._known.forget(path)

    def map(self, path: str) -> memoryview:
        """Return the object itself."""
        return memoryview(self._object(path, verb="read").data)

    def close(self) -> None:
        """Forget sizes and versions of objects; the objects stay."""
        self._known.forget()

    def _object(self, path: str, *, verb: str) -> _Object:
        self._check_process(path)
        stored = _objects.get(path)
        if stored is None:
            msg = f"could not {verb} {path}: there is no such object in the memory of this process"
            error = StorageError(msg, hint="MemoryStore().put(path, data) puts it there")
            error.errno = errno.ENOENT
            raise error
        self._known.check(path, len(stored.data), stored.version)
        return stored

    def _check_process(self, path: str) -> None:
        if self._created_in != _family:
            msg = f"{path}: this object is in the memory of another process"
            raise StorageError(msg, hint="fork the workers; spawned workers need files or a server")
