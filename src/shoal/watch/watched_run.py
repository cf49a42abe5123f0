"""A run as seen from outside: the numbers of its page, its metrics and its text, in the types of JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from shoal.errors import ShoalError
from shoal.quality.prediction import has_formula
from shoal.reading.cache.cached_ranges import cache_counts
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stats.counters import Counters
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.quality.predictions import predicted
from shoal.stream.states.iterator_position import Position
from shoal.watch.run_meter import CounterMeter, Measured, Pace, RunHistory, measure_of_stats
from shoal.watch.verdict import Circumstances, verdict_of

_MOST_SOURCES = 64
_MOST_CHUNKS = 2_000_000  # for a prediction within a tenth of a second


class WatchedRun:
    """A run, and all that is said of it; a server calls `tick` and `numbers` in its own threads.

    ``stats`` returns the counts; ``measure`` the times. `follow` names the iterator whose position is shown.
    """

    def __init__(self, stats: Callable[[], Mapping[str, Any]], measure: Callable[[], Measured], **facts: Any) -> None:
        self._stats, self._history = stats, RunHistory(measure)
        self._facts = Circumstances(**facts)
        self._iteration: _Followed | None = None
        self._lock = threading.Lock()  # of the history

    def follow(self, spec: IteratorSpec, position: Position) -> None:
        """Show the progress of this iterator from now on."""
        self._iteration = _Followed(spec, position)

    def end(self, position: Position) -> None:
        """Note that the iterator with this position has ended, if it is followed."""
        if self._iteration is not None and self._iteration.position is position:
            self._iteration.is_over = True

    def tick(self) -> None:
        """Measure; called at least once a second."""
        with self._lock:
            self._history.tick()

    def stats(self) -> dict[str, Any]:
        """Return the counts, rates and shares, as `Dataset.stats`."""
        return dict(self._stats())

    def numbers(self) -> dict[str, Any]:
        """Return everything the page shows: no paths, no keys and no values of options."""
        with self._lock:
            self._history.tick()
            pace, lines = self._history.pace(), self._history.lines()
        followed = self._iteration
        facts = self._facts if followed is None else followed.circumstances
        verdict = verdict_of(pace, facts)
        progress = {} if followed is None else followed.progress(pace)
        if verdict.word == "STALLED":
            progress["eta_seconds"] = None
        return {
            "time": time.time(),
            "verdict": verdict._asdict(),
            "now": pace_numbers(pace),
            "feeder": "source" if facts.is_live else "storage",
            "progress": progress,
            "dataset": {} if followed is None else followed.dataset,
            "sources": [] if followed is None else followed.sources(),
            "mixing": {} if followed is None else followed.mixing,
            "memory": {} if followed is None else followed.memory,
            "history": [[round(value, 3) for value in point] for point in lines],
            "stats": self.stats(),
        }


def run_of_counters(counters: Counters, spec: IteratorSpec) -> WatchedRun:
    """Return the run that these counters count."""
    caches = spec.work.opened.caches
    return WatchedRun(
        lambda: counters.as_dict() | cache_counts(caches, counters.of_workers), CounterMeter(counters, caches)
    )


def run_of_stats(stats: Callable[[], Mapping[str, Any]], *, is_live: bool) -> WatchedRun:
    """Return the run of an object that has only `stats`."""
    return WatchedRun(stats, measure_of_stats(stats), is_live=is_live)


def pace_numbers(pace: Pace) -> dict[str, Any]:
    """Return the speeds and shares of a pace."""
    return {
        "seconds": round(pace.seconds, 3),
        "samples_per_second": pace.per_second("num_samples"),
        "batches_per_second": pace.per_second("num_batches"),
        "read_bytes_per_second": pace.per_second("read_bytes"),
        "requests_per_second": pace.per_second("num_requests"),
        "wait_share": pace.wait_share,
        "stages_share": pace.stages_share,
        "consumer_share": max(0.0, 1.0 - pace.inside_share),
        "num_retries": pace.counts["num_retries"],
        "num_throttled": pace.counts["num_throttled"],
        "call_seconds": pace.latest.call_seconds,
        "away_seconds": pace.latest.away_seconds,
    }


def _num_chunks(order: ResolvedOrder) -> int:
    return len(order.chunks)


class _Followed:
    """The description of an iterator, without a reference to the iterator."""

    def __init__(self, spec: IteratorSpec, position: Position) -> None:
        self._work, self.position = spec.work, position
        self._epoch, self._start = spec.epoch, spec.start
        self.is_over = False

    @property
    def circumstances(self) -> Circumstances:
        work = self._work
        is_remote = not all(part.store.reads_ahead for part in work.opened.parts)
        return Circumstances(is_over=self.is_over, is_remote=is_remote, epoch=self._epoch)

    def progress(self, pace: Pace) -> dict[str, Any]:
        """Return epoch, position and the time to the end of the epoch, as far as it is known."""
        position, pipeline = self.position, self._work.pipeline
        progress: dict[str, Any] = {
            "epoch": self._epoch,
            "position": position.end,
            "rank": pipeline.rank,
            "world_size": pipeline.partition.world_size,
            "is_over": self.is_over,
            "num_samples": None,
            "share": None,
            "eta_seconds": None,
        }
        if position.knows_end and position.num_samples < FOREVER // 2:
            num_left = max(0, position.num_steps - position.num_yielded)
            progress |= {
                "num_samples": position.num_samples,
                "share": position.num_yielded / max(1, position.num_steps),
            }
            steps = pace.per_second("num_batches" if pipeline.partition.batched else "num_samples")
            if position.rank is None and steps and not self.is_over:
                progress["eta_seconds"] = num_left / steps
        return progress

    @property
    def dataset(self) -> dict[str, Any]:
        """The dataset and its order in words; and the shards indexed so far if the index grows."""
        growth = self._work.resolved.growth()
        if growth is None:
            return self._dataset
        grown = {"num_shards": growth.num_shards, "num_indexed_shards": growth.num_indexed_shards}
        return {**self._dataset, **grown, "estimated_samples": growth.num_samples}

    @cached_property
    def _dataset(self) -> dict[str, Any]:
        work = self._work
        indexes, partition = [part.index for part in work.opened.parts], work.pipeline.partition
        words = {
            "num_shards": sum(index.num_shards for index in indexes),
            "formats": sorted({index.format for index in indexes}),
            "global_batch": partition.global_batch if partition.batched else None,
        }
        resolved = work.resolved
        return {**words, "seed": resolved.seed, "order": str(resolved.state_order.get("name", ""))}

    def sources(self) -> list[dict[str, Any]]:
        """Return the wanted and the delivered share of each source of a mixture since this iterator began."""
        resolved = self._work.resolved.in_epoch(self._epoch)
        if not isinstance(resolved, ResolvedMixture) or resolved.delivered is not None:
            return []
        request, end = resolved.request, self.position.end
        begin = request.begin(self._epoch)
        weights = request.schedule.weights_at(begin + max(0, end - 1))
        counts = request.counts(begin + end) - request.counts(begin + self._start)
        total, weight = max(1, int(counts.sum())), sum(weights.values())
        rows = [
            {"name": name, "wanted": weights[name] / weight, "delivered": count / total, "num_samples": count}
            for name, count in zip(request.names, counts.tolist(), strict=True)
        ]
        return sorted(rows, key=lambda row: -row["wanted"])[:_MOST_SOURCES]

    @cached_property
    def mixing(self) -> dict[str, Any]:
        """Predicted mixing of global batches, computed once; empty if it would take seconds of the training's time."""
        partition, resolved = self._work.pipeline.partition, self._work.resolved.in_epoch(self._epoch)
        orders: list[ResolvedOrder] = list(resolved.parts)
        is_cheap = all(has_formula(part.order) for part in orders) and sum(map(_num_chunks, orders)) < _MOST_CHUNKS
        if not (partition.batched and resolved.knows_end(self._epoch) and is_cheap):
            return {}
        try:
            quality = predicted(resolved, partition.global_batch)
        except ShoalError:  # there is no prediction for this order, or the batch is too large
            return {}
        batch = partition.global_batch
        return {"batch": batch, "vr": quality.vr[batch], "near_vr": quality.near_vr, "key": quality.key}

    @property
    def memory(self) -> dict[str, Any]:
        """The memory for chunks: the limit if there is one, and the part of the window that this rank holds."""
        work = self._work
        window = sum(getattr(part, "chunks_held_bytes", 0) for part in work.resolved.parts)
        return {
            "limit_bytes": work.options.memory_limit_bytes,
            "window_bytes": window // max(1, work.pipeline.partition.world_size),
        }
