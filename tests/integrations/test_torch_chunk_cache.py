"""Worker processes of a DataLoader share the chunks that one of them fetched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.samples import write_tar_shards

from shoal.storage.chunk_cache.cache_status import chunk_cache_status
from shoal.storage.chunk_cache.directory import FOLDER
from shoal.testing import RangeServer

torch = pytest.importorskip("torch")

import shoal.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")  # small windows, on purpose


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_workers_share_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "shoal"))
    write_tar_shards(tmp_path / "data", samples_per_shard=400)
    with RangeServer(tmp_path / "data", latency_seconds=0.005) as server:
        # A forked worker must not find that its parent used a connection: so that one reads files.
        far = server.url_of("train-000000.tar").replace("000000", "{000000..000003}")
        source = far if context == "forkserver" else str(tmp_path / "data")
        ds = shoal.open(source, cache={"directory": tmp_path / "cache", "budget": "64MiB"})
        ds = ds.shuffle(shoal.orders.Window(chunks=8, num_canonical_nodes=1), seed=3, chunk="64KiB").batch(8)
        server.exchanges.clear()
        loader = shoal.torch.DataLoader(ds, num_workers=2, multiprocessing_context=context)
        keys = [key for batch in loader for key in batch["__key__"]]
        asked = Counter((one.path, one.first_byte, one.num_bytes) for one in server.exchanges if one.num_bytes > 1)
    assert sorted(keys) == [f"{number:04d}" for number in range(1600)]
    num_chunks = len(ds.resolved.chunks)
    assert len(list((tmp_path / "cache" / FOLDER / "chunks").iterdir())) == num_chunks
    assert asked.total() == (num_chunks if context == "forkserver" else 0)
    counted = loader.stats()
    assert counted["num_cache_fills"] == num_chunks
    assert counted["num_cache_hits"] + num_chunks == counted["num_reads"]
    if context == "forkserver":  # of what forked children count before they first tell of it the cache does not hear
        told = chunk_cache_status(str(tmp_path / "cache"))
        assert (told.num_hits, told.num_fills) == (counted["num_cache_hits"], counted["num_cache_fills"])
