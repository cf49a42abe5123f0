"""`shoal bench` streams what it was told to, for as long as it was told, and says how it went."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls, make_shards

import shoal
from shoal.cli import bench
from shoal.cli.bench import plain_bytes_per_second

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_a_whole_epoch(data: Path, calls: Calls) -> None:
    result = calls.json("bench", data, "--batch-size", 16, "--seed", 3)
    assert (result["ended_by"], result["num_samples"], result["num_batches"]) == ("epoch", 200, 13)
    assert result["samples_per_second"] == pytest.approx(200 / result["elapsed_seconds"])
    assert result["wait_share"] + result["stages_share"] + result["consumer_share"] == pytest.approx(1)
    assert result["bottleneck"] in {"storage", "stages", "consumer"}
    assert result["plain_bytes_per_second"] > 0
    assert result["peak_process_bytes"] > result["peak_held_bytes"] > 0
    assert result["order"] == str(shoal.open(data).shuffle(seed=3).resolved)
    assert set(shoal.open(data).stats()) <= set(result)


def test_it_stops_when_it_is_enough(data: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    result = calls.json("bench", data, "--batch-size", 10, "--stop-after", 25)
    assert (result["ended_by"], result["num_samples"]) == ("samples", 30)
    now = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    result = calls.json("bench", data, "--batch-size", 10, "--seconds", 3)
    assert (result["ended_by"], result["num_batches"]) == ("time", 3)
    result = calls.json("bench", data, "--batch-size", 10, "--seconds", 50, "--stop-after", 40)
    assert (result["ended_by"], result["num_samples"]) == ("samples", 40)


def test_as_one_rank_and_decoded(data: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    plain = plain_bytes_per_second

    def looking(*places: Any, **named: Any) -> float:
        seen.append((named["rank"], named["num_steps"]))
        return plain(*places, **named)

    monkeypatch.setattr(bench, "plain_bytes_per_second", looking)
    arguments = ["--batch-size", 10, "--rank", 2, "--world-size", 3, "--decode", "--order", "full"]
    result = calls.json("bench", data, *arguments)
    ds = shoal.open(data).shuffle("full").partition(rank=2, world_size=3).batch(10)
    assert (result["num_batches"], result["num_samples"]) == (len(ds), sum(map(len, [b["cls"] for b in ds])))
    assert seen == [(2, len(ds))]


def test_people_see_what_matters(data: Path, calls: Calls) -> None:
    lines = {line.split("  ")[0]: line for line in calls.text("bench", data).splitlines()}
    assert list(lines) == [
        "order",
        "samples",
        "elapsed",
        "delivered",
        "read",
        "plain reads",
        "held at most",
        "process at most",
        "time",
        "bottleneck",
    ]
    assert lines["delivered"].endswith(" samples/s")
    assert "waiting for bytes" in lines["time"]


def test_what_went_wrong_is_shown(data: Path) -> None:
    wrong = {"num_skipped": 1, "num_rereads": 4, "num_retries": 5, "num_throttled": 2, "num_corrupt": 3}
    stats = shoal.open(data).stats() | wrong | {"peak_in_flight_bytes": 9, "bottleneck": "storage"}
    shown = bench._for_people(
        stats | {"order": "x", "consumer_share": 0.1, "peak_process_bytes": 1, "plain_bytes_per_second": None}
    )
    assert {name: shown[name] for name in wrong} == wrong
    assert shown["in_flight_at_most_bytes"] == 9
    assert "plain_reads" not in shown
    assert shown["bottleneck"].startswith("the storage")


@pytest.mark.parametrize(
    "words",
    [["--seconds", 0], ["--seconds", "nan"], ["--seconds", "inf"], ["--seconds", "x"], ["--stop-after", 0]],
)
def test_no_time_at_all_is_refused(words: list[Any], data: Path, calls: Calls) -> None:
    with pytest.raises(SystemExit):
        calls.text("bench", data, *words)


def test_a_rank_that_is_not_there_is_refused(data: Path, calls: Calls) -> None:
    assert "rank" in calls.refused("bench", data, "--rank", 3, "--world-size", 2)


def test_a_trace_has_the_batches(data: Path, calls: Calls, tmp_path: Path) -> None:
    calls.text("bench", data, "--batch-size", 16, "--trace", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "next batch" for event in events) == 13
    assert sum(event["name"] == "read" for event in events) > 0
