"""What a store must be able to do: one protocol per verb, so that a consumer asks only for the verbs it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object, as its store describes it.

    ``path`` is the full path or URL by which the store reads it. ``version`` is whatever changes when the object is
    written again (an etag; for local files the modification time in nanoseconds), as text; empty where the store
    has none.
    """

    path: str
    num_bytes: int
    version: str = ""


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


class List(Protocol):
    """Finds objects."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the directory ``prefix``, sorted by path."""
        ...


class Put(Protocol):
    """Writes objects."""

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object, from one buffer or several in a row, visible at once or not at all."""
        ...


class Store(ReadRange, Stat, List, Put, Protocol):
    """All the verbs together."""
