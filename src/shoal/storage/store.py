"""What a store must be able to do: one protocol per verb, so that a consumer asks only for the verbs it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object, as its store describes it.

    ``path`` is the full path or URL by which the store reads it. ``version`` is whatever changes when the object is
    written again (an etag; for local files the modification time in nanoseconds), as text; empty where the store
    has none. ``modified_ns`` is when it was last written, in nanoseconds since 1970, where the store says so, if only
    to the second; ``==`` does not compare it.
    """

    path: str
    num_bytes: int
    version: str = ""
    modified_ns: int | None = field(default=None, compare=False)


class ReadRange(Protocol):
    """Reads parts of objects."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Exactly the bytes ``[first_byte, end_byte)``; raises `StorageError` when fewer are there."""
        ...


class Reader(Protocol):
    """Reads parts of one object that belong together."""

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """The bytes ``[first_byte, end_byte)``; `confirm` must be asked before they are believed."""
        ...

    def confirm(self) -> None:
        """Raises `StorageError` if the object is not the one it was when it was first read."""
        ...


class Advise(Protocol):
    """Lets the system read ahead on its own."""

    @property
    def reads_ahead(self) -> bool:
        """Whether `advise` does anything: then a reader needs no threads to have bytes at hand when it wants them."""
        ...

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """These bytes will be read soon; returns at once, and never raises: the read itself will."""
        ...


class Stat(Protocol):
    """Describes one object."""

    def stat(self, path: str) -> ObjectInfo:
        """What the store says of ``path``; raises `StorageError` when it is not there."""
        ...


class Find(Protocol):
    """Says whether an object is there."""

    def find(self, path: str) -> ObjectInfo | None:
        """The same as `Stat.stat`, or None where the store knows that nothing of that name is there."""
        ...


class List(Protocol):
    """Finds objects."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the directory ``prefix``, sorted by path where the store has them so.

        Raises `StorageError` where a store cannot list.
        """
        ...


class Put(Protocol):
    """Writes objects."""

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object, from one buffer or several in a row, visible at once or not at all."""
        ...


@runtime_checkable
class PutIf(Protocol):
    """Writes objects unless somebody else has done so meanwhile; only some stores can."""

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the one that is there is still that (None: if none is); whether it was written.

        Raises `StorageError`; with the number ENOTSUP where the store cannot compare.
        """
        ...


class Delete(Protocol):
    """Removes objects."""

    def delete(self, path: str) -> None:
        """Remove an object; where nothing of that name is there, nothing happens."""
        ...


class MapRange(Protocol):
    """Brings whole objects into memory."""

    def map(self, path: str) -> memoryview:
        """The whole object as read-only memory; a file is mapped, so that processes share it, the rest is read."""
        ...


class Store(ReadRange, Advise, Stat, Find, List, Put, Delete, MapRange, Protocol):
    """All the verbs together: what the stream reads from.

    Every verb makes one attempt and waits for its answer; whoever wants another attempt asks `StorageError.transient`.
    A store may be shared between threads. It may be pickled for a worker; what it remembers of its objects, and its
    connections, stay behind. In a forked child it works, or says at once that it does not (`ForkError`).

    An object must stay what it was when the store first met it, in `stat`, `list` or a read: an answer about another
    version is an error and never other bytes. So a remote store may answer `stat` and `find` from memory.
    """

    def reader(self, path: str) -> Reader:
        """Reads parts of one object that belong together."""
        ...

    def close(self) -> None:
        """Let go of connections and open files, and forget what objects looked like; it can be used again."""
        ...
