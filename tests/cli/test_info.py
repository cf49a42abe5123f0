"""`shoal info` says what there is, and what a shuffle of it would be."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calls import Calls, Terminal, make_shards
from tests.samples import write_jsonl

import shoal
from shoal.cli.main import main
from shoal.order.window.order import Window
from shoal.stats import live_line


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch, num_shards=8)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_what_a_dataset_holds(data: Path, calls: Calls) -> None:
    said = calls.json("info", data)
    index = shoal.open(data).resolved.index
    assert (said["format"], said["num_shards"], said["num_samples"]) == ("tar", 8, 400)
    assert said["num_bytes"] == sum(path.stat().st_size for path in data.glob("*.tar"))
    assert said["index"]["fingerprint"] == index.fingerprint
    assert said["index"]["num_extents"] == index.num_extents
    assert said["index"]["checksums"] is False
    assert said["not_indexed"] == {}


def test_sizes_of_samples(tmp_path: Path, data: Path, calls: Calls) -> None:
    del data
    path = write_jsonl(tmp_path / "docs" / "docs.jsonl")
    said = calls.json("info", path)["sample_bytes"]
    sizes = sorted(len(line) for line in path.read_bytes().splitlines(keepends=True))
    assert (said["min_bytes"], said["max_bytes"]) == (sizes[0], sizes[-1])
    assert said["mean_bytes"] == pytest.approx(np.mean(sizes))
    assert said["median_bytes"] == sizes[99]
    assert said["p95_bytes"] == sizes[189]


def test_where_the_index_comes_from(data: Path, calls: Calls, tmp_path: Path) -> None:
    first = calls.json("info", data)["index"]
    assert first["origin"].startswith("made now")
    assert Path(first["path"]).parent == tmp_path / "cache" / "indexes"
    assert calls.json("info", data)["index"]["origin"].startswith("made by this machine before")
    calls.text("index", data, "--checksum", "--output", tmp_path / "given.index")
    given = calls.json("info", data, "--index", tmp_path / "given.index")["index"]
    assert (given["origin"], given["checksums"]) == ("given", True)
    calls.text("index", data)
    os.utime(data / "shoal.index", (0, 0))
    beside = calls.json("info", data)["index"]
    assert beside["origin"] == "beside the shards"
    assert beside["path"] == str(data / "shoal.index")
    assert beside["age_seconds"] > 1e9


def test_shards_that_changed_are_counted(data: Path, calls: Calls) -> None:
    calls.text("index", data)
    text = calls.text("info", data)
    assert "resized" not in text
    assert "touched" not in text
    os.utime(data / "train-000003.tar", (5, 5))
    os.utime(data / "train-000004.tar", (5, 5))
    with (data / "train-000001.tar").open("ab") as file:
        file.write(bytes(512))
    said = calls.json("info", data)["index"]
    assert (said["num_resized_shards"], said["num_touched_shards"]) == (1, 2)
    text = calls.text("info", data)
    assert "resized shards" in text
    assert "touched shards" in text


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        ([], {}),
        (["--window", "256KiB", "--seed", "7"], {"window": "256KiB", "seed": 7}),
        (["--window", "512KiB", "--num-canonical-nodes", "2"], {"window": "512KiB", "num_canonical_nodes": 2}),
        (["--chunks", "4", "--num-canonical-nodes", "2"], {"order": Window(4, 2)}),
        (["--order", "full"], {"order": "full"}),
        (["--order", "none"], {"order": "none"}),
        (["--order", "block", "--chunks", "3", "--chunk", "50KiB"], {"order": shoal.orders.Block(3), "chunk": "50KiB"}),
        (["--order", "buffer", "--samples", "9"], {"order": shoal.orders.Buffer(9)}),
    ],
)
def test_the_order_is_that_of_shuffle(words: list[str], keywords: dict[str, object], data: Path, calls: Calls) -> None:
    dataset = shoal.open(data).shuffle(**keywords)  # type: ignore[arg-type]
    said = calls.json("info", data, *words)["order"]
    assert said["call"] == str(dataset.resolved)
    assert said["num_chunks"] == len(dataset.resolved.chunks)
    assert f"ds.{said['call']}" in calls.text("info", data, *words)
    again = eval(f"ds.{said['call']}", {"ds": shoal.open(data), "shoal": shoal})
    assert again.ids(1).tolist() == dataset.ids(1).tolist()


def test_the_bound_on_batches(data: Path, calls: Calls) -> None:
    calls.text("index", data, "--extent-bytes", "8KiB")
    words = ["info", data, "--chunks", 10, "--num-canonical-nodes", 1, "--chunk", "8KiB"]
    order = calls.json(*words, "--global-batch", 40)["order"]
    (bound,) = order["bounds"]
    # Below 40 / 10: of so small a dataset, a batch holds a fifth, and so all of some chunks.
    assert bound == {"global_batch": 40, "variance_ratio_at_most": pytest.approx(2.7, rel=0.05)}
    assert "small for global batches of 40" in order["warning"]
    assert calls.json(*words, "--global-batch", 5)["order"]["bounds"][0]["variance_ratio_at_most"] == 1
    text = calls.text(*words, "--global-batch", 40)
    assert "variance ratio at most" in text
    assert "shoal: warning: a window of 10 chunks is small" in calls.complaints
    calls.text(*words)
    assert calls.complaints == ""


def test_options_that_do_not_fit(data: Path, calls: Calls) -> None:
    assert "no argument 'samples'" in calls.refused("info", data, "--samples", 3)
    assert "no argument 'chunks'" in calls.refused("info", data, "--order", "full", "--chunks", 3)
    assert "in bytes, and --chunks" in calls.refused("info", data, "--chunks", 3, "--window", "1MiB")
    assert "no argument 'window'" in calls.refused("info", data, "--order", "full", "--window", "1MiB")
    assert "window must be" in calls.refused("info", data, "--window", "large")


def test_shards_without_samples_have_no_order(tmp_path: Path, calls: Calls, data: Path) -> None:
    del data
    (tmp_path / "blank.jsonl").write_text("\n\n")
    said = calls.json("info", tmp_path / "blank.jsonl")
    assert said["num_samples"] == 0
    assert said["not_indexed"] == {"blank_lines": 2}
    assert "order" not in said
    assert "blank lines 2" in calls.text("info", tmp_path / "blank.jsonl")


def test_a_progress_bar_shows_an_index_being_made(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_line, "_SHOW_AFTER_SECONDS", 0.0)
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert main(["info", str(data)]) == 0
    assert "indexing" in terminal.getvalue()


def test_columns_and_what_their_numbers_mean(tmp_path: Path, calls: Calls) -> None:
    for name in [f"class {number}" for number in range(12)]:
        (tmp_path / "files" / name).mkdir(parents=True)
        (tmp_path / "files" / name / "a.txt").write_text(name)
    shoal.pack.pack(tmp_path / "files", tmp_path / "shards", columns=["length"])
    said = calls.json("info", tmp_path / "shards")["index"]["columns"]
    assert said["length"] == {"type": "int64"}
    assert said["cls"]["num_texts"] == 12
    assert said["cls"]["texts"] == sorted(f"class {number}" for number in range(12))[:10]
    text = calls.text("info", tmp_path / "shards")
    assert "length (int64); cls (int64, 12 texts: class 0, class 1, class 10, " in text
    chosen = shoal.open(tmp_path / "shards").select(cls=said["cls"]["texts"][1])
    assert [sample["txt"] for sample in chosen.decode()] == ["class 1"]


def test_without_columns_none_are_shown(data: Path, calls: Calls) -> None:
    assert calls.json("info", data)["index"]["columns"] == {}
    assert "\ncolumns " not in calls.text("info", data)
