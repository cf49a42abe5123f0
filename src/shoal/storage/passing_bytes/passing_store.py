"""A store whose reads leave bytes in files or take them from there; everything else is the store's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from shoal.storage.remote_objects import no_read_ahead, range_reader, read_whole
from shoal.storage.store_protocol import Buffer, ObjectInfo, PutIf, ReadRange, Stat, StatAgain, Store


class ReadAndStat(ReadRange, Stat, Protocol):
    """The verbs by which bytes of a known version are read."""


@runtime_checkable
class Fill(Protocol):
    """Verb of stores that read in place."""

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on; raises the errors of `read_range`."""


class FillAndStat(Fill, Stat, Protocol):
    """The verbs by which bytes of a known version are read in place."""


class Reads(Protocol):
    """Reading of a remote store by way of files."""

    def read_range(self, store: ReadAndStat, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``; raises the errors of the store."""

    def fill(self, store: FillAndStat, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on."""

    def distrust(self, path: str, first_byte: int, end_byte: int) -> None:
        """Remove files with any of these bytes: they are not those that were wanted."""


class PassingStore:
    """A remote store read by way of ``reads``.

    It has the verbs that ``store`` has, also those that only some stores have (`StatAgain`, `PutIf`, `Fill`), and
    pickles with it.
    """

    reads_ahead = False
    advise = no_read_ahead
    reader = range_reader
    map = read_whole

    def __init__(self, store: Store, reads: Reads) -> None:
        self._store, self._reads = store, reads
        # Attributes and not methods: callers find out whether a store has these verbs.
        if isinstance(store, StatAgain):
            self.stat_again = store.stat_again
        if isinstance(store, PutIf):
            self.put_if = store.put_if
        if isinstance(store, Fill):
            self.fill = partial(reads.fill, store)

    def __reduce__(self) -> tuple[object, ...]:
        return PassingStore, (self._store, self._reads)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``."""
        return self._reads.read_range(self._store, path, first_byte, end_byte)

    def distrust(self, path: str, first_byte: int, end_byte: int) -> None:
        """Read these bytes from the store the next time, not from files."""
        self._reads.distrust(path, first_byte, end_byte)

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version, as the store gives them."""
        return self._store.stat(path)

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, or None if the object does not exist."""
        return self._store.find(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``."""
        return self._store.list(prefix)

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object."""
        self._store.put(path, data)

    def delete(self, path: str) -> None:
        """Remove the object, if it exists."""
        self._store.delete(path)

    def close(self) -> None:
        """Close connections, and forget sizes and versions of objects."""
        self._store.close()


def distrust(store: object, path: str, first_byte: int, end_byte: int) -> None:
    """Make ``store`` read these bytes anew the next time, if it is one that reads by way of files."""
    if isinstance(store, PassingStore):
        store.distrust(path, first_byte, end_byte)
