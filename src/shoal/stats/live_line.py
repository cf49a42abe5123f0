"""One line on stderr that is drawn again and again; the only place of the library that writes to a terminal.

It is written to when a command of ours runs long, and when `Dataset.reading` was asked for it.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["LiveLine"]

_SHOW_AFTER_SECONDS = 0.5
_REDRAW_SECONDS = 0.1


class LiveLine:
    """A line of a terminal: `draw` it when it `is_due`, and `close` it.

    It appears after half a second, is due at most ten times a second and vanishes when it is closed. Where ``stream``
    (stderr) is no terminal it is never due, unless ``force`` is true; with ``log_every_seconds`` it is due that often
    there, and at the end, and is written as a line that stays. What cannot be written is not: the terminal is gone, or
    the disk of the log is full. Use it from one thread.
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
        """Whether to draw now; costs a reading of the clock."""
        return self._visible and self._clock() >= self._next_draw_seconds

    def is_due_at_end(self) -> bool:
        """Whether to draw a last time: in a log, where half a second went by since it was drawn, if it ever was."""
        return self._visible and self._stays and self._clock() >= self._last_seconds + _SHOW_AFTER_SECONDS

    def draw(self, text: str) -> None:
        """Show this."""
        self._last_seconds = self._clock()
        self._next_draw_seconds = self._last_seconds + self._redraw_seconds
        if self._stays:
            self._put(f"{text}\n")
        else:
            # One column less than there is: a full line makes some terminals wrap, and then every redraw scrolls.
            columns = shutil.get_terminal_size().columns - 1
            self._put(f"\r{text[:columns]}\x1b[K")
            self._drawn = True

    def close(self) -> None:
        """Take the line away, and draw no more."""
        if self._drawn:
            self._put("\r\x1b[K")
            self._drawn = False
        self._visible = False

    def _put(self, text: str) -> None:
        # What shows how a run goes must not end it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    """False where there is no stream, as in a program without a console, and where it is closed."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.isatty()
    return False
