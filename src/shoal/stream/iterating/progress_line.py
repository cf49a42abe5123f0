"""Progress of a run in one line on stderr, for `reading(progress=True)`; a `Reporter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.figures import counted, format_bytes, format_count
from shoal.reading.cache.cached_ranges import cache_counts
from shoal.stats.live_line import LiveLine
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.states.iterator_position import Position

_LOG_EVERY_SECONDS = 60.0


class ProgressLine:
    """A line redrawn ten times a second on a terminal; elsewhere, for a log, written every minute and at the end.

    The line shows the ``counters`` at the position of the batch receiver. Not thread-safe.
    """

    needs_steps = True

    def __init__(self, spec: IteratorSpec, position: Position) -> None:
        num_workers = spec.work.pipeline.num_workers
        self._line = LiveLine(log_every_seconds=_LOG_EVERY_SECONDS)
        self._position, self._who = position, f"  (worker 0 of {num_workers})" if num_workers > 1 else ""
        self._counters, self._caches = spec.counters, spec.work.opened.caches

    def step(self, began: float) -> None:  # noqa: ARG002
        """Update the line after a batch or sample was received."""
        if self._line.is_due():
            self._show()

    def close(self) -> None:
        """Write a last line to a log, or remove the line from a terminal."""
        if self._line.is_due_at_end():
            self._show()
        self._line.close()

    def _show(self) -> None:
        position = self._position
        share = position.num_yielded / max(1, position.num_steps) if position.knows_end else None
        stats = self._counters.as_dict() | cache_counts(self._caches, self._counters.of_workers)
        self._line.draw(f"shoal: {progress_text(stats, epoch=position.epoch, share=share)}{self._who}")


def progress_text(stats: Mapping[str, Any], *, epoch: int, share: float | None) -> str:
    """Format the main numbers of `Dataset.stats`, most important first: a narrow terminal cuts off the rest.

    ``share`` is the finished part of the epoch; None while the end of the epoch is unknown.
    """
    done = f"{counted(stats['num_samples'], 'sample')}, still indexing" if share is None else f"{share:4.0%}"
    parts = [f"epoch {epoch}  {done}", f"{format_count(stats['samples_per_second'])} samples/s"]
    parts.append(f"{format_bytes(stats['read_bytes_per_second'])}/s")
    if stats["wait_share"] is not None:
        parts.append(f"waiting {stats['wait_share']:.0%} (limit: {stats['bottleneck']})")
    for name, text in (("num_skipped", "skipped"), ("num_retries", "retries"), ("num_rereads", "read again")):
        if stats[name]:
            parts.append(f"{format_count(stats[name])} {text}")
    if stats["peak_in_flight_bytes"]:
        peak = format_bytes(stats["peak_in_flight_bytes"])
        parts.append(f"{format_bytes(stats['in_flight_bytes'])} in flight (at most {peak})")
    parts.append(f"{format_count(stats['requests_per_second'])} requests/s")
    if num_cached := sum(stats.get(f"num_cache_{how}", 0) for how in ("hits", "fills", "bypasses")):
        parts.append(f"{stats['num_cache_hits'] / num_cached:.0%} from the cache")
    parts.append(f"{format_bytes(stats['peak_held_bytes'])} held at most")
    return "  ".join(parts)
