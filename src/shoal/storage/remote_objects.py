"""Helpers shared by all stores whose objects are not files of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.errors import StorageError, UsageError
from shoal.storage.store import Buffer, ObjectInfo, ReadRange, Stat

_PIECE_BYTES = 8 << 20
_MOST_BYTES = 1 << 40  # limit for an object that is read as a whole
_CHANGED_ATTEMPTS = 4
_CHANGED_HINT = (
    "shards must stay as they are during a run; start again from the last state, and after `shoal index` if the "
    "contents are new"
)


class Known:
    """Size and version of each object when it was first met, so that a change is noticed.

    No lock: each step is one dict operation, atomic between threads, so a fork cannot leave one held.
    """

    def __init__(self) -> None:
        self._known: dict[str, ObjectInfo] = {}
        self._num_right: dict[str, int] = {}

    def get(self, path: str) -> ObjectInfo | None:
        """Return the record of ``path``, or None."""
        return self._known.get(path)

    def met(self, path: str, num_bytes: int, version: str, modified_ns: int | None = None) -> ObjectInfo:
        """Record an object, or compare it with its record.

        Raises
        ------
        StorageError
            It has changed.
        """
        now = ObjectInfo(path, num_bytes, version, modified_ns)
        first = self._known.get(path) or self._known.setdefault(path, now)
        if first.num_bytes != num_bytes:
            raise self._changed(path, f"had {first.num_bytes} bytes, and now has {num_bytes}")
        if first.version and version and first.version != version:
            raise self._changed(path, f"was version {first.version}, and now is {version}")
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

    def _changed(self, path: str, how: str) -> StorageError:
        """Return the error for a changed object: final after several in a row, without the first version in between."""
        msg = f"{path}: this object changed while it was being read: it {how}"
        evidence = how, self._num_right.get(path, 0)
        return StorageError(msg, hint=_CHANGED_HINT, worth_attempts=_CHANGED_ATTEMPTS, evidence=evidence)


class ReadsRanges:
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


def read_whole(store: _ReadsAndStats, path: str) -> memoryview:
    """Return a whole object, read in pieces, so that a broken connection does not cost all of it.

    Memory is taken for bytes that have arrived, and not for the size that a server announces.

    Raises
    ------
    StorageError
        The same as for `read_range`; or there is not enough memory.
    """
    num_bytes = store.stat(path).num_bytes
    read = bytearray()
    try:
        while len(read) < num_bytes <= _MOST_BYTES:
            read += store.read_range(path, len(read), min(len(read) + _PIECE_BYTES, num_bytes))
    except MemoryError:
        pass
    if len(read) < num_bytes:
        msg = f"{path}: has {num_bytes:,} bytes by what the server says, and there is no memory for them as a whole"
        raise StorageError(msg, hint="is this the right object? An index has some 50 bytes for each 64 KiB of data")
    return memoryview(read).toreadonly()


def check_range(path: str, first_byte: int, end_byte: int) -> None:
    """Raise `UsageError` for an invalid range."""
    if not 0 <= first_byte <= end_byte:
        msg = f"{path}: asked for bytes [{first_byte}, {end_byte}), which is no range"
        raise UsageError(msg)


def check_length(path: str, first_byte: int, end_byte: int, num_found: int, num_bytes: int | None) -> None:
    """Raise `StorageError` unless the requested number of bytes came; ``num_bytes`` is the object's size, if known."""
    if num_found == end_byte - first_byte:
        return
    asked = f"{path}: asked for bytes [{first_byte}, {end_byte})"
    if num_bytes is not None and num_bytes < end_byte:
        msg = f"{asked}, but the object ends at byte {num_bytes}"
        raise StorageError(msg, hint="it was cut short (an unfinished copy?); copy it again, or index it again")
    msg = f"{asked}, {end_byte - first_byte} bytes, but {num_found} came"
    raise StorageError(msg, hint="the connection or the server broke off", transient=True)


def version_of(etag: str | None) -> str:
    """Return an etag in comparable form: some servers quote it in some answers only, or call it weak now and then."""
    return (etag or "").removeprefix("W/").strip('"')


def whole(data: Buffer | Sequence[Buffer]) -> Buffer:
    """Return one buffer or several in a row as one, copied only if there are several."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    return data[0] if len(data) == 1 else b"".join(data)


def joined(data: Buffer | Sequence[Buffer]) -> bytes:
    """Return one buffer or several in a row as one."""
    return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
