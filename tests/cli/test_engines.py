"""`shoal pack` and `shoal repack` on an engine: the bytes of this machine's processes, and a report of what ran."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.cli.calls import Calls, Terminal, make_shards
from tests.pack.contents import contents_of
from tests.pack.files import make_files

import shoal
from shoal.cli.options.engine_options import Engine

SHARDS = ("--shard-bytes", "30KB")


class FakeEngine:
    """Libraries and our runners of both engines, as their interfaces say; a unit may fail."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.shown: list[tuple[int, int]] = []
        self.fails_at: int | None = None
        self.dies_at_the_end = False
        self.is_there = False

    def run(self, job: Any, *, progress: Callable[[int, int], None]) -> Any:
        missing = job.missing()
        self.events.append(missing)
        # An engine counts what it knows of: the units that it was given.
        for done, number in enumerate(missing):
            if number == self.fails_at:
                msg = "the executor is lost"
                raise RuntimeError(msg)
            pickle.loads(pickle.dumps(job.task(number)))()
            progress(done + 1, len(missing))
            self.shown.append((done + 1, len(missing)))
        if self.dies_at_the_end:
            msg = "the driver is lost"
            raise RuntimeError(msg)
        return job.finish()

    def start(self, address: str | None) -> None:
        if address == "nowhere":
            msg = "An error occurred while calling None.SparkSession.\n: no such master\n\tat java.base"
            raise RuntimeError(msg)
        self.events.append(("started", address))

    def stop(self) -> None:
        self.events.append("stopped")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()

    class Session:
        stop = staticmethod(fake.stop)

    class Builder:
        address: str | None = None

        def appName(self, _: str) -> Builder:  # noqa: N802  # as Spark calls it
            return self

        def config(self, *_: str) -> Builder:
            return self

        def master(self, address: str) -> Builder:
            self.address = address
            return self

        def getOrCreate(self) -> type[Session]:  # noqa: N802
            fake.start(self.address)
            return Session

    class SparkSession:
        builder = Builder()

        @staticmethod
        def getActiveSession() -> type[Session] | None:  # noqa: N802
            return Session if fake.is_there else None

    def run_on_spark(spark: type[Session], job: Any, *, progress: Any = None) -> Any:
        assert spark is Session
        return fake.run(job, progress=progress)

    def ray_init(*, address: str | None, **_: Any) -> None:
        fake.start(address)

    modules: dict[str, dict[str, Any]] = {
        "pyspark": {},
        "pyspark.sql": {"SparkSession": SparkSession},
        "ray": {"is_initialized": lambda: fake.is_there, "init": ray_init, "shutdown": fake.stop},
        "shoal.pack.spark": {"run": run_on_spark},
        "shoal.pack.ray": {"run": fake.run},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.mark.parametrize("name", ["ray", "spark"])
def test_a_packing_on_an_engine_is_that_of_processes(
    name: str, engine: FakeEngine, calls: Calls, tmp_path: Path
) -> None:
    words = ("--shuffle", "--seed", "3", "--columns", "length", *SHARDS)
    here = calls.json("pack", make_files(tmp_path / "in"), tmp_path / "here", *words)
    assert "engine" not in here
    said = calls.json("pack", tmp_path / "in", tmp_path / "there", *words, "--engine", name, "--address", "x://host")
    assert contents_of(tmp_path / "there") == contents_of(tmp_path / "here")
    num_units = here["num_shards"]
    assert num_units > 3
    record = ("engine", "address", "num_units_run", "num_units_done_before", "num_shards_of_earlier_runs")
    assert [said[key] for key in record] == [name, "x://host", num_units, 0, 0]
    assert engine.events == [("started", "x://host"), list(range(num_units)), "stopped"]
    assert engine.shown[-1] == (num_units, num_units)
    same = {
        "digest",
        "fingerprint",
        "num_samples",
        "num_bytes",
        "num_inputs",
        "shard_limit_bytes",
        "num_skipped",
        "fields",
    }
    assert {key: said[key] for key in same} == {key: here[key] for key in same}


def test_only_what_is_missing_is_run_and_that_is_said(engine: FakeEngine, calls: Calls, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    words = ("pack", tmp_path / "in", tmp_path / "out", *SHARDS, "--engine", "spark")
    engine.fails_at = 2
    with pytest.raises(RuntimeError, match="the executor is lost"):
        calls.text(*words)
    assert engine.events[0::2] == [("started", None), "stopped"]
    engine.fails_at = None
    said = calls.json(*words)
    num_units = said["num_shards"]
    assert (said["num_units_done_before"], said["num_units_run"]) == (2, num_units - 2)
    assert engine.events[-2] == list(range(2, num_units))
    engine.events.clear()
    said = calls.json(*words)
    assert engine.events == []  # all is done: nothing is started
    assert (said["num_units_done_before"], said["num_units_run"], said["address"]) == (num_units, 0, None)
    lines = [line.split() for line in calls.text(*words).splitlines()]
    assert ["engine", "spark"] in lines
    assert ["units", "done", "before", str(num_units)] in lines
    assert ["units", "run", "0"] in lines


def test_parts_that_are_all_there_are_only_joined(engine: FakeEngine, calls: Calls, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    words = ("pack", tmp_path / "in", tmp_path / "out", *SHARDS, "--engine", "ray")
    engine.dies_at_the_end = True
    with pytest.raises(RuntimeError):
        calls.text(*words)
    assert not (tmp_path / "out" / "shoal.index").exists()
    engine.events.clear()
    said = calls.json(*words)
    assert engine.events == []
    assert (said["num_units_done_before"], said["num_units_run"]) == (said["num_shards"], 0)
    assert shoal.open(tmp_path / "out").num_samples == said["num_samples"] == 95


@pytest.mark.parametrize("mix", [(), ("--mix", "--seed", "5", "--memory", "64KiB", "--extent-bytes", "4KiB")])
def test_a_repacking_on_an_engine_is_that_of_processes(
    mix: tuple[str, ...], engine: FakeEngine, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_shards(tmp_path, monkeypatch, num_shards=4, samples_per_shard=50)
    calls.text("index", data, "--extent-bytes", "4KiB")
    words = (*mix, "--shard-bytes", "60KB", "--columns", "label=cls")
    here = calls.json("repack", data, tmp_path / "here", *words)
    said = calls.json("repack", data, tmp_path / "there", *words, "--engine", "ray")
    assert contents_of(tmp_path / "there") == contents_of(tmp_path / "here")
    assert said["num_units_run"] == here["num_shards"] > 3
    same = ("digest", "fingerprint", "order", "num_samples", "shard_limit_bytes")
    assert {key: said[key] for key in same} == {key: here[key] for key in same}


def test_a_session_that_was_there_stays(engine: FakeEngine, calls: Calls, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    engine.is_there = True
    for name in ("ray", "spark"):
        calls.text("pack", tmp_path / "in", tmp_path / name, "--engine", name)
    assert "stopped" not in engine.events


def test_the_bar_has_the_counts_of_the_engine(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("shoal.stats.live_line._SHOW_AFTER_SECONDS", -1.0)
    monkeypatch.setattr("shoal.stats.live_line._REDRAW_SECONDS", 0.0)

    class Job:
        num_units = 3

        def missing(self) -> list[int]:
            return [0, 1, 2]

        def task(self, number: int) -> Callable[[], Any]:
            return str(number).upper

        def finish(self) -> str:
            return "finished"

    assert Engine("ray", None, "weighing", "stones").run(Job()) == "finished"
    assert "weighing" in screen.getvalue()
    assert "2 stones of 3 stones" in screen.getvalue()


@pytest.mark.parametrize("verb", ["pack", "repack"])
def test_engines_that_do_not_fit(verb: str, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (verb, tmp_path, tmp_path / "out")
    refused = calls.refused(*words, "--address", "spark://me:secret@host:7077")
    assert "--address spark://host:7077 names a cluster, but --engine local runs on this machine" in refused
    for name, library in (("spark", "pyspark"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
        refused = calls.refused(*words, "--engine", name)
        assert f"--engine {name} needs {library}, and the import fails" in refused
        assert f"pip install {library} (or 'shoal[{name}]')" in refused
    with pytest.raises(SystemExit):
        calls.text(*words, "--engine", "sprak")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ray", "spark"])
def test_an_engine_that_does_not_start(name: str, engine: FakeEngine, calls: Calls, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    words = ("pack", tmp_path / "in", tmp_path / "out", "--engine", name, "--address", "nowhere")
    refused = calls.refused(*words)
    assert "cannot be reached or started at nowhere: no such master\n" in refused
    assert engine.events == []


@pytest.mark.parametrize("name", ["ray", "spark"])
def test_a_cluster_that_does_not_listen(name: str, engine: FakeEngine, calls: Calls, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = ("pack", tmp_path / "in", tmp_path / "out", "--engine", name, "--address")
        calls.text(*words, f"{name}://127.0.0.1:1,127.0.0.1:{port}")  # the second one does
    (tmp_path / "other").mkdir()
    refused = calls.refused("pack", tmp_path / "in", tmp_path / "other", *words[3:], f"{name}://127.0.0.1:{port}")
    assert f"cannot be reached or started at {name}://127.0.0.1:{port}: [Errno" in refused
    assert engine.events.count("stopped") == 1


def test_errors_of_units_are_those_of_the_job(engine: FakeEngine, calls: Calls, tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    (tmp_path / "in" / "cat" / "broken.txt").symlink_to("nowhere")
    refused = calls.refused("pack", tmp_path / "in", tmp_path / "out", "--engine", "spark")
    assert "cat/broken.txt" in refused
    assert engine.events[-1] == "stopped"
