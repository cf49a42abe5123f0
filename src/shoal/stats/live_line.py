"""A progress line on stderr, redrawn in place; the only module of the library that writes to a terminal.

Long commands of shoal show a progress line; streams show a progress line on request (`Dataset.reading`).
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_SHOW_AFTER_SECONDS = 0.5
_REDRAW_SECONDS = 0.1


class LiveLine:
    """A line of a terminal; `draw` it when it `is_due`, and `close` it at the end.

    It appears after half a second, is due at most ten times a second and vanishes when closed. If ``stream`` (stderr)
    is not a terminal, the line is never due, unless ``force`` is true; with ``log_every_seconds`` it is due at that
    interval and at the end, and each line stays. Write errors are ignored: the terminal is gone, or the disk of the log
    is full. Use it from one thread.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        force: bool = False,
        log_every_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        is_terminal = force or _is_terminal(self._stream)
        self._stays = not is_terminal
        self._visible = self._stream is not None and (is_terminal or log_every_seconds is not None)
        self._redraw_seconds = _REDRAW_SECONDS if is_terminal else log_every_seconds or 0.0
        self._clock = clock
        self._next_draw_seconds = clock() + (_SHOW_AFTER_SECONDS if is_terminal else self._redraw_seconds)
        self._drawn = False
        self._last_seconds = clock()

    def is_due(self) -> bool:
        """Return True if the line should be drawn now; reads the clock."""
        return self._visible and self._clock() >= self._next_draw_seconds

    def is_due_at_end(self) -> bool:
        """Return True if a log needs a last line: half a second has passed since its latest line, or the start."""
        return self._visible and self._stays and self._clock() >= self._last_seconds + _SHOW_AFTER_SECONDS

    def draw(self, text: str) -> None:
        """Show a text in the line."""
        self._last_seconds = self._clock()
        self._next_draw_seconds = self._last_seconds + self._redraw_seconds
        if self._stays:
            self._put(f"{text}\n")
        else:
            # Leave one column free: a full line makes some terminals wrap, and then every redraw scrolls.
            columns = shutil.get_terminal_size().columns - 1
            self._put(f"\r{text[:columns]}\x1b[K")
            self._drawn = True

    def close(self) -> None:
        """Remove the line, and draw no more."""
        if self._drawn:
            self._put("\r\x1b[K")
            self._drawn = False
        self._visible = False

    def _put(self, text: str) -> None:
        # Showing progress must not end the run.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def note(text: str) -> None:
    """Write a line to stderr that stays, for an address that the user needs; ignore write errors."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    """Return True for an open terminal; a program without a console has no stream."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.isatty()
    return False
