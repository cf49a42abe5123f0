"""`shoal plan`: from an index as it will be read, or from numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.calls import Calls
from tests.stream.made import flat, open_finely, write_lines, write_tars

import shoal
from shoal.cli.plan import plan
from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.orders import Block, Window
from shoal.testing import RangeServer
from shoal.tools.reports.plan_page import PlanFigures

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")  # small windows, on purpose


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_reads_of_a_plan_are_those_of_the_stream(calls: Calls, tmp_path: Path, world_size: int) -> None:
    lines = open_finely(write_lines(tmp_path / "data", [1000] * 4), extent_bytes=12_000)
    words = ["plan", tmp_path / "data", "--index", tmp_path / "fine.index", "--chunks", 16, "--chunk", "12KB"]
    words += ["--num-canonical-nodes", 2, "--global-batch", 12, "--ranks-per-node", world_size, "--latency", 0]
    record = calls.json(*words)
    ds = lines.shuffle(Window(16, 2), chunk="12KB").batch(global_batch_size=12)
    reads, read_bytes, claimed, held = 0, 0, 0, 0
    for rank in range(world_size):
        own = ds.partition(rank=rank, world_size=world_size)
        assert flat([list(batch["id"]) for batch in own])
        stats = own.stats()
        reads, read_bytes = reads + stats["num_reads"], read_bytes + stats["read_bytes"]
        claimed, held = max(claimed, stats["peak_claimed_bytes"]), max(held, stats["peak_held_bytes"])
    assert record["is_simulated_exactly"]
    assert record["num_requests"] == pytest.approx(reads, rel=0.05)
    assert record["read_bytes"] == pytest.approx(read_bytes, rel=0.05)
    assert record["rank_held_bytes"] == pytest.approx(claimed, rel=0.05)
    # Local chunks are read on the way: beside those in use, only the next ones lie in memory.
    in_use_bytes = record["rank_memory_parts"]["in_use_bytes"]
    assert 0.95 * in_use_bytes <= held <= in_use_bytes + 3 * record["chunk_bytes"]


def test_ten_thousand_ranks_and_a_hundred_terabytes(calls: Calls) -> None:
    words = ["--num-samples", "12.5e9", "--sample-bytes", "8KB", "--nodes", 1250, "--ranks-per-node", 8]
    record = calls.json("plan", *words, "--global-batch", 80_000, "--memory", "16GiB", "--step-seconds", 5)
    assert record["world_size"] == 10_000
    assert record["dataset_bytes"] == 1e14
    assert record["vr"]["80000"] < 1.05
    assert not record["is_simulated_exactly"]
    assert record["node_memory_bytes"] < 16 * 2**30
    assert record["epoch_seconds"] == pytest.approx(12.5e9 / 80_000 * 5)


def test_more_memory_than_there_is_is_said(calls: Calls) -> None:
    """Windows are chosen to fit; what else a process takes may not: here a batch of 64 samples of 3 GB, twice."""
    words = ["plan", "--num-samples", "1e5", "--sample-bytes", "3GB", "--global-batch", 64]
    assert (
        "of a node (--memory). The largest part: two batches. To save memory: a smaller --global-batch"
        in calls.text(*words)
    )
    assert "(--memory)" not in calls.text(*words, "--memory", "500GiB")


def test_given_settings_are_judged(calls: Calls) -> None:
    words = ["plan", "--num-samples", "3e5", "--sample-bytes", "10KB", "--global-batch", 512]
    record = calls.json(*words, "--window", "64MB", "--chunk", "1MB")
    assert record["window_chunks"] == 64
    assert record["vr"]["512"] == pytest.approx(8, rel=0.1)
    assert calls.json(*words, "--window", "64MB", "--chunk", "1MB", "--rho", 0.01)["vr"]["512"] < 1.1
    assert calls.json(*words)["vr"]["512"] < 1.05
    block = calls.json(*words, "--order", "block", "--chunks", 64, "--chunk", "1MB")
    assert block["vr"]["512"] > 7


def test_counts_may_have_exponents(calls: Calls) -> None:
    words = ["plan", "--num-samples", "1e7", "--sample-bytes", "10KB", "--nodes", "1e1"]
    assert calls.json(*words, "--global-batch", "1e5")["vr"].keys() == {"100000", "400000"}
    with pytest.raises(SystemExit):
        calls.text(*words, "--global-batch", "1.5e-3")


def test_a_window_that_would_be_refused_is_told(calls: Calls, tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("id", pa.int64())])) as writer:
        for num_rows in [500] * 20 + [100_000]:
            writer.write_table(pa.table({"id": range(num_rows)}), row_group_size=num_rows)
    words = ["plan", tmp_path, "--global-batch", 16, "--latency", 0, "--window"]
    text = calls.text(*words, "200KB")
    assert "A run would be refused: a.parquet: bytes" in text
    assert "cache= in shoal.open()" in text
    with pytest.raises(UsageError) as refused:
        iter(shoal.open(tmp_path).shuffle(window="200KB"))
    assert refused.value.message in calls.json(*words, "200KB")["refused"]
    assert not calls.json(*words, "2MiB")["refused"]
    assert "refused" not in calls.text(*words, "2MiB")


NUMBERS = ["plan", "--num-samples", 50_000, "--sample-bytes", "100KB", "--ranks-per-node", 8, "--nodes", 2]


@pytest.mark.parametrize("bandwidth", ["60MB", "100MB", "1.25GB"])
def test_a_node_receives_no_more_than_it_can(calls: Calls, monkeypatch: pytest.MonkeyPatch, bandwidth: str) -> None:
    drawn: list[PlanFigures] = []
    monkeypatch.setattr(plan, "plan_picture", lambda figures, **_: drawn.append(figures))
    monkeypatch.setattr(plan, "write_picture", lambda *_: None)
    monkeypatch.setattr(plan, "planned_chunk_sizes", lambda *_: [])  # other plans, which say nothing of this one
    words = [*NUMBERS, "--global-batch", 512, "--step-seconds", 0.5, "--node-bandwidth", bandwidth]
    record = calls.json(*words, "--picture", "plan.svg")
    (figures,) = drawn
    traffic = figures.node_bytes_per_second
    assert figures.node_limit == parse_bytes(bandwidth, "")
    assert traffic.max() <= figures.node_limit * (1 + 1e-9)
    assert traffic.mean() == pytest.approx(record["node_traffic_bytes_per_second"], rel=1e-3)


@pytest.mark.parametrize("size", ["100KB", "8359", "1MiB"])
def test_the_call_of_a_plan_has_units_and_means_the_same(calls: Calls, size: str) -> None:
    record = calls.json("plan", "--num-samples", 400_000, "--sample-bytes", size, "--global-batch", 512)
    window, chunk = re.findall('"([^"]+)"', record["call"])
    for text in (window, chunk):
        assert re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?[KMGT]i?B", text)
    assert parse_bytes(window, "window") // parse_bytes(chunk, "chunk") == record["window_chunks"]
    assert parse_bytes(chunk, "chunk") // parse_bytes(size, "") == record["chunk_bytes"] // parse_bytes(size, "")


def test_the_textbook_question_is_answered(calls: Calls) -> None:
    words = ["plan", "--num-samples", "2e9", "--sample-bytes", "8KB", "--connection-bandwidth", "1GB"]
    text = calls.text(*words, "--latency", 0.02, "--memory", "64GB")
    assert "at least 1.98 GB each for 1 % overhead, 8,081 shards" in text
    assert "holds 8,000,000 samples, 0.400% of all" in text
    assert 'ds.shuffle(window="' in text


def test_sequences_of_a_plan_are_those_of_the_stream(calls: Calls, tmp_path: Path) -> None:
    sizes = np.random.default_rng(0).integers(0, 90, 500).tolist()
    documents = ({"tokens": list(range(size)), "num_tokens": size} for size in sizes)
    shoal.pack.pack(documents, tmp_path / "d", format="jsonl", shard_bytes="8KiB", columns=["num_tokens"])
    words = ["plan", tmp_path / "d", "--pack-sequences", 64, "--global-batch", 10]
    record = calls.json(*words)
    for strategy, facts in record["sequences"].items():
        ds = shoal.open(tmp_path / "d").shuffle(seed=0, num_canonical_nodes=record["num_canonical_nodes"])
        ds = ds.pack_sequences(64, strategy=strategy).batch(10)
        num_sequences = sum(len(batch["tokens"]) for batch in ds)
        stats = ds.stats()
        assert facts["num_sequences"] == pytest.approx(num_sequences, abs=2)
        assert facts["filled"] == pytest.approx(stats["num_tokens"] / (64 * num_sequences), rel=0.01)
        assert facts["num_cut_documents"] == pytest.approx(stats["num_cut_documents"], rel=0.05)
    assert "best_fit" in calls.text(*words)
    assert "no column 'words'" in calls.refused(*words, "--lengths", "words")
    numbers = ("--num-samples", 1000, "--sample-bytes", 8)
    assert "needs the lengths of documents" in calls.refused("plan", *numbers, "--pack-sequences", 64)


def test_what_cannot_be_planned(calls: Calls, tmp_path: Path) -> None:
    assert "give one of them" in calls.refused("plan")
    assert "needs --sample-bytes" in calls.refused("plan", "--num-samples", 1000)
    words = ["plan", "--num-samples", 1000, "--sample-bytes", 1000]
    assert "do not exceed a global batch" in calls.refused(*words, "--global-batch", 1000)
    assert "has no sample for each of 512 ranks" in calls.refused(*words, "--nodes", 512)
    assert "must be 0 or above" in calls.refused(*words, "--latency", -1)
    assert "draws from all chunks at any time" in calls.refused(*words, "--order", "full")


@pytest.mark.parametrize(("num_chunks", "chunk", "world_size"), [(24, "8KiB", 1), (40, "8KiB", 2), (12, "16KiB", 1)])
def test_neighbours_that_share_a_request_are_counted_as_one(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_chunks: int, chunk: str, world_size: int
) -> None:
    """Groups of 16 chunks out of 100 have many neighbours: the plan knows which, and the log of the server has it."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    write_tars(tmp_path / "data", [100] * 3)
    index = tmp_path / "fine.index"
    with RangeServer(tmp_path / "data") as server:
        urls = [server.url_of(shard.name) for shard in sorted((tmp_path / "data").glob("*.tar"))]
        calls.text("index", *urls, "--extent-bytes", 8192, "--output", index)
        words = ["plan", *urls, "--index", index, "--chunks", num_chunks, "--chunk", chunk, "--global-batch", 12]
        record = calls.json(*words, "--ranks-per-node", world_size)
        ds = shoal.open(urls, index=index).shuffle(Window(num_chunks), chunk=chunk).batch(global_batch_size=12)
        before, num_reads = len(server.exchanges), 0
        for rank in range(world_size):
            own = ds.partition(rank=rank, world_size=world_size)
            assert sum(len(batch["__key__"]) for batch in own)
            num_reads += own.stats()["num_reads"]
        log = [
            exchange for exchange in server.exchanges[before:] if exchange.method == "GET" and exchange.num_bytes > 1
        ]
    print(len(log), num_reads, record["num_requests"], record["num_looks"])
    assert len(log) < 0.94 * num_reads
    assert record["num_requests"] - record["num_looks"] == pytest.approx(len(log), rel=0.02)


def test_a_rank_that_reads_all_chunks_looks_at_all_shards(calls: Calls, tmp_path: Path) -> None:
    """Also where a shard is one chunk: a rank does not draw the same one twice."""
    data = write_tars(tmp_path, [40] * 9)
    for chunk in ("1MiB", "64KiB"):
        assert calls.json("plan", data, "--chunk", chunk, "--global-batch", 16)["num_looks"] == 9
    both = calls.json("plan", data, "--chunk", "1MiB", "--global-batch", 16, "--ranks-per-node", 2)
    assert 9 < both["num_looks"] <= 18


def test_without_latency_no_size_of_shards_is_told(calls: Calls) -> None:
    words = ["plan", "--num-samples", "2e5", "--sample-bytes", "40KB", "--latency"]
    assert "one after another" in calls.text(*words, 0.01)
    assert "one after another" not in calls.text(*words, 0)
    assert "A buffer in 8.59 GB holds" in calls.text(*words, 0)


@pytest.mark.parametrize(
    ("order", "world_size"),
    [(["--chunks", 24, "--num-canonical-nodes", 3], 3), (["--order", "block", "--chunks", 20], 1)],
)
def test_requests_of_a_plan_are_in_the_log_of_the_server(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[Any], world_size: int
) -> None:
    """Requests and bytes over the wire, to a server that counts them, within 5 % of what was planned."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    write_tars(tmp_path / "data", [500] * 6)
    index = tmp_path / "fine.index"
    with RangeServer(tmp_path / "data") as server:
        urls = [server.url_of(shard.name) for shard in sorted((tmp_path / "data").glob("*.tar"))]
        calls.text("index", *urls, "--extent-bytes", 16384, "--output", index)
        words = ["plan", *urls, "--index", index, *order, "--chunk", "32KiB", "--global-batch", 18]
        record = calls.json(*words, "--ranks-per-node", world_size, "--latency", 0.01)
        request = Block(20) if "block" in order else Window(24, 3)
        ds = shoal.open(urls, index=index).shuffle(request, chunk="32KiB").batch(global_batch_size=18)
        before, claimed, held = len(server.exchanges), [], []
        for rank in range(world_size):
            own = ds.partition(rank=rank, world_size=world_size)
            assert sum(len(batch["__key__"]) for batch in own)
            claimed.append(own.stats()["peak_claimed_bytes"])
            held.append(own.stats()["peak_held_bytes"])
        log = [exchange for exchange in server.exchanges[before:] if exchange.method == "GET"]
    num_looks = sum(exchange.num_bytes == 1 for exchange in log)
    assert record["is_simulated_exactly"]
    assert num_looks <= record["num_looks"] <= 6 * world_size  # ranks of one process look once
    assert len(log) - num_looks == pytest.approx(record["num_requests"] - record["num_looks"], rel=0.05)
    assert sum(exchange.num_bytes for exchange in log) == pytest.approx(record["read_bytes"], rel=0.05)
    assert max(claimed) == pytest.approx(record["rank_held_bytes"], rel=0.05)
    # A chunk that is read ahead is held from when it arrives, and claimed from when it is asked for.
    assert 0.95 * record["rank_memory_parts"]["in_use_bytes"] <= max(held) <= max(claimed)


def test_a_large_row_group_among_small_ones_is_in_the_memory(calls: Calls, tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("id", pa.int64())])) as writer:
        for num_rows in [500] * 20 + [100_000]:
            writer.write_table(pa.table({"id": range(num_rows)}), row_group_size=num_rows)
    record = calls.json("plan", tmp_path, "--window", "200KB", "--global-batch", 16, "--latency", 0)
    ds = shoal.open(tmp_path)
    largest_bytes = int(ds.stream.opened.index.extent_decoded_bytes.max())
    assert largest_bytes > 200_000
    assert record["rank_memory_parts"]["in_use_bytes"] >= largest_bytes
