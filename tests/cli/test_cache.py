"""`shoal cache` shows what is kept, and removes that and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.cli.calls import Calls, make_shards

import shoal
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import FOLDER

DAY_SECONDS = 86_400


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def stream(data: Path, directory: Path, budget: str = "8MiB") -> shoal.Dataset:
    ds = shoal.open(data, cache={"directory": directory, "budget": budget})
    for _ in range(2):
        assert len(list(ds)) == 200
    return ds


def close(ds: shoal.Dataset) -> None:
    assert ds.stream.opened.cache is not None
    ds.stream.opened.cache.close()


def test_nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    said = calls.json("cache")
    assert said["chunk_caches"] == []
    assert said["indexes"]["num_files"] == 0
    assert calls.json("cache", "--clear")["removed"][0]["num_files"] == 0
    assert not (tmp_path / "cache").exists()


def test_what_is_kept_is_shown(tmp_path: Path, data: Path, calls: Calls) -> None:
    ds = stream(data, tmp_path / "chunks")
    during = calls.json("cache")
    (row,) = during["chunk_caches"]
    assert (row["in_use"], row["num_unused_datasets"]) == (True, 0)
    assert row["path"] == str(tmp_path / "chunks" / FOLDER)
    assert row["budget_bytes"] == 8 << 20
    assert row["num_hits"] == row["num_fills"] > 0  # the second epoch fetched nothing, and was told of when it ended
    close(ds)
    (row,) = calls.json("cache")["chunk_caches"]
    assert (row["in_use"], row["num_datasets"], row["num_unused_datasets"]) == (False, 1, 1)
    assert row["num_chunks"] == row["num_fills"] == row["num_hits"] > 0
    assert row["oldest_seconds"] < 100
    assert during["indexes"]["num_indexes"] == 1
    text = calls.text("cache")
    assert "chunk cache" in text
    assert "8.0 MiB" in text
    for one in (tmp_path / "chunks", tmp_path / "chunks" / FOLDER):
        assert calls.json("cache", one) == {"chunk_caches": [row | {"oldest_seconds": pytest.approx(1, abs=100)}]}


def test_clear_removes_all_that_is_ours(tmp_path: Path, data: Path, calls: Calls) -> None:
    ds = stream(data, tmp_path / "chunks")
    (tmp_path / "chunks" / "theirs").write_text("1")
    (tmp_path / "chunks" / FOLDER / "chunks" / "theirs").write_text("1")
    (tmp_path / "cache" / "indexes" / "theirs").write_text("1")
    removed = calls.json("cache", "--clear")["removed"]
    assert [row["num_files"] > 0 for row in removed] == [True, True]
    assert len(list(tmp_path.rglob("theirs"))) == 3
    assert [path.name for path in (tmp_path / "chunks" / FOLDER / "chunks").iterdir()] == ["theirs"]
    assert calls.json("cache")["indexes"]["num_indexes"] == 0
    assert calls.json("cache")["chunk_caches"][0]["used_bytes"] < 1 << 20
    assert len(list(ds)) == 200  # a process that runs goes on
    assert "removed" in calls.text("cache", "--clear")


def test_prune_removes_what_nobody_used_for_long(tmp_path: Path, data: Path, calls: Calls) -> None:
    directory = tmp_path / "chunks"
    live = stream(data, directory)
    old = ChunkCache(directory, budget_bytes=8 << 20, dataset="old")
    old.read("a", 5, lambda: b"bytes")
    old.close()
    fresh = ChunkCache(directory, budget_bytes=8 << 20, dataset="fresh")
    fresh.read("a", 5, lambda: b"bytes")
    fresh.close()
    long_ago = time.time() - 31 * DAY_SECONDS
    for path in (directory / FOLDER / "datasets").iterdir():
        if path.name != fresh._dataset:
            os.utime(path, (long_ago, long_ago))
    for path in (tmp_path / "cache" / "indexes").iterdir():
        os.utime(path, (long_ago, long_ago))
    chunks, indexes = len(list((directory / FOLDER / "chunks").iterdir())), calls.json("cache")["indexes"]["num_files"]
    removed = calls.json("cache", "--prune")["removed"]
    assert [row["num_files"] for row in removed] == [indexes, 1]
    assert len(list((directory / FOLDER / "chunks").iterdir())) == chunks - 1
    close(live)
    assert calls.json("cache", "--prune", "--days", 0, directory)["removed"][0]["num_files"] == chunks - 1


def test_prune_clears_what_a_killed_process_left(tmp_path: Path, data: Path, calls: Calls) -> None:
    del data
    cache = ChunkCache(tmp_path / "chunks", budget_bytes=8 << 20)
    left = tmp_path / "chunks" / FOLDER / "filling" / cache._name("a")
    left.write_bytes(bytes(5000))
    assert calls.json("cache", "--prune", tmp_path / "chunks")["removed"][0]["num_files"] == 1
    assert not left.exists()


def test_what_cannot_be_shown(tmp_path: Path, data: Path, calls: Calls) -> None:
    assert "could not open the chunk cache" in calls.refused("cache", data)
    stream(data, tmp_path / "chunks")
    stream(data, tmp_path / "others")
    (tmp_path / "chunks" / FOLDER).chmod(0o777)
    text = calls.text("cache", code=2)
    assert "open to other users" in calls.complaints
    assert str(tmp_path / "others") in text
    calls.text("cache", tmp_path / "others", code=0)
