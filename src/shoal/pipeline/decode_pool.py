"""Samples through their first stages in several threads, ahead of their use and in the order in which they came.

That gains where a stage works outside of the interpreter, as decoders of images do. What such threads hold is bounded
in bytes, and a sample that cannot be read or decoded raises at its place, after all that came before it.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from shoal.index.table import Index
from shoal.pipeline.quarantine import QUARANTINED
from shoal.pipeline.stages import Decode, Rename, SelectColumns, Stage, ToTuple, WithIds, run_stages
from shoal.pipeline.value_bytes import bytes_of
from shoal.processes.interrupts import InterruptsHeld, wait_in_slices
from shoal.processes.stopping import Stop, end_pool, is_done
from shoal.storage.retry import StoppedError

__all__ = ["Decoders", "Threaded", "threaded"]

_AT_ONCE = 8  # samples that a thread is given: to hand them over costs 30 us, to decode a small image as much
_GROUPS_A_THREAD = 2
_MOST_THREADS = 4  # a quarter of the decoding of a JPEG is inside of the interpreter's lock: more of them only wait


@dataclass(frozen=True, slots=True)
class Threaded:
    """How many of the first stages are run in threads, in how many, and how many bytes may wait for their use."""

    num_stages: int
    num_threads: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class _Raised:
    """What stands in the place of a sample that cannot be had."""

    error: Exception


def threaded(stages: Sequence[Stage], *, num_threads: int | None, limit_bytes: int) -> Threaded | None:
    """What of these stages is run in threads: all that gains, or all in as many threads as were asked for.

    Without being asked it is shoal's own stages up to the last that decodes images. Functions of the user may draw
    random numbers, or count.
    """
    if num_threads is None:
        num_stages, num_threads = _num_that_gain(stages), min(_num_cores(), _MOST_THREADS)
    else:
        num_stages = len(stages)
    return Threaded(num_stages, num_threads, limit_bytes) if num_stages and num_threads > 1 else None


def _num_that_gain(stages: Sequence[Stage]) -> int:
    own = itertools.takewhile(_is_own, stages)
    gains = (number for number, stage in enumerate(own, 1) if isinstance(stage, Decode) and stage.has_images)
    return max(gains, default=0)


def _is_own(stage: Stage) -> bool:
    if isinstance(stage, Decode):
        return not stage.has_functions
    return isinstance(stage, SelectColumns | Rename | ToTuple | WithIds)


def _num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Decoders:
    """Threads that take samples through the first stages of some.

    Close it, or let go of it: the threads are gone when that returns, unless a sample in work takes seconds more.
    """

    def __init__(self, stages: Sequence[Stage], how: Threaded, *, index: Index | None, forgiving: bool) -> None:
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(how.num_threads, thread_name_prefix="shoal-decode")
        self._stop = Stop()
        self._make = _Make(tuple(stages[: how.num_stages]), index, forgiving, self._stop)
        self._most_groups = _GROUPS_A_THREAD * how.num_threads
        self._limit_bytes, self._largest_bytes = how.limit_bytes, 0
        self._waiting: deque[Future[tuple[list[Any], int]]] = deque()
        self._finalizer = weakref.finalize(self, _end, self._pool, self._waiting, self._stop, os.getpid())
        self._finalizer.atexit = False  # see `Stop`

    def samples(self, samples: Iterator[Any], ids: Sequence[int]) -> Iterator[Any]:
        """What the stages make of each sample, given with its id."""
        named = zip(samples, ids, strict=False)  # the last position of an epoch may have no sample
        waiting = self._waiting
        while True:
            while self._has_room(len(waiting)) and (group := _group(named)):
                self._ask(group)
            if not waiting:
                return
            wait_in_slices(self._is_ready)
            if self._stop.is_set():
                raise _closed()
            with InterruptsHeld():
                made, num_bytes = waiting.popleft().result()
            self._largest_bytes = max(self._largest_bytes, num_bytes)
            for sample in made:
                if type(sample) is _Raised:
                    raise sample.error
                yield sample

    def _ask(self, group: list[tuple[Any, int]]) -> None:
        with InterruptsHeld():
            if self._pool is None:
                raise _closed()
            self._waiting.append(self._pool.submit(self._make, group))

    def _is_ready(self, timeout_seconds: float | None) -> bool:
        waiting = self._waiting
        return not waiting or is_done(waiting[0], timeout_seconds) or self._stop.is_set()

    def _has_room(self, num_waiting: int) -> bool:
        """Whether one more group may be in work; until the size of one is known, only one."""
        if not num_waiting:
            return True
        fits = 0 < self._largest_bytes * (num_waiting + 1) <= self._limit_bytes
        return fits and num_waiting < self._most_groups

    def close(self) -> None:
        """Decode no more."""
        with InterruptsHeld():
            self._finalizer()
            self._waiting.clear()
            self._pool = None  # now: Python forgets threads by callbacks, in which an interrupt would be lost


@dataclass(frozen=True, slots=True)
class _Make:
    """What a thread does with a group."""

    stages: tuple[Stage, ...]
    index: Index | None
    forgiving: bool
    stop: Stop

    def __call__(self, group: Sequence[tuple[Any, int]]) -> tuple[list[Any], int]:
        """The samples after the stages, and how many bytes they hold."""
        made: list[Any] = []
        for sample, sample_id in group:
            if self.stop.is_set():
                break
            if sample is QUARANTINED or type(sample) is _Raised:
                made.append(sample)
                continue
            try:
                made.append(run_stages(self.stages, sample, sample_id, index=self.index, forgiving=self.forgiving))
            except Exception as error:  # noqa: BLE001  # raised at its place
                made.append(_Raised(error))
                break
        return made, max(1, sum(map(bytes_of, made)))


def _closed() -> StoppedError:
    msg = "the stream was closed while samples were decoded"
    return StoppedError(msg)


def _group(named: Iterator[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """The next samples; the error of one that cannot be read, in its place."""
    group: list[tuple[Any, int]] = []
    try:
        group.extend(itertools.islice(named, _AT_ONCE))
    except Exception as error:  # noqa: BLE001  # raised at its place
        group.append((_Raised(error), -1))
    return group


def _end(pool: ThreadPoolExecutor, under_way: deque[Future[Any]], stop: Stop, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no such threads
    with InterruptsHeld(in_finalizer=True):
        stop.set()
        end_pool(pool, under_way)
