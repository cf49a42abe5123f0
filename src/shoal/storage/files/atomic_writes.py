"""Writes that no reader sees half done: whole files, objects that are invisible until finished, appended lines."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Protocol

from shoal.errors import StorageError
from shoal.storage.storage_errors import os_failure
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store
from shoal.storage.urls import scheme_of

_FLUSH_BYTES = 1 << 20
_HELD_BYTES = 8 << 20
_MOST_FILE_BYTES = 1 << 30
_MOST_BYTES_AT_ONCE = 5_000_000_000  # of one request, in common stores; a conditional write is one request
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_atomically(path: str, buffers: Sequence[Buffer], *, durable: bool = True) -> None:
    """Write the buffers, one after another, to the file ``path``: readers see the whole new file, or the old file.

    Creates missing directories. With ``durable``, the bytes reach the disk before the name, so after a crash of the
    machine the old or the new file exists. Without ``durable``, no write waits for the disk, and a crash may leave an
    empty file. A failure (`OSError`) leaves no temporary file; a kill may leave a hidden file that ends in ``.tmp``.
    """
    directory = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(directory, f".{_temporary_name(path)}")
    try:
        try:
            descriptor = os.open(temporary, _NEW_FILE, 0o666)
        except FileNotFoundError:
            os.makedirs(directory, exist_ok=True)
            descriptor = os.open(temporary, _NEW_FILE, 0o666)
        try:
            for buffer in buffers:
                _write_all(descriptor, buffer)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:  # make the name itself survive a crash, where the file system can
        with contextlib.suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _temporary_name(path: str) -> str:
    # Shortened, since file systems limit names to 255 bytes.
    return f"{os.fsdecode(os.fsencode(os.path.basename(path))[:200])}.{os.urandom(6).hex()}.tmp"


def _write_all(descriptor: int, data: Buffer) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class UnfinishedObject(Protocol):
    """An object that is invisible until finished; used once. A failure raises `StorageError` and abandons it."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append bytes."""

    def patch(self, first_byte: int, data: bytes) -> None:
        """Replace bytes that were written."""

    def finish(self) -> None:
        """Make the object visible, replacing any object of its name."""

    def finish_new(self, *, replaces: ObjectInfo | None = None) -> bool:
        """Make the object visible if the stored object is ``replaces`` (None: no object is stored); else abandon it.

        Returns True if the object is visible. Local files do not compare ``replaces``: they replace any file. Without
        hard links or conditional writes, two writers at the same moment may both succeed: the later object stays.
        """

    def abandon(self) -> None:
        """Remove all written bytes; does nothing if the object is finished."""


def begin_object(path: str, *, store: Store, scratch: str) -> UnfinishedObject:
    """Begin a new object at ``path``: a local file below the directory ``scratch`` (of the same file system).

    The bytes of a remote object wait on this machine until it is finished (`_SpooledObject`).
    """
    return _SpooledObject(path, store) if scheme_of(path) else _GrowingFile(path, scratch=scratch)


def can_link(scratch: str) -> bool:
    """Return True if the file system of this directory has hard links, which `finish_new` needs."""
    names = [os.path.join(scratch, _temporary_name("link")) for _ in range(2)]
    try:
        os.close(os.open(names[0], _NEW_FILE, 0o666))
        os.link(*names)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise os_failure(error, scratch, verb="write") from error
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)
    return True


def remove_abandoned(path: str) -> None:
    """Remove a temporary file of a `_GrowingFile` if the process that wrote it has ended."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(descriptor)


class _GrowingFile:
    """A file with a temporary name until it is finished; its bytes are on the disk before it gets its name.

    While the file grows, it is locked, if possible: so `remove_abandoned` recognizes files of ended processes.
    """

    def __init__(self, path: str, *, scratch: str) -> None:
        self._path, self._temporary = path, os.path.join(scratch, _temporary_name(path))
        self._waiting: list[Buffer] = []
        self._waiting_bytes = self._written_bytes = 0
        try:
            os.makedirs(scratch, exist_ok=True)
            self._descriptor = os.open(self._temporary, _NEW_FILE, 0o666)
        except OSError as error:
            raise os_failure(error, path, verb="write") from error
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, buffers: Sequence[Buffer]) -> None:
        self._waiting += buffers
        self._waiting_bytes += sum(map(len, buffers))
        if self._waiting_bytes >= _FLUSH_BYTES:
            with self._abandoned_on_failure():
                self._flush()

    def patch(self, first_byte: int, data: bytes) -> None:
        with self._abandoned_on_failure():
            self._flush()
            os.pwrite(self._descriptor, data, first_byte)

    def finish(self) -> None:
        with self._abandoned_on_failure():
            self._complete()
            os.replace(self._temporary, self._path)
            self._close()

    def finish_new(self, *, replaces: ObjectInfo | None = None) -> bool:
        if replaces is not None:
            self.finish()
            return True
        with self._abandoned_on_failure():
            self._complete()
            try:
                os.link(self._temporary, self._path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if os.path.lexists(self._path):
                    return False
                os.replace(self._temporary, self._path)
            finally:
                self.abandon()
        return True

    def abandon(self) -> None:
        self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)

    def _complete(self) -> None:
        self._flush()
        os.fsync(self._descriptor)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)

    def _flush(self) -> None:
        waiting, num_bytes = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        _write_all(self._descriptor, waiting[0] if len(waiting) == 1 else b"".join(waiting))
        if hasattr(os, "posix_fadvise"):
            # Start writing back to disk: else the process would wait, idle, for all bytes at the end. In spite of its
            # name, the advice keeps pages in memory that are not on the disk yet.
            os.posix_fadvise(self._descriptor, self._written_bytes, num_bytes, os.POSIX_FADV_DONTNEED)
        self._written_bytes += num_bytes

    @contextlib.contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abandon()
            raise os_failure(error, self._path, verb="write") from error
        except BaseException:
            self.abandon()
            raise

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _SpooledObject:
    """An object that is uploaded when it is finished: from memory up to 8 MiB, else from a file without a name.

    A store shows an object when it is whole, so bytes could be sent as they come. But a killed multipart upload stays
    in the bucket, invisible and billed, and a slow upload keeps the producer of the bytes waiting. A file without a
    name disappears with the process, and no one waits. It is in the temporary directory ($TMPDIR), and its pages are
    page cache, which the system can reclaim.
    """

    def __init__(self, path: str, store: Store) -> None:
        self._path, self._store = path, store
        self._buffers: list[Buffer] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None

    def write(self, buffers: Sequence[Buffer]) -> None:
        self._buffers += buffers
        self._held_bytes += sum(map(len, buffers))
        if self._held_bytes <= _HELD_BYTES and self._file is None:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by `abandon`
            for buffer in self._buffers:
                _write_all(self._file.fileno(), buffer)
        except OSError as error:
            self.abandon()
            raise os_failure(error, f"the bytes of {self._path} in {tempfile.gettempdir()}", verb="keep") from error
        self._buffers, self._held_bytes = [], 0

    def patch(self, first_byte: int, data: bytes) -> None:
        if self._file is not None:
            os.pwrite(self._file.fileno(), data, first_byte)
            return
        whole = bytearray(b"".join(self._buffers))
        whole[first_byte : first_byte + len(data)] = data
        self._buffers = [whole]

    def finish(self) -> None:
        try:
            self._store.put(self._path, self._data())
        finally:
            self.abandon()

    def finish_new(self, *, replaces: ObjectInfo | None = None) -> bool:
        try:
            data = self._data()
            num_bytes = sum(map(len, data)) if isinstance(data, list) else len(data)
            if num_bytes <= _MOST_BYTES_AT_ONCE:
                try:
                    return self._store.put_if(self._path, data, replaces=replaces)
                except StorageError as error:
                    if error.errno != errno.ENOTSUP:
                        raise
            if self._store.find(self._path) != replaces:
                return False
            self._store.put(self._path, data)
            return True
        finally:
            self.abandon()

    def _data(self) -> list[Buffer] | memoryview:
        # The mapping is dropped, not closed: a client may still hold the sent bytes.
        if self._file is None:
            return self._buffers
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def abandon(self) -> None:
        self._buffers, self._held_bytes = [], 0
        if self._file is not None:
            self._file.close()
            self._file = None


def append_line(path: str, line: str) -> None:
    """Append a line to the file ``path``, created if missing; lines of several processes never mix.

    The line is one append, which local file systems execute as one step.
    """
    _append(path, line.encode() + b"\n")


def make_line_file(path: str) -> None:
    """Create the file ``path`` if there is none; raise `StorageError` if lines cannot be appended to it."""
    _append(path, b"")


def _append(path: str, data: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if data and os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise os_failure(error, path, verb="add a line to") from error


def read_lines(path: str) -> list[str] | None:
    """Return the lines of the file ``path``, at most 1 GiB, with blank lines; None if there is no such file."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise os_failure(error, path, verb="read") from error
    msg = f"{path}: this file has more than {_MOST_FILE_BYTES} bytes"
    if len(data) <= _MOST_FILE_BYTES:
        try:
            return data.decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            msg = f"{path}: byte {error.start} is not UTF-8 text"
    raise StorageError(msg, hint="is it the right file?")
