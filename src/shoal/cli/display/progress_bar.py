"""A progress bar on stderr.

Libraries for progress bars take longer to start than the whole command line (design/dependencies.md has the figures).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self, TextIO

from shoal.figures import format_bytes, format_count, format_seconds
from shoal.stats.live_line import LiveLine

_BAR_COLUMNS = 24
_LEAST_SHARE = 0.01  # below this share, the remaining time cannot be estimated


class Progress:
    """A line with the progress of work, its speed and the remaining time.

    The line appears if ``stream`` (stderr) is a terminal or ``force`` is true: after half a second, drawn at most ten
    times a second, and removed at the end of the work. ``total`` is None if unknown; ``unit`` is ``"bytes"`` or a
    plural noun. Not thread-safe.

    >>> with Progress(total=3, label="indexing", unit="shards") as progress:
    ...     for shard in range(3):
    ...         progress.advance()
    """

    def __init__(
        self,
        *,
        total: int | None = None,
        label: str,
        unit: str = "samples",
        stream: TextIO | None = None,
        force: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.label = label
        self.unit = unit
        self.done = 0
        self._screen = LiveLine(stream, force=force, clock=clock)
        self._clock = clock
        self._start_seconds = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, count: int = 1) -> None:
        """Report ``count`` more units of done work."""
        self.update(self.done + count)

    def update(self, done: int) -> None:
        """Report a total of ``done`` units of work; costs a clock reading unless a redraw is due."""
        self.done = done
        if self._screen.is_due():
            self._screen.draw(self._line(self._clock() - self._start_seconds))

    def show_bytes(self, done: int, total: int, _: int = 0) -> None:
        """Report ``done`` of ``total`` bytes: a callback for readers and writers of shards."""
        self.total = total
        self.update(done)

    def close(self) -> None:
        """Remove the line."""
        self._screen.close()

    def _line(self, elapsed_seconds: float) -> str:
        rate = self.done / elapsed_seconds if elapsed_seconds > 0 else 0.0
        parts = [self.label]
        if self.total:
            share = min(1.0, self.done / self.total)
            filled = int(share * _BAR_COLUMNS)
            parts.append(f"{share:4.0%} [{'#' * filled}{'.' * (_BAR_COLUMNS - filled)}]")
            parts.append(f"{self._amount(self.done)} of {self._amount(self.total)}")
        else:
            parts.append(self._amount(self.done))
        parts.append(f"{self._amount(rate)}/s")
        if self.total and self.done >= _LEAST_SHARE * self.total and rate > 0:
            parts.append(f"{format_seconds(max(0.0, self.total - self.done) / rate)} left")
        return "  ".join(parts)

    def _amount(self, count: float) -> str:
        return format_bytes(count) if self.unit == "bytes" else f"{format_count(count)} {self.unit}"
