"""Interface of a store: protocols of few verbs, so that a consumer asks only for those it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object, as its store describes it.

    ``path`` is the full path or URL by which the store reads it. ``version`` is any text that changes when the object
    is written again (an etag; for local files the modification time in nanoseconds); empty if the store has none.
    ``modified_ns`` is the modification time in nanoseconds since 1970, if the store gives it, perhaps only to the
    second; ``==`` does not compare it.
    """

    path: str
    num_bytes: int
    version: str = ""
    modified_ns: int | None = field(default=None, compare=False)


class ReadRange(Protocol):
    """Verb that reads a range of an object."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``; raises `StorageError` if there are fewer."""


class Reader(Protocol):
    """Reader of parts of one object that belong together."""

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)``; call `confirm` before trusting them."""

    def confirm(self) -> None:
        """Raise `StorageError` if the object has changed since it was first read."""


class Advise(Protocol):
    """Verb that lets the system read ahead on its own."""

    @property
    def reads_ahead(self) -> bool:
        """True if `advise` has an effect: then a reader needs no threads to have bytes at hand in time."""

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """Announce that these bytes will be read soon; returns at once, and never raises: the read itself will."""


class Stat(Protocol):
    """Verb that describes one object."""

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of ``path``; raises `StorageError` if it does not exist."""


@runtime_checkable
class StatAgain(Protocol):
    """Verb of remote stores, which remember their answers: they may have come from a server that lags."""

    def stat_again(self, path: str) -> ObjectInfo:
        """`Stat.stat` with a new request."""


class Find(Protocol):
    """Verb that tells whether an object exists."""

    def find(self, path: str) -> ObjectInfo | None:
        """`Stat.stat`, or None if the store knows that the object does not exist."""


class Put(Protocol):
    """Verb that writes an object."""

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object, from one buffer or several in a row, visible at once or not at all."""


@runtime_checkable
class PutIf(Protocol):
    """Verb that writes an object unless it has changed meanwhile; only some stores have it."""

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the one there is still ``replaces`` (None: if there is none); True if written.

        Raises `StorageError`; with errno ENOTSUP if the store cannot compare.
        """


class MapRange(Protocol):
    """Verb that brings a whole object into memory."""

    def map(self, path: str) -> memoryview:
        """Return the object as read-only memory; a file is mapped, so that processes share it, others are read."""


class Store(ReadRange, Advise, Stat, Find, Put, MapRange, Protocol):
    """All the verbs together: the interface that the stream reads from.

    Every verb makes one attempt and waits for its answer; callers that retry check `StorageError.transient`. A store
    may be shared between threads. It may be pickled for a worker, without its connections and its records of objects.
    In a forked child it works, or raises an error at once (`ForkError`).

    An object must stay as it was when the store first saw it, in `stat`, `list` or a read: an answer about another
    version is an error and never other bytes. So a remote store may answer `stat` and `find` from memory.
    """

    def reader(self, path: str) -> Reader:
        """Return a reader of parts of one object that belong together."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``, sorted by path if the store has them so.

        Raises `StorageError` if a store cannot list.
        """

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if it does not exist."""

    def close(self) -> None:
        """Close connections and files, and forget sizes and versions of objects; the store can be used again."""
