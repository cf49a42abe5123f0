"""Local files, read by position.

Every read names its position (`os.pread`), so any number of threads and forked children share a descriptor and do not
interfere. On 2 cores this took half the CPU per byte of a general object store's local mode.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import stat as stat_bits
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter

from shoal.errors import StorageError, UsageError
from shoal.storage.files.atomic_writes import write_atomically
from shoal.storage.storage_errors import CHANGED_HINT, CUT_SHORT_HINT, check_range, os_failure
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store

_MAX_OPEN = 256
_MOST_READERS = 64
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR)
# O_NONBLOCK: opening a named pipe would otherwise wait for its writer; regular files ignore the flag.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

# Device, inode, size and modification time: writing to a file, or replacing it, changes one of them.
# A tuple: a read of 512 bytes takes 3.3 us, 2.1 of them in the system; with a frozen dataclass it took 4.5 us.
_Identity = tuple[int, int, int, int]


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _OpenFile:
    """A descriptor that is closed when the last thread that reads from it drops it."""

    __slots__ = ("descriptor", "had_name", "identity", "last_used_ns", "num_bytes")

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self.descriptor = descriptor
        self.identity = _identity(status)
        self.num_bytes = status.st_size
        # Some user-space file systems report 0 links for every file: 0 links then mean nothing.
        self.had_name = status.st_nlink > 0
        self.last_used_ns = time.monotonic_ns()

    # The defaults keep these functions: at interpreter exit a file may outlive the globals of this module.
    def __del__(self, close: Callable[[int], None] = os.close, error: type[OSError] = OSError) -> None:
        try:  # noqa: SIM105
            close(self.descriptor)
        except error:
            pass


class LocalStore(Store):
    """Store of this machine's files, by path.

    A file must stay as it was when this store first opened it: device, inode, size and modification time are compared
    at every read (one fstat, about a microsecond), and a difference raises an error. At most ``max_open`` descriptors
    are kept (the most recently used). All stores of this process together keep at most three eighths of the system's
    limit; with the descriptors of readers, half of it. Safe to share between threads, to inherit over a fork, and to
    pickle; a pickled store leaves its records of files behind.

    ``durable`` writes are on the disk when `put` returns. Otherwise writes do not wait for the disk, which may be busy
    with other files, and a crash of the machine may leave a file without its contents.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = LocalStore()
    ...     store.put(os.path.join(directory, "a.bin"), b"0123456789")
    ...     store.read_range(os.path.join(directory, "a.bin"), 2, 5)
    b'234'
    """

    # Where the system reads ahead on request, read-ahead threads only get in the way: each of their reads waits for the
    # interpreter, up to 5 ms, and 100 KB records streamed three times slower than without them.
    reads_ahead = hasattr(os, "posix_fadvise")

    def __init__(self, *, max_open: int = _MAX_OPEN, durable: bool = True) -> None:
        if max_open < 1:
            raise UsageError(f"max_open={max_open}: a store needs at least one open file")
        self._max_open, self._durable = max_open, durable
        _stores[id(self)] = self
        # No lock guards these dicts: each step is one dict operation, atomic between threads, and two threads that open
        # the same file at the same time agree by setdefault. So no fork can leave a lock held.
        self._open: dict[str, _OpenFile] = {}
        self._identities: dict[str, _Identity] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LocalStore, max_open=self._max_open, durable=self._durable), ()

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)`` of ``path``.

        Raises `StorageError` if the file is missing, forbidden, not a regular file, too short, or has changed since it
        was opened.
        """
        if not 0 <= first_byte <= end_byte:
            check_range(path, first_byte, end_byte)
        file = self._file(path)
        try:
            # Never more than the file has: a wrong range must not allocate memory.
            num_bytes = min(end_byte, file.num_bytes) - first_byte
            data = os.pread(file.descriptor, num_bytes, first_byte) if num_bytes > 0 else b""
            if len(data) < num_bytes:
                data += read_fully(file.descriptor, first_byte + len(data), first_byte + num_bytes)
            status = os.fstat(file.descriptor)
        except OSError as error:
            raise os_failure(error, path, verb=f"read bytes [{first_byte}, {end_byte}) of") from error
        self._confirm(path, file, status)
        if len(data) != end_byte - first_byte:
            raise _cut_short(path, first_byte, end_byte, status)
        return data

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on, without a copy; raises the errors of `read_range`."""
        file = self._file(path)
        begin, num_left = first_byte, len(buffer)
        try:
            while num_left and (num_read := os.preadv(file.descriptor, [buffer[begin - first_byte :]], begin)):
                begin, num_left = begin + num_read, num_left - num_read
            status = os.fstat(file.descriptor)
        except OSError as error:
            raise os_failure(error, path, verb=f"read {len(buffer)} bytes from byte {first_byte} of") from error
        self._confirm(path, file, status)
        if num_left:
            raise _cut_short(path, first_byte, first_byte + len(buffer), status)

    def reader(self, path: str) -> LocalReader:
        """Return a reader of parts of one file, which checks the file once for all parts."""
        return LocalReader(self, path, self._file(path))

    def _confirm(self, path: str, file: _OpenFile, status: os.stat_result) -> None:
        if _identity(status) != file.identity:
            raise _changed(path, file.identity, _identity(status))
        if file.had_name and status.st_nlink == 0:
            raise _gone(path)

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """Start bringing these bytes into the page cache; returns at once. 2 us if they are there already."""
        try:
            os.posix_fadvise(self._file(path).descriptor, first_byte, end_byte - first_byte, os.POSIX_FADV_WILLNEED)
        except (OSError, StorageError):
            return  # the read itself will raise the error

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version (the modification time in nanoseconds) of the file ``path``."""
        try:
            status = os.stat(path)
        except OSError as error:
            raise os_failure(error, path, verb="look at") from error
        _check_is_file(path, status)
        return _info(path, status)

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, or None if no such file exists."""
        try:
            return self.stat(path)
        except StorageError as error:
            # another process may create the file at this moment: only the error of `stat` says what was there
            if error.errno not in _NO_SUCH_FILE or os.path.islink(path):
                raise
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every file below the directory ``prefix``, at any depth, sorted by path.

        Links are followed, except back to a directory that holds them. O(files) memory for sorting. Raises
        `StorageError` if ``prefix`` is not a directory, or some part of it cannot be read.
        """
        infos: list[ObjectInfo] = []
        _walk(os.path.join(prefix, ""), infos, above=())
        return iter(sorted(infos, key=lambda info: info.path))

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole file, from one buffer or several in a row: visible at once or not at all.

        Creates missing directories. After an error there is nothing new; after a crash, durable writes leave the old
        file or the new one.
        """
        buffers = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        try:
            write_atomically(path, buffers, durable=self._durable)
        except OSError as error:
            raise os_failure(error, path, verb="write") from error
        self._open.pop(path, None)
        self._identities.pop(path, None)

    def delete(self, path: str) -> None:
        """Remove the file, if it exists."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise os_failure(error, path, verb="remove") from error
        self._open.pop(path, None)
        self._identities.pop(path, None)

    def map(self, path: str) -> memoryview:
        """Return the file as read-only memory, shared with every process that maps it; O(1), pages load on access.

        For files that are only ever replaced, as by `put`: truncating a mapped file kills its readers.
        """
        file = self._file(path)
        if file.num_bytes == 0:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(file.descriptor, 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            msg = f"{path}: could not be mapped into memory ({error})"
            raise StorageError(msg, hint="copy it to a local disk") from error

    def close(self) -> None:
        """Close the descriptors (after the reads in progress) and forget the identities of files."""
        self._open.clear()
        self._identities.clear()

    def _file(self, path: str) -> _OpenFile:
        file = self._open.get(path)
        if file is None:
            file = self._opened(path)
            first = self._identities.setdefault(path, file.identity)
            if first != file.identity:
                raise _changed(path, first, file.identity)
            file = self._open.setdefault(path, file)
            limit = _most_open()
            _close_oldest([self], min(self._max_open, limit))
            if len(_stores) > 1:  # all stores of this process share the limit
                _close_oldest([store for known in _stores.valuerefs() if (store := known()) is not None], limit)
        file.last_used_ns = time.monotonic_ns()
        return file

    @property
    def most_readers(self) -> int:
        """Number of `reader`s that a caller may hold: each keeps a file open."""
        return max(1, min(_MOST_READERS, min(self._max_open, _most_open()) // 6))

    def _opened(self, path: str) -> _OpenFile:
        try:
            try:
                descriptor = os.open(path, _OPEN_FLAGS)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._open.clear()
                descriptor = os.open(path, _OPEN_FLAGS)
            status = os.fstat(descriptor)
            file = _OpenFile(descriptor, status)
        except OSError as error:
            if error.errno == errno.ENOENT and path in self._identities:
                raise _gone(path) from error
            raise os_failure(error, path, verb="open") from error
        _check_is_file(path, status)
        return file


class LocalReader:
    """Reader of parts of one file, which it keeps open; call `confirm` before trusting the bytes.

    For small parts, half the cost of `LocalStore.read_range`, which checks the file after each part.
    """

    __slots__ = ("_descriptor", "_file", "_path", "_store")

    def __init__(self, store: LocalStore, path: str, file: _OpenFile) -> None:
        self._store, self._path, self._file = store, path, file
        self._descriptor = file.descriptor

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)``."""
        return self[first_byte:end_byte]

    def __getitem__(self, span: slice, /) -> bytes:
        """Return the bytes of a slice: callers cut samples from a file as from bytes, with one call less."""
        begin, end = span.start, span.stop
        try:
            data = os.pread(self._descriptor, end - begin, begin)
        except (OSError, ValueError):
            data = b""
        # After a short read, or an error, a full read explains the failure.
        return data if len(data) == end - begin else self._store.read_range(self._path, begin, end)

    def fill(self, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on, and confirm them."""
        try:
            num_bytes = os.preadv(self._descriptor, (buffer,), first_byte)
        except OSError:
            num_bytes = -1
        if num_bytes != len(buffer):
            self._store.fill(self._path, first_byte, buffer)
        self.confirm()

    def confirm(self) -> None:
        """Raise `StorageError` if the file changed since it was first opened."""
        file = self._file
        status = os.fstat(file.descriptor)
        # No other call in the usual case: this runs for each sample that is read alone.
        if file.identity == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) and status.st_nlink:
            return
        self._store._confirm(self._path, file, status)  # noqa: SLF001  # one module


_stores: weakref.WeakValueDictionary[int, LocalStore] = weakref.WeakValueDictionary()


def _most_open() -> int:
    """Return how many files the stores of this process may keep open; the rest of the limit is left to other code."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN, soft * 3 // 8))


def _close_oldest(stores: Sequence[LocalStore], limit: int) -> None:
    """Close the least recently used files until these stores together keep at most ``limit``."""
    excess = sum(len(store._open) for store in stores) - limit  # noqa: SLF001  # one module
    if excess > 0:
        tables = [store._open for store in stores]  # noqa: SLF001  # the same
        files = [(file.last_used_ns, table, path) for table in tables for path, file in table.copy().items()]
        files.sort(key=itemgetter(0))
        # A quarter at once: if every file is read once, sorting at each read took half of the time.
        for _, table, path in files[: excess + limit // 4]:
            table.pop(path, None)


def read_fully(descriptor: int, first_byte: int, end_byte: int) -> bytes:
    """Return a range of an open file, shorter only at its end: one call returns at most 2 GiB, less after a signal."""
    parts = [os.pread(descriptor, end_byte - first_byte, first_byte)]
    while parts[-1] and (first_byte := first_byte + len(parts[-1])) < end_byte:
        parts.append(os.pread(descriptor, end_byte - first_byte, first_byte))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _walk(directory: str, infos: list[ObjectInfo], *, above: tuple[tuple[int, int], ...]) -> None:
    try:
        status = os.stat(directory)
        key = (status.st_dev, status.st_ino)
        if key in above:
            return
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir():
                    _walk(entry.path, infos, above=(*above, key))
                elif entry.is_file():
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        infos.append(_info(entry.path, entry.stat()))
    except StorageError:
        raise
    except OSError as error:
        raise os_failure(error, directory, verb="list") from error


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, status.st_size, str(status.st_mtime_ns), status.st_mtime_ns)


def _cut_short(path: str, first_byte: int, end_byte: int, status: os.stat_result) -> StorageError:
    msg = f"{path}: asked for bytes [{first_byte}, {end_byte}), but the file ends at byte {status.st_size}"
    return StorageError(msg, hint=CUT_SHORT_HINT)


def _check_is_file(path: str, status: os.stat_result) -> None:
    if stat_bits.S_ISREG(status.st_mode):
        return
    what = "a directory" if stat_bits.S_ISDIR(status.st_mode) else "not a regular file"
    msg = f"{path}: asked for a file, but it is {what}"
    refused = StorageError(msg, hint="name a file that lies on a disk")
    refused.errno = errno.EISDIR if stat_bits.S_ISDIR(status.st_mode) else errno.ESPIPE  # the system's error for pipes
    raise refused


def _changed(path: str, before: _Identity, now: _Identity) -> StorageError:
    parts = ("device", "inode", "size in bytes", "modification time in ns")
    pairs = zip(parts, before, now, strict=True)
    differences = [f"{part} was {old}, is {new}" for part, old, new in pairs if old != new]
    msg = f"{path}: this shard changed while it was being read: {'; '.join(differences)}"
    return StorageError(msg, hint=CHANGED_HINT)


def _gone(path: str) -> StorageError:
    msg = f"{path}: this shard was deleted or replaced while it was being read"
    return StorageError(msg, hint=CHANGED_HINT)
