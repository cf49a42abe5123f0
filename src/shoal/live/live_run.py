"""One run of a live stream: from the source through the buffer and the stages to samples or batches."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from shoal.arguments import as_flag
from shoal.errors import StateError
from shoal.live.live_source import EndOfSourceError, LiveCounters, LiveSource, Sharing
from shoal.live.live_state import VERSION, check_same_stream, kept, own_state, restored, sealed, states_of_run
from shoal.live.shuffle_buffer import BufferSize, Held, ShuffleBuffer
from shoal.order.states.checked_states import changed_hint
from shoal.order.states.state_fields import LIVE
from shoal.pipeline.collate import collate, nested
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages.map_and_filter import seeded
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.stats.run_stats import RunStats
from shoal.stream.ranks import Ranks

_log = logging.getLogger("shoal")
_IN_WORKERS = "If workers of torch's DataLoader iterate, their datasets have the states, not the parent's dataset"

MakeSource = Callable[[Sharing, LiveCounters], LiveSource]


@dataclass(frozen=True, slots=True)
class LiveSpec:
    """The description of a live stream: its source and share, its shuffle, and the processing of its samples."""

    make: MakeSource
    ranks: Ranks = Ranks()  # noqa: RUF009  # frozen
    size: BufferSize | None = None
    stages: tuple[Stage, ...] = ()
    batch_size: int | None = None
    remainder: str = "keep"
    batch_stages: tuple[Stage, ...] = ()
    formatting: Formatting = Formatting()  # noqa: RUF009  # frozen


class LiveRun:
    """The moving part of a `LiveDataset`: all its iterators share one position.

    At any time a sample is in the source, in the buffer, in the batch under way, or delivered. So a signal handler may
    save a state while ``next()`` waits for data or runs a function.
    """

    def __init__(self, spec: LiveSpec) -> None:
        self.counters = LiveCounters()
        self._spec, self._size = spec, spec.size or BufferSize()
        self._sharing = sharing_of(spec.ranks)
        self._source = spec.make(self._sharing, self.counters)
        self._buffer = ShuffleBuffer(self._size, rank=self._sharing.rank)
        self._stages = seeded(spec.stages, self._size.seed)
        self._again: list[Held] = []  # taken by an earlier run and due before new samples, the last one first
        self._pending: list[tuple[Held, Any]] = []  # samples of the batch under way, before and after the stages
        self._taken = 0
        self._has_ended = False
        self._lock = threading.RLock()

    def again(self) -> LiveRun | None:
        """Return another run that yields the next samples once more, and no batches; None if the source cannot.

        It moves nothing of this run, and ends instead of waiting for samples.
        """
        source = self._source.again()
        if source is None:
            return None
        run = LiveRun(replace(self._spec, make=lambda *_: source, batch_size=None, batch_stages=()))
        if self._taken:
            run.load_state_dict(self.state_dict())
        return run

    def begin(self) -> None:
        """Continue after the end of the source: it may have new samples."""
        self._has_ended = False

    def __iter__(self) -> LiveRun:
        return self

    def __next__(self) -> Any:
        """Return the next sample or batch."""
        with self._lock:
            began = perf_counter()
            try:
                return self._sample() if self._spec.batch_size is None else self._batch(self._spec.batch_size)
            finally:
                self.counters.inside_seconds += perf_counter() - began

    def _sample(self) -> Any:
        while not self._pending:
            self._process(self._next_entry())
        sample = self._spec.formatting.sample(self._pending[0][1])
        self._pending.clear()
        self.counters.num_samples += 1
        return sample

    def _batch(self, size: int) -> Any:
        while len(self._pending) < size:
            try:
                self._process(self._next_entry())
            except StopIteration:
                if self._pending and self._spec.remainder == "keep":
                    break
                raise
        samples = [sample for _, sample in self._pending]
        formatting = self._spec.formatting
        batch = collate(samples)
        batch = formatting.finished(nested(batch) if formatting.nests else batch)
        for stage in self._spec.batch_stages:
            batch = stage(batch, -1)
        self._pending.clear()
        self.counters.num_batches += 1
        self.counters.num_samples += len(samples)
        return batch

    def _process(self, entry: Held) -> None:
        """Run a sample through the stages, and add it to the batch under way unless a filter drops it."""
        self._pending.append((entry, None))  # a state that is saved while a function runs has this sample
        sample = DROPPED
        try:
            number = self._source.number_of(entry.place) if self._stages else 0
            name = partial(self._source.label, entry.place)
            sample = run_stages(self._stages, entry.sample, number, index=None, name=name)
        except StopIteration as error:
            self.counters.num_failed += 1
            msg = "a function of the stream raised StopIteration, which would look like its end"
            raise RuntimeError(msg) from error
        except Exception:
            self.counters.num_failed += 1
            raise
        else:
            self.counters.num_filtered += sample is DROPPED
        finally:
            self._pending[-1:] = [] if sample is DROPPED else [(entry, sample)]

    def _next_entry(self) -> Held:
        """Fill the buffer and return one of its samples; raises `StopIteration` at the end of the source."""
        buffer = self._buffer
        while not buffer.is_full:
            if self._again:
                buffer.put(self._again.pop())
                continue
            began = perf_counter()
            try:
                if self._has_ended:
                    break
                taken = self._source.take()
            except EndOfSourceError:
                self._has_ended = True
                break
            finally:
                self.counters.take_seconds += perf_counter() - began
            buffer.put(Held(*taken))
            self._taken += 1
            self.counters.num_taken += 1
        if not len(buffer):
            raise StopIteration
        return buffer.pick()

    # ---- states

    def state_dict(self, *, contents: bool = False) -> dict[str, Any]:
        """Return the position, and the samples in the buffer or their places; waits for another thread."""
        with self._lock:
            held = [*(entry for entry, _ in self._pending), *self._again, *self._buffer.entries()]
            places = [entry.place for entry in held]
            state = {
                "live": VERSION,
                "kind": self._source.kind,
                "rank": self._sharing.rank,
                "world_size": self._sharing.world_size,
                "seed": self._size.seed,
                "buffer": [self._size.num_samples, self._size.num_bytes],
                "taken": self._taken,
                "steps": self._buffer.steps,
                "hole": self._buffer.hole,
                "pending": len(self._pending),
                "again": len(self._again),
                "source": self._source.state(places),
                "places": [[*place] if isinstance(place, tuple) else place for place in places],  # JSON types
            }
            if as_flag("state_dict(contents=)", contents):
                state["contents"] = kept([entry.sample for entry in held])
            return sealed(state)

    def load_state_dict(self, given: Any) -> None:
        """Continue from the state of this rank, or from the states of all ranks of a run with more or fewer ranks."""
        states = states_of_run(given)
        check_same_stream(states[0], self._source.kind, self._size)
        if not any(state["taken"] for state in states):
            _log.warning("the state was saved before a sample was taken: the stream starts again. %s", _IN_WORKERS)
        state, self._has_ended = own_state(states, self._sharing), False
        if state is None:
            self._load_dealt(states)
            return
        samples = self._samples_of(state)
        self._taken = state["taken"]
        if samples is None:
            self.counters.num_lost += len(state["places"])
            self._pending, self._again = [], []
            self._buffer.restore([], steps=state["steps"], hole=None)
            return
        entries = list(map(Held, samples, state["places"]))
        self.counters.num_recalled += len(entries)
        num_pending, num_waiting = state["pending"], state["pending"] + state["again"]
        self._pending, self._again = [], entries[num_pending:num_waiting]
        self._buffer.restore(entries[num_waiting:], steps=state["steps"], hole=state["hole"])
        for entry in entries[:num_pending]:
            self._process(entry)

    def _samples_of(self, state: Mapping[str, Any]) -> list[Any] | None:
        """Move the source to the position of a state; return the undelivered samples, or None if they are lost."""
        if "contents" in state:
            samples = restored(state["contents"])
            if len(samples) != len(state["places"]):
                msg = f"the state keeps {len(samples)} samples, but names {len(state['places'])}"
                raise StateError(msg, hint=changed_hint(LIVE))
            self._source.resume(state["source"], [])
            return samples
        return self._source.resume(state["source"], state["places"])

    def _load_dealt(self, states: list[dict[str, Any]]) -> None:
        places = [state["places"] for state in states]
        position, own_places = self._source.deal([state["source"] for state in states], places, self._sharing)
        self._taken = states[0]["taken"]
        self._pending = []
        self._buffer.restore([], steps=max(state["steps"] for state in states), hole=None)
        samples = self._source.resume(position, own_places) or []
        self.counters.num_recalled += len(samples)
        self._again = [Held(*pair) for pair in zip(samples, own_places, strict=True)][::-1]

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        self.counters.num_buffered, self.counters.buffer_bytes = len(self._buffer), self._buffer.num_bytes
        return RunStats(self.counters.as_dict())


def sharing_of(ranks: Ranks) -> Sharing:
    """Return the share of this process: of its rank, and of its worker in torch's DataLoader."""
    rank, world_size = ranks.resolve()
    torch_data = sys.modules.get("torch.utils.data")
    worker = None if torch_data is None else torch_data.get_worker_info()
    if worker is None:
        return Sharing(rank, world_size)
    return Sharing(rank * worker.num_workers + worker.id, world_size * worker.num_workers)
