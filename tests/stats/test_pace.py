"""Who holds a run up, said with numbers; and the line that shows it."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.stream.made import at, ids_of, write_tars

from shoal.stats import live_line
from shoal.stats.counters import Counters, Throughput
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import progress_line
from shoal.stream.iterating.progress_line import progress_text
from shoal.stream.open_dataset import open_dataset

RATES = ["elapsed_seconds", "inside_seconds", "samples_per_second", "requests_per_second", "read_bytes_per_second"]


def told(*, wait: float, stages: float, consumer: float, num_steps: int = 10) -> dict[str, Any]:
    """What is told of a run whose every step takes so many seconds of each."""
    counters, now = Counters(num_samples=1000, wait_seconds=500.0), 50.0
    throughput = Throughput(counters, clock=lambda: now)
    for _ in range(num_steps):
        began = now
        now += wait + stages
        counters.wait_seconds += wait
        counters.make_seconds += wait + stages
        counters.num_samples += 4
        counters.num_requests += 1
        counters.read_bytes += 1000
        throughput.add(began, now)
        now += consumer
    return throughput.rates()


@pytest.mark.parametrize(
    ("wait", "stages", "consumer", "verdict"),
    [(3.0, 1.0, 1.0, "storage"), (1.0, 3.0, 1.0, "stages"), (1.0, 1.0, 3.0, "consumer"), (0.0, 0.0, 1.0, "consumer")],
)
def test_the_largest_share_is_the_bottleneck(wait: float, stages: float, consumer: float, verdict: str) -> None:
    found = told(wait=wait, stages=stages, consumer=consumer)
    elapsed = 10 * (wait + stages) + 9 * consumer  # what the consumer does last is not over yet
    assert found["elapsed_seconds"] == pytest.approx(elapsed)
    assert found["samples_per_second"] == pytest.approx(40 / elapsed)
    assert found["requests_per_second"] == pytest.approx(10 / elapsed)
    assert found["read_bytes_per_second"] == pytest.approx(10_000 / elapsed)
    assert found["wait_share"] == pytest.approx(10 * wait / elapsed)
    assert found["stages_share"] == pytest.approx(10 * stages / elapsed)
    assert found["bottleneck"] == verdict


def test_time_inside_is_split_as_those_split_theirs_who_make_the_batches() -> None:
    counters = Counters()
    throughput = Throughput(counters, clock=lambda: 0.0)
    counters.make_seconds, counters.wait_seconds = 80.0, 60.0  # of 16 processes, say
    throughput.add(0.0, 4.0)
    throughput.add(7.0, 10.0)
    found = throughput.rates()
    assert found["wait_share"] == pytest.approx(0.7 * 0.75)
    assert found["stages_share"] == pytest.approx(0.7 * 0.25)
    assert found["bottleneck"] == "storage"
    counters.wait_seconds = 100.0  # clocks of several processes
    assert throughput.rates()["wait_share"] == pytest.approx(0.7)
    assert throughput.rates()["stages_share"] == pytest.approx(0.0)


def test_before_the_first_batch_nothing_is_claimed(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).batch(10)
    for stats in (ds.stats(), (iter(ds), ds.stats())[1]):
        assert all(stats[name] == 0 for name in RATES)
        assert stats["wait_share"] is stats["stages_share"] is stats["bottleneck"] is None


def test_stats_are_of_the_newest_iterator_and_stop_with_it(tars: Dataset) -> None:
    ds = tars.decode().batch(10)
    list(ds)
    first = ds.stats()
    assert first["bottleneck"] in {"storage", "stages", "consumer"}
    assert 0 <= first["wait_share"] + first["stages_share"] <= 1
    assert first["samples_per_second"] == pytest.approx(197 / first["elapsed_seconds"])
    assert first["read_bytes_per_second"] == pytest.approx(first["read_bytes"] / first["elapsed_seconds"])
    iterator = iter(ds)
    list(iterator)
    again = ds.stats()
    assert again["num_samples"] == 2 * 197
    assert again["samples_per_second"] == pytest.approx(197 / again["elapsed_seconds"])
    assert next(iterator, None) is None
    assert ds.stats() == again
    json.dumps(again)


def test_a_slow_function_is_found(tars: Dataset) -> None:
    def slow(sample: Any) -> Any:
        sum(range(100_000))
        return sample

    ds = tars.take(40).map(slow).batch(4)
    list(ds)
    assert ds.stats()["bottleneck"] == "stages"


def test_stats_handed_out_do_not_change(tars: Dataset) -> None:
    ds = tars.batch(10)
    before = ds.stats()
    before["skipped_ids"].append(3)
    list(ds)
    assert before["num_batches"] == 0
    assert ds.stats()["skipped_ids"] == []


# ---- the line


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stderr as a wide terminal that is drawn on at every batch."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(live_line, "_SHOW_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(live_line, "_REDRAW_SECONDS", 0.0)
    return stream


def test_nothing_is_shown_unless_asked_for(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    list(tars.batch(10))
    assert terminal.getvalue() == ""


def test_the_line_says_how_it_goes_and_vanishes(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    ds = tars.shuffle(seed=1).batch(10).reading(progress=True)
    list(ds)
    frames = [frame for frame in terminal.getvalue().replace("\x1b[K", "").split("\r") if frame]
    assert len(frames) == 20
    assert re.fullmatch(
        r"shoal: epoch 0   10%  [\d,.]+ samples/s  [\d.]+ [KMG]?i?B/s  waiting \d+% \(limit: \w+\)  "
        r"[\d,.]+ requests/s  [\d,.]+ [KM]?i?B held at most",
        frames[1],
    )
    assert terminal.getvalue().endswith("\r\x1b[K")
    iterator = iter(ds)
    next(iterator)
    iterator.close()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_only_the_first_rank_shows_it(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    list(tars.batch(10).reading(progress=True).partition(rank=1, world_size=2))
    assert terminal.getvalue() == ""


def test_a_log_gets_whole_lines(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress_line, "_LOG_EVERY_SECONDS", 1e-9)
    list(tars.batch(50).reading(progress=True))
    assert len(log.getvalue().splitlines()) == 4
    assert all(line.startswith("shoal: epoch 0") for line in log.getvalue().splitlines())
    assert "\r" not in log.getvalue()


@pytest.mark.parametrize("how", ["to its end", "by length", "closed", "failed"])
def test_a_log_of_a_short_run_says_how_it_went(tars: Dataset, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(live_line, "_SHOW_AFTER_SECONDS", 0.0)

    def make(sample: Any) -> Any:
        if how == "failed" and sample["__id__"] == 70:
            raise ValueError(how)
        return sample

    ds = tars.with_ids().map(make).batch(50).reading(progress=True)
    stream = iter(ds)
    if how == "failed":
        with pytest.raises(ValueError, match=how):
            list(stream)
    else:
        for _ in range({"closed": 2}.get(how, len(ds))):
            next(stream)
        assert len(log.getvalue().splitlines()) == (how != "closed")
        list(stream) if how == "to its end" else stream.close()
    (line,) = log.getvalue().splitlines()
    assert line.startswith(f"shoal: epoch 0  {({'closed': ' 50%', 'failed': ' 25%'}).get(how, '100%')}")


def test_showing_it_changes_nothing(tars: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terminal = watched(monkeypatch)
    plain = tars.shuffle(seed=1).with_ids()
    shown = plain.reading(progress=True, on_error="skip", quarantine=tmp_path / "q.jsonl")
    assert shown.ids().tolist() == plain.ids().tolist() == ids_of(shown)
    assert at(shown) == (1, 0)
    assert terminal.getvalue()


def test_the_line_says_what_came_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terminal = watched(monkeypatch)
    write_tars(tmp_path / "data", [30, 10])
    opened = open_dataset(tmp_path / "data", cache={"directory": tmp_path / "chunks", "budget": "8MiB"})
    ds = opened.reading(progress=True)
    for share in (" 0% from the cache", " 50% from the cache"):
        list(ds)
        assert share in terminal.getvalue()


def test_what_went_wrong_comes_before_what_is_usual() -> None:
    stats = Counters(num_skipped=3, num_rereads=2).as_dict() | {"wait_share": 0.254, "bottleneck": "consumer"}
    text = progress_text(
        stats | {"num_retries": 7, "peak_in_flight_bytes": 9, "in_flight_bytes": 2048}, epoch=2, share=1
    )
    assert text == (
        "epoch 2  100%  0.0 samples/s  0 B/s  waiting 25% (limit: consumer)  3 skipped  7 retries  2 read again  "
        "2.0 KiB in flight (at most 9 B)  0.0 requests/s  0 B held at most"
    )
    cached = stats | {"num_cache_hits": 3, "num_cache_fills": 1, "num_cache_bypasses": 0}
    assert progress_text(cached, epoch=2, share=1).endswith("0.0 requests/s  75% from the cache  0 B held at most")
