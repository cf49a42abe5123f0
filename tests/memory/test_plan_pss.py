"""What a plan says of memory is what the system counts of processes that stream: soaks, since they move gigabytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.memory.pss import MIB, peak_of
from tests.memory.test_budget import write_tars

from shoal.testing import RangeServer

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
    pytest.mark.soak,
    pytest.mark.slow,
]

WORLD_SIZE, BATCH = 2, 32
STREAM = """
import json, sys, shoal
urls, index, batch, world_size, window, chunk, rank = sys.argv[1:]
ds = shoal.open(json.loads(urls), index=index).shuffle(seed=0, window=window, chunk=chunk)
ds = ds.batch(global_batch_size=int(batch)).partition(rank=int(rank), world_size=int(world_size))
print(sum(len(batch["bin"]) for batch in ds))
"""


# Beside the chunks there are about 11 MiB of batches and answers under way, which show where a window is small.
@pytest.mark.parametrize(("window", "more_bytes"), [("256MiB", 12 * MIB), ("512MiB", 0)])
def test_memory_and_requests_of_a_plan_are_those_of_its_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: str, more_bytes: int
) -> None:
    """Proportional set size, without what the same stream takes with hardly any window; and the log of the server."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    calls, index = Calls(capsys), tmp_path / "shards.index"
    write_tars(tmp_path / "data", 100_000, 1024 * MIB, num_shards=16)
    with RangeServer(tmp_path / "data", latency_seconds=0.002) as server:
        urls = [server.url_of(shard.name) for shard in sorted((tmp_path / "data").glob("*.tar"))]
        calls.text("index", *urls, "--output", index)
        words = ["plan", *urls, "--index", index, "--window", window, "--chunk", "1MiB", "--global-batch", BATCH]
        record = calls.json(*words, "--ranks-per-node", WORLD_SIZE, "--latency", 0.002)
        given = (json.dumps(urls), str(index), str(BATCH), str(WORLD_SIZE))
        nothing = min(peak_of(STREAM, *given, "2MiB", "128KiB", str(rank)).peak_bytes for rank in range(WORLD_SIZE))
        before = len(server.exchanges)
        peaks = [peak_of(STREAM, *given, window, "1MiB", str(rank)).peak_bytes for rank in range(WORLD_SIZE)]
        log = [exchange for exchange in server.exchanges[before:] if exchange.method == "GET"]
    held = [peak - nothing for peak in peaks]
    with capsys.disabled():
        said = ", ".join(f"{peak / MIB:.0f}" for peak in peaks)
        planned = record["rank_memory_bytes"]
        print(f"\n{window}: planned {planned / MIB:.1f} MiB a rank, {record['num_requests']} requests,")
        print(f"{record['read_bytes'] / MIB:.1f} MiB; PSS {said} MiB, {nothing / MIB:.0f} with hardly any window;")
        print(f"{len(log)} requests, {sum(exchange.num_bytes for exchange in log) / MIB:.1f} MiB")
    assert 0.95 * planned < max(held) < 1.05 * planned + more_bytes
    assert len(log) == pytest.approx(record["num_requests"], rel=0.05)
    assert sum(exchange.num_bytes for exchange in log) == pytest.approx(record["read_bytes"], rel=0.05)
