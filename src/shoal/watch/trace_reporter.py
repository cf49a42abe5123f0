"""The trace of a run as a reporter, for ``reading(trace=FILE)``: one recorder for each dataset object in a process.

The iterator of the training loop writes the file when it ends; iterators of worker processes write parts.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import NamedTuple

from shoal.errors import StorageError
from shoal.stats.live_line import note
from shoal.stats.run_events import IGNORED
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.states.iterator_position import Position
from shoal.watch.trace_files import TraceFile, TracePart, lines_of, name_lines
from shoal.watch.trace_recorder import TraceRecorder

_FLUSH_SECONDS = 0.5  # of worker processes, which may be killed
_RANK = "{rank}"


class ProcessTrace:
    """The recorder of a process, and the file or part that it fills."""

    def __init__(self, path: str, seconds: float, name: str, *, is_part: bool) -> None:
        self.recorder = TraceRecorder(seconds, self._ended)
        self.is_part = is_part
        self._path, self._name = path, name
        self._file = TracePart(path) if is_part else TraceFile(path)
        self._lock = threading.RLock()  # the garbage collector may end a dataset in the middle of `write`
        self._pid = os.getpid()
        self._named: set[int] = set()
        self._written_seconds = 0.0  # a worker may be killed after its first batch
        self._failed = False

    def write(self) -> None:
        """Write the new events; a file that cannot be written ends the trace, and not the training."""
        if self._pid != os.getpid() or self._failed:
            return
        with self._lock:
            self._written_seconds = time.perf_counter()
            spans, process = self.recorder.take(), self._pid
            threads = [item for item in list(self.recorder.threads.items()) if item[0] not in self._named]
            lines = name_lines(process, self._name, threads) if threads else []
            self._named |= {number for number, _ in threads}
            try:
                self._file.append(lines + lines_of(spans, process))
            except StorageError as error:
                self._failed = self.recorder.is_over = True
                note(f"shoal: the trace is not written: {error}")

    def write_sometimes(self) -> None:
        """Write the new events of a part, twice a second."""
        if self.is_part and time.perf_counter() - self._written_seconds > _FLUSH_SECONDS:
            self.write()

    def _ended(self) -> None:
        self.write()
        if not self.is_part and not self._failed:
            note(f"shoal: the trace of {self.recorder.seconds:g} s is complete: {self._path}")


class TraceReporter:
    """Records the batches of one iterator, and connects its counters with the recorder of the process."""

    needs_steps = True

    def __init__(self, spec: IteratorSpec, position: Position) -> None:
        del position
        is_consumer, pipeline = not spec.work.options.is_received, spec.work.pipeline
        self._trace = trace = _trace_of(spec)
        noun = "batch" if pipeline.partition.batched else "sample"
        self._name = f"{'next' if is_consumer else 'make'} {noun}"
        self._is_consumer, self._ended = is_consumer, 0.0
        self._counters = weakref.ref(spec.counters)
        if trace is not None and not trace.recorder.is_over:
            spec.counters.events = trace.recorder

    def step(self, began: float) -> None:
        """Record a batch, and the time of training before it."""
        trace = self._trace
        if trace is None:
            return
        recorder, ended = trace.recorder, time.perf_counter()
        if self._is_consumer and self._ended:
            recorder.add("training", self._ended, began, {})
        self._ended = ended
        recorder.add(self._name, began, ended, {})
        trace.write_sometimes()
        if recorder.is_over:
            self._trace = None
            if (counters := self._counters()) is not None:
                counters.events = IGNORED

    def close(self) -> None:
        """Write the events so far, and join the parts of worker processes."""
        trace = self._trace
        if trace is not None and (self._is_consumer or trace.is_part):
            trace.write()


class _Key(NamedTuple):
    process: int
    counters: int


_traces: dict[_Key, ProcessTrace] = {}


def _trace_of(spec: IteratorSpec) -> ProcessTrace | None:
    """Return the trace of a dataset in this process; None if this rank writes none."""
    options, pipeline = spec.work.options, spec.work.pipeline
    path = options.trace or ""
    if pipeline.rank and _RANK not in path:
        return None
    key = _Key(os.getpid(), id(spec.counters))
    trace = _traces.get(key)
    if trace is None:
        path = path.replace(_RANK, str(pipeline.rank))
        is_worker = pipeline.num_workers > 1 or (options.is_received and spec.ahead is None)
        is_part = is_worker and options.is_received
        if is_worker and not is_part:  # of torch's own loader: no process sees all workers
            path = f"{path}.worker-{pipeline.worker}.json"
        who = f"worker {pipeline.worker}" if is_worker else f"training, rank {pipeline.rank}"
        trace = _traces[key] = ProcessTrace(path, options.trace_seconds, who, is_part=is_part)
        weakref.finalize(spec.counters, _end, key)
    return trace


def _end(key: _Key) -> None:
    trace = _traces.pop(key, None)
    if trace is not None:
        trace.write()
