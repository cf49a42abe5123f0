"""The events of one process for a trace: requests, waits and batches as spans, and stages in bursts.

Threads append to one list, which needs no lock. A call of a stage takes a microsecond or a hundred milliseconds: a long
call is a span of its own, and short calls that follow each other in a thread are one span with their counts.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_MOST_EVENTS = 200_000  # of a process; about 300 bytes each
_LONG_SECONDS = 200e-6  # of a call of a stage
_GAP_SECONDS = 100e-6  # between calls of one burst
_MOST_NAME = 60


class Span(NamedTuple):
    """An event of a thread: times are readings of `time.perf_counter`; an ``ended`` of None is a moment."""

    name: str
    thread: int
    began: float
    ended: float | None
    args: dict[str, Any]


class _Burst:
    """Short calls of stages that follow each other in a thread."""

    __slots__ = ("began", "ended", "stages")

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.stages: dict[str, list[float]] = {}  # number of calls, and seconds


class _Local(threading.local):
    """State of a thread: the request under way, and the burst."""

    def __init__(self) -> None:
        self.number = threading.get_native_id()
        self.request: tuple[float, int] | None = None
        self.burst = _Burst()


class TraceRecorder:
    """Listener of a run (`RunEvents`) that keeps spans until `take`.

    After ``seconds``, or 200,000 events, it records nothing and calls ``ended`` once, in the thread of an event.
    """

    def __init__(self, seconds: float, ended: Callable[[], None]) -> None:
        self.seconds, self._ended = seconds, ended
        self.until = time.perf_counter() + seconds
        self.is_over = False
        self.threads: dict[int, str] = {}
        self._spans: list[Span] = []
        self._num_taken = 0
        self._bursts: dict[int, _Burst] = {}
        self._local = _Local()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    # ---- events, called by the run

    def request_began(self, num_bytes: int) -> None:
        """Note the begin of an attempt in this thread."""
        self._local.request = (time.perf_counter(), num_bytes)

    def request_ended(self, num_bytes: int) -> None:
        """Record the attempt of this thread."""
        request, self._local.request = self._local.request, None
        if request is not None:
            self.add("request", request[0], time.perf_counter(), {"bytes": num_bytes})

    def request_retried(self, error: Exception) -> None:
        """Record that an attempt of this thread failed; the name of the object is left out."""
        number = next((word for word in str(error).split() if word.isdecimal() and len(word) == 3), "")
        self.add("retry", time.perf_counter(), None, {"error": f"{type(error).__name__} {number}".rstrip()})

    def waited(self, began: float, ended: float, num_bytes: int) -> None:
        """Record a wait of this thread for bytes, or its own read."""
        if num_bytes:
            self.add("read", began, ended, {"bytes": num_bytes})
        else:
            self.add("wait for bytes", began, ended, {})

    def timed(self, stages: tuple[T, ...]) -> tuple[T, ...]:
        """Return stages of the same classes, and with the same results, that record their calls."""
        return tuple(_timed(stage, self) for stage in stages)

    # ---- spans

    def add(self, name: str, began: float, ended: float | None, args: dict[str, Any]) -> None:
        """Record a span of this thread; end the recording if its time is over."""
        if self.is_over:
            return
        local, spans = self._local, self._spans
        thread, burst = local.number, local.burst
        if burst.stages:
            self._end_burst(thread, burst)
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        spans.append(Span(name, thread, began, ended, args))
        if (began if ended is None else ended) > self.until or self._num_taken + len(spans) > _MOST_EVENTS:
            self._end()

    def called(self, name: str, began: float, ended: float) -> None:
        """Record a call of a stage."""
        if self.is_over:
            return
        if ended - began > _LONG_SECONDS:
            self.add(name, began, ended, {"samples": 1})
            return
        local = self._local
        burst = local.burst
        if burst.stages and began - burst.ended > _GAP_SECONDS:
            self._end_burst(local.number, burst)
        if not burst.stages:
            burst.began = began
            self._bursts[local.number] = burst
            self.threads.setdefault(local.number, threading.current_thread().name)
        burst.ended = ended
        counts = burst.stages.setdefault(name, [0, 0.0])
        counts[0] += 1
        counts[1] += ended - began

    def _end_burst(self, thread: int, burst: _Burst) -> None:
        stages, burst.stages = burst.stages, {}
        if not stages:
            return
        name = next(iter(stages)) if len(stages) == 1 else "stages"
        args: dict[str, Any] = {"samples": max(int(number) for number, _ in stages.values())}
        if len(stages) > 1:
            args |= {f"{stage}, ms": round(1e3 * seconds, 3) for stage, (_, seconds) in stages.items()}
        self._spans.append(Span(name, thread, burst.began, burst.ended, args))

    def _end(self) -> None:
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
        now = time.perf_counter()
        self._spans.append(Span("end of the trace", self._local.number, now, None, {}))
        self._ended()

    def take(self) -> list[Span]:
        """Return the spans that were not taken yet."""
        if self._pid != os.getpid():
            return []  # a forked child has the spans of its parent
        for thread, burst in list(self._bursts.items()):
            self._end_burst(thread, burst)
        end = len(self._spans)
        taken = self._spans[:end]
        del self._spans[:end]  # other threads append meanwhile
        self._num_taken += end
        return taken


def _timed(stage: T, recorder: TraceRecorder) -> T:
    """Return a copy of a stage whose class is a subclass of its class, since some code asks for classes of stages."""
    kind: Any = type(stage)
    name = repr(stage)[:_MOST_NAME]

    def recorded(inner: Any) -> Any:
        def call(self: Any, samples: Any, sample_ids: Any) -> Any:
            if recorder.is_over:
                return inner(self, samples, sample_ids)
            began = time.perf_counter()
            result = inner(self, samples, sample_ids)
            recorder.called(name, began, time.perf_counter())
            return result

        return call

    timed = copy.copy(stage)
    namespace = {"__slots__": (), "__doc__": kind.__doc__, "__repr__": lambda _: repr(stage)}
    # Other stages process columns by `__call__`.
    namespace |= {
        method: recorded(vars(kind)[method]) for method in ("__call__", "on_columns", "on_run") if method in vars(kind)
    }
    namespace.setdefault("__call__", recorded(kind.__call__))
    object.__setattr__(timed, "__class__", type(kind)(kind.__name__, (kind,), namespace))
    return timed
