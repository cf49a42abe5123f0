"""A thread pool that runs the first stages of samples ahead of their use, and returns the samples in order.

This pays off for stages that release the interpreter's lock: image decoders and tokenizers. A limit in bytes bounds
the memory of waiting samples. A sample that cannot be read or decoded raises after all samples before it.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from shoal.formats.decoding.images import decodes_without_lock
from shoal.index.table import SampleIndex
from shoal.pipeline.batch_memory import bytes_of
from shoal.pipeline.batch_rows import BatchRows
from shoal.pipeline.quarantine import QUARANTINED
from shoal.pipeline.stages.by_source import FillMissing
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple
from shoal.pipeline.stages.conversations.chat_tokens import ChatTokens
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.join_fields import JoinFields
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import Stage, each_stage
from shoal.pipeline.stages.tokens.tokenizing import Tokenize
from shoal.pipeline.stages.with_ids import WithIds
from shoal.processes.interpreters import usable_processors
from shoal.processes.interrupts import InterruptsHeld, wait_in_slices
from shoal.processes.process_ends import Stop, end_pool, is_done, submit
from shoal.storage.retry import StoppedError

_GROUP_SAMPLES = 8  # per task of a thread, twice as many if they are small: a task costs 30 us and more
_SMALL = 64  # so many samples fit into the limit
_RUN_BYTES = 256 << 10  # of stored samples that go through each stage together
_SAMPLES_A_THREAD = 32  # with 16, threads were idle for a fifth of the time, while samples were collated
# Pillow keeps the interpreter's lock for a quarter of decoding a JPEG or more: 8 threads gave less than 4, and left
# less to the training loop. libjpeg-turbo keeps it for a twentieth, so 8 threads still wait little for each other.
_MOST_THREADS, _MOST_LOCK_FREE = 4, 8


@dataclass(frozen=True, slots=True)
class Threaded:
    """Number of first stages that run in threads, number of threads, and limit on the bytes of waiting samples."""

    num_stages: int
    num_threads: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The stages to run in threads (None for none), and the reason as the end of "decodes in ..."."""

    threaded: Threaded | None
    words: str


@dataclass(frozen=True, slots=True)
class _Raised:
    """Placeholder for a sample that cannot be read or decoded."""

    error: Exception


def choose_threads(stages: Sequence[Stage], *, num_threads: int | None, limit_bytes: int) -> ThreadChoice:
    """Choose the stages to run in threads.

    ``num_threads`` sets the number of threads for all stages before the first that processes several samples at a time
    by itself. Without it, only shoal's own stages run in threads, up to the last that decodes media or tokenizes: user
    functions may draw random numbers, or count.

    >>> choose_threads([], num_threads=None, limit_bytes=1).words
    'one thread: no stage decodes images, audio or video, or tokenizes'
    """
    if num_threads is not None:
        num_stages = next((number for number, stage in enumerate(stages) if stage.max_concurrency), len(stages))
        threaded = Threaded(num_stages, num_threads, limit_bytes) if num_stages and num_threads > 1 else None
        words = _counted(num_threads if threaded else 1)
        return ThreadChoice(threaded, f"{words}: num_threads={num_threads} was given")
    own = itertools.takewhile(is_own, stages)
    num_gain = max((number for number, stage in enumerate(own, 1) if _gains(stage)), default=0)
    if not num_gain:
        if any(map(_gains, stages)):
            return ThreadChoice(None, "one thread: a map() function decodes, or runs before decode()")
        return ThreadChoice(None, "one thread: no stage decodes images, audio or video, or tokenizes")
    only_tokens = all(part.tokenizes for part in each_stage(stages[:num_gain]) if _gains(part))
    local = os.environ.get("LOCAL_WORLD_SIZE", "")  # the ranks that torchrun started on this machine
    processors = max(1, usable_processors() // max(1, int(local) if local.isdecimal() else 1))
    is_free = only_tokens or decodes_without_lock()
    num_threads = min(processors, _MOST_LOCK_FREE if is_free else _MOST_THREADS)
    why = f"{processors} processors for this rank, and "
    why += (
        f"{'the tokenizer works' if only_tokens else 'libjpeg-turbo decodes'} without the interpreter's lock"
        if is_free
        else "Pillow holds the interpreter's lock for a part of the time (shoal[images] also installs libjpeg-turbo)"
    )
    if num_threads == 1:
        return ThreadChoice(None, "one thread: there is one processor for this rank")
    if rest := [repr(stage) for stage in stages[num_gain:] if not is_own(stage) and not stage.max_concurrency]:
        why += f"; {' and '.join(rest)} in one thread: if that is slow, take num_workers="
    return ThreadChoice(Threaded(num_gain, num_threads, limit_bytes), f"{_counted(num_threads)}: {why}")


def _counted(num_threads: int) -> str:
    return "one thread" if num_threads == 1 else f"{num_threads} threads"


def _gains(stage: Stage) -> bool:
    parts = each_stage([stage])
    return any(part.tokenizes or (isinstance(part, Decode) and part.has_media) for part in parts)


def is_own(stage: Stage) -> bool:
    """Return True if no function of the user sees samples in this stage."""
    own = (Tokenize, ChatTokens, SelectColumns, Rename, ToTuple, WithIds, FillMissing, JoinFields)
    parts = each_stage([stage])
    return all(not part.has_functions if isinstance(part, Decode) else isinstance(part, own) for part in parts)


class Decoders:
    """Threads that run samples through the first stages.

    `close` and dropping the last reference end the threads, and wait for them; a sample in progress may take seconds
    more.
    """

    def __init__(self, stages: Sequence[Stage], how: Threaded, *, index: SampleIndex | None, forgiving: bool) -> None:
        self.num_stages = how.num_stages
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(how.num_threads, thread_name_prefix="shoal-decode")
        self._stop = Stop()
        self._work = _Work(tuple(stages[: how.num_stages]), index, forgiving, self._stop)
        self._most_samples = _SAMPLES_A_THREAD * how.num_threads
        self._limit_bytes, self._sample_bytes = how.limit_bytes, 0.0  # of the group with the largest samples
        self._waiting: deque[Future[tuple[list[Any], int]]] = deque()
        # Apart from the results: a result may refer to the owner of this object, and the finalizer would keep both.
        self._under_way: set[Future[Any]] = set()
        self._finalizer = weakref.finalize(self, _end, self._pool, self._under_way, self._stop, os.getpid())
        self._finalizer.atexit = False  # see `Stop`

    def samples(self, samples: Iterator[Any], ids: Sequence[int]) -> Iterator[Any]:
        """Yield each sample after the threaded stages, given samples and their ids."""
        return itertools.chain.from_iterable(self._runs(zip(samples, ids, strict=False), _Places(())))

    def batches(
        self, samples: Iterator[Any], ids: Sequence[int], sizes: Sequence[int], memory_of: Callable[[int], BatchRows]
    ) -> Iterator[tuple[list[Any], BatchRows]]:
        """Yield the samples of batches of these sizes after the threaded stages, each with the memory of the batch."""
        places = _Places(map(memory_of, sizes))
        runs = self._runs(zip(samples, ids, strict=False), places)
        left: list[Any] = []
        for size in sizes:
            while len(left) < size and (run := next(runs, None)) is not None:
                left += run
            yield left[:size], places.given.popleft() if places.given else memory_of(size)
            left = left[size:]

    def _runs(self, named: Iterator[tuple[Any, int]], places: _Places) -> Iterator[list[Any]]:
        """Yield lists of samples after the stages; the last position of an epoch may have no sample."""
        waiting = self._waiting
        while True:
            while self._has_room(len(waiting)) and (group := _group(named, places, self._group_samples)):
                with InterruptsHeld():
                    if self._pool is None:
                        raise _closed()
                    waiting.append(submit(self._pool, self._under_way, self._work, group))
            if not waiting:
                return
            wait_in_slices(self._is_ready)
            if self._stop.is_set():
                raise _closed()
            with InterruptsHeld():
                results, num_bytes = waiting.popleft().result()
            self._sample_bytes = max(self._sample_bytes, num_bytes / max(1, len(results)))
            failed = results.pop() if results and type(results[-1]) is _Raised else None
            if results:
                yield results
            if failed is not None:
                raise failed.error

    def _is_ready(self, timeout_seconds: float | None) -> bool:
        waiting = self._waiting
        return not waiting or is_done(waiting[0], timeout_seconds) or self._stop.is_set()

    @property
    def _group_samples(self) -> int:
        """Number of samples in the next group: more if they are small."""
        is_small = 0 < _SMALL * self._sample_bytes <= self._limit_bytes
        return _GROUP_SAMPLES * (1 + is_small)

    def _has_room(self, num_waiting: int) -> bool:
        """True if one more group may be submitted; only one until the size of a sample is known."""
        fits = 0 < self._sample_bytes * self._group_samples * (num_waiting + 1) <= self._limit_bytes
        return not num_waiting or (fits and (num_waiting + 1) * self._group_samples <= self._most_samples)

    def close(self) -> None:
        """Stop decoding."""
        with InterruptsHeld():
            self._finalizer()
            self._waiting.clear()
            self._pool = None  # now: Python releases threads in callbacks, in which an interrupt would be lost


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a thread on a group of samples."""

    stages: tuple[Stage, ...]
    index: SampleIndex | None
    forgiving: bool
    stop: Stop

    def __call__(self, group: Sequence[_Part]) -> tuple[list[Any], int]:
        """Return the samples after the stages, and the number of their bytes."""
        results: list[Any] = []
        for memory, first, part in group:
            run = self._together(memory, first, part)
            results += self._one_by_one(memory, first, part) if run is None else run
            if results and type(results[-1]) is _Raised:
                break
        return results, max(1, sum(map(bytes_of, results)))

    def _together(self, memory: BatchRows | None, first: int, part: _Named) -> list[Any] | None:
        """Return samples that went through each stage together, which is faster; None if they go one by one."""
        if not (all(map(is_own, self.stages)) and all(type(sample) is dict for sample, _ in part)):
            return None
        stages, results = _filling(self.stages, memory, first), list[Any]()
        most = max(1, _RUN_BYTES // max(1, bytes_of(part[0][0])))  # few large samples: `close` waits for them
        for at in range(0, len(part), most):
            if self.stop.is_set():
                break
            named = part[at : at + most]
            run, ids = [sample for sample, _ in named], [sample_id for _, sample_id in named]
            try:
                for stage in stages:
                    run = stage.on_run(run, ids)
            except Exception:  # noqa: BLE001  # raised again at its sample
                return None
            results += run
        return results

    def _one_by_one(self, memory: BatchRows | None, first: int, part: _Named) -> list[Any]:
        """Return the samples; the last is `_Raised` after an error."""
        stages, results = _filling(self.stages, memory, first), list[Any]()
        for sample, sample_id in part:
            if self.stop.is_set():
                break
            if sample is QUARANTINED or type(sample) is _Raised:
                results.append(sample)
                continue
            try:
                results.append(run_stages(stages, sample, sample_id, index=self.index, forgiving=self.forgiving))
            except Exception as error:  # noqa: BLE001  # raised after the samples before it
                results.append(_Raised(error))
                break
        return results


def _filling(stages: Sequence[Stage], memory: BatchRows | None, first: int) -> Sequence[Stage]:
    """Return the stages, which write into the rows of a batch from ``first`` on."""
    rows = None if memory is None else memory.next_from(first)
    return stages if rows is None else [stage.filling(rows) for stage in stages]


def _closed() -> StoppedError:
    msg = "the stream was closed while samples were decoded"
    return StoppedError(msg)


_Named = list[tuple[Any, int]]
"""Consecutive samples with their ids."""
_Part = tuple[BatchRows | None, int, _Named]
"""Consecutive samples, their batch, and the row of the first."""


class _Places:
    """The places of samples in batches; ``given`` has the batches whose first place was given."""

    def __init__(self, batches: Iterable[BatchRows]) -> None:
        self._batches, self.given = iter(batches), deque[BatchRows]()
        self._num_given = 0

    def next(self, most: int) -> tuple[BatchRows | None, int, int]:
        """Return a batch, its next row, and the number of rows from there, at most ``most``; None after all batches."""
        if not self.given or self._num_given == self.given[-1].num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return None, 0, most
            self.given.append(batch)
            self._num_given = 0
        batch, first = self.given[-1], self._num_given
        self._num_given = min(first + most, batch.num_rows)
        return batch, first, self._num_given - first


def _group(named: Iterator[tuple[Any, int]], places: _Places, num_samples: int) -> list[_Part]:
    """Return the next samples; the error of a sample that cannot be read takes its position."""
    group: list[_Part] = []
    num_left = num_samples
    while num_left:
        batch, first, most = places.next(num_left)
        part: _Named = []
        try:
            part.extend(itertools.islice(named, most))
        except Exception as error:  # noqa: BLE001  # raised after the samples before it
            part.append((_Raised(error), -1))
            most = len(part) + 1  # nothing follows
        group += [(batch, first, part)] if part else []
        if len(part) < most:
            break
        num_left -= most
    return group


def _end(pool: ThreadPoolExecutor, under_way: set[Future[Any]], stop: Stop, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has no such threads
    with InterruptsHeld(in_finalizer=True):
        stop.set()
        end_pool(pool, under_way)
