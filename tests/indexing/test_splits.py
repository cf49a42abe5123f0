"""Train and test are never mixed unasked, and each is read by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.samples import write_jsonl, write_tar_shards

import shoal
from shoal.errors import ShardError, SourceError, StateError, UsageError
from shoal.storage.memory_store import MemoryStore

SAVED = Path(__file__).parents[1] / "formats" / "data" / "hf" / "saved"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def in_directories(root: Path) -> Path:
    write_tar_shards(root / "train", num_shards=3)
    write_tar_shards(root / "val", num_shards=1)
    return root


def pushed(root: Path) -> Path:
    write_jsonl(root / "data" / "train-00000-of-00002.jsonl", num_docs=30)
    write_jsonl(root / "data" / "train-00001-of-00002.jsonl", num_docs=30)
    write_jsonl(root / "data" / "test-00000-of-00001.jsonl", num_docs=20)
    return root


def prepared(root: Path, *, exclude: list[str], **parts: list[str]) -> Path:
    """What Energon's `prepare` leaves."""
    write_tar_shards(root / "shards")
    (root / ".nv-meta").mkdir()
    (root / ".nv-meta" / "split.yaml").write_text(json.dumps({"exclude": exclude, "split_parts": parts}))
    return root


def saved(root: Path) -> Path:
    for split in ("first", "second"):
        shutil.copytree(SAVED, root / split)
    (root / "dataset_dict.json").write_text('{"splits": ["first", "second"]}')
    return root


def test_several_splits_are_refused_and_listed(tmp_path: Path) -> None:
    for make, listed in (
        (in_directories, r"train \(3 files\), val \(1 file\), by directories"),
        (pushed, r"test \(1 file\), train \(2 files\), by file names"),
        (saved, r"first \(2 files\), second \(2 files\), by dataset_dict\.json"),
    ):
        root = make(tmp_path / make.__name__)
        with pytest.raises(SourceError, match=listed) as caught:
            shoal.open(root)
        assert 'split="' in str(caught.value.hint)
    root = prepared(tmp_path / "e", exclude=[], train=["shards/train-00000{0..2}.tar"], val=["shards/train-000003.tar"])
    with pytest.raises(SourceError, match=r"train \(3 files\), val \(1 file\), by \.nv-meta/split\.yaml"):
        shoal.open(root)


def test_each_split_is_read_by_its_name(tmp_path: Path) -> None:
    root = in_directories(tmp_path / "directories")
    train, val = shoal.open(root, split="train"), shoal.open(root, split="validation")
    assert (train.num_samples, val.num_samples) == (150, 50)
    assert shoal.open(root, split=["val", "train"]).num_samples == shoal.open(root, split="all").num_samples == 200
    assert [sample["txt"] for sample in train] == [sample["txt"] for sample in shoal.open(root / "train")]

    root = pushed(tmp_path / "pushed")
    assert [shoal.open(root, split=split).num_samples for split in ("train", "test")] == [60, 20]
    assert shoal.open(f"{root}/data/*.jsonl", split="test").num_samples == 20  # a glob alone asks for all it matches
    assert shoal.open(f"{root}/data/*.jsonl").num_samples == 80

    root = saved(tmp_path / "saved")
    assert shoal.open(root, split="second").num_samples == shoal.open(SAVED).num_samples


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    root = in_directories(tmp_path / "data")
    with pytest.raises(SourceError, match=r"there is no split 'test'; the splits, by directories, are train"):
        shoal.open(root, split="test")
    with pytest.raises(SourceError, match="no splits are known"):
        shoal.open(write_jsonl(tmp_path / "docs.jsonl"), split="test")
    assert shoal.open(root / "val", split="all").num_samples == 50
    for wrong in ("", [], ["train", 3], 7):
        with pytest.raises(UsageError, match="split= takes"):
            shoal.open(root, split=wrong)  # type: ignore[arg-type]


def test_an_index_in_the_directory_of_a_split_is_found(tmp_path: Path, calls: Calls) -> None:
    root = in_directories(tmp_path / "data")
    calls.text("index", root, "--split", "val")
    assert (root / "val" / "shoal.index").is_file()
    assert shoal.open(root, split="val").num_samples == 50


def test_an_index_of_all_splits_serves_each(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    root = pushed(tmp_path / "data")
    calls.text("index", root, code=2)
    assert "--split" in calls.complaints
    calls.text("index", root, "--split", "all")
    monkeypatch.setattr("shoal.indexing.index_making.build_index", pytest.fail)
    assert [shoal.open(root, split=split).num_samples for split in ("train", "test", "all")] == [60, 20, 80]
    index = root / "shoal.index"
    assert [shoal.open(index, split=split).num_samples for split in ("train", "test", "all")] == [60, 20, 80]
    with pytest.raises(SourceError, match=r"test \(1 file\), train \(2 files\)"):
        shoal.open(index)
    # Of an index for one split, nothing is asked.
    calls.text("index", root, "--split", "test", "--output", tmp_path / "test.index")
    assert shoal.open(root, split="test", index=tmp_path / "test.index").num_samples == 20


def test_samples_that_energon_excludes_take_no_part(tmp_path: Path, calls: Calls) -> None:
    root = prepared(
        tmp_path / "data",
        exclude=["shards/train-000000.tar", "shards/train-000001.tar/00{60,61}"],
        train=["shards/train-{000000..000002}.tar"],
        val=["shards/train-000003.tar"],
    )
    for shuffled in (shoal.open(root, split="train"), shoal.open(root, split="train").shuffle(seed=3)):
        seen = sorted(sample["__key__"] for sample in shuffled)
        assert seen == sorted(f"{key:04d}" for key in range(50, 150) if key not in (60, 61))
    ds = shoal.open(root, split="train").shuffle(seed=3)
    part = iter(ds)
    before = [next(part)["__key__"] for _ in range(40)]
    again = shoal.open(root, split="train").shuffle(seed=3)
    again.load_state_dict(ds.state_dict())
    assert sorted(before + [sample["__key__"] for sample in again]) == seen
    with pytest.raises(StateError):  # a state of other samples
        shoal.open(f"{root}/shards/train-00000[12].tar").shuffle(seed=3).load_state_dict(ds.state_dict())

    words = (root, "--split", "train")
    assert calls.json("info", *words)["num_samples"] == 100
    assert {row["id"] for row in calls.json_lines("head", *words, "-n", 200)} == set(ds.ids().tolist())
    for by in ("shard", "position"):
        audit = calls.json("audit", *words, "--by", by, "--batch-size", 16)
        assert (audit["num_samples"], audit["missing"], audit["repeated"], audit["unknown"]) == (100 - 2, 0, 0, 0)
    traced = calls.json("trace", *words, "--seed", 3, "--sample", 80, "--batch-size", 8)["samples"]
    assert [(row["sample"], row["position"]) for row in traced] == [(80, ds.ids().tolist().index(80))]
    (tmp_path / "state.json").write_text(json.dumps(ds.state_dict()))
    assert calls.json("trace", *words, "--state", tmp_path / "state.json", "--step", 1, "--batch-size", 8)["samples"]
    calls.text("repack", *words, tmp_path / "new", code=2)
    assert "2 samples" in calls.complaints


def test_an_excluded_sample_that_is_not_there_is_named(tmp_path: Path) -> None:
    train = ["shards/train-{000000..000003}.tar"]
    root = prepared(tmp_path / "data", exclude=["shards/train-000001.tar/7"], train=train)
    with pytest.raises(SourceError, match=r"shards/train-000001\.tar: 1 excluded samples .* '7'"):
        shoal.open(root)


def test_only_one_split_with_shards_needs_no_choice(tmp_path: Path) -> None:
    shards = ["shards/train-000000.tar", "shards/train-000002.tar"]
    root = prepared(tmp_path / "data", exclude=[], train=shards, val=[])
    assert shoal.open(root).num_samples == 100
    none = prepared(tmp_path / "none", exclude=shards, train=shards)
    with pytest.raises(SourceError, match="none of their shards"):
        shoal.open(none)


def test_splits_in_a_store_that_is_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = prepared(tmp_path / "data", exclude=[], train=["shards/train-000000.tar"], val=["shards/train-000001.tar"])
    store = MemoryStore()
    for path in local.rglob("*"):
        if path.is_file():
            store.put(f"memory://splits/{path.relative_to(local).as_posix()}", path.read_bytes())
    with pytest.raises(SourceError, match=r"split\.yaml"):
        shoal.open("memory://splits")
    assert shoal.open("memory://splits", split="val").num_samples == 50
    store.delete("memory://splits/.nv-meta/split.yaml")
    assert shoal.open("memory://splits").num_samples == 200


def test_a_table_of_all_splits_is_refused_where_one_is_asked_for(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "1.png").write_bytes(b"x")
    (tmp_path / "data" / "metadata.csv").write_text("file_name,text\ntrain/1.png,a\ntest/1.png,b\n")
    with pytest.raises(SourceError, match=r"metadata\.csv describes files of all splits"):
        shoal.open(tmp_path / "data", format="folder", split="train")
    assert shoal.open(tmp_path / "data", format="folder", split="all").num_samples == 2


def test_verifying_takes_all_splits_or_one(tmp_path: Path, calls: Calls) -> None:
    root = in_directories(tmp_path / "data")
    assert calls.json("verify", root)["num_samples"] == 200
    assert calls.json("verify", root, "--split", "val")["num_samples"] == 50
    shard = next((root / "train").iterdir())
    shard.write_bytes(b"\1" * 512 + shard.read_bytes()[512:])
    assert calls.text("verify", root, "--split", "val")
    assert calls.text("verify", root, code=1)
    with pytest.raises(ShardError):
        shoal.open(root, split="train")


def refused(call: Any, *words: Any) -> str:
    with pytest.raises(SourceError) as caught:
        call(*words)
    return str(caught.value)


def test_repacking_reads_one_split(tmp_path: Path) -> None:
    root = in_directories(tmp_path / "data")
    assert "choose one or more" in refused(shoal.pack.repack, root, tmp_path / "new")
    made = shoal.pack.repack(root, tmp_path / "new", split="val", num_workers=1)
    assert made.summary.num_samples == 50
