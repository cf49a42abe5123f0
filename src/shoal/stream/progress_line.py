"""How a run goes, in one line on stderr: what `reading(progress=True)` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from shoal.stream.figures import format_bytes, format_count
from shoal.stream.live_line import LiveLine

__all__ = ["ProgressLine", "progress_text"]

_LOG_EVERY_SECONDS = 60.0


class ProgressLine:
    """Drawn ten times a second on a terminal; elsewhere, for a log, a line is written every minute and at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._line = LiveLine(stream, log_every_seconds=_LOG_EVERY_SECONDS)

    def is_due(self) -> bool:
        """Whether to `show` now."""
        return self._line.is_due()

    def is_due_at_end(self) -> bool:
        """Whether to `show` a last time."""
        return self._line.is_due_at_end()

    def show(self, stats: Mapping[str, Any], *, epoch: int, share: float) -> None:
        """Show these counts, at this share of an epoch."""
        self._line.draw(f"shoal: {progress_text(stats, epoch=epoch, share=share)}")

    def close(self) -> None:
        """Take the line away from a terminal."""
        self._line.close()


def progress_text(stats: Mapping[str, Any], *, epoch: int, share: float) -> str:
    """What matters of `Dataset.stats`, in the order of how much it does: a narrow terminal cuts the rest."""
    parts = [f"epoch {epoch}  {share:4.0%}", f"{format_count(stats['samples_per_second'])} samples/s"]
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
