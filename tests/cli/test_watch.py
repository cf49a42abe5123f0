"""`shoal watch`: a run by the address of its page, by a saved state, and by a file of metrics."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.calls import Calls, make_shards

import shoal
import shoal.prometheus
from shoal.cli.watch import watch
from shoal.watch.page_reporter import address_of


@pytest.fixture(autouse=True)
def _no_page_stays() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def ds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> shoal.Dataset:
    return shoal.open(make_shards(tmp_path, monkeypatch, num_shards=4, samples_per_shard=25)).shuffle(seed=5).batch(10)


def test_a_run_is_shown_by_its_address(calls: Calls, ds: shoal.Dataset) -> None:
    run = ds.reading(progress="page")
    with iter(run) as batches:
        next(batches)
        url = address_of(run.stream.counters)
        text = calls.text("watch", url, "--once")
        assert text.splitlines()[0].split(":")[0] in {"NOT WAITING", "FIRST BATCH", "SOMETIMES WAITING FOR STAGES",
                                                      "SOMETIMES WAITING FOR STORAGE", "WAITING FOR STAGES",
                                                      "WAITING FOR STORAGE"}  # fmt: skip
        assert "epoch     0, position 10 of 100 (10.0%)" in text
        found = calls.json("watch", url)
        assert found["progress"]["position"] == 10
        assert found["stats"]["num_samples"] == 10


def test_a_saved_state_says_how_far_the_run_was(calls: Calls, ds: shoal.Dataset, tmp_path: Path) -> None:
    batches = iter(ds)
    for _ in range(3):
        next(batches)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({"step": 3, "loader": {"state": ds.state_dict()}}))
    text = calls.text("watch", path, "--once", "--num-samples", 100)
    assert text.startswith("SAVED STATE: The state was saved at position 30 of epoch 0")
    assert "epoch     0, position 30 of 100 (30.0%)" in text
    assert "order     window, seed 5" in text
    found = calls.json("watch", path)
    assert found["progress"] == {"epoch": 0, "position": 30, "num_samples": None, "share": None, "eta_seconds": None}
    assert found["verdict"]["grade"] == "unknown"


def test_a_changed_state_is_shown_again_with_the_speed_between(
    calls: Calls, ds: shoal.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(ds.state_dict()))
    batches, num_sleeps = iter(ds), 0

    def sleep(_: float) -> None:
        nonlocal num_sleeps
        num_sleeps += 1
        if num_sleeps == 3:
            raise KeyboardInterrupt
        time.sleep(0.05)
        next(batches)
        path.write_text(json.dumps(ds.state_dict()))

    monkeypatch.setattr(watch, "_sleep", sleep)
    text = calls.text("watch", path, "--num-samples", 100)
    assert "position 0 of 100" in text
    assert "position 10 of 100 (10.0%)" in text
    assert "position 20 of 100 (20.0%)" in text
    assert "samples/s" in text


def test_a_file_of_metrics_is_shown(calls: Calls, ds: shoal.Dataset, tmp_path: Path) -> None:
    list(ds)
    path = tmp_path / "run.prom"
    shoal.prometheus.write(path, ds.stats(), labels={"rank": 0, "job": "a b"})
    text = calls.text("watch", path, "--once")
    assert "samples   100" in text
    assert "FOR" in text or "WAITING" in text
    assert calls.json("watch", path)["stats"]["num_samples"] == 100


def test_what_cannot_be_watched_is_refused_with_a_remedy(calls: Calls, tmp_path: Path) -> None:
    assert "no such file" in calls.refused("watch", tmp_path / "none.json", "--once").lower()
    (tmp_path / "odd.json").write_text("[1, 2]")
    assert "json.dump(ds.state_dict()" in calls.refused("watch", tmp_path / "odd.json", "--once")
    (tmp_path / "model.pt").write_bytes(b"PK\3\4" + bytes(100))
    assert "json.dump(ds.state_dict()" in calls.refused("watch", tmp_path / "model.pt", "--once")
    complaint = calls.refused("watch", "http://127.0.0.1:9/secret-token/", "--once")
    assert "has ended" in complaint
    assert "secret-token" not in complaint
    assert "ssh -L" in calls.refused("watch", "http://10.1.2.3:9/token/", "--once")
