"""Batches from a worker process to its loader: arrays through shared memory that both sides keep mapped.

A message holds a pickle, and the places of its arrays in a segment of shared memory (pickle protocol 5, out-of-band
buffers). The receiver makes arrays over the segment without a copy, and lends it until the last of these arrays is
gone; the worker then writes another batch there. So a steady loop maps no memory: fresh pages would cost more than the
copy. A segment has no name, and is freed with the last process that maps it.
"""

from __future__ import annotations

import copyreg
import errno
import mmap
import os
import pickle
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable
from io import BytesIO
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

_ALIGNMENT = 64
_LEAST_BYTES = 16 << 10  # smaller batches go through the pipe
_MOST_IN_MESSAGE = 8 << 10  # larger pickles go into the segment, since a full pipe would stop the worker
_SPARE_PART = 8  # a new segment has this fraction more, so that the next batch fits, too
_HAS_SEGMENTS = reduction.HAVE_SEND_HANDLE and sys.platform != "win32"

_num_forks = 0  # of this process; a child reads the memory that was lent before the fork


def _forked() -> None:
    global _num_forks  # noqa: PLW0603  # there is one process
    _num_forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_forked)


class _Message(NamedTuple):
    """A packed object: its pickle, or the place of the pickle, and the places of its arrays in a segment.

    ``segment`` is -1 if everything is in ``packed`` and ``buffers``. A new segment's file follows the message.
    """

    packed: bytes
    buffers: list[Any]
    segment: int
    places: list[tuple[int, int]]
    segment_bytes: int
    is_new: bool
    dropped: list[int]


class BatchSender:
    """The worker's end: sends objects through a connection, with their arrays in shared memory.

    ``reduce`` is a `reducer_override` of the pickler, for types of other libraries.
    """

    def __init__(self, connection: Connection, reduce: Callable[[Any], Any] | None = None) -> None:
        self._connection, self._reduce = connection, reduce or _usual
        self._socket = _socket_of(connection)
        self._free: dict[int, mmap.mmap] = {}
        self._lent: dict[int, mmap.mmap] = {}
        self._num_made = 0

    def free(self, segments: list[int]) -> None:
        """Take back segments that the receiver no longer reads."""
        for number in segments:
            if (memory := self._lent.pop(number, None)) is not None:
                self._free[number] = memory

    def packed(self, thing: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
        """Return the pickle of an object, and its arrays; raise any error of the object's own pickling."""
        buffers: list[pickle.PickleBuffer] = []
        file = BytesIO()
        _Pickler(file, buffers.append, self._reduce).dump(thing)
        return file.getvalue(), buffers

    def send(self, pickled: bytes, buffers: list[pickle.PickleBuffer]) -> None:
        """Send a packed object; `OSError` if the system has no memory or no files for a segment."""
        is_long = len(pickled) > _MOST_IN_MESSAGE
        views = [buffer.raw() for buffer in buffers]
        if is_long:
            views.insert(0, memoryview(pickled))
        num_bytes = sum(map(_aligned, map(len, views)))
        if num_bytes < _LEAST_BYTES or not _HAS_SEGMENTS:
            self.send_whole(pickled, buffers)
            return
        number, memory, file, dropped = self._segment(num_bytes)
        try:
            places, begin = [], 0
            for view in views:
                places.append((begin, begin + len(view)))
                memory[begin : begin + len(view)] = view
                begin += _aligned(len(view))
            rest = b"" if is_long else pickled
            message = _Message(rest, [], number, places, len(memory), file is not None, dropped)
            self._connection.send(message)
            if file is not None:
                socket.send_fds(self._socket, [b"f"], [file])
        finally:
            if file is not None:
                os.close(file)
        self._lent[number] = memory

    def send_whole(self, packed: bytes, buffers: list[pickle.PickleBuffer]) -> None:
        """Send a packed object through the connection alone."""
        copies = [bytes(buffer.raw()) if buffer.raw().readonly else bytearray(buffer.raw()) for buffer in buffers]
        self._connection.send(_Message(packed, copies, -1, [], 0, is_new=False, dropped=[]))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        if self._socket is not None:
            self._socket.close()

    def _segment(self, num_bytes: int) -> tuple[int, mmap.mmap, int | None, list[int]]:
        """Return number and memory of a segment; the file of a new one; and the segments that are now gone."""
        fitting = [number for number, memory in self._free.items() if len(memory) >= num_bytes]
        if fitting:
            number = min(fitting, key=lambda number: len(self._free[number]))
            return number, self._free.pop(number), None, []
        dropped = sorted(self._free)  # all too small
        self._free.clear()
        length = -(-(num_bytes + num_bytes // _SPARE_PART) // mmap.PAGESIZE) * mmap.PAGESIZE
        file = new_file(length)
        try:
            memory = mmap.mmap(file, length)
        except BaseException:
            os.close(file)
            raise
        self._num_made += 1
        return self._num_made, memory, file, dropped


class BatchReceiver:
    """The loader's end of a connection to one worker.

    At most ``most_lent`` segments are lent at a time: arrays that a user keeps for long are copied from then on.
    """

    def __init__(self, connection: Connection, *, most_lent: int) -> None:
        self._connection, self._most_lent = connection, most_lent
        self._socket = _socket_of(connection)
        self._segments: dict[int, mmap.mmap] = {}
        self._num_lent = 0
        self._returned: deque[int] = deque()  # filled by finalizers, in any thread
        self._unread: deque[int] = deque()

    def receive(self) -> Any:
        """Return the next object; `EOFError` or `OSError` if the worker has ended."""
        message: _Message = self._connection.recv()
        for number in message.dropped:
            self._segments.pop(number, None)
        number = message.segment
        if number < 0:
            return pickle.loads(message.packed, buffers=message.buffers)  # noqa: S301  # of a process of this run
        if message.is_new:
            self._segments[number] = self._mapped(message.segment_bytes)
        memory = self._borrowed(number, max((end for _, end in message.places), default=0))
        buffers = [memory[begin:end] for begin, end in message.places]
        packed = message.packed or buffers.pop(0)
        return pickle.loads(packed, buffers=buffers)  # noqa: S301  # of a process of this run

    def close(self) -> None:
        """Close the connection; lent memory stays."""
        self._connection.close()
        if self._socket is not None:
            self._socket.close()

    def _mapped(self, num_bytes: int) -> mmap.mmap:
        """Return the new segment whose file follows a message."""
        _, files, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not files:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            return mmap.mmap(files[0], num_bytes)
        finally:
            os.close(files[0])

    def returned(self) -> list[int]:
        """Return the segments that are no longer read since the last call."""
        numbers = []
        while self._returned:
            numbers.append(self._returned.popleft())
        self._num_lent -= len(numbers)
        while self._unread:
            numbers.append(self._unread.popleft())
        return numbers

    def _borrowed(self, number: int, num_bytes: int) -> memoryview:
        """Return the memory of a segment, which comes back when nothing refers to it; or a copy of the memory."""
        memory = self._segments[number]
        if self._num_lent - len(self._returned) >= self._most_lent:
            self._unread.append(number)
            return memoryview(bytearray(memoryview(memory)[:num_bytes]))
        self._num_lent += 1
        array = np.frombuffer(memory, np.uint8)
        finalizer = weakref.finalize(array, _give_back, self._returned, number, _num_forks)
        finalizer.atexit = False
        return array.data


def _give_back(returned: deque[int], number: int, num_forks: int) -> None:
    if num_forks == _num_forks:  # else a child of this process may still read the segment
        returned.append(number)


def _socket_of(connection: Connection) -> Any:
    """Return the socket of a connection, which passes files, too; None if the system has none."""
    return socket.socket(fileno=os.dup(connection.fileno())) if _HAS_SEGMENTS else None


class _Pickler(pickle.Pickler):
    """A pickler with the reductions of `multiprocessing`, whose own pickler takes no callback for buffers."""

    def __init__(
        self, file: BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any], reduce: Callable[[Any], Any]
    ) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        extra: dict[Any, Any] = getattr(reduction.ForkingPickler, "_extra_reducers")  # noqa: B009  # private
        self.dispatch_table = copyreg.dispatch_table | extra
        self._reduce = reduce

    def reducer_override(self, thing: Any) -> Any:
        """Return the reduction of an object; `NotImplemented` for the usual one."""
        return self._reduce(thing)


def _usual(_: Any) -> Any:
    return NotImplemented


def new_file(num_bytes: int) -> int:
    """Return the file descriptor of shared memory of this size; `OSError` if the system has no room."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("shoal-batch", os.MFD_CLOEXEC)
    else:
        import _posixshmem  # type: ignore[import-not-found]  # noqa: PLC0415  # systems without memfd

        name = f"/shoal-{os.getpid()}-{os.urandom(6).hex()}"
        file = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        _posixshmem.shm_unlink(name)
    try:
        os.ftruncate(file, num_bytes)
        if hasattr(os, "posix_fallocate"):  # now: a write without room would end the process
            os.posix_fallocate(file, 0, num_bytes)
    except BaseException:
        os.close(file)
        raise
    return file


def is_about_room(error: OSError) -> bool:
    """Return True if the system had no memory or no files for a segment."""
    return error.errno in {errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EPERM}


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
