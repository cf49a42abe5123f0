"""What the index knows of each sample is a label wherever labels are asked for, and classes have names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.measure import audit
from shoal.order.partition import Partition
from shoal.pack import Writer
from shoal.pipeline.sample_columns import added_columns
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator_specs import WorkerSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.workers import packed_work

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


def test_the_directories_of_a_folder_are_its_classes(folder: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.classes == ("cat", "dog", "eel")
    labels = folder.index_column("cls")
    assert labels.tolist() == [sample["cls"] for sample in folder]
    assert [sample["cls"] for sample in folder.select(cls="dog")] == [1] * 13
    assert folder.shuffle().quality(batch=4, key="cls").key == "cls"
    main(["info", str(Path(folder.stream.opened.paths[0]).parent.parent), "--format", "folder", "--json"])
    said = json.loads(capsys.readouterr().out)["index"]["columns"]
    assert said == {"cls": {"type": "int64", "num_texts": 3, "texts": ["cat", "dog", "eel"]}}


def test_a_folder_without_classes_has_no_cls(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"1")
    ds = shoal.open(tmp_path, format="folder")
    with pytest.raises(UsageError, match="no column 'cls'"):
        ds.index_column("cls")
    with pytest.raises(UsageError, match="has no names"):
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
    assert packed.index_column("cls").tolist() == [sample["cls"] for sample in packed.decode()]


def test_names_of_other_fields_are_asked_for_by_name(lines: Dataset) -> None:
    assert lines.class_names("lang") == ("de", "en")
    for ask in (lambda: lines.class_names("score"), lambda: lines.classes):
        with pytest.raises(UsageError, match="has no names") as caught:
            ask()
        assert "'lang'" in caught.value.hint


def test_a_function_decides_each_text_of_a_column(lines: Dataset) -> None:
    asked = []

    def is_other(texts: NDArray[Any]) -> Any:
        asked.append(texts.tolist())
        return texts != "de"

    assert lines.select(lang=is_other).ids().tolist() == list(range(1, 600, 2))
    assert asked == [["de", "en"]]
    assert lines.select(lang=lambda texts: texts == "de").ids().tolist() == list(range(0, 600, 2))
    assert lines.select(lang=lambda texts: [text.startswith("d") for text in texts]).num_samples == 300
    assert lines.skip(99).select(lang=is_other, label=lambda label: label != 2).ids().tolist() == list(
        range(99, 400, 2)
    )
    with pytest.raises(UsageError, match="leaves none"):
        lines.select(lang=lambda texts: texts == "fr")
    for wrong in (lambda _: True, lambda texts: texts, lambda _: np.ones(600, dtype=bool)):
        with pytest.raises(UsageError, match="a boolean for each of 2 texts") as caught:
            lines.select(lang=wrong)
        assert "the distinct texts of the column" in caught.value.hint


@pytest.mark.parametrize(
    "function",
    [
        lambda label: label != "cat",
        lambda label: label == "no class",
        lambda label: np.not_equal("cat", label),
        lambda label: np.isin(label, ["cat", "dog"], invert=True),
        lambda label: label != np.array(["cat"]),
        lambda label: (label % 3) != "cat",
    ],
)
def test_numbers_are_not_compared_with_texts(lines: Dataset, folder: Dataset, function: Any) -> None:
    with pytest.raises(UsageError, match=r"the function for 'cls' compares numbers with '.*'") as caught:
        folder.select(cls=function)
    assert "class_names('cls').index(" in caught.value.hint
    with pytest.raises(UsageError, match="compares numbers with") as caught:
        lines.select(score=lambda column: column != "high")
    assert "class_names" not in str(caught.value)


def test_a_function_may_do_with_numbers_what_numpy_does(lines: Dataset, folder: Dataset) -> None:
    assert folder.select(cls=lambda label: (label == 0) | np.isin(label, [1])).num_samples == 27
    assert folder.select(cls=lambda label: np.where(label + 1 == 1, True, False)).num_samples == 14

    def changed(label: Any) -> Any:
        label = label.copy()
        label += 1
        return np.bincount(label)[label] == 14

    assert folder.select(cls=changed).num_samples == 14
    assert lines.select(score=lambda score: score > score.mean()).num_samples == 300


@pytest.fixture
def plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    rows: list[dict[str, Any]] = [{"lang": ("de", "en", "fr")[i % 3], "tokens": list(range(i % 9))} for i in range(90)]
    for number in range(1, 90, 2):
        rows[number]["n"] = number
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "x.jsonl"


def test_a_dataset_is_opened_with_columns(plain_lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = shoal.open(plain_lines)
    asked = {"lang": None, "size=tokens:len": None, "n": -1}
    ds = shoal.open(plain_lines, index_columns=asked)
    assert ds.select(lang=["de", "fr"], size=lambda sizes: sizes > 4).num_samples == sum(
        sample["lang"] != "en" and len(sample["tokens"]) > 4 for sample in without
    )
    assert ds.index_column("n").tolist() == [sample.get("n", -1) for sample in without]
    state = without.shuffle(seed=3).state_dict()
    ds.shuffle(seed=3).load_state_dict(state)
    assert ds.shuffle(seed=3).ids().tolist() == without.shuffle(seed=3).ids().tolist()
    # The second time they come from the cache, until a shard changes.
    monkeypatch.setattr(added_columns, "scan_columns", pytest.fail)
    again = shoal.open(plain_lines, index_columns=asked)
    assert again.index_column("lang").tolist() == ds.index_column("lang").tolist()
    monkeypatch.undo()
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(plain_lines.parent / "cache"))
    plain_lines.write_text(plain_lines.read_text().replace('"fr"', '"it"'))
    assert shoal.open(plain_lines, index_columns=asked).class_names("lang") == ("de", "en", "it")


def test_columns_that_are_there_are_not_read(lines: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_columns, "scan_columns", pytest.fail)
    directory = Path(lines.stream.opened.paths[0]).parent
    assert shoal.open(directory, index_columns=["label", "lang"]).select(lang="de").num_samples == 300


def test_columns_of_no_kind_are_refused(plain_lines: Path) -> None:
    with pytest.raises(UsageError, match="45 of 90 samples lack one") as caught:
        shoal.open(plain_lines, index_columns=["m=n"])
    assert 'index_columns={"m=n": VALUE}' in caught.value.hint
    with pytest.raises(UsageError, match="the value for samples without 'n' is a list"):
        shoal.open(plain_lines, index_columns={"n": [1]})
    with pytest.raises(UsageError, match="no column 'lang'") as caught:
        shoal.open(plain_lines).select(lang="de")
    assert "`shoal index --columns lang`" in caught.value.hint


def test_worker_processes_map_the_columns(plain_lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", 0)
    stream = shoal.open(plain_lines, index_columns=["lang"]).select(lang="de").shuffle(seed=0).stream
    pipeline = PipelineSpec(Partition(1, 1, batched=False), 0, ())
    resolved = stream.resolved
    assert isinstance(resolved, ResolvedOrder)
    work = WorkerSpec(stream.opened, resolved, pipeline, ReadingOptions())
    packed, _ = packed_work.pack(work)
    [opened] = packed_work.unpack(packed)[0].opened.parts
    assert len(packed) < 8000
    assert opened.index.columns["lang"].tolist() == stream.opened.index.columns["lang"].tolist()
