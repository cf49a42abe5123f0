"""Reporters of a run: found by name, called after each batch, closed at the end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.stats.counters import Counters, Throughput
from shoal.stats.run_events import IGNORED
from shoal.stream import reporters
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.progress_line import ProgressLine


class Noted:
    """A reporter that keeps its calls."""

    needs_steps = True

    def __init__(self, spec: Any, position: Any) -> None:
        self.spec, self.position, self.calls = spec, position, list[str]()

    def step(self, began: float) -> None:
        assert 0 < began <= time.perf_counter()
        self.calls.append(f"step {self.position.num_yielded}")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    made: list[Noted] = []

    def make(spec: Any, position: Any) -> Noted:
        made.append(Noted(spec, position))
        return made[-1]

    monkeypatch.setattr(reporters, "REPORTERS", reporters.Reporters({"line": ProgressLine, "noted": make}))
    return made


def test_a_reporter_is_called_after_each_batch_and_at_the_end(tars: Dataset, noted: list[Noted]) -> None:
    batches = list(tars.take(30).batch(10).reading(progress="noted"))
    [reporter] = noted
    assert len(batches) == 3
    assert reporter.calls[:3] == ["step 1", "step 2", "step 3"]
    assert set(reporter.calls[3:]) == {"close"}


def test_only_the_first_rank_reports_its_progress(tars: Dataset, noted: list[Noted]) -> None:
    for rank in range(2):
        list(tars.take(40).partition(rank=rank, world_size=2).batch(10).reading(progress="noted"))
    [reporter] = noted
    assert reporter.spec.work.pipeline.rank == 0


def test_an_unknown_reporter_is_refused_with_the_known_names(tars: Dataset) -> None:
    with pytest.raises(UsageError, match=r"reading\(progress=\) is False, True or the name of a reporter") as caught:
        tars.reading(progress="pages")
    assert "page" in caught.value.hint
    with pytest.raises(UsageError, match="got 1"):
        tars.reading(progress=1)  # type: ignore[arg-type]


def test_a_call_under_way_is_known() -> None:
    now = 10.0
    counters = Counters()
    throughput = Throughput(counters, clock=lambda: now)
    assert not throughput.is_inside
    throughput.began = 12.0
    assert throughput.is_inside
    throughput.add(12.0, 13.0)
    assert not throughput.is_inside
    assert throughput.inside_seconds == 1.0


def test_a_wait_under_way_is_known() -> None:
    counters = Counters()
    began = counters.wait_begins()
    assert counters.wait_began == began > 0
    counters.waited(began)
    assert counters.wait_began == 0
    assert 0 < counters.wait_seconds < 1
    assert counters.events is IGNORED
    assert "events" not in counters.as_dict()
    assert "wait_began" not in counters.as_dict()
