"""Packing with Ray, on two nodes; `test_pack_with_ray` runs this where it is installed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from tests.integration import ray_jobs
from tests.integration.ray_jobs import ALWAYS, NUM_ROWS, OPTIONS, SINK, FailingOnce, FailingSink, Job, Refused, SlowSink
from tests.integration.shards_on_engines import check_shards_on_engine
from tests.pack.contents import contents_of
from tests.pack.files import make_files

import shoal
import shoal.pack.ray
from shoal.errors import UsageError
from shoal.pack import clean, pack, plan, plan_repack, repack
from shoal.pack.ray import ShoalDatasink, ShoalDatasource

HERE = Path(__file__).parent


class Nodes:
    """The cluster: its address, and a way to kill what it runs."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, HERE / "ray_cluster.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.address = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the cluster has ended"
        return line

    def kill_node(self) -> None:
        """Kill the second node with all its workers, and start it again."""
        assert self.process.stdin is not None
        self.process.stdin.write("kill\n")
        assert self._line() == "again"

    def workers(self) -> list[int]:
        """The processes that run tasks, or wait for some."""
        parents, titles = {}, {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                number = int(status.parent.name)
                parents[number] = int(status.read_text().rpartition(")")[2].split()[1])
                titles[number] = (status.parent / "cmdline").read_bytes()
        ours = {self.process.pid}
        while more := {number for number, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return sorted(number for number in ours if titles[number].startswith(b"ray::"))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    try:
        ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
        yield found
        ray.shutdown()
    finally:
        found.end()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("source") / "in", classes={"a": 150, "b": 150})


@pytest.fixture(scope="module")
def calm(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("calm")
    pack(source, out, num_workers=1, **OPTIONS)
    return contents_of(out)


@pytest.fixture(scope="module")
def calm_rows(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("calm-rows")
    sink = ShoalDatasink(out, **SINK)
    ray_jobs.rows().write_datasink(sink, concurrency=1)
    assert sink.summary is not None
    assert sink.summary.num_samples == NUM_ROWS
    assert len(sink.summary.shards) > 10
    ds = shoal.open(out)
    assert [ds[number]["id"] for number in range(0, NUM_ROWS, 37)] == list(range(0, NUM_ROWS, 37))
    return contents_of(out)


@contextlib.contextmanager
def killing(nodes: Nodes, num_kills: int, *, seed: int) -> Iterator[list[int]]:
    """Kill workers at random moments, as often as that as long as the body runs."""
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        moments = np.random.default_rng(seed)
        while len(killed) < num_kills and not is_over.wait(moments.uniform(0.05, 0.6)):
            busy = [pid for pid in nodes.workers() if is_busy(pid)]
            if busy:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid := int(moments.choice(busy)), signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


def is_busy(pid: int) -> bool:
    """Whether a process runs a unit, or a task of Ray Data's; it is named after what it does."""
    with contextlib.suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(name in title for name in (b"::shoal unit", b"::Read", b"::Write"))
    return False


# ---- units as tasks


@pytest.mark.parametrize("num_cpus", [0.5, 1])
def test_any_number_of_workers_gives_the_bytes_of_one_process(
    nodes: Nodes, source: Path, calm: dict[str, Any], tmp_path: Path, num_cpus: float
) -> None:
    told: list[tuple[int, int]] = []
    job = plan(source, tmp_path / "out", **OPTIONS)
    job.run(2)
    summary = shoal.pack.ray.run(
        job, progress=lambda *counts: told.append(counts), remote_options={"num_cpus": num_cpus}
    )
    assert contents_of(tmp_path / "out") == calm
    assert summary.num_samples == 300
    assert told == [(number, job.num_units) for number in range(1, job.num_units + 1)]
    assert shoal.pack.ray.run(plan(source, tmp_path / "out", **OPTIONS)).fingerprint == summary.fingerprint


@pytest.mark.parametrize("options", [{"format": "jsonl.gz", "decode": True}, {"mix": True, "memory": "100KiB"}])
def test_shards_of_shards(nodes: Nodes, source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    old = pack(source, tmp_path / "old", **OPTIONS).url
    repack(old, tmp_path / "calm", shard_bytes=40_000, num_workers=1, **options)
    shoal.pack.ray.run(plan_repack(old, tmp_path / "out", shard_bytes=40_000, **options))
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")


def test_no_more_tasks_are_made_than_are_sent_ahead(nodes: Nodes, source: Path, tmp_path: Path) -> None:
    job = Job(plan(source, tmp_path / "out", **{**OPTIONS, "shard_bytes": 6_000}), ray_jobs.Slowly)
    ahead: list[int] = []
    shoal.pack.ray.run(job, progress=lambda done, _: ahead.append(job.num_made - done))
    assert job.num_units > 40
    assert max(ahead) <= 4 * 2


def test_tasks_that_fail_once(nodes: Nodes, source: Path, calm: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    job = Job(plan(source, tmp_path / "out", **OPTIONS), FailingOnce(tmp_path / "marks"))
    shoal.pack.ray.run(job)
    assert len(list((tmp_path / "marks").iterdir())) == job.num_units
    assert contents_of(tmp_path / "out") == calm


def test_errors_come_out_as_themselves_and_what_is_done_is_kept(
    nodes: Nodes, source: Path, calm: dict[str, Any], tmp_path: Path
) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    with pytest.raises(UsageError) as raised:
        shoal.pack.ray.run(Job(job, Refused))
    assert type(raised.value) is UsageError
    assert (raised.value.message, raised.value.hint) == ("unit 3 is refused", "this is the hint")
    assert len(job.missing()) < job.num_units
    shoal.pack.ray.run(job)
    assert contents_of(tmp_path / "out") == calm


@pytest.mark.parametrize("num_kills", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_workers_that_are_killed(
    nodes: Nodes, source: Path, calm: dict[str, Any], tmp_path: Path, num_kills: int
) -> None:
    killed: list[int] = []
    rounds = 0
    while len(killed) < num_kills:
        rounds += 1
        job = Job(plan(source, tmp_path / str(rounds), **OPTIONS), ray_jobs.Slowly)
        with killing(nodes, num_kills - len(killed), seed=rounds) as now:
            shoal.pack.ray.run(job, remote_options=ALWAYS)
        killed += now
        assert contents_of(tmp_path / str(rounds)) == calm


def test_a_node_that_is_killed(nodes: Nodes, source: Path, calm: dict[str, Any], tmp_path: Path) -> None:
    job = Job(plan(source, tmp_path / "out", **OPTIONS), ray_jobs.Slowly)
    kill = threading.Timer(0.4, nodes.kill_node)
    kill.start()
    shoal.pack.ray.run(job, remote_options=ALWAYS)
    kill.join()
    assert contents_of(tmp_path / "out") == calm


def killed_driver(nodes: Nodes, source: str, out: Path, seconds: float) -> bool:
    """Whether the driver was killed before it was done."""
    words = [sys.executable, str(HERE / "ray_jobs.py"), nodes.address, source, str(out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n", process.communicate(timeout=60)[1]
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    assert process.returncode == 0, said
    return False


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["units", "sink"])
def test_drivers_that_are_killed(
    nodes: Nodes,
    source: Path,
    calm: dict[str, Any],
    calm_rows: dict[str, Any],
    tmp_path: Path,
    num_kills: int,
    kind: str,
) -> None:
    given, expected, most = (str(source), calm, 1.5) if kind == "units" else ("-", calm_rows, 4.0)
    moments = np.random.default_rng(0)
    rounds = killed = 0
    while killed < num_kills:
        rounds += 1
        out = tmp_path / str(rounds)
        while killed < num_kills and killed_driver(nodes, given, out, moments.uniform(0.1, most)):
            killed += 1
        assert not killed_driver(nodes, given, out, 60)
        assert contents_of(out) == expected


def test_a_job_that_nobody_takes_up_is_cleaned(nodes: Nodes, source: Path, tmp_path: Path) -> None:
    for given in (str(source), "-"):
        assert killed_driver(nodes, given, tmp_path / "out", 0.8)
        wait_until_nobody_is_busy(nodes)
        clean(tmp_path / "out", grace_seconds=0)
        assert contents_of(tmp_path / "out") == {}


def wait_until_nobody_is_busy(nodes: Nodes) -> None:
    end = time.monotonic() + 30
    while any(map(is_busy, nodes.workers())):
        assert time.monotonic() < end
        time.sleep(0.1)


# ---- Ray Data


def test_a_sink_gives_the_same_at_any_concurrency_and_again(
    nodes: Nodes, calm_rows: dict[str, Any], tmp_path: Path
) -> None:
    for _ in range(2):  # the second time, it is compared
        ray_jobs.rows().write_datasink(ShoalDatasink(tmp_path / "out", **SINK))
        assert contents_of(tmp_path / "out") == calm_rows


def test_sinks_whose_tasks_die_once(nodes: Nodes, calm_rows: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    ray_jobs.rows().write_datasink(FailingSink(tmp_path / "out", marks=tmp_path / "marks", **SINK))
    assert contents_of(tmp_path / "out") == calm_rows


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_sinks_whose_workers_are_killed(
    nodes: Nodes, calm_rows: dict[str, Any], tmp_path: Path, num_kills: int
) -> None:
    killed: list[int] = []
    rounds = 0
    while len(killed) < num_kills:
        rounds += 1
        with killing(nodes, num_kills - len(killed), seed=rounds) as now:
            ray_jobs.rows().write_datasink(SlowSink(tmp_path / str(rounds), **SINK), ray_remote_args=ALWAYS)
        killed += now
        assert contents_of(tmp_path / str(rounds)) == calm_rows


def test_a_sink_that_fails_leaves_nothing(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    with pytest.raises(Exception, match="a sink that fails"):
        ray_jobs.rows().write_datasink(FailingSink(tmp_path / "out", marks=tmp_path / "marks", fails=True, **SINK))
    wait_until_nobody_is_busy(nodes)
    clean(tmp_path / "out", grace_seconds=0)
    assert contents_of(tmp_path / "out") == {}


def test_other_rows_are_an_error_that_names_the_shard(nodes: Nodes, calm_rows: dict[str, Any], tmp_path: Path) -> None:
    ray_jobs.rows().write_datasink(ShoalDatasink(tmp_path / "out", **SINK))
    other = ray_jobs.rows().filter(lambda row: row["id"] != 1_000)
    other.context.execution_options.preserve_order = True
    with pytest.raises(UsageError, match=r"shard-0000\d\d-000000\.jsonl: the dataset is finished"):
        other.write_datasink(ShoalDatasink(tmp_path / "out", **SINK))
    assert contents_of(tmp_path / "out") == calm_rows


def test_blocks_that_may_change_places_are_refused(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="preserve_order = True"):
        ray.data.range(10).write_datasink(ShoalDatasink(tmp_path / "out", **SINK))
    assert contents_of(tmp_path / "out") == {}


@pytest.mark.parametrize("name", ["tar", "mds", "parquet", "arrow"])
def test_what_is_written_is_read(nodes: Nodes, tmp_path: Path, name: str) -> None:
    sink = ShoalDatasink(tmp_path / "out", **{**SINK, "format": name, "shard_bytes": 200_000, "columns": []})
    ray_jobs.rows().write_datasink(sink)
    assert sink.summary is not None
    found = ray.data.read_datasource(ShoalDatasource(tmp_path / "out", decode=name == "tar"), override_num_blocks=5)
    found.context.execution_options.preserve_order = True
    assert found.count() == NUM_ROWS
    rows = found.take_all()
    assert len(rows) == NUM_ROWS
    if name == "parquet":
        assert rows == ray_jobs.rows().take_all()


def test_spans_of_whole_extents_are_read_in_order(nodes: Nodes, source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out", **{**OPTIONS, "extent_bytes": 3_000})
    ds = shoal.open(tmp_path / "out")
    found = ray.data.read_datasource(ShoalDatasource(tmp_path / "out"), override_num_blocks=7)
    found.context.execution_options.preserve_order = True
    assert [row["__key__"] for row in found.take_all()] == [ds[number]["__key__"] for number in range(300)]
    assert found.materialize().num_blocks() == 7


# ---- units on shards


def test_shards_are_indexed_and_verified_while_workers_are_killed(nodes: Nodes, tmp_path: Path) -> None:
    with killing(nodes, 3, seed=4) as killed:
        check_shards_on_engine(lambda job: shoal.pack.ray.run(job, remote_options=ALWAYS), tmp_path / "in", seconds=0.1)
    assert killed
