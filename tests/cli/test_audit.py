"""`shoal audit`: datasets as shoal orders them, and files of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cli.calls import Calls, make_shards

import shoal
from shoal.measure import audit
from shoal.pack import Writer


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def ids(tmp_path: Path) -> NDArray[np.int64]:
    result = np.random.default_rng(0).permutation(2000)
    np.save(tmp_path / "ids.npy", result)
    return result


def test_ids_of_any_loader(calls: Calls, ids: NDArray[np.int64], tmp_path: Path) -> None:
    record = calls.json("audit", tmp_path / "ids.npy")
    expected = audit(ids)
    assert (record["num_samples"], record["missing"], record["repeated"]) == (2000, 0, 0)
    assert record["vr"] == {str(size): ratio for size, ratio in expected.vr.items()}
    assert record["findings"] == []
    text = calls.text("audit", tmp_path / "ids.npy")
    assert "found none" in text
    assert "VR" in text


def test_ids_as_text_are_the_same(calls: Calls, ids: NDArray[np.int64], tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("\n".join(map(str, ids.tolist())))
    (tmp_path / "line.ids").write_text(", ".join(map(str, ids.tolist())))
    expected = calls.json("audit", tmp_path / "ids.npy")
    assert calls.json("audit", tmp_path / "ids.txt") == expected
    assert calls.json("audit", tmp_path / "line.ids") == expected


def test_what_is_wrong_is_said(calls: Calls, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([*range(1000), 7]))
    record = calls.json("audit", tmp_path / "ids.npy", "--num-samples", 1001)
    assert (record["missing"], record["repeated"]) == (1, 1)
    names = {finding["name"] for finding in record["findings"]}
    assert {"missing", "repeated", "storage order", "variance"} <= names
    text = calls.text("audit", tmp_path / "ids.npy", "--num-samples", 1001, "--strict", code=1)
    assert "! storage order (epoch 0): 999 of 1,000 samples" in " ".join(text.split())
    assert text.startswith(
        "Poor: VR 63 in batches of 64 (perfect: 1), 1 sample missing (less than 1%), 1 delivery repeated (less than 1%)"
    )
    assert "1 of 1,001 samples do not come: 1000." in text
    assert text.count("usual cause: ") == len({finding["cause"] for finding in record["findings"]})
    assert [finding["weight"] for finding in record["findings"] if finding["is_serious"]] == sorted(
        (finding["weight"] for finding in record["findings"] if finding["is_serious"]), reverse=True
    )


def test_epochs_are_files_or_parts_of_one(calls: Calls, ids: NDArray[np.int64], tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", ids)
    np.save(tmp_path / "both.npy", np.concatenate([ids, ids]))
    for words in ((tmp_path / "ids.npy", tmp_path / "b.npy"), (tmp_path / "both.npy", "--epochs", 2)):
        record = calls.json("audit", *words)
        assert record["num_epochs"] == 2
        assert "epoch 0 and epoch 1 have the same order" in [finding["text"] for finding in record["findings"]]


def test_another_stream_and_labels(calls: Calls, ids: NDArray[np.int64], tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(2000) // 100)
    record = calls.json("audit", tmp_path / "ids.npy", "--labels", tmp_path / "labels.npy", "--batch-size", 32)
    assert record["key"] == "labels"
    assert record["vr"] == {
        str(size): ratio for size, ratio in audit(ids, labels=np.arange(2000) // 100, batch=32).vr.items()
    }
    record = calls.json("audit", tmp_path / "ids.npy", "--other", tmp_path / "ids.npy")
    assert "same order" in {finding["name"] for finding in record["findings"]}


def test_the_part_of_a_rank(calls: Calls, ids: NDArray[np.int64], tmp_path: Path) -> None:
    np.save(tmp_path / "rank.npy", ids[::4])
    words = ["audit", tmp_path / "rank.npy", "--num-samples", 2000]
    assert [finding["name"] for finding in calls.json(*words)["findings"]] == ["missing"]
    assert calls.json(*words, "--part")["findings"] == []


def test_a_dataset_is_audited_with_the_next_seed(calls: Calls, data: Path) -> None:
    record = calls.json("audit", data, "--order", "full")
    assert record["findings"] == []
    assert record["num_epochs"] == 2
    assert "Full" in record["order"]
    assert all(abs(ratio - 1) < 0.01 for ratio in record["predicted_vr"].values())
    assert "predicted" in calls.text("audit", data, "--order", "block", "--chunks", 2)
    record = calls.json("audit", data, "--order", "none", "--epochs", 1, "--by", "shard")
    assert record["key"] == "labels"
    assert record["vr"]["64"] > 10
    assert "predicted_vr" not in record
    assert record["order"] == "shuffle(shoal.orders.Sequential(), seed=0)"
    assert "all 200 labels are equal" in calls.refused("audit", data, "--by", "bytes")  # these samples have one size


def test_it_is_drawn(calls: Calls, ids: NDArray[np.int64], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg", "a.png"):
        calls.text("audit", tmp_path / "ids.npy", "--picture", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    assert int.from_bytes((tmp_path / "a.png").read_bytes()[16:20]) == 1200


def test_a_long_name_fits_into_the_picture(calls: Calls, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    path = data.rename(tmp_path / ("d" * 120))
    calls.text("audit", path, "--window", "200KiB", "--num-canonical-nodes", 1, "--picture", tmp_path / "audit.png")
    calls.text("plan", path, "--global-batch", 16, "--picture", tmp_path / "plan.png")
    for name in ("audit.png", "plan.png"):
        head = np.asarray(image.open(tmp_path / name).convert("L"))[:60]
        assert head.min() < 100  # the name
        assert head[:, -10:].min() == 255


def test_what_cannot_be_audited(calls: Calls, ids: NDArray[np.int64], data: Path, tmp_path: Path) -> None:
    assert "cannot be audited together" in calls.refused("audit", tmp_path / "ids.npy", data)
    assert "--seed is about the order" in calls.refused("audit", tmp_path / "ids.npy", "--seed", 1)
    assert "ids alone have no" in calls.refused("audit", tmp_path / "ids.npy", "--by", "shard")
    assert "--part is about ids" in calls.refused("audit", data, "--part")
    assert "--keys is about ids" in calls.refused("audit", data, "--keys", data)
    assert "no column 'lable'" in calls.refused("audit", data, "--by", "lable")
    (tmp_path / "words.txt").write_text("one two")
    assert "ids are integers" in calls.refused("audit", tmp_path / "words.txt")
    (tmp_path / "no.npy").write_bytes(b"not an array")
    assert "not an array" in calls.refused("audit", tmp_path / "no.npy")
    np.savez(tmp_path / "archive.npz", ids=ids)
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    assert "archive of several" in calls.refused("audit", tmp_path / "archive.npy")
    np.save(tmp_path / "short.npy", ids[:10])
    assert "of equal length" in calls.refused("audit", tmp_path / "ids.npy", tmp_path / "short.npy")
    assert "No such file" in calls.refused("audit", tmp_path / "none.npy")


def test_a_column_of_the_index_is_the_label(calls: Calls, tmp_path: Path) -> None:
    with Writer(tmp_path / "lines", format="jsonl", columns=["label"]) as writer:
        for number in range(600):
            writer.write({"__key__": str(number), "label": ("old", "new")[number // 300]})
    words = ["audit", tmp_path / "lines", "--order", "none", "--epochs", 1]
    record = calls.json(*words, "--by", "label")
    assert record["key"] == "labels"
    labels = shoal.open(tmp_path / "lines").index_column("label")
    assert record["vr"]["64"] == audit(np.arange(600), labels=labels).vr[64]


def test_keys_of_a_loader_stand_for_samples(calls: Calls, data: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(200)
    keys = [f"{number:04d}" for number in range(200)]
    (tmp_path / "all.txt").write_text("".join(f"{key}\n" for key in keys))
    (tmp_path / "came.txt").write_text("".join(f"{keys[number]}\n" for number in order))
    np.save(tmp_path / "came.npy", np.array(keys)[order])
    np.save(tmp_path / "ids.npy", order)
    expected = calls.json("audit", tmp_path / "ids.npy")
    for came, where in (("came.txt", data), ("came.npy", tmp_path / "all.txt"), ("came.txt", tmp_path / "all.txt")):
        assert calls.json("audit", tmp_path / came, "--keys", where) == expected
    record = calls.json("audit", tmp_path / "came.txt", "--keys", data, "--by", "shard", "--batch-size", 8)
    assert record["vr"]["8"] == audit(order, labels=np.arange(200) // 50, batch=8).vr[8]


@pytest.mark.parametrize("made", ["folder", "parquet"])
def test_keys_of_files_and_of_what_is_packed_from_them(calls: Calls, tmp_path: Path, made: str) -> None:
    for number in range(30):
        path = tmp_path / "images" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number)
    where, option = tmp_path / "images", ["--format", "folder"]
    keys = [sample["__key__"] for sample in shoal.open(where, format="folder")]
    if made == "parquet":
        calls.text("pack", where, tmp_path / "packed", "--format", "parquet")
        where, option = tmp_path / "packed", []
        keys = [sample["key"] for sample in shoal.open(where)]
    order = np.random.default_rng(0).permutation(30)
    (tmp_path / "came.txt").write_text("".join(f"{keys[number]}\n" for number in order))
    record = calls.json("audit", tmp_path / "came.txt", "--keys", where, *option, "--by", "cls", "--batch-size", 4)
    labels = shoal.open(where, format="folder" if option else None).index_column("cls")
    assert (record["missing"], record["repeated"], record["unknown"]) == (0, 0, 0)
    assert record["vr"]["4"] == audit(order, labels=labels, batch=4).vr[4]


def test_keys_that_are_missing_twice_or_strange_are_counted(calls: Calls, data: Path, tmp_path: Path) -> None:
    (tmp_path / "came.txt").write_text("".join(f"{number:04d}\n" for number in [*range(199), 7, 9999]))
    record = calls.json("audit", tmp_path / "came.txt", "--keys", data)
    assert (record["num_samples"], record["missing"], record["repeated"], record["unknown"]) == (200, 1, 1, 1)


def test_keys_that_cannot_be_used_are_refused(calls: Calls, data: Path, tmp_path: Path) -> None:
    (tmp_path / "came.txt").write_text("a\nb\n")
    assert "none of 2 delivered keys" in calls.refused("audit", tmp_path / "came.txt", "--keys", data)
    (tmp_path / "twice.txt").write_text("a\nb\na\n")
    complaint = calls.refused("audit", tmp_path / "came.txt", "--keys", tmp_path / "twice.txt")
    assert "'a' is sample 0 and sample 2" in complaint
    assert "need --keys" in calls.refused("audit", tmp_path / "came.txt")
    (tmp_path / "docs.jsonl").write_text('{"a": 1}\n')
    assert "have no keys" in calls.refused("audit", tmp_path / "came.txt", "--keys", tmp_path / "docs.jsonl")
    (tmp_path / "bytes.txt").write_bytes(b"a\xff\n")
    assert "byte 1 is not" in calls.refused("audit", tmp_path / "bytes.txt", "--keys", data)


def test_orders_are_compared_with_the_window_without_a_dataset(tmp_path: Path, calls: Calls) -> None:
    words = ["audit", "--like", "buffer(samples=500)", "--like", "none", "--num-samples", 20_000, "--shards", 40]
    facts = calls.json(*words, "--picture", tmp_path / "orders.svg")["orders"]
    assert list(facts)[:2] == ["buffer(samples=500)", "none"]
    window = facts[list(facts)[2]]
    assert window["most_held"] <= facts["buffer(samples=500)"]["most_held"] == 500
    assert window["vr"]["64"] < 4.0 < facts["buffer(samples=500)"]["vr"]["64"] < facts["none"]["vr"]["64"]
    assert "holds up to 500 samples" in (tmp_path / "orders.svg").read_text()
    assert "window(chunks=" in calls.text(*words)


def test_comparisons_that_cannot_be(tmp_path: Path, calls: Calls) -> None:
    assert "needs the size of the dataset" in calls.refused("audit", "--like", "none")
    sizes = ["--num-samples", 20_000, "--shards", 40]
    assert "without a dataset" in calls.refused("audit", tmp_path, "--like", "none", *sizes)
    assert "did you mean 'buffer'" in calls.refused("audit", "--like", "bufer", *sizes)
    assert "cannot fill" in calls.refused("audit", "--like", "none", "--num-samples", 3, "--shards", 4)
    assert "describes the dataset of a comparison" in calls.refused("audit", tmp_path, "--shards", 40)
    assert "was given" in calls.refused("audit")
