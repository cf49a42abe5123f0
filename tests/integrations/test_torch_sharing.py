"""Workers that read remote shards fetch each chunk once, together."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.stream.made import open_finely, write_tars

from shoal.errors import UsageError
from shoal.stream.open_dataset import open_dataset
from shoal.stream.workers import worker_batches
from shoal.testing import RangeServer
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def served(tmp_path: Path) -> Any:
    open_finely(write_tars(tmp_path / "data", [60, 40, 60]))
    with RangeServer(tmp_path / "data") as server:
        yield server, tmp_path / "fine.index"


def traffic(served: Any, num_workers: int) -> tuple[int, list[int]]:
    server, index = served
    urls = [server.url_of(f"s-{shard:03d}.tar") for shard in range(3)]
    ds = open_dataset(urls, index=index).shuffle(seed=1, chunk=12_000).with_ids().batch(8)
    server.clear()
    ids = [i for batch in DataLoader(ds, num_workers=num_workers) for i in batch["__id__"].tolist()]
    assert ids == ds.ids().tolist()
    return sum(server.num_bytes(f"s-{shard:03d}.tar") for shard in range(3)), ids


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_share_a_memory_limit(num_workers: int, tmp_path: Path) -> None:
    ds = open_finely(write_tars(tmp_path / "data", [100, 80, 100])).shuffle(seed=1, window=120_000, chunk=6_000)
    ds = ds.with_ids().batch(8).reading(memory_limit=90_000)
    loader = DataLoader(ds, num_workers=num_workers)
    assert [i for batch in loader for i in batch["__id__"].tolist()] == ds.ids().tolist()
    stats = loader.stats()  # heights are those of the worker that was highest
    assert 0 < stats["peak_held_bytes"] <= 90_000 // num_workers


def test_the_traffic_of_workers_is_that_of_one_reader(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = [tmp_path / "memory", tmp_path / "temporary"]  # as new as on a machine where shoal never ran
    for place in places:
        place.mkdir()
    monkeypatch.setenv("SHOAL_SHARED_MEMORY_DIR", str(places[0]))
    monkeypatch.setattr(tempfile, "tempdir", str(places[1]))
    traffic(served, 0)  # now it is known that these shards are those of the index
    alone, ids = traffic(served, 0)
    together, same = traffic(served, 2)
    assert same == ids
    assert together < 1.25 * alone  # two that want the same at the very same moment may both fetch it

    def full(*_: object, **__: object) -> None:
        msg = "no room"
        raise UsageError(msg)

    monkeypatch.setattr(worker_batches, "chunk_cache_of", full)
    each, same = traffic(served, 2)
    assert same == ids
    assert each > 1.5 * alone
    assert "no room; 2 workers hold a window of" in caplog.text
    assert "every chunk is read over the network up to 2 times" in caplog.text
    assert not [path for place in places for path in place.glob("*shoal*")]
