"""Folders whose files are the samples, with classes from directories and rows from tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import ShardError, SourceError
from shoal.formats import Folder
from shoal.indexing.build import build_index
from shoal.indexing.open_source import described_shards, wanted_suffixes
from shoal.storage.memory_store import MemoryStore
from shoal.storage.sources.source import expand
from shoal.testing import check_format

CLASSES = ("a cat", "d\u00f6g", "\U0001f41f")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of four files, whose names have spaces and more; one is empty."""
    for label, name in enumerate(CLASSES):
        directory = tmp_path / "images" / "train" / name
        directory.mkdir(parents=True)
        for number in range(4):
            (directory / f"{label} {number} \u00e9.{'JPG' if number % 2 else 'jpg'}").write_bytes(
                b"%d.%d" % (label, number)
            )
    (directory / "empty.jpg").touch()
    (directory / ".DS_Store").write_text("hidden")
    (directory / "notes.md").write_text("no media")
    return tmp_path / "images"


def samples(ds: Any) -> list[dict[str, Any]]:
    return [dict(sample) for sample in ds]


def test_each_file_is_a_sample_with_the_class_of_its_directory(folder: Path) -> None:
    ds = shoal.open(folder, format="folder")
    found = samples(ds)
    assert [sample["jpg"] for sample in found] == [b"%d.%d" % (c, n) for c in range(3) for n in range(4)]
    assert [sample["cls"] for sample in found] == [label for label in range(3) for _ in range(4)]
    assert found[5]["__key__"] == "train/d\u00f6g/1 1 \u00e9"
    shuffled = ds.shuffle(seed=1, window="1KiB")
    assert sorted(sample["jpg"] for sample in shuffled) == sorted(sample["jpg"] for sample in found)
    assert ds[7] == found[7]
    named = shoal.open(str(folder / "train" / "*" / "*.jpg"), format=Folder(field="image", labels=False))
    assert samples(named)[0] == {"__key__": "a cat/0 0 \u00e9", "image": b"0.0"}


def test_state_and_ranks_are_those_of_any_dataset(folder: Path) -> None:
    ds = shoal.open(folder, format="folder").shuffle(seed=4)
    expected = samples(ds)
    stopped = shoal.open(folder, format="folder").shuffle(seed=4)
    iterator = iter(stopped)
    head = [next(iterator) for _ in range(5)]
    again = shoal.open(folder, format="folder").shuffle(seed=4)
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert head + samples(again) == expected


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_tables_say_more_of_files(folder: Path, kind: str) -> None:
    names = sorted(
        str(path.relative_to(folder / "train")) for path in folder.rglob("*") if path.suffix in (".jpg", ".JPG")
    )
    if kind == "csv":
        text = "file_name,text,n\n" + "".join(f'"{name}","says ""{name}""",{n}\n' for n, name in enumerate(names))
    else:
        rows = [{"file_name": name, "text": f'says "{name}"', "n": n} for n, name in enumerate(names)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = folder / "train" / f"metadata.{kind}"
    table.write_text(text)
    found = samples(shoal.open(folder, format="folder"))
    assert len(found) == 12
    assert all("cls" not in sample for sample in found)
    by_key = {sample["__key__"]: sample for sample in found}
    assert by_key["train/a cat/0 0 \u00e9"]["text"] == 'says "a cat/0 0 \u00e9.jpg"'
    assert by_key["train/a cat/0 0 \u00e9"]["n"] == ("0" if kind == "csv" else 0)
    assert {sample["cls"] for sample in shoal.open(folder, format=Folder(labels=True))} == {0, 1, 2}
    # A table that changed is another index, and one that does not fit is refused.
    table.write_text(text.replace("says", "said"))
    assert all(sample["text"].startswith("said") for sample in shoal.open(folder, format="folder"))
    for wrong, match in (
        (text.replace(names[0], "gone.jpg", 1), "lists 1 files that are not there"),
        ("".join(text.splitlines(keepends=True)[:-1]), "no rows for 1 of 13 files"),
        (text + text.splitlines(keepends=True)[-1], "two rows name"),
        (text.replace("file_name", "name"), "no column 'file_name'"),
        (text + "{\n" if kind == "jsonl" else text + "a,b,c,d\n", "cannot be used"),
    ):
        table.write_text(wrong)
        with pytest.raises(SourceError, match=match):
            shoal.open(folder, format="folder")


@pytest.mark.parametrize(
    ("column", "folder_format"),
    [
        ("jpg", Folder()),
        ("__key__", Folder()),
        ("image", Folder(field="image")),
        ("cls", Folder(labels=True)),
    ],
)
def test_a_table_takes_the_place_of_nothing(column: str, folder_format: Folder, folder: Path) -> None:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".jpg", ".JPG"))
    rows = [{"file_name": name, column: "mine"} for name in names]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SourceError, match=f"the column '{column}' would replace") as caught:
        shoal.open(folder, format=folder_format)
    assert "rename it" in caught.value.hint


def test_the_index_keeps_classes_and_rows(folder: Path) -> None:
    assert main(["index", str(folder), "--format", "folder"]) == 0
    before = samples(shoal.open(folder, format="folder"))
    shutil.move(folder, folder.parent / "moved")
    for path in (folder.parent / "moved").rglob("*.jpg"):
        path.touch()  # another time: the files are looked at again
    assert samples(shoal.open(folder.parent / "moved" / "shoal.index")) == before
    assert samples(shoal.open(folder.parent / "moved", format="folder")) == before


def test_a_file_of_another_size_is_noticed(folder: Path) -> None:
    ds = shoal.open(folder, format="folder")
    (folder / "train" / "a cat" / "0 0 \u00e9.jpg").write_bytes(b"longer than before")
    with pytest.raises(ShardError, match="not the one that was indexed"):
        samples(ds)


def test_what_cannot_be_told_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError) as caught:
        shoal.open(folder)
    assert 'format="folder"' in caught.value.hint
    (folder / "stray.jpg").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"stray\.jpg lies outside of the class directories"):
        shoal.open(folder, format="folder")
    assert shoal.open(folder, format=Folder(labels=False)).num_samples == 13
    flat = folder / "train" / CLASSES[0]
    assert "cls" not in samples(shoal.open(flat, format="folder"))[0]


def test_the_index_is_that_of_scans_and_the_format_conforms(folder: Path) -> None:
    store = MemoryStore()
    for path in folder.rglob("*.*"):
        if path.is_file():
            store.put(f"memory://far/{path.relative_to(folder)}", path.read_bytes())
    found = expand("memory://far", suffixes=wanted_suffixes("folder"), store=store)
    what = described_shards(found, "folder", store)
    assert isinstance(what.format, Folder)
    assert what.format.classes == tuple(sorted(CLASSES))
    index = build_index(what.source, store=store, format=what.format)
    assert index.notes == {"empty_files": 1}
    assert index.num_samples == 12
    shards = {
        "a b/\u00e9.jpg": (b"one", [{"__key__": "a b/\u00e9", "jpg": b"one"}]),
        "none.jpg": (b"", []),
        "huge.PNG": (bytes(5_000_000), [{"__key__": "huge", "png": bytes(5_000_000)}]),
    }
    assert check_format(Folder(), shards).num_samples == 2


def test_a_folder_of_other_kinds_of_files_says_how_to_have_them(tmp_path: Path) -> None:
    for name in ("a/0.txt", "a/1.txt", "b/2.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    with pytest.raises(SourceError, match=r'(?s)found 2 x \.txt, 1 x \.md\n.*Folder\(suffixes=\["\.txt"\]\)'):
        shoal.open(tmp_path, format="folder")
    assert len(shoal.open(tmp_path, format=Folder(suffixes=[".txt"]))) == 2
