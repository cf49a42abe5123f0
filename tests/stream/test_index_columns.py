"""What the index knows of each sample is a label wherever labels are asked for, and classes have names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.measure import audit
from shoal.pack import Writer
from shoal.stream.dataset import Dataset

HF = Path(__file__).parent.parent / "formats" / "data" / "hf"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory = tmp_path_factory.mktemp("lines") / "data"
    with Writer(directory, format="jsonl", shard_bytes=9000, columns=["label", "lang", "score"]) as writer:
        for number in range(600):
            writer.write(
                {
                    "__key__": str(number),
                    "label": number // 200,
                    "lang": ("de", "en")[number % 2],
                    "score": number / 7,
                    "pad": "x" * 40,
                }
            )
    return shoal.open(directory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory = tmp_path_factory.mktemp("folder")
    for number in range(40):
        path = directory / "images" / ("cat", "dog", "eel")[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number)
    (directory / "images" / "eel" / "empty.jpg").touch()
    return shoal.open(directory / "images", format="folder")


@pytest.mark.parametrize("name", ["label", "lang", "score"])
def test_a_column_of_the_index_is_the_key_of_a_prediction(lines: Dataset, name: str) -> None:
    ds = lines.shuffle(seed=1, window="20KB", chunk="5KB")
    values = {
        "label": np.arange(600) // 200,
        "lang": np.arange(600) % 2,
        "score": np.arange(600) / 7,
    }[name]
    found = ds.quality(batch=16, key=name)
    assert dict(found.vr) == dict(ds.quality(batch=16, key=values).vr)
    assert (found.key, found.rho) == (name, ds.quality(batch=16, key=values).rho)


def test_a_column_is_had_as_an_array_by_id(lines: Dataset) -> None:
    ds = lines.shuffle("full", seed=3)
    labels = ds.index_column("label")
    assert labels.tolist() == [sample["label"] for sample in lines]
    assert not labels.flags.writeable
    assert audit(ds.ids(), labels=labels, batch=8).key == "labels"
    assert ds.index_column("bytes").dtype == np.float64
    assert len(np.unique(ds.index_column("shard"))) == ds.resolved.index.num_shards > 1
    words = ds.class_names("lang")
    assert [words[code] for code in ds.index_column("lang")[:3]] == ["de", "en", "de"]


def test_an_unknown_column_is_refused_with_those_that_there_are(lines: Dataset) -> None:
    for ask in (lambda: lines.quality(batch=8, key="lable"), lambda: lines.index_column("lable")):
        with pytest.raises(UsageError, match="the index has no column 'lable'") as caught:
            ask()
        assert "did you mean 'label'?" in caught.value.hint


def test_the_directories_of_a_folder_are_its_label(folder: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.classes == ("cat", "dog", "eel")
    labels = folder.index_column("label")
    assert labels.tolist() == [sample["label"] for sample in folder]
    assert [sample["label"] for sample in folder.select(label="dog")] == [1] * 13
    assert folder.shuffle().quality(batch=4, key="label").key == "label"
    main(["info", str(Path(folder.stream.opened.paths[0]).parent.parent), "--format", "folder", "--json"])
    said = json.loads(capsys.readouterr().out)["index"]["columns"]
    assert said == {"label": {"type": "int64", "num_texts": 3, "texts": ["cat", "dog", "eel"]}}


def test_a_folder_without_classes_has_no_label(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"1")
    ds = shoal.open(tmp_path, format="folder")
    with pytest.raises(UsageError, match="no column 'label'"):
        ds.index_column("label")
    with pytest.raises(UsageError, match="have no names"):
        _ = ds.classes


@pytest.mark.parametrize("source", ["saved", "rows.parquet"])
def test_classes_of_hugging_face_are_those_of_its_features(source: str) -> None:
    pytest.importorskip("pyarrow")
    ds = shoal.open(HF / source)
    assert ds.classes == ("cat", "dog")
    assert ds.take(2).shuffle().classes == ds.class_names("label") == ("cat", "dog")


def test_packing_a_folder_keeps_the_names_of_its_classes(folder: Dataset, tmp_path: Path) -> None:
    assert main(["pack", str(Path(folder.stream.opened.paths[0]).parent.parent), str(tmp_path / "packed")]) == 0
    packed = shoal.open(tmp_path / "packed")
    assert packed.classes == folder.classes
    assert packed.index_column("label").tolist() == [sample["cls"] for sample in packed.decode()]


def test_names_of_other_fields_are_asked_for_by_name(lines: Dataset) -> None:
    assert lines.class_names("lang") == ("de", "en")
    for ask in (lambda: lines.class_names("score"), lambda: lines.classes):
        with pytest.raises(UsageError, match="have no names") as caught:
            ask()
        assert "'lang'" in caught.value.hint
