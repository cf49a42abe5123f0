"""`shoal index` writes an index that opening uses, says what is in it, and does no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.cli.calls import Calls, Terminal, make_shards
from tests.samples import write_jsonl, write_tar, write_tar_shards

import shoal
from shoal.cli.main import main
from shoal.indexing import index_making
from shoal.indexing.index_files import load_index
from shoal.stats import live_line
from shoal.storage.files.local_store import LocalStore


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_an_index_beside_the_shards_is_found_there(data: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    said = calls.json("index", data)
    assert said["index"] == str(data / "shoal.index")
    assert said["file_bytes"] == (data / "shoal.index").stat().st_size
    assert (said["num_shards"], said["num_samples"], said["checksums"]) == (4, 200, False)
    assert said["num_bytes"] == sum(path.stat().st_size for path in data.glob("*.tar"))
    monkeypatch.setattr(index_making, "build_index", pytest.fail)
    dataset = shoal.open(data)
    assert dataset.num_samples == said["num_samples"]
    assert dataset.state_dict()["index"] == said["fingerprint"]


def test_people_are_told_the_same(data: Path, calls: Calls) -> None:
    said = calls.json("index", data)
    text = calls.text("index", data)
    facts = dict(line.split("  ", 1) for line in text.splitlines())
    assert facts["samples"].strip() == "200"
    assert facts["fingerprint"].strip() == said["fingerprint"]
    assert facts["mean sample"].strip() == "2.0 KiB"
    assert "not indexed" not in facts
    assert calls.complaints == ""


@pytest.mark.parametrize("spelling", ["data/*.tar", "data/train-{000000..000003}.tar", "many words"])
def test_a_source_can_be_written_in_any_way(
    spelling: str, data: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    words = sorted(map(str, data.glob("*.tar"))) if spelling == "many words" else [spelling]
    by_name = calls.json("index", *words)
    assert by_name["index"] == str(data / "shoal.index")
    assert by_name["fingerprint"] == calls.json("index", data)["fingerprint"]


def test_options_reach_the_index(data: Path, calls: Calls) -> None:
    coarse = calls.json("index", data, "--extent-bytes", "1MiB", "--format", "tar", "--workers", 0)
    fine = calls.json("index", data, "--extent-bytes", "4KiB", "--output", data.parent / "elsewhere/fine.index")
    assert coarse["num_extents"] == 4
    assert fine["num_extents"] > 4
    assert fine["index"] == str(data.parent / "elsewhere/fine.index")
    assert shoal.open(data, index=fine["index"]).state_dict()["index"] == fine["fingerprint"]


def test_checksums_are_those_of_the_extents(data: Path, calls: Calls) -> None:
    assert calls.json("index", data, "--checksum")["checksums"] is True
    index = load_index(str(data / "shoal.index"), store=LocalStore())
    assert index.extent_checksum is not None
    rows = zip(index.extent_shard, index.extent_first_byte, index.extent_end_byte, index.extent_checksum, strict=True)
    for shard, first, end, checksum in rows:
        assert zlib.crc32((data / index.shard_names[shard]).read_bytes()[first:end]) == checksum
    assert "fingerprint" in calls.text("index", data)
    assert "had checksums" in calls.complaints


def test_a_new_dataset_for_old_states_is_said(data: Path, calls: Calls) -> None:
    before = calls.json("index", data)
    calls.text("index", data)
    assert calls.complaints == ""
    calls.text("index", data, "--extent-bytes", "1MiB")
    assert before["fingerprint"] in calls.complaints


def test_some_shards_of_a_directory_need_a_name_of_their_own(data: Path, calls: Calls) -> None:
    complaint = calls.refused("index", data / "train-000001.tar")
    assert "train-000000.tar" in complaint
    apart = data / "train-000001.index"
    assert f"--output {apart}" in complaint
    assert not (data / "shoal.index").exists()
    calls.text("index", data / "train-000001.tar", "--output", apart)
    assert shoal.open(apart).num_samples == 50
    assert shoal.open(data).num_samples == 200


def test_an_index_of_another_format_is_not_replaced(data: Path, calls: Calls) -> None:
    write_jsonl(data / "docs.jsonl")
    assert "two formats" in calls.refused("index", data)
    calls.text("index", data / "*.tar")
    assert "and not" in calls.refused("index", data, "--format", "jsonl")
    assert "and not" in calls.refused("index", data / "docs.jsonl")


def test_a_shard_that_is_gone_is_indexed_away(data: Path, calls: Calls) -> None:
    calls.text("index", data)
    (data / "train-000002.tar").unlink()
    assert calls.json("index", data)["num_shards"] == 3


def test_what_cannot_work_is_refused_before_the_work(
    data: Path, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nowhere" in calls.refused("index", tmp_path / "nowhere")
    calls.text("index", data)
    assert "is already an index" in calls.refused("index", data / "shoal.index")
    assert "--extent-bytes" in calls.refused("index", data, "--extent-bytes", "many")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "--output FILE" in calls.refused("index", data)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in calls.refused("index", data, "--output", tmp_path / "file" / "x.index")


def test_shards_without_samples_leave_no_index(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "blank.jsonl").write_text("\n\n")
    complaint = calls.refused("index", tmp_path / "blank.jsonl")
    assert "without a single sample; found: blank lines 2" in complaint
    assert not (tmp_path / "shoal.index").exists()


def test_a_damaged_shard_is_named(data: Path, calls: Calls) -> None:
    path = data / "train-000002.tar"
    path.write_bytes(path.read_bytes()[:1024] + b"x" * 512 + path.read_bytes()[1536:])
    assert calls.text("index", data, code=1) == ""
    assert "train-000002.tar, byte 1024" in calls.complaints


def test_a_progress_bar_is_for_terminals(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_line, "_SHOW_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(live_line, "_REDRAW_SECONDS", 0.0)
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert main(["index", str(data), "--checksum"]) == 0
    assert "indexing" in terminal.getvalue()
    assert "checksums  100%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    capsys.readouterr()
    assert main(["index", str(data), "--checksum"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.drill
def test_the_installed_command_with_worker_processes(tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    command = Path(sys.executable).parent / "shoal"
    environment = os.environ | {"SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    words = [str(command), "index", "data", "--workers", "2", "--checksum", "--json"]
    answer = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert answer.stderr == ""
    assert json.loads(answer.stdout)["num_samples"] == 200


def test_columns_are_not_dropped_unless_that_is_meant(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `shoal pack` put into an index is nowhere else: the names of classes, and what they are of each sample."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("cat/0.txt", "cat/1.txt", "dog/0.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    calls.text("pack", tmp_path / "in", tmp_path / "out", "--columns", "length")
    index = tmp_path / "out" / "shoal.index"
    before = index.read_bytes()
    said = calls.refused("index", tmp_path / "out", "--checksum")
    assert "has the columns length, cls" in said
    assert f"--output FILE writes an index without columns elsewhere, or here: {index}" in said
    assert index.read_bytes() == before
    calls.text("index", tmp_path / "out", "--output", tmp_path / "plain.index")
    assert calls.complaints == ""
    calls.text("index", tmp_path / "out", "--output", index, "--checksum")
    assert "had the columns length, cls, record_crc32, but the new index lacks them" in calls.complaints
    assert len(shoal.open(tmp_path / "out")) == 3


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tar shards with a JSON member of which every fourth has no score."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    for shard in range(2):
        objects = [
            {"label": i % 5, "meta": {"lang": ("en", "de")[i % 2]}, "tokens": list(range(i % 6))}
            | ({"score": i} if i % 4 else {})
            for i in range(shard * 50, shard * 50 + 50)
        ]
        samples = [
            {"__key__": f"{i:03d}".encode(), "cls": b"%d" % (i % 3), "json": json.dumps(each).encode()}
            for i, each in enumerate(objects)
        ]
        write_tar(tmp_path / "data" / f"train-{shard}.tar", samples)
    return tmp_path / "data"


def test_columns_are_read_into_a_new_index(labelled: Path, calls: Calls) -> None:
    plain = calls.json("index", labelled, "--output", labelled.parent / "plain.index")
    said = calls.json("index", labelled, "--columns", "label,meta.lang", "--columns", "num_tokens=tokens:len")
    assert said["columns"] == ["label", "meta.lang", "num_tokens"]
    assert (plain["columns"], said["fingerprint"]) == ([], plain["fingerprint"])
    dataset = shoal.open(labelled)
    values = [json.loads(sample["json"]) for sample in dataset]
    assert dataset.index_column("label").tolist() == [value["label"] for value in values]
    assert dataset.select(**{"meta.lang": "de"}).num_samples == 50
    assert dataset.index_column("num_tokens").tolist() == [len(value["tokens"]) for value in values]
    assert dataset.shuffle().quality(batch=4, key="label").key == "label"
    about = calls.json("info", labelled)["index"]["columns"]["meta.lang"]
    assert about == {"type": "int32", "num_texts": 2, "texts": ["de", "en"], "path": "json.meta.lang"}


def test_columns_are_added_without_scanning_again(
    labelled: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.text("index", labelled, "--columns", "label")
    before = shoal.open(labelled)
    state = before.shuffle(seed=1).state_dict()
    monkeypatch.setattr("shoal.cli.shards.index.build_index", pytest.fail)
    refused = calls.refused("index", labelled, "--columns", "score")
    assert "25 of 100 samples lack one, first sample 0 (train-0.tar)" in refused
    said = calls.json("index", labelled, "--columns", "label,score", "--missing", "score=-1", "--checksum")
    assert "25 of 100 samples have no 'score', and get -1 in the column 'score'" in calls.complaints
    assert (said["columns"], said["checksums"]) == (["label", "score"], True)
    assert "score (int64, from json.score, 25 missing as -1)" in calls.text("info", labelled)
    after = shoal.open(labelled)
    assert after.index_column("label").tolist() == before.index_column("label").tolist()
    after.shuffle(seed=1).load_state_dict(state)
    index = labelled / "shoal.index"
    other = labelled.parent / "other.index"
    said = calls.json("index", index, "--columns", "cls", "--output", other)
    assert (said["columns"], said["index"]) == (["label", "score", "cls"], str(other))
    assert list(load_index(str(index), store=LocalStore()).columns) == ["label", "score"]
    calls.text("index", index, "--columns", "cls,lang=meta.lang")
    assert list(load_index(str(index), store=LocalStore()).columns) == ["label", "score", "cls", "lang"]


def test_an_index_of_shards_that_changed_is_made_again_with_its_columns(labelled: Path, calls: Calls) -> None:
    calls.text("index", labelled, "--columns", "label,kind=cls")
    write_tar(labelled / "train-1.tar", [{"__key__": b"1", "cls": b"7", "json": b'{"label": 9}'}])
    refused = calls.refused("index", labelled)
    assert "--columns label,kind=cls reads them again" in refused
    assert "has the columns label, but" in calls.refused("index", labelled, "--columns", "kind=cls")
    said = calls.json("index", labelled, "--columns", "label,kind=cls")
    assert said["num_samples"] == 51
    assert shoal.open(labelled).index_column("label")[-1] == 9
    assert shoal.open(labelled).index_column("kind")[-1] == 7


def test_columns_that_cannot_be_added_are_refused(labelled: Path, calls: Calls) -> None:
    assert "--columns adds columns to the index" in calls.refused("index", _indexed(labelled, calls))
    index = labelled / "shoal.index"
    assert "did you mean 'label'?" in calls.refused("index", index, "--columns", "lable")
    assert "--missing takes NAME=VALUE; got '-1'" in calls.refused("index", index, "--columns", "score", "--missing=-1")
    refused = calls.refused("index", index, "--columns", "label", "--missing", "m=1")
    assert "given for 'm', which is not a requested column" in refused
    refused = calls.refused("index", index, "--columns", "label", "--extent-bytes", "1KiB")
    assert "--extent-bytes asks for another index" in refused
    calls.text("index", index, "--columns", "label")
    assert "the index has 'label' already" in calls.refused("index", labelled, "--columns", "label=cls")


def _indexed(directory: Path, calls: Calls) -> Path:
    return Path(calls.json("index", directory)["index"])
