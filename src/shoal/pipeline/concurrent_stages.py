"""Stages that process several samples at a time, and return the samples in order.

Each such stage pulls samples through the stages before it, and begins calls ahead of use, up to its limit of calls and
a limit in bytes of waiting samples. All other stages get one sample after another, in order, in the calling thread. An
error is raised at its sample, after all samples before it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shoal.index.table import SampleIndex
from shoal.pipeline.batch_memory import bytes_of
from shoal.pipeline.batch_rows import BatchRows
from shoal.pipeline.decode_pool import Decoders
from shoal.pipeline.quarantine import QUARANTINED
from shoal.pipeline.stages.callers import Callers
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.processes.interrupts import wait_in_slices
from shoal.reading.checks.damaged_samples import Damaged

_WAITING = 4  # samples for each call: finished samples wait for a slow sample before them, and other calls go on


@dataclass(frozen=True, slots=True)
class _Raised:
    """Placeholder for a sample that cannot be read or processed."""

    error: Exception


class _Waiting(NamedTuple):
    """A sample in a stage: its call has begun, unless the stage is None."""

    sample: Any
    sample_id: int
    stage: Stage | None
    num_bytes: int
    result: Future[Any] | None = None

    @property
    def is_unfinished(self) -> bool:
        """True while the call runs."""
        return self.result is not None and not self.result.done()


class _Running:
    """The calls of a stage that run; ``has_ended`` is set at the end of each."""

    def __init__(self) -> None:
        self._results: set[Future[Any]] = set()
        self.has_ended = threading.Event()

    def __len__(self) -> int:
        return len(self._results)

    def add(self, result: Future[Any]) -> None:
        """Add a call, until it ends."""
        self._results.add(result)
        result.add_done_callback(self._ended)

    def _ended(self, result: Future[Any]) -> None:
        self._results.discard(result)
        self.has_ended.set()


_Named = Iterator[tuple[Any, int]]


class ConcurrentStages:
    """The stages up to the last that processes several samples at a time; before them, stages that run in threads.

    `close`, and dropping the last reference, cancel the calls that run.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        decoders: Decoders | None,
        *,
        index: SampleIndex | None,
        forgiving: bool,
        limit_bytes: int,
        timed: Callable[[tuple[Stage, ...]], tuple[Stage, ...]],
    ) -> None:
        stages = timed(tuple(stages))
        self._decoders = decoders
        places = [number for number, stage in enumerate(stages) if stage.max_concurrency]
        self.num_stages = places[-1] + 1
        self._callers = Callers(sum(stage.max_concurrency for stage in stages))
        run = partial(run_stages, index=index, forgiving=forgiving)
        firsts = [0 if decoders is None else decoders.num_stages, *(place + 1 for place in places)]
        # Several stages share the limit.
        limit_bytes //= len(places)
        self._layers = [
            _Layer(
                stages[first:place], stages[place], timed((_Wait(stages[place]),))[0], self._callers, run, limit_bytes
            )
            for first, place in zip(firsts, places, strict=False)
        ]

    def samples(self, samples: Iterator[Any], ids: Sequence[int]) -> Iterator[Any]:
        """Yield each sample after these stages, given samples and their ids."""
        if self._decoders is not None:
            samples = self._decoders.samples(samples, ids)
        named = _without_errors(samples, ids)
        for layer in self._layers:
            named = layer.through(named)
        return _with_errors(named)

    def batches(
        self, samples: Iterator[Any], ids: Sequence[int], sizes: Sequence[int], memory_of: Callable[[int], BatchRows]
    ) -> Iterator[tuple[list[Any], BatchRows]]:
        """Yield the samples of batches of these sizes after these stages, each with the memory of the batch."""
        made = self.samples(samples, ids)
        return ((list(itertools.islice(made, size)), memory_of(size)) for size in sizes)

    def close(self) -> None:
        """Cancel the calls that run."""
        self._callers.close()
        if self._decoders is not None:
            self._decoders.close()


@dataclass(frozen=True, slots=True)
class _Wait(Stage):
    """The wait until any call of a stage has ended; its time is recorded as the time of the stage."""

    stage: Stage

    def __repr__(self) -> str:
        return repr(self.stage)

    def __call__(self, has_ended: threading.Event, _: int) -> None:
        """Wait for the event, and clear it."""
        wait_in_slices(has_ended.wait)
        has_ended.clear()


@dataclass(frozen=True, slots=True)
class _Layer:
    """A stage that processes several samples at a time, and the stages before it."""

    before: Sequence[Stage]
    stage: Stage
    wait: Stage
    callers: Callers
    run: Callable[..., Any]
    limit_bytes: int

    def through(self, named: _Named) -> _Named:
        """Yield samples after this stage, with their ids, in order; an error is the last."""
        waiting: deque[_Waiting] = deque()
        running = _Running()
        largest_bytes, has_more = 1, True
        while True:
            while has_more and self._has_room(len(waiting), len(running), largest_bytes):
                sample, sample_id = next(named, (None, None))
                has_more = sample_id is not None
                if sample_id is not None:
                    waiting.append(self._begun(self._prepared(sample, sample_id), sample_id, running))
                    has_more = type(waiting[-1].sample) is not _Raised
                    largest_bytes = max(largest_bytes, waiting[-1].num_bytes)
            if not waiting:
                return
            if waiting[0].is_unfinished:
                self.wait(running.has_ended, -1)
                continue  # a call that has ended makes room for another
            sample, sample_id, stage, num_bytes, _ = waiting.popleft()
            if stage is not None:
                sample = self._done((stage,), sample, sample_id)
                largest_bytes = max(largest_bytes, num_bytes + bytes_of(sample))
            yield sample, sample_id
            if type(sample) is _Raised:
                return

    def _has_room(self, num_waiting: int, num_running: int, largest_bytes: int) -> bool:
        most = self.stage.max_concurrency
        fits = num_running < most and num_waiting < _WAITING * most
        return not num_waiting or (fits and (num_waiting + 1) * largest_bytes <= self.limit_bytes)

    def _prepared(self, sample: Any, sample_id: int) -> Any:
        is_left_out = sample is DROPPED or sample is QUARANTINED or type(sample) is _Raised
        return sample if is_left_out or not self.before else self._done(self.before, sample, sample_id)

    def _begun(self, sample: Any, sample_id: int, running: _Running) -> _Waiting:
        """Begin the call for a sample; samples that are left out wait for their turn, too."""
        if sample is DROPPED or sample is QUARANTINED or type(sample) in (_Raised, Damaged):
            return _Waiting(sample, sample_id, None, 0)
        begun = self.stage.begin(sample, sample_id, self.callers)
        if begun is None:
            return _Waiting(sample, sample_id, None, bytes_of(sample))
        running.add(begun.result)
        return _Waiting(sample, sample_id, begun.stage, bytes_of(sample), begun.result)

    def _done(self, stages: Sequence[Stage], sample: Any, sample_id: int) -> Any:
        try:
            return self.run(stages, sample, sample_id)
        except Exception as error:  # noqa: BLE001  # raised after the samples before it
            return _Raised(error)


def _without_errors(samples: Iterator[Any], ids: Sequence[int]) -> _Named:
    """Yield samples with ids; the error of a sample that cannot be read takes its position, and ends the samples."""
    try:
        yield from zip(samples, ids, strict=False)
    except Exception as error:  # noqa: BLE001  # raised after the samples before it
        yield _Raised(error), -1


def _with_errors(named: _Named) -> Iterator[Any]:
    """Yield samples, and raise the error in place of a sample."""
    for sample, _ in named:
        if type(sample) is _Raised:
            raise sample.error
        yield sample
