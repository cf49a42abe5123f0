"""What a plan says of memory and requests: the system counts as much of processes that stream, and a server logs it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.memory.pss import MIB, own_pss_bytes, peak_of
from tests.memory.test_budget import write_tars

from shoal.testing import RangeServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

# A sample is read first, so that what it takes to read any (modules, a connection) is in the base.
STREAM = """
import json, os, sys, shoal
from tests.memory.pss import own_pss_bytes
shards, index, batch, world_size, window, chunk, rank = sys.argv[1:]
ds = shoal.open(json.loads(shards), index=index).shuffle(seed=0, window=window, chunk=chunk)
ds = ds.batch(global_batch_size=int(batch)).partition(rank=int(rank), world_size=int(world_size))
ds[0]
base_bytes = own_pss_bytes(os.getpid())
seen = sum(len(batch["bin"]) for batch in ds)
print(json.dumps([seen, base_bytes]))
"""
WORLD_SIZE, BATCH = 2, 64
# Beside 5 %: Python takes memory from the system 1 MiB at a time, and threads that read from a remote store are 8 to
# 16 as it turns out, with 160 KiB each.
GRANULARITY_BYTES = 2 * MIB


def compare(capsys: pytest.CaptureFixture[str], directory: Path, *, window: str, chunk: str, is_remote: bool) -> None:
    """Proportional set size of ranks, beyond what each had when it had read one sample; and the log of the server."""
    calls, index, data = Calls(capsys), directory / "shards.index", directory / "data"
    shards = [str(shard) for shard in sorted(data.glob("*.tar"))]
    with ExitStack() as stack:
        server = stack.enter_context(RangeServer(data, latency_seconds=0.002)) if is_remote else None
        if server is not None:
            shards = [server.url_of(Path(shard).name) for shard in shards]
        calls.text("index", *shards, "--output", index)
        words = ["plan", *shards, "--index", index, "--window", window, "--chunk", chunk, "--global-batch", BATCH]
        record = calls.json(*words, "--ranks-per-node", WORLD_SIZE, "--latency", 0.002 if is_remote else 0.0)
        before = 0 if server is None else len(server.exchanges)
        given = (json.dumps(shards), str(index), str(BATCH), str(WORLD_SIZE), window, chunk)
        peaks = [peak_of(STREAM, *given, str(rank), of=own_pss_bytes) for rank in range(WORLD_SIZE)]
        exchanges = [] if server is None else server.exchanges[before:]
    printed = [json.loads(peak.printed) for peak in peaks]
    assert sum(seen for seen, _ in printed) == record["num_samples"]
    used = [peak.peak_bytes - base for peak, (_, base) in zip(peaks, printed, strict=True)]
    planned = record["rank_memory_bytes"]
    with capsys.disabled():
        said = ", ".join(f"{one / MIB:.1f} ({one / planned - 1:+.1%})" for one in used)
        where, sample_bytes = "far" if is_remote else "near", record["dataset_bytes"] // record["num_samples"]
        print(f"\n{window} of {chunk}, samples of {sample_bytes}, {where}:", end=" ")
        print(f"{planned / MIB:.1f} MiB planned, {said} used")
    assert max(used) == pytest.approx(planned, abs=0.05 * planned + GRANULARITY_BYTES)
    if is_remote:
        log = [exchange for exchange in exchanges if exchange.method == "GET"]
        assert len(log) - WORLD_SIZE == pytest.approx(record["num_requests"], rel=0.05)  # without their first samples
        assert sum(exchange.num_bytes for exchange in log) == pytest.approx(record["read_bytes"], rel=0.05)


@pytest.mark.parametrize("is_remote", [False, True], ids=["near", "far"])
def test_a_plan_knows_the_memory_of_its_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    write_tars(tmp_path / "data", 100_000, 192 * MIB)
    compare(capsys, tmp_path, window="128MiB", chunk="1MiB", is_remote=is_remote)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    directory = tmp_path_factory.mktemp("long")
    write_tars(directory / "data", request.param, 1400 * MIB, num_shards=16)
    return directory


SIZES = [("64MiB", "1MiB"), ("256MiB", "256KiB"), ("256MiB", "4MiB"), ("512MiB", "1MiB")]
# Whole samples are read, so chunks are no smaller than one.
CASES = [(member, *sizes) for member in (4096, 100_000) for sizes in SIZES]
CASES += [(1_000_000, *sizes) for sizes in SIZES if sizes[1] != "256KiB"]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("long_run", "window", "chunk"), CASES, indirect=["long_run"], ids=str)
@pytest.mark.parametrize("is_remote", [False, True], ids=["near", "far"])
def test_it_does_so_for_windows_chunks_and_samples_of_all_sizes(
    capsys: pytest.CaptureFixture[str],
    long_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    window: str,
    chunk: str,
    is_remote: bool,
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(long_run / "cache"))
    compare(capsys, long_run, window=window, chunk=chunk, is_remote=is_remote)
