"""The numbers of a run in the tools that record training, recognised by their methods."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
import shoal.watch
from shoal.errors import UsageError
from shoal.stream.dataset import Dataset
from shoal.watch import metric_writers


class SummaryWriter:
    """TensorBoard's: one number a call."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert isinstance(scalar_value, float)
        assert global_step is not None
        self.scalars.append((tag, scalar_value, global_step))


class WandbRun:
    """Weights & Biases': drops what is logged for an earlier step."""

    def __init__(self) -> None:
        self.step, self.rows = 0, list[tuple[int, dict[str, Any]]]()

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        if step is not None and step < self.step:
            return
        self.step = self.step + 1 if step is None else step
        self.rows.append((self.step, data))


class LightningLogger:
    """One of Lightning's."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((metrics, step))


NAMES = {
    "samples_per_second", "batches_per_second", "read_bytes_per_second", "requests_per_second", "wait_share",
    "stages_share", "samples", "batches", "retries", "throttled", "skipped", "rereads", "peak_held_bytes",
    "in_flight_bytes",
}  # fmt: skip


def test_each_tool_gets_the_same_numbers(tars: Dataset) -> None:
    board, run, logger, called = SummaryWriter(), WandbRun(), LightningLogger(), list[Any]()
    ds = tars.batch(10)
    logs = [shoal.watch.log_to(writer, ds) for writer in (board, run, logger, lambda *args: called.append(args))]
    for _ in ds:
        assert not any(log() for log in logs)  # ten seconds are not over
    for log in logs:
        log.close()
    [(step, numbers)] = run.rows
    assert {name.removeprefix("data/") for name in numbers} == NAMES
    assert step == 1
    assert numbers["data/samples"] == 197
    assert numbers["data/samples_per_second"] > 0
    assert 0 <= numbers["data/wait_share"] + numbers["data/stages_share"] <= 1
    assert {tag for tag, _, _ in board.scalars} == set(numbers)
    assert {step for _, _, step in board.scalars} == {20}
    assert logger.rows[0][1] == called[0][1] == 20
    assert set(logger.rows[0][0]) == set(called[0][0]) == set(numbers)


def test_the_interval_and_the_step_of_the_user(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(metric_writers, "_clock", lambda: now)
    run, ds = WandbRun(), tars.batch(10)
    with shoal.watch.log_to(run, ds, prefix="in/", every_seconds=3) as log:
        for step, _ in enumerate(ds, 1):
            now += 1.0
            assert log(1000 + step) == (step % 3 == 0)
    assert [step for step, _ in run.rows] == [1003, 1006, 1009, 1012, 1015, 1018, 1018]
    assert [numbers["in/batches"] for _, numbers in run.rows] == [3, 6, 9, 12, 15, 18, 20]


def test_a_live_stream_has_numbers_and_a_page() -> None:
    live, called = shoal.from_iterable(range(50)).batch(5), list[Any]()
    with shoal.watch.page(live) as page, shoal.watch.log_to(lambda *args: called.append(args), live):
        list(live)
        assert page.url in repr(page)
    [(numbers, step)] = called
    assert step == 10
    assert numbers["data/samples"] == 50


def test_other_writers_and_runs_are_refused(tars: Dataset) -> None:
    with pytest.raises(UsageError, match="add_scalar, log_metrics or log, or a function; got int"):
        shoal.watch.log_to(3, tars)
    with pytest.raises(UsageError, match="a dataset or a loader of shoal; got list"):
        shoal.watch.log_to(print, [1])
    with pytest.raises(UsageError, match="positive number of seconds"):
        shoal.watch.log_to(print, tars, every_seconds=0)
