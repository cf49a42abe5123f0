"""Who reads: threads, or the consumer itself where the system reads ahead when it is told what comes.

Threads suit what is far away. For local files they are only in the way: each of their reads has to wait for the
interpreter, up to 5 ms while the consumer runs, and records of 100 KB streamed three times slower than without them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from shoal.plan.units import UnitRead, starts_in
from shoal.shards.protocol import Records, Sample
from shoal.storage.protocol import Reader
from shoal.stream.opening import Opened

__all__ = ["Answer", "Readers", "ThreadReaders", "ToldReaders", "parse_unit", "read_unit", "readers_of"]

_NUM_THREADS = 4
_TOLD_AFTER_A_SLOW_READ = 256  # reads
# Slower than this, bytes came from a device and not from memory.
_SLOW_READ_SECONDS = 100e-6
_SLOW_SECONDS_PER_BYTE = 1e-9
_SHARDS_AT_HAND = 64
_LARGE_BYTES = 16 << 10  # from here on, one more read costs less than one more copy

Answer = Future[list[bytes | Exception]]


class Readers(Protocol):
    """A way of having units read."""

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes are in this process's memory before they are wanted."""
        ...

    def ask(self, reads: Sequence[UnitRead]) -> Answer | None:
        """These are wanted soon."""
        ...

    def get(self, read: UnitRead, answer: Answer | None, place: int) -> bytes:
        """The bytes of a read, number ``place`` of those that were asked for together; raises what went wrong."""
        ...

    def sample(self, read: UnitRead, answer: Answer | None, place: int, sample_id: int) -> Sample:
        """One sample out of a read that is wanted for nothing else."""
        ...

    def close(self) -> None:
        """Stop; no thread is left when this returns."""
        ...


class ToldReaders:
    """The system is told what comes, and the consumer reads when it needs it.

    Telling costs a tenth of reading what is in memory already, so it is done for a while after a read that took long.
    """

    reads_ahead = False

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._to_tell = _TOLD_AFTER_A_SLOW_READ
        self._shards: dict[int, tuple[Reader, str, Mapping[str, Any]]] = {}

    def ask(self, reads: Sequence[UnitRead]) -> None:
        """Tell the system, unless all is in memory anyway."""
        if self._to_tell <= 0:
            return
        self._to_tell -= len(reads)
        store, paths = self._opened.store, self._opened.paths
        for read in reads:
            store.advise(paths[read.shard], read.first_byte, read.end_byte)

    def get(self, read: UnitRead, answer: Answer | None, place: int) -> bytes:  # noqa: ARG002
        """Read."""
        began = time.perf_counter()
        data = read_unit(self._opened, read)
        if time.perf_counter() - began > _SLOW_READ_SECONDS + len(data) * _SLOW_SECONDS_PER_BYTE:
            self._to_tell = _TOLD_AFTER_A_SLOW_READ
        return data

    def sample(self, read: UnitRead, answer: Answer | None, place: int, sample_id: int) -> Sample:
        """Read, a large sample piece by piece."""
        opened = self._opened
        if read.num_samples > 1 or read.num_bytes < _LARGE_BYTES:
            return parse_unit(opened, read, self.get(read, answer, place)).sample(sample_id - read.first_sample)
        known = self._shards.get(read.shard) or self._first_of(read.shard)
        reader = known[0]
        began = time.perf_counter()
        sample = opened.format.read_sample(reader, read.first_byte, read.end_byte, shard=known[1], head=known[2])
        reader.confirm()
        if time.perf_counter() - began > _SLOW_READ_SECONDS + read.num_bytes * _SLOW_SECONDS_PER_BYTE:
            self._to_tell = _TOLD_AFTER_A_SLOW_READ
        return sample

    def _first_of(self, shard: int) -> tuple[Reader, str, Mapping[str, Any]]:
        """A reader of a shard that was checked, its name and its head."""
        opened = self._opened
        opened.check.check(shard)
        if len(self._shards) >= _SHARDS_AT_HAND:
            self._shards.clear()
        head = opened.index.shard_heads.get(shard, {})
        known = opened.store.reader(opened.paths[shard]), opened.index.shard_names[shard], head
        self._shards[shard] = known
        return known

    def close(self) -> None:
        """Nothing runs; let go of open files."""
        self._shards.clear()


class ThreadReaders:
    """Some threads read ahead; what they answer waits until it is needed, errors too."""

    reads_ahead = True

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="shoal-read")
        self._stopping = threading.Event()
        _running.add(self._stopping)
        # Also when the consumer forgets to: no thread outlives this object.
        self._finalizer = weakref.finalize(self, _stop, self._threads, self._stopping, os.getpid())

    def ask(self, reads: Sequence[UnitRead]) -> Answer:
        """Hand the reads over as one task."""
        return self._threads.submit(_read_all, self._opened, reads, self._stopping)

    def get(self, read: UnitRead, answer: Answer | None, place: int) -> bytes:
        """Wait for the task that has this read."""
        if answer is None:
            return read_unit(self._opened, read)
        wait([answer])
        answers = answer.result()
        data, answers[place] = answers[place], b""  # the taker keeps the bytes; the task must not
        if isinstance(data, Exception):
            raise data
        return data

    def sample(self, read: UnitRead, answer: Answer | None, place: int, sample_id: int) -> Sample:
        """Wait for the read."""
        return parse_unit(self._opened, read, self.get(read, answer, place)).sample(sample_id - read.first_sample)

    def close(self) -> None:
        """Drop what has not begun, and wait for the threads."""
        self._finalizer()


def readers_of(opened: Opened) -> Readers:
    """The readers that suit a store: one that reads ahead on its own is told what comes, and read when it has come."""
    return ToldReaders(opened) if opened.store.reads_ahead else ThreadReaders(opened)


def parse_unit(opened: Opened, read: UnitRead, data: bytes) -> Records:
    """The samples in the bytes of one unit."""
    index = opened.index
    return opened.format.parse(
        data,
        starts_in(index, read),
        num_samples=read.num_samples,
        shard=index.shard_names[read.shard],
        first_byte=read.first_byte,
        head=index.shard_heads.get(read.shard, {}),
    )


def read_unit(opened: Opened, read: UnitRead) -> bytes:
    """The bytes of one unit, once its shard is known to be the one that was indexed."""
    path = opened.paths[read.shard]
    try:
        opened.check.check(read.shard)
        return opened.store.read_range(path, read.first_byte, read.end_byte)
    except Exception as error:
        error.add_note(f"shoal: reading bytes [{read.first_byte}, {read.end_byte}) of {path}")
        raise


def _read_all(opened: Opened, reads: Sequence[UnitRead], stopping: threading.Event) -> list[bytes | Exception]:
    """The bytes of each read, or its error, which must wait for the samples of the reads before it."""
    answers: list[bytes | Exception] = []
    for read in reads:
        if stopping.is_set():  # nobody waits for this any more
            break
        try:
            answers.append(read_unit(opened, read))
        except Exception as error:  # noqa: BLE001  # raised by the consumer
            answers.append(error)
    return answers


def _stop(threads: ThreadPoolExecutor, stopping: threading.Event, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no such threads, and their locks may be held for ever
    stopping.set()
    # The garbage collector may let go of an iterator in one of its own threads, which cannot wait for itself.
    with contextlib.suppress(RuntimeError):
        threads.shutdown(wait=True, cancel_futures=True)


_running: weakref.WeakSet[threading.Event] = weakref.WeakSet()


def _stop_all() -> None:
    for stopping in list(_running):
        stopping.set()


# At exit Python waits for the threads of pools before it calls what atexit knows; without this, a run that ends in the
# middle of an epoch would first read all that it had asked for.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
