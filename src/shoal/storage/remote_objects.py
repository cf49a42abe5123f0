"""Functions shared by all stores whose objects are not files of this machine, and interpretation of what they report.

Modification times come in nanoseconds, in seconds or as dates. The system has nanoseconds, http and most archives have
seconds: so a time without a fraction may be a whole second, or one whose fraction was lost on the way.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Protocol

from shoal.errors import StorageError
from shoal.storage.storage_errors import CHANGED_HINT, CUT_SHORT_HINT, is_missing, timestamp
from shoal.storage.store_protocol import Buffer, ObjectInfo, ReadRange, Stat

_PART_BYTES = 8 << 20
_MOST_BYTES = 1 << 40  # limit for an object that is read as a whole
_CHANGED_ATTEMPTS = 4
_SECOND_NS = 10**9
_NANOSECONDS = re.compile(r"\d{18,19}")  # since 1970: the years 1973 to 2286


class KnownObjects:
    """Size and version of each object when it was first seen, so that a change is noticed.

    No lock: each step is one dict operation, atomic between threads, so a fork cannot leave one held.
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
        known, version = self._known.get(path), version_of(etag)
        # Only once for each object: parsing a date takes longer than comparing all the rest.
        now = ObjectInfo(path, num_bytes, version, None if known else nanoseconds_of(modified))
        first = known or self._known.setdefault(path, now)
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
            self._known[path] = first = now
        return first

    def forget(self, path: str | None = None) -> None:
        """Forget one object, or all."""
        if path is None:
            self._known.clear()
        else:
            self._known.pop(path, None)


class RangeReader:
    """A `Reader` for stores that compare the version of the object at every read."""

    __slots__ = ("_path", "_store")

    def __init__(self, store: ReadRange, path: str) -> None:
        self._store, self._path = store, path

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)``."""
        return self._store.read_range(self._path, first_byte, end_byte)

    def confirm(self) -> None:
        """Do nothing: every read was compared."""


class _ReadsAndStats(ReadRange, Stat, Protocol):
    """The verbs needed to read a whole object."""


# Methods that remote stores have in common, as in `map = read_whole`.


def range_reader(store: ReadRange, path: str) -> RangeReader:
    """Return a reader of parts of one object, which compares its version at each read."""
    return RangeReader(store, path)


def no_read_ahead(_store: object, path: str, first_byte: int, end_byte: int) -> None:
    """Do nothing: remote stores do not read ahead."""


def find_by_stat(store: Stat, path: str) -> ObjectInfo | None:
    """`stat`, or None if the store knows that the object does not exist."""
    try:
        return store.stat(path)
    except StorageError as error:
        if is_missing(error):
            return None
        raise


def read_whole(store: _ReadsAndStats, path: str) -> memoryview:
    """Return a whole object, read in parts, so that a broken connection does not cost all of it.

    Memory is taken for bytes that have arrived, and not for the size that a server announces. Raises `StorageError`
    like `read_range`, and if there is not enough memory.
    """
    num_bytes = store.stat(path).num_bytes
    read = bytearray()
    try:
        while len(read) < num_bytes <= _MOST_BYTES:
            read += store.read_range(path, len(read), min(len(read) + _PART_BYTES, num_bytes))
    except MemoryError:
        pass
    if len(read) < num_bytes:
        msg = f"{path}: has {num_bytes:,} bytes, the server says, and there is not enough memory for all of them"
        raise StorageError(msg, hint="is this the right object? An index has some 50 bytes for each 64 KiB of data")
    return memoryview(read).toreadonly()


def check_length(path: str, first_byte: int, end_byte: int, num_found: int, num_bytes: int | None) -> None:
    """Raise `StorageError` unless the requested number of bytes came; ``num_bytes`` is the object's size, if known."""
    if num_found == end_byte - first_byte:
        return
    asked = f"{path}: asked for bytes [{first_byte}, {end_byte})"
    if num_bytes is not None and num_bytes < end_byte:
        raise StorageError(f"{asked}, but the object ends at byte {num_bytes}", hint=CUT_SHORT_HINT)
    msg = f"{asked}, {end_byte - first_byte} bytes, but {num_found} came"
    raise StorageError(msg, hint="the connection or the server broke off", transient=True)


def version_of(etag: str | None) -> str:
    """Return an etag in comparable form: some servers quote it in some answers only, or call it weak now and then."""
    return (etag or "").removeprefix("W/").strip('"')


def as_one_buffer(data: Buffer | Sequence[Buffer]) -> Buffer:
    """Return one buffer or several in a row as one, copied only if there are several."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    return data[0] if len(data) == 1 else b"".join(data)


def nanoseconds_of(modified: object) -> int | None:
    """Return a store's modification time (a date, seconds, or a local version) in nanoseconds since 1970; else None.

    Seconds that come as a float, and fractions of a date, are truncated: they are not exact enough to be compared.

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
