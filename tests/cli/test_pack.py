"""`shoal pack`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.pack.files import make_files

import shoal
from shoal.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, Any, str]:
    code = main(["pack", *map(str, words), "--workers", "1"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out.startswith("{") else said.out, said.err


def test_shards_as_inputs_are_spoken_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "in"
    data.mkdir()
    for number in range(3):
        (data / f"{number}.PARQUET").write_bytes(b"PAR1")
    code, said, notes = run(capsys, data, tmp_path / "out", "--json")
    assert (code, said["num_samples"]) == (0, 3)
    assert "all 3 inputs end in .parquet, like shards; each input becomes one sample" in notes
    assert f"`shoal repack {data}" in notes
    (data / "4.txt").write_bytes(b"text")
    code, said, notes = run(capsys, data, tmp_path / "other", "--json")
    assert (code, said["num_samples"]) == (0, 4)
    assert "like shards" not in notes


def test_a_directory_is_packed_and_what_was_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path / "in")
    words: list[str | Path] = [
        tmp_path / "in",
        tmp_path / "out",
        "--shuffle",
        "--balance",
        "cls",
        "--columns",
        "length,bytes=length",
    ]
    code, said, _ = run(capsys, *words, "--json")
    assert code == 0
    assert (said["num_inputs"], said["num_samples"], said["num_skipped"]) == (95, 180, 0)
    assert said["classes"][2] == {"class": "zebra", "num_inputs": 5, "num_samples": 60}
    assert "of the time goes into waiting" in said["shard_limit_because"]
    assert said["peak_memory_bytes"] > 1 << 20
    code, again, noted = run(capsys, *words)
    assert code == 0
    assert said["digest"] in again
    assert "shards of earlier runs" in again
    assert "was already finished; nothing was done" in noted
    code, again, _ = run(capsys, *words, "--json")
    assert (code, again["num_samples"], again["samples_per_second"]) == (0, 180, 0)  # nothing was made
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["info", str(tmp_path / "out")]) == 0


def test_sizes_by_rule_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path / "in", classes={"a": 3})
    _, said, _ = run(capsys, tmp_path / "in", tmp_path / "out", "--readers", "8", "--format", "jsonl.zst", "--json")
    assert said["shard_limit_bytes"] == 1 << 20
    assert said["shard_limit_because"].startswith("1 MiB: ")
    assert said["format"] == "jsonl.zst"
    _, record, _ = run(capsys, tmp_path / "in", tmp_path / "other", "--format", "jsonl")
    labels = {line.partition("  ")[0] for line in record.splitlines()}
    assert "shard limit" in labels
    assert "shard" not in labels  # the limit is no size of a shard: 255 MiB beside 1.2 MiB of data


def test_skipped_inputs_are_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path / "in")
    (tmp_path / "in" / "cat" / "broken.txt").symlink_to("nowhere")
    code, _, err = run(capsys, tmp_path / "in", tmp_path / "out")
    assert code == 2
    assert "cat/broken.txt" in err
    code, said, _ = run(capsys, tmp_path / "in", tmp_path / "skipped", "--on-error", "skip", "--json")
    assert code == 0
    assert said["num_skipped"] == 1
    assert said["skipped"][0]["name"] == "cat/broken.txt"


def test_rows_that_are_no_columns_are_missing_from_their_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    rows: list[dict[str, Any]] = [{"path": f"{i}.txt", "kind": "ab"[i % 4 == 3], "value": i} for i in range(40)]
    rows[7]["value"] = rows[8]["value"] = "no number"
    for row in rows:
        (tmp_path / row["path"]).write_text("text")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--balance", "kind", "--columns", "kind", "--on-error", "skip", "--format", "parquet"]
    code, said, _ = run(capsys, tmp_path / "rows.jsonl", tmp_path / "out", *words, "--json")
    assert code == 0
    assert [(row["class"], row["num_promised"], row["num_samples"]) for row in said["classes"]] == [
        ("a", 30, 29),
        ("b", 30, 27),
    ]
    assert shoal.open(tmp_path / "out").select(kind="b").num_samples == 27


@pytest.mark.parametrize("name", ["tar", "jsonl", "parquet"])
def test_classes_are_told_as_they_were_promised_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    make_files(tmp_path / "in")
    broken = tmp_path / "in" / "zebra" / "001.txt"
    broken.unlink()
    broken.symlink_to("nowhere")
    words: list[str | Path] = [
        tmp_path / "in",
        tmp_path / "out",
        "--balance",
        "cls",
        "--shuffle",
        "--on-error",
        "skip",
    ]
    words += ["--format", name, "--shard-bytes", "8KiB"]
    code, said, _ = run(capsys, *words, "--json")
    assert code == 0
    assert said["num_shards"] > 1
    zebra = {"class": "zebra", "num_inputs": 5, "num_promised": 60, "num_samples": 48}
    assert said["classes"] == [
        {"class": "cat", "num_inputs": 30, "num_promised": 60, "num_samples": 60},
        {"class": "dog", "num_inputs": 60, "num_promised": 60, "num_samples": 60},
        zebra,
    ]
    assert (said["num_samples"], said["num_skipped"]) == (168, 12)
    assert shoal.open(tmp_path / "out").select(cls="zebra").num_samples == 48
    # All of it is known to who asks again, and nobody works.
    _, again, _ = run(capsys, *words, "--json")
    assert (again["classes"], again["skipped"], again["num_skipped"]) == (said["classes"], said["skipped"], 12)
    assert again["num_workers"] == 0
    _, shown, _ = run(capsys, *words)
    assert "promised" in shown
    assert "workers" not in shown
    assert main(["repack", str(tmp_path / "out"), str(tmp_path / "again")]) == 0
    assert "workers  " in capsys.readouterr().out
    assert main(["repack", str(tmp_path / "out"), str(tmp_path / "again")]) == 0
    assert "workers" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--oversample", "zebra=2", "--balance", "cls"], "give one of them"),
        (["--oversample", "zebra"], "class=times"),
        (["--oversample", "zebra=2", "--oversample", "zebra=3"], "name each class once"),
        (["--oversample", "lion=2"], "no input is of the class 'lion'"),
        (["--format", "zip"], "no format 'zip' to write"),
        (["--shard-bytes", "many"], "--shard-bytes"),
        (["--columns", "nothing"], "'nothing'"),
        (["--no-label", "--balance", "cls"], "no 'cls'"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    make_files(tmp_path / "in")
    code, _, err = run(capsys, tmp_path / "in", tmp_path / "out", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "out" / "shoal.index").exists()


def test_duplicates_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path / "in", classes={"a": 4, "b": 2})
    for number in range(15):
        (tmp_path / "in" / "a" / f"copy-{number:02d}.txt").write_text("a 0 ")
    code, said, _ = run(capsys, tmp_path / "in", tmp_path / "out", "--dedup", "content", "--json")
    assert code == 0
    assert (said["num_inputs"], said["num_samples"], said["dedup"], said["num_duplicates"]) == (21, 6, "content", 15)
    assert said["first_duplicates"][0] == {"name": "a/copy-00.txt", "same_as": "a/000.txt"}
    assert len(said["first_duplicates"]) == 10
    code, text, _ = run(capsys, tmp_path / "in", tmp_path / "out", "--dedup", "content")
    assert "duplicates" in text
    assert "a/copy-00.txt  a/000.txt" in text
    code, said, _ = run(capsys, tmp_path / "in", tmp_path / "plain", "--json")
    assert said["num_samples"] == 21
    assert "num_duplicates" not in said
    code, said, _ = run(capsys, tmp_path / "in", tmp_path / "keyed", "--dedup", "key", "--json")
    assert (said["num_samples"], said["num_duplicates"]) == (21, 0)
