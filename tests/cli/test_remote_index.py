"""`shoal index` and `shoal info` of remote shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.calls import Calls, make_shards
from tests.samples import write_tar

import shoal
from shoal.errors import IndexFileError, StorageError
from shoal.indexing import index_making
from shoal.indexing.index_files import load_index
from shoal.storage.memory_store import MemoryStore
from shoal.testing import RangeServer

_numbers = itertools.count()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def root(data: Path) -> str:
    where = f"memory://cli-{next(_numbers)}/train"
    for path in data.iterdir():
        MemoryStore().put(f"{where}/{path.name}", path.read_bytes())
    return where


@pytest.fixture
def server(data: Path) -> Iterator[RangeServer]:
    with RangeServer({f"d/{path.name}": path.read_bytes() for path in data.iterdir()}) as running:
        yield running


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_an_index_beside_far_shards(root: str, data: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    said = calls.json("index", root, "--checksum")
    assert said["index"] == f"{root}/shoal.index"
    assert said["file_bytes"] == MemoryStore().stat(said["index"]).num_bytes
    assert (said["num_shards"], said["num_samples"], said["checksums"]) == (4, 200, True)
    assert said["scan"]["shard_bytes"] == said["num_bytes"] == sum(path.stat().st_size for path in data.iterdir())
    assert said["scan"]["num_requests"] == 4
    monkeypatch.setattr(index_making, "build_index", pytest.fail)
    assert shoal.open(root).state_dict()["index"] == said["fingerprint"]
    index = calls.json("info", root)["index"]
    assert (index["origin"], index["checksums"]) == ("beside the shards", True)
    assert (index["num_resized_shards"], index["num_touched_shards"]) == (0, 0)
    assert index["fingerprint"] == said["fingerprint"]
    local = calls.json("index", data)
    assert local["fingerprint"] == said["fingerprint"]
    assert "scan" not in local


def test_people_are_told_what_was_read(tmp_path: Path, calls: Calls, data: Path) -> None:
    del data
    write_tar(tmp_path / "large.tar", [{"__key__": b"%d" % i, "bin": bytes(9_000_000)} for i in range(3)])
    where = f"memory://cli-{next(_numbers)}/large.tar"
    MemoryStore().put(where, (tmp_path / "large.tar").read_bytes())
    text = calls.text("index", where)
    assert "headers only: read 0.1 MB of 27.0 MB in 4 requests" in text


def test_an_index_of_http_shards_goes_elsewhere(server: RangeServer, tmp_path: Path, calls: Calls) -> None:
    source = f"{server.url}/d/train-{{000000..000003}}.tar?token=hidden"
    calls.refused("index", source)
    assert "http is read-only" in calls.complaints
    assert "--output FILE" in calls.complaints
    assert "hidden" not in calls.complaints
    assert server.num_bytes() == 0
    said = calls.json("index", source, "--output", tmp_path / "kept.index")
    assert said["num_samples"] == 200
    assert b"hidden" not in (tmp_path / "kept.index").read_bytes()
    info = calls.json("info", source, "--index", tmp_path / "kept.index")["index"]
    assert (info["origin"], info["num_touched_shards"]) == ("given", 0)
    assert "refuses" not in calls.text("head", source, "--index", tmp_path / "kept.index")


def test_an_index_can_be_written_to_a_url(root: str, data: Path, calls: Calls) -> None:
    said = calls.json("index", data, "--output", f"{root}/kept/")
    assert said["index"] == f"{root}/kept/shoal.index"
    assert load_index(said["index"], store=MemoryStore()).fingerprint == said["fingerprint"]


def test_some_shards_of_a_far_directory_need_a_name_of_their_own(root: str, calls: Calls) -> None:
    complaint = calls.refused("index", f"{root}/train-000001.tar")
    assert f"and not {root}/train-000000.tar" in complaint
    apart = f"{root}/train-000001.index"
    assert f"--output {apart}" in complaint
    calls.text("index", f"{root}/train-000001.tar", "--output", apart)
    assert shoal.open(apart).num_samples == 50


def test_what_cannot_be_written_far_away_is_kept_here(
    root: str, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryStore, path: str, data: object) -> None:
        del self, data
        msg = f"could not write {path}: 403 Forbidden"
        raise StorageError(msg)

    monkeypatch.setattr(MemoryStore, "put", refuse)
    calls.refused("index", root)
    assert "403 Forbidden" in calls.complaints
    (kept,) = (tmp_path / "cache" / "unwritten").iterdir()
    assert str(kept) in calls.complaints.replace("\n", " ")
    assert shoal.open(root, index=kept).num_samples == 200


def test_touched_and_resized_shards_are_told_apart(root: str, data: Path, calls: Calls) -> None:
    said = calls.json("index", data, "--output", data.parent / "of-the-files.index")
    whole = (data / "train-000001.tar").read_bytes()
    MemoryStore().put(f"{root}/train-000001.tar", whole + bytes(512))
    info = calls.json("info", root, "--index", said["index"])["index"]
    assert (info["num_resized_shards"], info["num_touched_shards"]) == (1, 3)


def test_columns_of_far_shards(root: str, data: Path, calls: Calls) -> None:
    calls.json("index", root)
    said = calls.json("index", root, "--columns", "cls,size=txt:len")
    assert (said["index"], said["columns"]) == (f"{root}/shoal.index", ["cls", "size"])
    ds = shoal.open(root)
    assert ds.index_column("cls").tolist() == [int(sample["cls"]) for sample in shoal.open(data)]
    calls.json("index", f"{root}/shoal.index", "--columns", "key=__key__")
    assert shoal.open(root).select(key="0007", size=11).ids().tolist() == [7]


def test_columns_over_http_go_elsewhere(server: RangeServer, tmp_path: Path, calls: Calls) -> None:
    names = [f"{server.url}/d/train-{number:06d}.tar" for number in range(4)]
    assert "http is read-only" in calls.refused("index", *names, "--columns", "cls")
    target = tmp_path / "http.index"
    calls.json("index", *names, "--columns", "cls", "--output", target)
    assert shoal.open(names, index=target).select(cls=2).num_samples == 50
    ds = shoal.open(names, index_columns=["cls"])
    parts = ds.split({"train": 0.5, "val": 0.5}, by="cls")
    assert set(parts["train"].ids() // 50).isdisjoint((parts["val"].ids() // 50).tolist())


def test_a_published_index_with_columns_is_no_longer_replaced_by_opening(root: str, calls: Calls) -> None:
    shoal.open(root, publish_index=True)
    calls.json("index", root, "--columns", "cls")
    first = f"{root}/train-000000.tar"
    whole = MemoryStore().read_range(first, 0, MemoryStore().stat(first).num_bytes)
    MemoryStore().put(f"{root}/train-000009.tar", whole)
    with pytest.raises(IndexFileError, match="does not know 1 of 5 shards"):
        shoal.open(root, publish_index=True)
