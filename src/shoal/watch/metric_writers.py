"""The numbers of a run for the tools that record training: TensorBoard, Weights & Biases, Lightning's loggers.

A tool is recognised by its methods; no tool is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic as _clock
from types import TracebackType
from typing import Any, Self

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.watch.run_meter import Measured, Pace, pace_between
from shoal.watch.watched_object import watched

Write = Callable[[dict[str, float], int, bool], None]
"""Writes numbers by name at a step; the flag is true if the user named the step."""

_TOTALS = ("num_samples", "num_batches", "num_retries", "num_throttled", "num_skipped", "num_rereads")


class RunLog:
    """Writes the numbers of a run at an interval; call it after each step, from the loop that iterates the run.

    Examples
    --------
    >>> import shoal, shoal.watch
    >>> live = shoal.from_iterable(range(8)).batch(4)
    >>> log = shoal.watch.log_to(lambda numbers, step: print(step, numbers["data/batches"]), live)
    >>> [log(step) for step, _ in enumerate(live)]  # ten seconds are not over
    [False, False]
    >>> log.close()
    2 2.0
    """

    def __init__(self, write: Write, run: Any, *, prefix: str, every_seconds: float) -> None:
        self._write, self._prefix, self._every_seconds = write, prefix, every_seconds
        self._run = watched(run)
        self._before: Measured = self._run.measure()
        self._due_seconds = _clock() + every_seconds
        self._step = 0

    def __call__(self, step: int | None = None) -> bool:
        """Write the numbers if the interval is over; return True if they were written. Else it costs 0.1 us.

        ``step`` is the step of training; by default batches are counted, or samples if there are no batches.
        """
        if _clock() < self._due_seconds:
            return False
        self._show(step)
        return True

    def close(self) -> None:
        """Write the numbers since the latest interval."""
        self._show(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self, step: int | None) -> None:
        self._due_seconds = _clock() + self._every_seconds
        measured = self._run.measure()
        pace, self._before = pace_between(self._before, measured), measured
        counts = measured.counts
        counted = int(counts["num_batches"] or counts["num_samples"])
        if step is None and self._step:  # the user counts steps
            named = self._step
        else:
            named = self._step = step or 0
        numbers = {f"{self._prefix}{name}": value for name, value in numbers_of(pace, self._run.stats()).items()}
        self._write(numbers, named or counted, bool(named))


def numbers_of(pace: Pace, stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an interval: speeds, shares of the time of training, and totals since the begin."""
    numbers = {
        "samples_per_second": pace.per_second("num_samples"),
        "batches_per_second": pace.per_second("num_batches"),
        "read_bytes_per_second": pace.per_second("read_bytes"),
        "requests_per_second": pace.per_second("num_requests"),
        "wait_share": pace.wait_share,
        "stages_share": pace.stages_share,
    }
    totals = {name.removeprefix("num_"): float(stats[name]) for name in _TOTALS if name in stats}
    held = {name: float(stats[name]) for name in ("peak_held_bytes", "in_flight_bytes") if name in stats}
    return numbers | totals | held


def log_to(writer: Any, run: Any, *, prefix: str = "data/", every_seconds: float = 10.0) -> RunLog:
    """Return a log of a run: speeds, waiting shares, retries and counts, for a tool that records training.

    Call the log after each training step, or use it in a ``with``, which also writes the last numbers. Calls before
    the interval is over return at once. No thread is started.

    Parameters
    ----------
    writer
        TensorBoard's `SummaryWriter` (recognised by ``add_scalar``), a logger of Lightning or mlflow (``log_metrics``),
        a run of Weights & Biases (``log``), or a function of a dict of floats and a step. A run of Weights & Biases
        counts its own steps, unless calls of the log name the step.
    run
        The dataset that is iterated, or the loader; in every rank whose numbers count.
    prefix
        Text before each name.
    every_seconds
        Interval; the speeds and shares cover it.

    Raises
    ------
    UsageError
        The writer has none of these methods, the run has no `stats`, or the interval is not positive.

    Examples
    --------
    >>> import shoal, shoal.watch
    >>> live, written = shoal.from_iterable(range(100)).batch(10), []
    >>> with shoal.watch.log_to(lambda numbers, step: written.append((step, numbers["data/samples"])), live) as log:
    ...     for batch in live:
    ...         _ = log()
    >>> written
    [(10, 100.0)]
    """
    number: object = every_seconds
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not math.isfinite(every_seconds) or every_seconds <= 0:
        raise UsageError(f"log_to(every_seconds=) is a positive number of seconds; got {every_seconds!r}")
    return RunLog(_write_of(writer), run, prefix=as_text("log_to(prefix=)", prefix), every_seconds=every_seconds)


def _write_of(writer: Any) -> Write:
    """Return the function that writes to a tool."""
    if callable(add_scalar := getattr(writer, "add_scalar", None)):

        def write_each(numbers: dict[str, float], step: int, is_named: bool) -> None:  # noqa: ARG001, FBT001
            for name, value in numbers.items():
                add_scalar(name, value, step)

        return write_each
    if callable(log_metrics := getattr(writer, "log_metrics", None)):
        return lambda numbers, step, _: log_metrics(numbers, step=step)
    if callable(log := getattr(writer, "log", None)):
        # A run refuses steps before the step of its latest log: the run counts, unless the user does.
        return lambda numbers, step, is_named: log(numbers, step=step) if is_named else log(numbers)
    if callable(writer):
        return lambda numbers, step, _: writer(numbers, step)
    msg = f"log_to() takes a writer with add_scalar, log_metrics or log, or a function; got {type(writer).__name__}"
    raise UsageError(msg, hint="for example torch.utils.tensorboard.SummaryWriter(), wandb.init(), trainer.logger")
