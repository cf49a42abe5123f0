"""The trace of a run: valid JSON, spans that nest, every request counted, and an end after some seconds."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.samples import write_tar

import shoal
from shoal.stream.dataset import Dataset
from shoal.testing import Fault, RangeServer
from shoal.torch import DataLoader, IterableDataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, which is one JSON object."""
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert event["ph"] in "XMiC"
    return list(trace["traceEvents"])


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Spans of a thread are inside one another or apart."""
    by_thread = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            by_thread[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for spans in by_thread.values():
        open_until: list[float] = []
        for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 0.01:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.01, (name, begin, end, open_until)
            open_until.append(end)


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


def shout(sample: Any) -> Any:
    return {**sample, "n": len(sample["bin"])}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("objects")
    for shard in range(3):
        samples = [{"__key__": f"{shard}{i:03d}".encode(), "bin": bytes(5000)} for i in range(60)]
        write_tar(directory / f"{shard}.tar", samples)
    return {f"b/{path.name}": path.read_bytes() for path in sorted(directory.iterdir())}


def test_a_remote_run_has_every_request_wait_stage_and_batch(objects: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    faults = [Fault("status", requests=range(4, 400, 9), status=503)]
    with RangeServer(objects, faults=faults, latency_seconds=0.002) as server:
        urls = [server.url_of(name) for name in objects]
        ds = shoal.open(urls, storage_options={"deadline_seconds": 60}).shuffle(seed=1, window="256KiB")
        ds = ds.map(shout).batch(12).reading(trace=path)
        list(ds)
    events, stats = events_of(path), ds.stats()
    check_nesting(events)
    requests = named(events, "request")
    assert len(requests) == stats["num_requests"]
    assert sum(event["args"]["bytes"] for event in requests) == stats["requested_bytes"]
    assert len(named(events, "retry")) == stats["num_retries"] > 0
    assert all("503" in event["args"]["error"] for event in named(events, "retry"))
    assert len(named(events, "next batch")) == stats["num_batches"] == 15
    assert sum(event["args"]["samples"] for event in named(events, "map(shout)")) == 180
    waits = sum(event["dur"] for event in named(events, "wait for bytes")) / 1e6
    assert waits == pytest.approx(stats["wait_seconds"], rel=0.01)
    inside = sum(event["dur"] for event in named(events, "next batch")) / 1e6
    assert inside == pytest.approx(stats["make_seconds"], rel=0.05)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "MainThread" in threads
    assert any(name.startswith("shoal-read-") for name in threads)
    assert "b/0.tar" not in path.read_text()  # no names of objects: a trace is passed on
    assert not list(tmp_path.glob("trace.json.*"))


def test_a_local_run_has_its_reads(tars: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ds = tars.shuffle(seed=2).batch(20).reading(trace=path)
    for _ in range(2):  # the trace goes on
        list(ds)
    events, stats = events_of(path), ds.stats()
    check_nesting(events)
    reads = named(events, "read")
    assert len(reads) == stats["num_requests"]
    assert sum(event["args"]["bytes"] for event in reads) == stats["requested_bytes"]
    assert len(named(events, "next batch")) == stats["num_batches"]
    assert len(named(events, "training")) == stats["num_batches"] - 2


def test_the_samples_are_the_same_with_a_trace(tars: Dataset, tmp_path: Path) -> None:
    plain = tars.shuffle(seed=2).decode().map(_with_length).batch(20)
    traced = plain.reading(trace=tmp_path / "trace.json")
    assert [batch["n"].tolist() for batch in traced] == [batch["n"].tolist() for batch in plain]


def _with_length(sample: Any) -> Any:
    return {"n": len(str(sample))}


def test_the_trace_ends_after_its_seconds_and_says_so(
    tars: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    ds = tars.batch(1).reading(trace=path, trace_seconds=0.4)
    batches = iter(ds)
    for _ in range(100):
        next(batches)
        time.sleep(0.01)
    events = events_of(path)  # before the epoch ends
    assert 5 <= len(named(events, "next batch")) <= 41
    assert capfd.readouterr().err.count(f"shoal: the trace of 0.4 s is complete: {path}") == 1
    assert "end of the trace" in {event["name"] for event in events}
    size = path.stat().st_size
    list(batches)
    assert path.stat().st_size == size
    check_nesting(events)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_has_the_spans_of_its_threads_or_processes(
    objects: dict[str, bytes], tmp_path: Path, num_workers: int
) -> None:
    path = tmp_path / "trace.json"
    with RangeServer(objects) as server:
        ds = shoal.open([server.url_of(name) for name in objects]).shuffle(seed=1, window="256KiB")
        ds = ds.map(shout).batch(12).reading(trace=path)
        loader = DataLoader(ds, num_workers=num_workers)
        assert isinstance(next(iter(loader))["n"], torch.Tensor)
        assert sum(len(batch["n"]) for batch in loader) == 180
    events = events_of(path)
    check_nesting(events)
    own = [event for event in named(events, "next batch") if event["pid"] == os.getpid()]
    assert len(own) == 1 + 15
    made = named(events, "make batch")
    assert len(made) >= 15
    # A worker of the abandoned pass may have had no time for a batch.
    assert num_workers <= len({event["pid"] for event in made} - {os.getpid()}) <= 2 * num_workers
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert any(name.startswith("training") for name in names)
    assert any(name.startswith("worker") for name in names) == bool(num_workers)
    assert not list(tmp_path.glob("trace.json.*"))


def test_each_rank_has_its_trace_where_its_path_says_so(tars: Dataset, tmp_path: Path) -> None:
    for rank in range(2):
        list(tars.partition(rank=rank, world_size=2).batch(20).reading(trace=tmp_path / "rank-{rank}.json"))
        list(tars.partition(rank=rank, world_size=2).batch(20).reading(trace=tmp_path / "first.json"))
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["first.json", "rank-0.json", "rank-1.json"]
    assert len(named(events_of(tmp_path / "first.json"), "next batch")) == 5


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_another_loader_write_a_trace_each(objects: dict[str, bytes], tmp_path: Path) -> None:
    with RangeServer(objects) as server:
        ds = shoal.open([server.url_of(name) for name in objects]).shuffle(seed=1, window="256KiB").batch(12)
        ds = ds.reading(trace=tmp_path / "trace.json")
        loader = torch.utils.data.DataLoader(
            IterableDataset(ds), batch_size=None, num_workers=2, multiprocessing_context="forkserver"
        )
        assert sum(len(batch["bin"]) for batch in loader) == 180
    written = sorted(tmp_path.glob("*.json"))
    assert [path.name for path in written] == ["trace.json.worker-0.json", "trace.json.worker-1.json"]
    assert sum(len(named(events_of(path), "next batch")) for path in written) == 15
    for path in written:
        check_nesting(events_of(path))
