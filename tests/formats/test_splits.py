"""Splits are known from names and from what declares them, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShoalError, SourceError
from shoal.formats.metadata.splits import Splits, splits_in_dataset_dict, splits_in_energon, splits_in_names
from shoal.storage.sources.patterns import expand_braces

MUST_BE_CHOSEN = [
    ["train/a.tar", "test/a.tar"],
    ["train2017/a.tar", "val2017/a.tar"],
    ["en/train/a.tar", "en/dev/a.tar", "fr/train/a.tar"],
    ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
    ["data/train-00000-of-00001-0a1b.parquet", "data/unsupervised-00000-of-00001-0a1b.parquet"],
    ["imagenet1k-train-0000.tar", "imagenet1k-validation-00.tar"],
    ["mnist-train.tfrecord-00000-of-00001", "mnist-test.tfrecord-00000-of-00001"],
    ["TRAIN.jsonl", "Eval.jsonl"],
    ["dev.jsonl", "test.jsonl"],
]
ARE_ONE_DATASET = [
    ["a.tar", "b.tar"],
    ["train/a.tar", "train/b.tar"],
    ["train-000.tar", "train-001.tar"],
    ["train-clean-100/a.tar", "train-clean-360/a.tar"],
    ["car/1.jpg", "plane/1.jpg", "train/1.jpg"],  # one of these is a vehicle
    ["latest.tar", "contest.tar", "trainer.tar", "interval.tar", "develop.tar"],
    ["en-00000-of-00002.parquet", "fr-00001-of-00002.parquet"],
    ["train-000.tar", "shard-000.tar"],
]


@pytest.mark.parametrize("names", MUST_BE_CHOSEN)
def test_names_that_mean_splits(names: list[str]) -> None:
    splits = splits_in_names(names)
    assert splits is not None
    assert splits.must_be_chosen
    assert sorted(name for part in splits.parts.values() for name in part) == sorted(names)


@pytest.mark.parametrize("names", ARE_ONE_DATASET)
def test_names_that_mean_one_dataset(names: list[str]) -> None:
    splits = splits_in_names(names)
    assert splits is None or not splits.must_be_chosen


def test_a_split_is_found_by_name_or_as_the_only_one_of_its_kind() -> None:
    splits = splits_in_names(["train/a.tar", "val/a.tar", "dev-other/a.tar"])
    assert splits is not None
    assert [splits.named(name) for name in ("train", "training", "val", "dev-other")] == [
        "train",
        "train",
        "val",
        "dev-other",
    ]
    assert splits.named("validation") is None  # there are two
    assert splits.named("test") is None
    assert splits.directories == {"train": "train", "val": "val", "dev-other": "dev-other"}


def test_a_split_in_several_directories_has_none_of_its_own() -> None:
    splits = splits_in_names(["en/train/a.tar", "en/test/a.tar", "fr/train/a.tar"])
    assert splits is not None
    assert splits.parts["train"] == ("en/train/a.tar", "fr/train/a.tar")
    assert splits.directories == {"test": "en/test"}


def energon(text: str, names: list[str], *, name: str = "split.yaml") -> Splits:
    return splits_in_energon(text.encode(), names, path=f"/data/.nv-meta/{name}", expand=expand_braces)


def test_what_energon_lists() -> None:
    names = [f"shards/{number:03d}.tar" for number in range(5)]
    text = """
    exclude: [shards/004.tar, "shards/001.tar/00{07,09}", shards/gone.tar/1]
    split_parts: {train: ["shards/{000..002}.tar", shards/004.tar], val: [shards/003.tar], test:}
    """
    splits = energon(text, names)
    assert splits.parts == {"train": tuple(names[:3]), "val": (names[3],), "test": ()}
    assert splits.left_out == {"shards/001.tar": {"0007", "0009"}}
    assert splits.filled == ["train", "val"]
    assert splits.source == ".nv-meta/split.yaml"
    as_json = energon(json.dumps({"split_parts": {"train": names}}), names, name="split.json")
    assert as_json.parts == {"train": tuple(names)}
    assert not as_json.must_be_chosen


WRONG = [
    "split_parts: [a.tar]",
    "split_parts: {train: a.tar}",
    "split_parts: {train: [a.tar, 7]}",
    "split_parts: {train: [b.tar]}",
    "split_parts: {train: [a.tar]}\nexclude: a.tar",
    "split_parts: {train: [a.tar]}\nexclude: [a]",
    "split_parts: {train: [a.tar",
    "- a.tar",
    "!!python/object/apply:os.system [echo]",
    "\udcff",
]


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_split_file_is_named(text: str) -> None:
    with pytest.raises(SourceError, match=r"/data/\.nv-meta/split\.yaml") as caught:
        splits_in_energon(
            text.encode("utf-8", "surrogateescape"), ["a.tar"], path="/data/.nv-meta/split.yaml", expand=expand_braces
        )
    assert caught.value.hint


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_splits_or_refused(data: bytes) -> None:
    for read in (
        lambda: splits_in_dataset_dict(data, ["a.arrow"], path="dataset_dict.json"),
        lambda: splits_in_energon(data, ["a.tar"], path="d/.nv-meta/split.yaml", expand=expand_braces),
        lambda: splits_in_energon(data, ["a.tar"], path="d/.nv-meta/split.json", expand=expand_braces),
    ):
        with contextlib.suppress(ShoalError):
            read()


def test_what_a_saved_dataset_dict_lists() -> None:
    names = ["fold1/data-0.arrow", "fold2/data-0.arrow"]
    splits = splits_in_dataset_dict(b'{"splits": ["fold1", "fold2"]}', names, path="dataset_dict.json")
    assert splits.must_be_chosen
    assert splits.parts == {"fold1": (names[0],), "fold2": (names[1],)}
    with pytest.raises(SourceError, match="no list of splits"):
        splits_in_dataset_dict(b'{"splits": "train"}', names, path="dataset_dict.json")
