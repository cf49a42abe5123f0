"""`shoal trace` around a spike: neighbouring steps, other epochs, whole shards, states with gaps, and the page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.cli.calls import Calls, make_shards
from tests.samples import write_tar
from tests.tools.reports.reading_pages import faults, read

import shoal


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch, num_shards=4, samples_per_shard=30)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


RUN = ["--batch-size", 8, "--world-size", 2, "--seed", 3]  # 120 samples: 8 steps of 16, the last of 8


def test_the_steps_around_one(data: Path, calls: Calls) -> None:
    each = {step: calls.json("trace", data, "--step", step, *RUN)["samples"] for step in range(8)}
    said = calls.json("trace", data, "--step", 4, "--context", 2, *RUN)
    assert (said["step"], said["steps"], said["first_position"]) == (4, [2, 6], 64)
    assert said["samples"] == [row for step in range(2, 7) for row in each[step]]
    at_end = calls.json("trace", data, "--step", 7, "--context", 3, *RUN)
    assert at_end["samples"] == [row for step in range(4, 8) for row in each[step]]
    assert calls.json("trace", data, "--step", 0, "--context", 1, *RUN)["steps"] == [0, 1]
    text = calls.text("trace", data, "--step", 4, "--context", 1, *RUN)
    assert "sample  step" in text


def test_when_samples_come_in_other_epochs(data: Path, calls: Calls) -> None:
    dataset = shoal.open(data).shuffle(seed=3).batch(8)
    for row in calls.json("trace", data, "--step", 2, "--epochs", "0,1,5", *RUN)["samples"]:
        assert row["seen"]["0"] == 2
        for epoch in (1, 5):
            step = row["seen"][str(epoch)]
            both = [dataset.batch_ids(step, epoch=epoch, rank=rank, world_size=2).tolist() for rank in range(2)]
            assert row["sample"] in both[0] + both[1]
    dropped = [*RUN, "--remainder", "drop", "--epochs", "1"]
    rows = calls.json("trace", data, "--sample", ",".join(map(str, range(120))), *dropped)["samples"]
    assert sum(row["seen"]["1"] is None for row in rows) == 8
    assert "step in epoch 1" in calls.text("trace", data, "--step", 2, "--epochs", "1", *RUN)


def test_the_samples_of_a_shard(data: Path, calls: Calls) -> None:
    said = calls.json("trace", data, "--shard", "train-000002.tar", *RUN)
    assert (said["num_samples"], said["num_shown"]) == (30, 30)
    assert sorted(row["sample"] for row in said["samples"]) == list(range(60, 90))
    assert {row["shard"] for row in said["samples"]} == {"train-000002.tar"}
    positions = [row["position"] for row in said["samples"]]
    assert positions == sorted(positions)
    assert [row["step"] for row in said["samples"]] == [position // 16 for position in positions]
    few = calls.json("trace", data, "--shard", "train-000002.tar", "--limit", 5, *RUN)
    assert few["samples"] == said["samples"][:5]
    assert "none of 4 shards, the first train-000000.tar" in calls.refused("trace", data, "--shard", "other.tar", *RUN)


def test_a_state_that_left_something_out(data: Path, calls: Calls, tmp_path: Path) -> None:
    dataset = shoal.open(data).shuffle(seed=3).batch(16).without(steps=[1, 4])
    run = iter(dataset)
    batches = [[int(key) for key in next(run)["__key__"]] for _ in range(4)]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(dataset.state_dict()))
    words = ["--state", path, "--batch-size", 16]
    for step, batch in enumerate(batches):
        said = calls.json("trace", data, "--step", step, *words)
        assert [row["sample"] for row in said["samples"]] == batch
        positions = [row["position"] for row in said["samples"]]
        assert dataset.ids().tolist()[positions[0] : positions[-1] + 1] == batch
        assert (said["first_position"], said["end_position"]) == (positions[0], positions[-1] + 1)
        assert said["num_steps"] == 6
    after = calls.json("trace", data, "--step", 0, "--from-state", *words)
    assert [row["sample"] for row in after["samples"]] == [int(key) for key in next(run)["__key__"]]
    assert after["counted_from"] == 96
    gone = dataset.ids().tolist()[16]
    (row,) = calls.json("trace", data, "--sample", gone, *words)["samples"]
    assert (row["step"], row["position"]) == (None, 16)
    whole = calls.json("trace", data, "--sample", gone, "--epochs", "0,1", *words)["samples"][0]["seen"]
    assert whole["0"] is None
    assert whole["1"] is not None


def test_samples_are_shown(data: Path, calls: Calls) -> None:
    text = calls.text("trace", data, "--step", 1, "--show", "--limit", 3, *RUN)
    ids = shoal.open(data).shuffle(seed=3).batch(8).batch_ids(1, rank=0, world_size=2).tolist()
    assert f"sample {ids[0]}  {ids[0]:04d}  in step 1\n" in text
    assert f"txt  11 B  sample {ids[0]:04d}" in text
    assert "13 more rows are not shown" in text
    rows = calls.json("trace", data, "--step", 1, "--show", "--limit", 2, *RUN)["samples"]
    assert [row["fields"]["txt"] for row in rows] == [f"sample {number:04d}" for number in ids[:2]]


def test_the_limit_holds_for_rows_however_they_were_asked_for(data: Path, calls: Calls) -> None:
    for what in (["--step", 1], ["--sample", "1,2,3,4,5,6,7,8"], ["--shard", "train-000002.tar"]):
        said = calls.json("trace", data, *what, "--limit", 6, "--keys", *RUN)
        assert said["samples"] == calls.json("trace", data, *what, "--keys", *RUN)["samples"][:6]
        assert said["num_shown"] == 6
        text = calls.text("trace", data, *what, "--limit", 6, *RUN)
        assert sum(" train-00000" in line and line.split()[0].isdecimal() for line in text.splitlines()) == 6
        assert "more rows are not shown" in text
    assert "more rows are not shown; --limit 16 shows all" in calls.text("trace", data, "--step", 1, "--limit", 6, *RUN)
    assert "not shown" not in calls.text("trace", data, "--step", 1, "--limit", 16, *RUN)


def test_a_limit_begins_with_the_step_that_was_asked_for(data: Path, calls: Calls) -> None:
    all_rows = calls.json("trace", data, "--step", 2, "--context", 1, *RUN)["samples"]
    few = calls.json("trace", data, "--step", 2, "--context", 1, "--limit", 20, *RUN)["samples"]
    assert few == all_rows[:4] + all_rows[16:32]


def test_the_page_shows_texts_and_pictures(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    samples = []
    for number in range(12):
        file = io.BytesIO()
        image.new("RGB", (300, 200), (20 * number, 0, 0)).save(file, "PNG")
        picture = file.getvalue() if number else b"\x89PNG\r\n\x1a\nwhich it is not"
        words = f'<script>alert("{number}")</script> '.encode()
        samples.append({"__key__": f"{number:04d}".encode(), "png": picture, "txt": words})
    write_tar(tmp_path / "data" / "pictures.tar", samples)
    page = tmp_path / "trace.html"
    request = ["trace", tmp_path / "data", "--step", 1, "--context", 1, "--batch-size", 4, "--html", page]
    rows = calls.json(*request)["samples"]
    text = page.read_text(encoding="utf-8")
    assert faults(text) == []
    reading = read(text)
    images = [element for element in reading.elements if element.tag == "img"]
    assert len(images) == 11
    assert all(element.attributes["src"].startswith("data:image/jpeg;base64,") for element in images)
    shown = " ".join(element.text for element in reading.elements if element.tag == "main")
    assert "image that cannot be shown" in shown
    for row in rows:
        assert f'<script>alert("{row["sample"]}")</script>' in shown
        assert f"{row['shard']} [{row['first_byte']:,}, {row['end_byte']:,})" in shown
        assert row["seen"].keys() == {"1"}
    heads = [element.text for element in reading.elements if element.tag == "h2"]
    assert heads == ["Step 0", "Step 1 (requested)", "Step 2", "Origin of the samples"]
    assert len(text) < 100_000


def test_the_page_of_samples_that_are_nowhere(data: Path, calls: Calls, tmp_path: Path) -> None:
    words = ["trace", data, "--sample", ",".join(map(str, range(120))), *RUN, "--remainder", "drop", "--limit", 200]
    calls.text(*words, "--html", tmp_path / "trace.html")
    text = (tmp_path / "trace.html").read_text()
    assert faults(text) == []
    assert "Not delivered" in text
    assert "in the dropped remainder of epoch 0" in text


def test_a_run_in_the_growing_order_is_traced_by_its_state(data: Path, calls: Calls, tmp_path: Path) -> None:
    growing = shoal.open(data, index="grow").shuffle(seed=3, window="64KiB").with_ids().batch(8)
    epochs = []
    path = tmp_path / "state.json"
    for epoch in range(2):
        batches = []
        for batch in growing:
            batches.append(batch["__id__"].tolist())
            if len(batches) == 5:
                path.write_text(json.dumps(growing.state_dict()))
                state = ["--state", path, "--batch-size", 8]
                before = calls.json("trace", data, "--step", -1, "--from-state", *state)["samples"]
                assert [row["sample"] for row in before] == batches[-1]
                assert calls.json("trace", data, "--step", 2, *state)["epoch"] == epoch
        epochs.append(batches)
    index = growing.resolved.index
    for epoch, batches in enumerate(epochs):
        for step in (0, 7, len(batches) - 1):
            result = calls.json("trace", data, "--step", step, "--epoch", epoch, "--state", path, "--batch-size", 8)
            assert [row["sample"] for row in result["samples"]] == batches[step]
            places = [index.place(row["sample"])[0] for row in result["samples"]]
            assert [row["shard"] for row in result["samples"]] == places
