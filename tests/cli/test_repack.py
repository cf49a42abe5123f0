"""`shoal repack` says what it made, and what that is good for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.calls import Calls, make_shards
from tests.samples import write_tar

import shoal


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch, num_shards=8, samples_per_shard=64)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_before_and_after(data: Path, calls: Calls, tmp_path: Path) -> None:
    calls.text("index", data, "--extent-bytes", "8KiB")
    words = (
        "--mix",
        "--extent-bytes",
        "8KiB",
        "--memory",
        "256KiB",
        "--shard-bytes",
        "128KiB",
        "--columns",
        "label=cls",
        "--global-batch",
        "16",
    )

    said = calls.json("repack", data, tmp_path / "out", *words, "--window", "64KiB")
    assert (said["format"], said["num_samples"], said["num_workers"]) == ("tar", 512, 1)
    assert said["num_shards"] > 1
    assert said["peak_memory_bytes"] > 0
    position, label = said["mixedness"]
    assert (position["key"], label["key"]) == ("position in the source", "label")
    for row in (position, label):
        assert row["num_chunks_before"] >= 16
        assert row["rho_before"] > 0.9
        assert row["rho_after"] < 0.5
        assert row["vr_after"] < row["vr_before"]
    assert shoal.open(tmp_path / "out").num_samples == 512


def test_for_people(data: Path, calls: Calls, tmp_path: Path) -> None:
    text = calls.text("repack", data, tmp_path / "out", "--to", "parquet", "--shard-bytes", "300KiB")
    assert "as requested" in text
    assert "rho before" in text
    assert "position in the source              8             4           -          -" in text
    assert "note: rho needs 16 chunks; there are 8 chunks before and 4 after" in calls.complaints
    assert calls.text("verify", tmp_path / "out").count("damages") > 0


def test_what_cannot_be_predicted_is_no_error(data: Path, calls: Calls, tmp_path: Path) -> None:
    said = calls.json("repack", data, tmp_path / "out", "--window", "64KiB")
    assert "mixedness" not in said
    assert "no shuffle is predicted: window=65,536 bytes holds 1 chunk of" in calls.complaints


def test_several_sources_are_one_list(data: Path, calls: Calls, tmp_path: Path) -> None:
    shards = sorted(data.glob("*.tar"))[:3]
    said = calls.json("repack", *shards, tmp_path / "out", "--to", "mds", "--decode")
    assert (said["num_samples"], said["format"]) == (192, "mds")
    assert shoal.open(tmp_path / "out")[100]["txt"] == "sample 0100"


def test_of_many_that_are_skipped_some_are_shown_and_the_rest_counted(calls: Calls, tmp_path: Path) -> None:
    lines = [f'{{"x": {number}}}' if number % 2 else "no JSON" for number in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    text = calls.text("repack", tmp_path / "a.jsonl", tmp_path / "out", "--on-error", "skip")
    assert text.count("a.jsonl, byte ") == 20
    assert "note: 10 more inputs were skipped; --json lists all" in calls.complaints
    said = calls.json("repack", tmp_path / "a.jsonl", tmp_path / "again", "--on-error", "skip")
    assert len(said["skipped"]) == said["num_skipped"] == 30
    assert "more inputs were skipped" not in calls.complaints


def test_samples_that_got_another_key_are_counted(data: Path, calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        write_tar(tmp_path / "in" / f"{number}.tar", [{"__key__": b"same", "txt": b"%d" % number}])
    text = calls.text("repack", tmp_path / "in", tmp_path / "out")
    assert text.count("renamed") == 1
    assert "note: 1 sample followed a sample with the same key" in calls.complaints
    assert calls.json("repack", tmp_path / "in", tmp_path / "out")["num_renamed"] == 1
    assert calls.json("repack", data, tmp_path / "of data")["num_renamed"] == 0
    assert "renamed" not in calls.text("repack", data, tmp_path / "of data")


def test_refusals(data: Path, calls: Calls, tmp_path: Path) -> None:
    assert "no format 'zip'" in calls.refused("repack", data, tmp_path / "out", "--to", "zip")
    assert "everything there is input" in calls.refused("repack", data, data / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.tar").touch()
    assert "there are shards already" in calls.refused("repack", data, tmp_path / "full")
    assert "--memory" in calls.refused("repack", data, tmp_path / "out", "--mix", "--memory", "much")
    assert not (tmp_path / "out").exists()


def test_a_format_of_the_input_that_was_meant_for_the_output(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n' * 9)
    calls.text("repack", tmp_path / "x.jsonl", tmp_path / "out", "--format", "mds", code=1)
    assert "not an MDS shard" in calls.complaints
    assert "--format is the format of the input; --to mds writes shards of that format" in calls.complaints
    assert "--to" not in calls.refused("repack", tmp_path / "none.jsonl", tmp_path / "out", "--format", "jsonl")


def test_duplicates_and_classes_are_told(calls: Calls, tmp_path: Path) -> None:
    lines = [f'{{"x": {number % 10}, "kind": "{"ab"[number % 10 == 3]}"}}' for number in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    calls.text("index", tmp_path / "in.jsonl", "--columns", "kind")
    said = calls.json("repack", tmp_path / "in.jsonl", tmp_path / "out", "--dedup", "content", "--balance", "kind")
    assert (said["num_samples"], said["dedup"], said["num_duplicates"]) == (18, "content", 30)
    assert said["first_duplicates"][0] == {"name": "sample 10", "same_as": "sample 0"}
    assert said["classes"] == [
        {"class": "a", "num_inputs": 9, "num_samples": 9},
        {"class": "b", "num_inputs": 1, "num_samples": 9},
    ]
    assert calls.json("verify", tmp_path / "out")["num_samples"] == 18
    text = calls.text(
        "repack", tmp_path / "in.jsonl", tmp_path / "more", "--oversample", "b=3", "--oversample-key", "kind"
    )
    assert "b           4       12" in text
    assert "no column 'colour'" in calls.refused(
        "repack", tmp_path / "in.jsonl", tmp_path / "no", "--balance", "colour"
    )
