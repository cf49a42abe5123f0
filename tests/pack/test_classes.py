"""Classes of directories have one rule, in folders that are opened and in what is packed: ImageFolder's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import SourceError, StorageError
from shoal.formats import Folder
from shoal.indexing.open_source import described_shards, wanted_suffixes
from shoal.indexing.split_selection import select_split
from shoal.storage.memory_store import MemoryStore
from shoal.storage.sources.source import expand


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """Three classes; the dog has no picture in the split val."""
    make(
        tmp_path / "data", "train/cat/1.jpg", "train/dog/2.jpg", "train/zebra/3.jpg", "val/cat/4.jpg", "val/zebra/5.jpg"
    )
    (tmp_path / "data" / "val" / "dog").mkdir()
    return tmp_path / "data"


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def classes_opened(ds: Any) -> dict[str, int]:
    """The name of the class of each file, by the last part of its key."""
    column = ds.index_column("cls").tolist()
    labels = [int(sample["cls"]) for sample in ds]
    assert labels == column
    return {sample["__key__"].rpartition("/")[2]: label for sample, label in zip(ds, labels, strict=True)}


def both(source: Any, out: Path, **how: Any) -> Sequence[Any]:
    """What is opened in place, and what is packed."""
    shoal.pack.pack(source, out, num_workers=1, **how)
    return shoal.open(source, format="folder"), shoal.open(out)


def test_a_file_beside_the_classes_takes_no_class_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = make(tmp_path / "m", "cat/1.jpg", "dog/2.jpg", "classes.txt", "logo.png")
    summary = shoal.pack.pack(data, tmp_path / "packed")
    reason = "it lies outside of the directories that are classes"
    assert summary.skipped == (("classes.txt", reason), ("logo.png", reason))
    again = shoal.pack.pack(data, tmp_path / "packed")  # all of it is there
    assert (again.skipped, again.digest) == (summary.skipped, summary.digest)
    for ds in (shoal.open(tmp_path / "packed"), shoal.open(data, format="folder")):
        assert ds.classes == ("cat", "dog")
        assert classes_opened(ds) == {"1": 0, "2": 1}
    assert "files outside of the classes are left out: 1 x .png" in caplog.text


def test_a_link_to_the_directory_of_a_class_that_is_gone_is_an_error(tmp_path: Path) -> None:
    data = make(tmp_path / "m", "cat/1.jpg")
    (data / "dog").symlink_to("elsewhere/dog")
    with pytest.raises(SourceError, match="m/dog is a link to elsewhere/dog, which does not exist"):
        shoal.open(data, format="folder")
    with pytest.raises(StorageError, match="m/dog: it is a link to elsewhere/dog, which does not exist"):
        shoal.pack.pack(data, tmp_path / "packed")
    ((name, reason),) = shoal.pack.pack(data, tmp_path / "packed", on_error="skip").skipped
    assert name == "dog"
    assert "it is a link to elsewhere/dog" in reason


def test_a_file_beside_the_only_split_changes_no_class(tmp_path: Path) -> None:
    data = make(tmp_path / "m", "train/cat/1.jpg", "train/dog/2.jpg", "README.md")
    for ds in both(data, tmp_path / "packed"):
        assert ds.classes == ("cat", "dog")
        assert classes_opened(ds) == {"1": 0, "2": 1}


@pytest.mark.parametrize("grouped", [False, True])
def test_data_beside_the_classes_is_an_error_that_names_it(tmp_path: Path, *, grouped: bool) -> None:
    data = make(tmp_path / "m", "cat/1.jpg", "dog/2.jpg", "3.jpg", "4.jpg")
    said = r"2 files lie outside of the class directories \(3\.jpg is the first\)"
    with pytest.raises(SourceError, match=said):
        shoal.open(data, format="folder")
    with pytest.raises(SourceError, match=said) as caught:
        shoal.pack.pack(data, tmp_path / "packed", grouped=grouped)
    assert "labelled=False" in caught.value.hint
    assert shoal.pack.pack(data, tmp_path / "all", labelled=False, grouped=grouped).num_samples == 4
    assert shoal.open(data, format=Folder(labels=False)).num_samples == 4
    summary = shoal.pack.pack(data, tmp_path / "some", on_error="skip", grouped=grouped)
    assert (summary.num_samples, [name for name, _ in summary.skipped]) == (2, ["3.jpg", "4.jpg"])
    assert shoal.open(tmp_path / "some").classes == ("cat", "dog")


def test_the_class_is_the_first_directory(tmp_path: Path) -> None:
    """As in Tiny ImageNet, where all pictures lie in directories called "images"."""
    data = make(tmp_path / "m", "n01/images/1.jpg", "n02/images/2.jpg", "n02/3.jpg")
    for ds in both(data, tmp_path / "packed"):
        assert ds.classes == ("n01", "n02")
        assert classes_opened(ds) == {"1": 0, "2": 1, "3": 1}


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_has_one_number_in_all_splits(split: str, splits: Path, tmp_path: Path) -> None:
    expected = {"train": {"1": 0, "2": 1, "3": 2}, "val": {"4": 0, "5": 2}}[split]
    chosen = shoal.open(splits, format="folder", split=split)
    for ds in (chosen, *both(splits / split, tmp_path / "packed")):
        assert ds.classes == ("cat", "dog", "zebra")
        assert classes_opened(ds) == expected


@pytest.mark.parametrize("has_directory", [False, True])
def test_a_class_that_one_split_lacks_keeps_its_number(splits: Path, tmp_path: Path, *, has_directory: bool) -> None:
    if not has_directory:
        (splits / "val" / "dog").rmdir()
    make(splits, "val/yak/6.jpg")
    for split, expected in (("val", {"4": 0, "6": 2, "5": 3}), ("train", {"1": 0, "2": 1, "3": 3})):
        for ds in (*both(splits / split, tmp_path / split), shoal.open(splits, format="folder", split=[split])):
            assert ds.classes == ("cat", "dog", "yak", "zebra")
            assert classes_opened(ds) == expected
    for ds in (shoal.open(splits, format="folder", split="all"), packed_together(splits, tmp_path / "together")):
        assert ds.classes == ("cat", "dog", "yak", "zebra")
        assert classes_opened(ds) == {"1": 0, "2": 1, "3": 3, "4": 0, "5": 3, "6": 2}


@pytest.mark.parametrize("format_name", ["tar", "jsonl", "tfrecord", "parquet", "arrow", "mds"])
def test_the_class_has_one_name_in_all_formats(format_name: str, splits: Path, tmp_path: Path) -> None:
    shoal.pack.pack(splits / "val", tmp_path / "packed", format=format_name, labelled=True)
    shoal.pack.pack(splits / "val", tmp_path / "grouped", format=format_name, grouped=True)
    found = [shoal.open(splits / "val", format="folder")]
    found += [shoal.open(tmp_path / name) for name in ("packed", "grouped")]
    if format_name != "jsonl":  # which holds no bytes
        shoal.pack.repack(splits / "val", tmp_path / "again", source_format="folder", format=format_name, num_workers=1)
        found.append(shoal.open(tmp_path / "again"))
    for ds in found:
        assert ds.index_column("cls").tolist() == [0, 2]
        assert [int(np.ravel(sample["cls"])[0]) for sample in ds] == [0, 2]
        assert ds.select(cls="zebra").num_samples == 1
        assert ds.classes == ("cat", "dog", "zebra")


def packed_together(source: Path, out: Path) -> Any:
    shoal.pack.pack(source, out)
    return shoal.open(out)


def test_an_index_of_all_splits_numbers_classes_in_each(splits: Path) -> None:
    assert main(["index", str(splits), "--format", "folder", "--split", "all"]) == 0
    for split, expected in (("val", {"4": 0, "5": 2}), ("train", {"1": 0, "2": 1, "3": 2})):
        ds = shoal.open(splits / "shoal.index", split=split)
        assert ds.classes == ("cat", "dog", "zebra")
        assert classes_opened(ds) == expected


def test_a_directory_without_files_is_a_class(tmp_path: Path) -> None:
    data = make(tmp_path / "m", "cat/1.jpg", "zebra/2.jpg")
    (data / "dog").mkdir()
    (data / ".git").mkdir()
    for ds in both(data, tmp_path / "packed"):
        assert ds.classes == ("cat", "dog", "zebra")
        assert classes_opened(ds) == {"1": 0, "2": 2}


def test_a_glob_numbers_the_classes_of_the_files_that_it_matches(splits: Path, tmp_path: Path) -> None:
    for number, pattern in enumerate(("*/*.jpg", "**/*.jpg")):
        for ds in both(str(splits / "val" / pattern), tmp_path / f"packed{number}"):
            assert ds.classes == ("cat", "zebra")
    for ds in both(str(splits / "val" / "**" / "5.jpg"), tmp_path / "one"):
        assert ds.classes == ("zebra",)  # the only file that matches does lie in a class


def test_a_glob_below_a_directory_with_brackets_in_its_name(tmp_path: Path) -> None:
    data = make(tmp_path / "run[1]", "cat/1.jpg", "dog/2.jpg")
    make(tmp_path / "run1", "cat/3.jpg")
    for ds in both(str(data / "*" / "*.jpg"), tmp_path / "packed"):
        assert classes_opened(ds) == {"1": 0, "2": 1}


def test_classes_that_are_given_have_their_numbers(splits: Path) -> None:
    train = shoal.open(splits, format="folder", split="train")
    pattern = str(splits / "val" / "*" / "*.jpg")
    val = shoal.open(pattern, format=Folder(classes=train.classes))
    assert val.classes == train.classes
    assert classes_opened(val) == {"4": 0, "5": 2}
    with pytest.raises(SourceError, match="the class 'zebra' is not one of the 2 in classes="):
        shoal.open(pattern, format=Folder(classes=["cat", "dog"]))


def test_splits_of_a_store_are_numbered_together(splits: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    for path in splits.rglob("*.jpg"):
        store.put(f"memory://splits-of-classes/{path.relative_to(splits)}", path.read_bytes())
    suffixes = wanted_suffixes("folder")
    found = expand("memory://splits-of-classes", suffixes=suffixes, store=store)
    chosen = select_split(found, "val", suffixes=suffixes, store=store).source
    what = described_shards(chosen, "folder", store)
    assert isinstance(what.format, Folder)
    assert what.format.classes == ("cat", "dog", "zebra")
    assert caplog.text == ""
    alone = described_shards(expand("memory://splits-of-classes/val", suffixes=suffixes, store=store), "folder", store)
    assert isinstance(alone.format, Folder)
    assert alone.format.classes == ("cat", "zebra")
    assert "split='val' of the directory above numbers all splits" in caplog.text
