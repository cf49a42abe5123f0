"""Interface of a store, with defaults and the functions that most stores share.

Modification times come in nanoseconds, in seconds or as dates. The system has nanoseconds, http and most archives have
seconds: a time without a fraction may be a whole second, or its fraction may be lost.
"""

from __future__ import annotations

import datetime as dt
import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shoal.errors import StorageError
from shoal.storage.storage_errors import CHANGED_HINT, CUT_SHORT_HINT, is_missing, timestamp

Buffer = bytes | bytearray | memoryview

_PART_BYTES = 8 << 20
_MOST_BYTES = 1 << 40  # limit for an object that is read as a whole
_CHANGED_ATTEMPTS = 4
_SECOND_NS = 10**9
_NANOSECONDS = re.compile(r"\d{18,19}")  # since 1970: the years 1973 to 2286


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object, as its store describes it.

    The store reads the object by ``path``, its full path or URL. ``version`` is any text that changes when the object
    is written again (an etag; for local files the modification time in nanoseconds); empty if the store has none.
    ``modified_ns`` is the modification time in nanoseconds since 1970, if the store gives it, perhaps only to the
    second; ``==`` does not compare it.
    """

    path: str
    num_bytes: int
    version: str = ""
    modified_ns: int | None = field(default=None, compare=False)


class Reader(Protocol):
    """Reader of parts of one object that belong together."""

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)``; call `confirm` before trusting them."""

    def confirm(self) -> None:
        """Raise `StorageError` if the object has changed since it was first read."""


class Store(ABC):
    """Objects by path. A store defines `read_range` and `stat`, and replaces the defaults that it can improve.

    Each method makes one attempt and waits for its answer; callers that retry check `StorageError.transient`. A store
    may be shared between threads. It may be pickled for a worker, without its connections and its records of objects.
    In a forked child it works, or raises an error at once (`ForkError`).

    An object must stay as it was when the store first saw it, in `stat`, `list` or a read: an answer about another
    version is an error and never other bytes. So a remote store may answer `stat` and `find` from memory.
    """

    reads_ahead: bool = False
    """True for files of this machine whose system reads ahead on `advise`: a reader then needs no threads."""

    @abstractmethod
    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``; raises `StorageError` if there are fewer."""

    @abstractmethod
    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of ``path``; raises `StorageError` if it does not exist."""

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with a new request, if `stat` may answer from memory."""
        return self.stat(path)

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, or None if the store knows that the object does not exist."""
        try:
            return self.stat(path)
        except StorageError as error:
            if is_missing(error):
                return None
            raise

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on; raises the errors of `read_range`."""
        buffer[:] = self.read_range(path, first_byte, first_byte + len(buffer))

    def distrust(self, path: str, first_byte: int, end_byte: int) -> None:  # noqa: B027  # most stores keep no bytes
        """Forget copies of these bytes, if the store keeps any: a checksum did not match."""

    def reader(self, path: str) -> Reader:
        """Return a reader of parts of one object; by default, `read_range` compares the version of each part."""
        return _RangeReader(self, path)

    def map(self, path: str) -> memoryview:
        """Return the object as read-only memory. A file is mapped, so processes share it; other objects are read.

        Objects are read in parts, so a broken connection loses only one part. Memory is allocated for bytes that have
        arrived, not for the size that a server announces. Raises `StorageError` like `read_range`, and if
        there is not enough memory.
        """
        num_bytes = self.stat(path).num_bytes
        read = bytearray()
        try:
            while len(read) < num_bytes <= _MOST_BYTES:
                read += self.read_range(path, len(read), min(len(read) + _PART_BYTES, num_bytes))
        except MemoryError:
            pass
        if len(read) < num_bytes:
            msg = f"{path}: the server reports {num_bytes:,} bytes, but there is not enough memory for all of them"
            raise StorageError(msg, hint="is this the right object? An index has some 50 bytes for each 64 KiB of data")
        return memoryview(read).toreadonly()

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:  # noqa: B027  # remote stores read nothing ahead
        """Announce that these bytes will be read soon; returns at once, and never raises: the read itself will."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``, sorted by path if the store lists in this order.

        Raises `StorageError` if a store cannot list.
        """
        raise _unsupported(f"could not list {prefix}: this kind of store cannot list", errno.ENOTSUP)

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:  # noqa: ARG002
        """Write the whole object, from one buffer or several in a row, visible at once or not at all."""
        raise _unsupported(f"could not write {path}: this kind of store is only read", errno.EROFS)

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:  # noqa: ARG002
        """Write the whole object if the stored object is ``replaces`` (None: no object is stored); True if written.

        Raises `StorageError`; with errno ENOTSUP if the store cannot compare.
        """
        msg = f"could not write {path} conditionally: this kind of store cannot compare"
        raise _unsupported(msg, errno.ENOTSUP)

    def delete(self, path: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        raise _unsupported(f"could not remove {path}: this kind of store is only read", errno.EROFS)

    def close(self) -> None:  # noqa: B027  # a store without connections has nothing to close
        """Close connections and files, and forget sizes and versions of objects; the store can be used again."""


class StoreWrapper(Store):
    """Base of stores that read ``store`` in their own way; all other requests go to ``store``."""

    def __init__(self, store: Store) -> None:
        self.store, self.reads_ahead = store, store.reads_ahead

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version, as the store gives them."""
        return self.store.stat(path)

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with a new request."""
        return self.store.stat_again(path)

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, or None if the object does not exist."""
        return self.store.find(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``."""
        return self.store.list(prefix)

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object."""
        self.store.put(path, data)

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the stored object is ``replaces``; return True if written."""
        return self.store.put_if(path, data, replaces=replaces)

    def delete(self, path: str) -> None:
        """Remove the object, if it exists."""
        self.store.delete(path)

    def close(self) -> None:
        """Close connections, and forget sizes and versions of objects."""
        self.store.close()


class _RangeReader:
    """A `Reader` for stores that compare the version of the object at every read."""

    __slots__ = ("_path", "_store")

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        return self._store.read_range(self._path, first_byte, end_byte)

    def confirm(self) -> None:
        pass


class KnownObjects:
    """Size and version of each object when it was first seen, so that a change is noticed.

    There is no lock that a fork could leave held: each step is one dict operation, atomic between threads.
    """

    def __init__(self) -> None:
        self._known: dict[str, ObjectInfo] = {}
        self._num_right: dict[str, int] = {}

    def get(self, path: str) -> ObjectInfo | None:
        """Return the record of ``path``, or None."""
        return self._known.get(path)

    def check(self, path: str, num_bytes: int, etag: str | None, modified: object = None) -> ObjectInfo:
        """Record an object as a store reports it, or compare it with its record.

        Raises `StorageError` if it has changed. See `nanoseconds_of` for ``modified``.
        """
        first, version = self._known.get(path), version_of(etag)
        if first is None:  # parse the date only once for each object: it takes longer than all comparisons
            first = self._known.setdefault(path, ObjectInfo(path, num_bytes, version, nanoseconds_of(modified)))
        change = ""
        if first.num_bytes != num_bytes:
            change = f"had {first.num_bytes} bytes, and now has {num_bytes}"
        elif first.version and version and first.version != version:
            change = f"was version {first.version}, and now is {version}"
        if change:
            # Final after several in a row, without the first version in between.
            msg = f"{path}: this object changed while it was being read: it {change}"
            evidence = change, self._num_right.get(path, 0)
            raise StorageError(msg, hint=CHANGED_HINT, worth_attempts=_CHANGED_ATTEMPTS, evidence=evidence)
        self._num_right[path] = self._num_right.get(path, 0) + 1
        if version and not first.version:
            self._known[path] = first = replace(first, version=version)
        return first

    def forget(self, path: str | None = None) -> None:
        """Forget one object, or all."""
        if path is None:
            self._known.clear()
        else:
            self._known.pop(path, None)


def check_length(path: str, first_byte: int, end_byte: int, num_received: int, num_bytes: int | None) -> None:
    """Raise `StorageError` unless the requested number of bytes came; ``num_bytes`` is the object's size, if known."""
    if num_received == end_byte - first_byte:
        return
    request = f"{path}: asked for bytes [{first_byte}, {end_byte})"
    if num_bytes is not None and num_bytes < end_byte:
        raise StorageError(f"{request}, but the object ends at byte {num_bytes}", hint=CUT_SHORT_HINT)
    msg = f"{request}, {end_byte - first_byte} bytes, but {num_received} came"
    raise StorageError(msg, hint="the connection or the server broke off", transient=True)


def version_of(etag: str | None) -> str:
    """Return an etag in comparable form: some servers quote the etag, or mark it as weak, only in some responses."""
    return (etag or "").removeprefix("W/").strip('"')


def as_one_buffer(data: Buffer | Sequence[Buffer]) -> Buffer:
    """Return one buffer or several in a row as one, copied only if there are several."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    return data[0] if len(data) == 1 else b"".join(data)


def nanoseconds_of(modified: object) -> int | None:
    """Return a store's modification time (a date, seconds, or a local version) in nanoseconds since 1970; else None.

    Fractions of seconds (float) and of dates are truncated: they are not exact enough for comparison.

    >>> nanoseconds_of("Thu, 01 Jan 2026 00:00:00 GMT") == nanoseconds_of(1767225600.25) == 1767225600 * 10**9
    True
    """
    if isinstance(modified, str) and _NANOSECONDS.fullmatch(modified):
        return int(modified)
    try:
        if isinstance(modified, str):
            seconds = timestamp(modified)
        elif isinstance(modified, dt.datetime):
            seconds = modified.timestamp()
        else:
            seconds = float(modified) if isinstance(modified, int | float) else None
        return None if seconds is None else int(seconds) * _SECOND_NS
    except (ValueError, OverflowError, OSError):
        return None


def same_time(one_ns: int | None, other_ns: int | None) -> bool:
    """Return True if two times are equal; to the second, if one of them has no fraction of a second."""
    if one_ns is None or other_ns is None:
        return False
    if one_ns % _SECOND_NS and other_ns % _SECOND_NS:
        return one_ns == other_ns
    return one_ns // _SECOND_NS == other_ns // _SECOND_NS


def _unsupported(msg: str, number: int) -> StorageError:
    error = StorageError(msg)
    error.errno = number
    return error
