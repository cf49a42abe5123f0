"""`shoal plan --cache`: what chunk caches leave over, against the log of a server that real ranks read from."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.calls import Calls
from tests.stream.made import write_tars

import shoal
from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.orders import Window
from shoal.testing import RangeServer

# Ranks keep in step, as a training does: each waits for a line before its next batch.
RANK = """
import json, sys, shoal
urls, index, cache, window, nodes, batch, rank, world_size = map(json.loads, sys.argv[1:])
ds = shoal.open(urls, index=index, cache=cache).shuffle(shoal.orders.Window(window, nodes), chunk="16KiB")
ds = ds.batch(global_batch_size=batch).partition(rank=rank, world_size=world_size)
for epoch in range(2):
    ds.set_epoch(epoch)
    for _ in ds:
        print("batch", flush=True)
        sys.stdin.readline()
    print("end", flush=True)
    sys.stdin.readline()
"""
BATCH = 16


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


class Source(NamedTuple):
    """Shards of a server, 402 chunks of 15 KiB, and their index."""

    server: RangeServer
    urls: list[str]
    index_file: Path

    @property
    def num_fetched(self) -> tuple[int, int]:
        """Requests that brought bytes of chunks, and these bytes."""
        log = [result.num_bytes for result in self.server.exchanges if result.method == "GET" and result.num_bytes > 1]
        return len(log), sum(log)


@pytest.fixture
def source(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "shoal"))
    write_tars(tmp_path / "data", [400] * 6)
    index = tmp_path / "fine.index"
    with RangeServer(tmp_path / "data") as server:
        urls = [server.url_of(shard.name) for shard in sorted((tmp_path / "data").glob("*.tar"))]
        calls.text("index", *urls, "--extent-bytes", 8192, "--output", index)
        server.exchanges.clear()
        yield Source(server, urls, index)


def run(
    source: Source,
    directory: Path,
    window: Window,
    *,
    ranks: int,
    nodes: int,
    budget: str,
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[int, int]]:
    """Requests and bytes of each of two epochs, that ``ranks`` on each of ``nodes`` machines read, in processes."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    fetched = [source.num_fetched]
    with ExitStack() as stack:
        started = []
        for rank in range(ranks * nodes):
            cache = {"directory": str(directory / f"node-{rank // ranks}"), "budget": budget}
            request = (source.urls, str(source.index_file), cache, window.chunks, window.num_canonical_nodes)
            words = [json.dumps(word) for word in (*request, BATCH, rank, ranks * nodes)]
            process = Popen([sys.executable, "-c", RANK, *words], stdin=PIPE, stdout=PIPE, text=True)
            started.append(stack.enter_context(process))
        while len(fetched) < 3:
            said = {process.stdout.readline() for process in started if process.stdout is not None}
            if said == {"end\n"}:
                fetched.append(source.num_fetched)
            elif said != {"batch\n"}:
                pytest.fail(f"a rank ended early: {said}")
            for process in started:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        assert [process.wait() for process in started] == [0] * len(started)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(fetched)]


# canonical nodes, ranks on a node, nodes, budget of their caches, share of the first epoch by which a plan may be off
RUNS = [
    (2, 4, 1, "32MiB", 0.0),  # room for all
    (2, 2, 2, "32MiB", 0.0),
    (1, 2, 2, "32MiB", 0.0),  # whose second epoch is another part of the data
    (2, 4, 1, "4MiB", 0.15),  # room for half; which chunks are kept is left to hashes of their names
]


@pytest.mark.drill
@pytest.mark.parametrize(("num_canonical_nodes", "ranks", "nodes", "budget", "error"), RUNS)
def test_what_a_cache_leaves_over_is_in_the_log_of_the_server(
    calls: Calls,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_canonical_nodes: int,
    ranks: int,
    nodes: int,
    budget: str,
    error: float,
) -> None:
    """Each chunk is requested once for a node while the cache holds it, in the first epoch and in the second."""
    window = Window(32, num_canonical_nodes)
    words = ["plan", *source.urls, "--index", source.index_file, "--chunks", 32, "--chunk", "16KiB", "--latency", 0.001]
    words += ["--num-canonical-nodes", num_canonical_nodes, "--global-batch", BATCH]
    words += ["--ranks-per-node", ranks, "--nodes", nodes]
    record = calls.json(*words, "--cache", budget)
    uncached = calls.json(*words)
    fetched = run(source, tmp_path, window, ranks=ranks, nodes=nodes, budget=budget, monkeypatch=monkeypatch)
    print(fetched, record["node_epochs"], record["num_looks"])
    first, second = record["node_epochs"]
    assert record["is_simulated_exactly"]
    for epoch, planned, num_looks in zip(fetched, (first, second), (record["num_looks"], 0), strict=True):
        slack = error * fetched[0][0] + nodes  # numbers of a node are rounded
        assert planned["num_requests"] * nodes - num_looks == pytest.approx(epoch[0], abs=slack)
        assert planned["read_bytes"] * nodes == pytest.approx(epoch[1], rel=0.001, abs=error * fetched[0][1])
        assert planned["amplification"] == pytest.approx(epoch[0] / 402, abs=(error + 0.001) * fetched[0][0] / 402)
    assert record["num_requests"] == pytest.approx(nodes * first["num_requests"], abs=nodes)
    assert record["read_bytes"] == pytest.approx(nodes * first["read_bytes"])
    assert record["amplification_without_cache"] == uncached["amplification_without_cache"]
    assert uncached["amplification"] == pytest.approx(uncached["amplification_without_cache"])
    assert record["amplification"] == first["amplification"] < 0.95 * uncached["amplification"]
    assert uncached["amplification_with_cache"] == pytest.approx(first["amplification"], rel=error + 1e-9)
    assert (second["num_requests"] == 0) == (num_canonical_nodes == 2 and budget == "32MiB")
    assert record["used_cache_bytes"] == pytest.approx(min(parse_bytes(budget, "budget"), record["full_cache_bytes"]))


def test_a_cache_is_refused_where_a_run_refuses_it(
    calls: Calls, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "plan",
        *source.urls,
        "--index",
        source.index_file,
        "--chunks",
        128,
        "--chunk",
        "16KiB",
        "--global-batch",
        BATCH,
    ]
    words += ["--ranks-per-node", 2, "--nodes", 1]
    least_bytes = calls.json(*words, "--cache", "64MiB")["least_cache_bytes"]
    assert least_bytes > 1 << 20
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for cache_bytes in (least_bytes - 1, least_bytes):
        cache = {"directory": tmp_path / str(cache_bytes), "budget": cache_bytes}
        ds = shoal.open(source.urls, index=source.index_file, cache=cache).shuffle(Window(128), chunk="16KiB").batch(8)
        is_refused = cache_bytes < least_bytes
        assert bool(calls.json(*words, "--cache", cache_bytes)["refused"]) == is_refused
        if is_refused:
            with pytest.raises(UsageError, match=r"chunks would be evicted"):
                iter(ds.partition(rank=0, world_size=2))
        else:
            iter(ds.partition(rank=0, world_size=2))
    assert "A run would be refused: the cache may take 1.0 MiB, but the wind" in calls.text(*words, "--cache", "1MiB")


NUMBERS = ["plan", "--num-samples", 400_000, "--sample-bytes", "10KB", "--nodes", 8, "--ranks-per-node", 8]
NUMBERS += ["--global-batch", 512, "--window", "512MB", "--chunk", "1MB", "--num-canonical-nodes"]


@pytest.mark.drill
def test_people_are_told_what_a_cache_saves(calls: Calls, tmp_path: Path) -> None:
    assert "A chunk cache on each node (--cache 123MiB) reduces the reads of a chunk from 3.04 to 1.25." in calls.text(
        *NUMBERS, 1
    )
    assert "--cache" not in calls.text(*NUMBERS, 64)  # hardly any chunk is read by two ranks
    text = calls.text(*NUMBERS, 16, "--cache", "1GB", "--html", tmp_path / "plan.html")
    assert "epoch   requests" in text
    assert 'shoal.open(..., cache={"directory": ..., "budget": "1GB"})' in text
    assert "(--cache" not in text
    assert "The cache is small" not in text
    assert "The cache is small" in calls.text(*NUMBERS, 16, "--cache", "70MiB")
    page = (tmp_path / "plan.html").read_text()
    for said in ("Chunk cache of a node", "Read in the second epoch", "half the cache", "no cache", "Read in a second"):
        assert said in page
    calls.text(*NUMBERS, 1, "--html", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "a cache in each node" in page
    assert "Chunk cache of a node" not in page


def test_a_cache_makes_epochs_cheaper_and_faster(calls: Calls) -> None:
    words = [*NUMBERS, 1, "--get-price", 0.4, "--node-bandwidth", "500MB"]
    without, cached = calls.json(*words), calls.json(*words, "--cache", "2GB")
    assert "node_epochs" not in without
    assert cached["epoch_price"] == pytest.approx(without["epoch_price"] * 1.245 / 3.043, rel=0.01)
    assert cached["epoch_seconds"] < 0.5 * without["epoch_seconds"]
    assert cached["rank_memory_bytes"] == without["rank_memory_bytes"]
    assert cached["first_batch_seconds"] < without["first_batch_seconds"]


def test_what_is_no_budget_of_a_cache(calls: Calls) -> None:
    assert calls.json(*NUMBERS, 16, "--cache", "none") == calls.json(*NUMBERS, 16)
    assert "the minimum is 1048576" in calls.refused(*NUMBERS, 16, "--cache", "10KB")
    assert "--cache" in calls.refused(*NUMBERS, 16, "--cache", "much")


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
def test_chunks_that_are_decoded_into_the_cache_are_told(calls: Calls, tmp_path: Path) -> None:
    """A row group that a run refuses without a cache, and spills with one."""
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("id", pa.int64())])) as writer:
        for num_rows in [500] * 20 + [100_000]:
            writer.write_table(pa.table({"id": range(num_rows)}), row_group_size=num_rows)
    words = ["plan", tmp_path, "--global-batch", 16, "--latency", 0, "--window", "200KB"]
    assert "A run would be refused" in calls.text(*words)
    text = calls.text(*words, "--cache", "64MiB")
    assert "refused" not in text
    assert "Too large for the window: 1 chunk, to be decoded into the cache." in text
