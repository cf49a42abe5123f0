"""The line on stderr speaks where somebody looks, and rarely in a log."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from shoal.stats.live_line import LiveLine


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def drawn(line: LiveLine, clock: Clock, *, seconds: float, step_seconds: float) -> int:
    """How often it was due."""
    end, count = clock.seconds + seconds, 0
    while clock.seconds < end:
        clock.seconds += step_seconds
        if line.is_due():
            count += 1
            line.draw(f"number {count}")
    return count


def test_a_terminal_is_drawn_on_ten_times_a_second_and_left_clean() -> None:
    stream, clock = Terminal(), Clock()
    line = LiveLine(stream, clock=clock)
    assert drawn(line, clock, seconds=0.4, step_seconds=0.01) == 0
    assert 8 <= drawn(line, clock, seconds=1.0, step_seconds=0.01) <= 11
    line.close()
    assert stream.getvalue().startswith("\rnumber 1\x1b[K\rnumber 2")
    assert stream.getvalue().endswith("\r\x1b[K")
    assert not line.is_due()
    line.close()


def test_a_log_is_spared_unless_lines_were_asked_for() -> None:
    stream, clock = io.StringIO(), Clock()
    assert drawn(LiveLine(stream, clock=clock), clock, seconds=100, step_seconds=1) == 0
    line = LiveLine(stream, log_every_seconds=30, clock=clock)
    assert drawn(line, clock, seconds=100, step_seconds=1) == 3
    line.close()
    assert stream.getvalue() == "number 1\nnumber 2\nnumber 3\n"


def test_a_log_gets_a_last_line_unless_there_was_one_just_now() -> None:
    clock = Clock()
    line = LiveLine(io.StringIO(), log_every_seconds=60, clock=clock)
    assert not line.is_due_at_end()
    clock.seconds += 1
    assert line.is_due_at_end()
    line.draw("at the end")
    assert not line.is_due_at_end()
    clock.seconds += 1
    assert line.is_due_at_end()
    line.close()
    assert not line.is_due_at_end()
    for silent in (LiveLine(io.StringIO(), clock=clock), LiveLine(Terminal(), log_every_seconds=60, clock=clock)):
        clock.seconds += 100
        assert not silent.is_due_at_end()


class Full(Terminal):
    """A stream that takes nothing."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_cannot_be_written_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, closed, read_only = Clock(), io.StringIO(), io.TextIOWrapper(io.BufferedReader(io.BytesIO()))
    closed.close()
    for stream in (Full(), closed, read_only):
        line = LiveLine(stream, log_every_seconds=1, clock=clock)
        assert drawn(line, clock, seconds=3, step_seconds=1) == 3
        line.close()
    monkeypatch.setattr(sys, "stderr", None)
    line = LiveLine(log_every_seconds=1, clock=clock)
    assert drawn(line, clock, seconds=3, step_seconds=1) == 0
    line.close()


def test_a_line_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    stream = Terminal()
    LiveLine(stream).draw("a line that is long")
    assert stream.getvalue() == "\ra line that\x1b[K"
