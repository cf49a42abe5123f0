"""The progress bar speaks when it should, and only then."""

from __future__ import annotations

import io

import pytest

from shoal.cli.display.progress_bar import Progress


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def frames(stream: io.StringIO) -> list[str]:
    return [frame for frame in stream.getvalue().replace("\x1b[K", "").split("\r") if frame]


def run(stream: io.StringIO, *, step_seconds: float, steps: int, total: int | None, force: bool = False) -> None:
    clock = Clock()
    with Progress(total=total, label="work", stream=stream, force=force, clock=clock) as progress:
        for _ in range(steps):
            clock.seconds += step_seconds
            progress.advance()


def test_it_is_silent_where_nobody_looks() -> None:
    stream = io.StringIO()
    run(stream, step_seconds=1, steps=10, total=10)
    assert stream.getvalue() == ""


def test_it_is_silent_when_the_work_is_short() -> None:
    stream = Terminal()
    run(stream, step_seconds=0.04, steps=10, total=10)
    assert stream.getvalue() == ""


def test_it_can_be_forced() -> None:
    stream = io.StringIO()
    run(stream, step_seconds=1, steps=2, total=10, force=True)
    assert len(frames(stream)) == 2


def test_it_is_drawn_at_most_ten_times_a_second() -> None:
    stream = Terminal()
    run(stream, step_seconds=0.001, steps=2000, total=2000)
    assert 10 <= len(frames(stream)) <= 16


def test_it_says_how_far_how_fast_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    run(stream, step_seconds=1, steps=5, total=20)
    assert (
        frames(stream)[-1]
        == "work   25% [######..................]  5 samples of 20 samples  1.0 samples/s  15.0 s left"
    )


def test_it_leaves_no_trace() -> None:
    stream = Terminal()
    run(stream, step_seconds=1, steps=5, total=20)
    assert stream.getvalue().endswith("\r\x1b[K")


def test_it_does_without_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    run(stream, step_seconds=1, steps=3, total=None)
    assert frames(stream)[-1] == "work  3 samples  1.0 samples/s"


def test_it_stays_inside_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    run(stream, step_seconds=1, steps=5, total=20)
    assert max(map(len, frames(stream))) <= 29


def test_it_vanishes_when_the_work_fails() -> None:
    stream, clock = Terminal(), Clock()
    with pytest.raises(RuntimeError), Progress(total=2, label="work", stream=stream, clock=clock) as progress:
        clock.seconds += 1
        progress.advance()
        raise RuntimeError
    assert stream.getvalue().endswith("\r\x1b[K")


def test_bytes_are_shown_in_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream, clock = Terminal(), Clock()
    progress = Progress(total=4 * 2**20, label="reading", unit="bytes", stream=stream, clock=clock)
    clock.seconds += 2
    progress.update(2**20)
    assert "1.0 MiB of 4.0 MiB  512.0 KiB/s  6.0 s left" in frames(stream)[0]
    progress.close()


def test_of_less_than_a_hundredth_no_end_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    run(stream, step_seconds=1, steps=10, total=1000)
    assert [" left" in frame for frame in frames(stream)] == [False] * 9 + [True]
