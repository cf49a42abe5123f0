"""`shoal index` and `shoal verify` on an engine: the index and the report of this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.cli.test_engines import FakeEngine, calls, engine
from tests.stream.made import write_tars

import shoal
from shoal.indexing.jobs import job_units

__all__ = ["calls", "engine"]

ON = ("--engine", "spark", "--address", "spark://host")


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two shards a unit."""
    monkeypatch.setattr(job_units, "_LEAST_SHARDS", 2)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    return write_tars(tmp_path / "tars", [20, 30, 10, 5, 40])


@pytest.mark.parametrize("words", [(), ("--checksum",), ("--extent-bytes", "4KiB")])
def test_an_index_on_an_engine_is_that_of_this_machine(
    words: tuple[str, ...], engine: FakeEngine, calls: Calls, tars: Path, tmp_path: Path
) -> None:
    here = calls.json("index", tars, "--output", tmp_path / "here.index", *words)
    assert "engine" not in here
    there = calls.json("index", tars, *words, *ON)
    assert (tars / "shoal.index").read_bytes() == (tmp_path / "here.index").read_bytes()
    assert engine.events == [("started", "spark://host"), [0, 1, 2], "stopped"]
    record = ("engine", "address", "num_units_run", "num_units_done_before")
    assert [there[key] for key in record] == ["spark", "spark://host", 3, 0]
    same = set(here) - {"index", "elapsed_seconds", "scanned_samples_per_second"}
    assert {key: there[key] for key in same} == {key: here[key] for key in same}


def test_only_missing_units_of_an_index_are_run(engine: FakeEngine, calls: Calls, tars: Path) -> None:
    engine.fails_at = 1
    with pytest.raises(RuntimeError, match="the executor is lost"):
        calls.text("index", tars, *ON)
    assert not (tars / "shoal.index").exists()
    engine.fails_at = None
    there = calls.json("index", tars, *ON)
    assert (there["num_units_done_before"], there["num_units_run"]) == (1, 2)
    assert shoal.open(tars).num_samples == 105


def test_what_an_engine_cannot_do_for_an_index(engine: FakeEngine, calls: Calls, tars: Path) -> None:
    assert "--columns reads samples on this machine" in calls.refused("index", tars, "--columns", "txt:len", *ON)
    assert "--workers counts processes of this machine" in calls.refused("index", tars, "--workers", "2", *ON)
    assert "names a cluster" in calls.refused("index", tars, "--address", "spark://host")
    assert engine.events == []


@pytest.mark.parametrize("parts", [False, True])
def test_a_report_on_an_engine_is_that_of_this_machine(
    engine: FakeEngine, calls: Calls, tars: Path, tmp_path: Path, parts: bool
) -> None:
    calls.text("index", tars, "--checksum")
    shard = sorted(tars.glob("*.tar"))[3]
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    shutil.copy(shard, tars / "other.tar")
    here = calls_json(calls, "verify", tars)
    words = ("--parts", tmp_path / "parts") if parts else ()
    there = calls_json(calls, "verify", tars, *ON, *words)
    assert [event for event in engine.events if isinstance(event, list)] == [[0, 1, 2]]
    assert (there.pop("engine"), there.pop("address")) == ("spark", "spark://host")
    assert (there.pop("num_units_done_before"), there.pop("num_units_run")) == (0, 3)
    assert {key: value for key, value in there.items() if key != "elapsed_seconds"} == {
        key: value for key, value in here.items() if key != "elapsed_seconds"
    }
    assert len(here["damages"]) >= 2
    assert not (tmp_path / "parts" / ".shoal-verify").exists()
    assert sorted(path.name for path in tars.iterdir() if path.name.startswith(".")) == []


def test_an_index_is_repaired_after_a_report_of_an_engine(engine: FakeEngine, calls: Calls, tars: Path) -> None:
    calls.text("index", tars)
    shutil.copy(min(tars.glob("*.tar")), tars / "other.tar")
    said = calls.json("verify", tars, "--repair-index", *ON)
    assert (said["index_repaired"], said["num_samples"]) == (True, 125)


def test_what_an_engine_cannot_do_for_a_report(engine: FakeEngine, calls: Calls, tars: Path, tmp_path: Path) -> None:
    assert "but --engine local writes none" in calls.refused("verify", tars, "--parts", tmp_path)
    assert "reads no shard" in calls.refused("verify", tars, "--certificate", tmp_path / "x.json", *ON)
    assert engine.events == []


def calls_json(calls: Calls, *words: object) -> dict[str, Any]:
    """Return what a call with damage prints for machines."""
    result: dict[str, Any] = json.loads(calls.text(*words, "--json", code=1))
    return result
