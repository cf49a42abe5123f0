"""Extents of datasets of any size: at most ten million, whoever makes the index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.samples import write_tar_shards

import shoal
from shoal.cli.main import main
from shoal.index import cutting
from shoal.index.cutting import EXTENT_BYTES, usual_extent_bytes
from shoal.indexing.jobs.index_job import plan_index
from shoal.pack import Writer, pack, repack


@pytest.mark.parametrize("terabytes", [0.001, 0.6, 0.66, 3, 30, 500, 10_000])
def test_no_dataset_has_more_than_ten_million_extents(terabytes: float) -> None:
    total_bytes = round(terabytes * 10**12)
    extent_bytes = usual_extent_bytes(total_bytes)
    assert total_bytes / extent_bytes <= 10**7
    assert extent_bytes == EXTENT_BYTES or total_bytes / extent_bytes > 4 * 10**6


def test_small_datasets_keep_their_extents() -> None:
    assert usual_extent_bytes(0) == usual_extent_bytes(655 * 10**9) == EXTENT_BYTES == 65536


def test_every_door_cuts_a_large_dataset_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    write_tar_shards(data)
    total_bytes = sum(path.stat().st_size for path in data.iterdir())
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "before"))
    small = shoal.open(data)
    assert small.stream.opened.index.metadata["extent_bytes"] == EXTENT_BYTES
    monkeypatch.setattr(cutting, "EXTENT_BYTES", 2048)
    monkeypatch.setattr(cutting, "_MOST_EXTENTS", 9)
    wanted = cutting.usual_extent_bytes(total_bytes)
    assert wanted > 2048
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "after"))
    grown = shoal.open(data, index="grow").shuffle(seed=0)
    assert sorted(grown.ids().tolist()) == list(range(200))
    job = plan_index(data, to=tmp_path / "job.index")
    for number in range(job.num_units):
        job.run(number)
    job.finish()
    assert main(["index", str(data), "--output", str(tmp_path / "cli.index")]) == 0
    made = [shoal.open(data), *(shoal.open(data, index=tmp_path / f"{name}.index") for name in ("cli", "job"))]
    for ds in made:
        index = ds.stream.opened.index
        assert index.metadata["extent_bytes"] == wanted
        assert index.fingerprint == made[0].stream.opened.index.fingerprint
        assert np.diff(index.extent_first_sample).min() > 1


def test_packing_cuts_a_large_dataset_as_indexing_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number:02d}.bin").write_bytes(bytes(1000))
    monkeypatch.setattr(cutting, "EXTENT_BYTES", 2048)
    monkeypatch.setattr(cutting, "_MOST_EXTENTS", 9)
    assert cutting.usual_extent_bytes(40_000) == 8192
    pack(tmp_path / "in", tmp_path / "packed", num_workers=1)
    repack(tmp_path / "packed", tmp_path / "again", format="mds", num_workers=1)
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "cli"), "--workers", "1"]) == 0
    for name in ("packed", "again", "cli"):
        assert shoal.open(tmp_path / name).stream.opened.index.metadata["extent_bytes"] == 8192, name
    pack(tmp_path / "in", tmp_path / "asked", extent_bytes="4KiB", num_workers=1)
    assert shoal.open(tmp_path / "asked").stream.opened.index.metadata["extent_bytes"] == 4096
    pack(({"x": number} for number in range(9)), tmp_path / "streamed", format="jsonl")  # nobody knows its size
    with Writer(tmp_path / "written", format="jsonl") as writer:
        writer.write({"x": 1})
    for name in ("streamed", "written"):
        assert shoal.open(tmp_path / name).stream.opened.index.metadata["extent_bytes"] == EXTENT_BYTES
