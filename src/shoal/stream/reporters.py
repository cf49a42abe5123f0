"""Reporters of a run in progress, by name: the progress line, and reporters of other rooms and packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.plugins.doors import Door
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.progress_line import ProgressLine
from shoal.stream.states.iterator_position import Position


class Reporter(Protocol):
    """Report of an iterator's progress. The iterator calls it in the thread of its consumer."""

    needs_steps: bool
    """False if `step` need not be called for each sample: single samples are then as fast as without a report."""

    def step(self, began: float) -> None:
        """Report a batch or sample, received by the ``next()`` that began at this reading of `time.perf_counter`."""

    def close(self) -> None:
        """Report the end of the epoch, or of the iterator; may be called again."""


MakeReporter = Callable[[IteratorSpec, Position], Reporter]


class Reporters(Door[Reporter]):
    """Makers of reporters by name: functions of the iterator's spec, and its position, which moves."""

    def __init__(self, core: dict[str, MakeReporter]) -> None:
        super().__init__("shoal.reporters", core, members=("needs_steps", "step", "close"))


REPORTERS = Reporters({"line": ProgressLine})


class SeveralReporters:
    """Several reporters of one iterator."""

    needs_steps = True

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters

    def step(self, began: float) -> None:
        """Call every reporter."""
        for reporter in self._reporters:
            reporter.step(began)

    def close(self) -> None:
        """Close every reporter."""
        for reporter in self._reporters:
            reporter.close()


def check_reporter(name: str) -> None:
    """Raise `UsageError` if there is no reporter with this name; "" is no reporter."""
    if name and name not in REPORTERS:
        msg = f"reading(progress=) is False, True or the name of a reporter; got {name!r}"
        names = [each for each in REPORTERS if each != "trace"]
        raise UsageError(msg, hint=f"{did_you_mean(name, names)}known are {', '.join(names)}")


def reporter_of(spec: IteratorSpec, position: Position) -> Reporter | None:
    """Return the requested reporters of an iterator; progress is reported by the first worker of rank 0."""
    options, pipeline = spec.work.options, spec.work.pipeline
    names = [options.progress] if options.progress and not pipeline.rank and not pipeline.worker else []
    names += ["trace"] if options.trace is not None else []
    if not names:
        return None
    made = [REPORTERS.make(name, spec, position) for name in names]
    return made[0] if len(made) == 1 else SeveralReporters(made)
