"""Columns of Hugging Face datasets, as `datasets` itself wrote them and reads them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import UsageError
from shoal.formats.decoding.hf_features import feature_decoders, features_in

pa = pytest.importorskip("pyarrow")
pytest.importorskip("PIL")

DATA = Path(__file__).parent.parent / "formats" / "data" / "hf"
SOURCES = {"saved": DATA / "saved", "cache": DATA / "cache.arrow", "parquet": DATA / "rows.parquet"}


def plain(value: Any) -> Any:
    """A value as JSON, with its type, as make_hf.py writes it."""
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return ["image", value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list):
        return ["list", [plain(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", {name: plain(item) for name, item in value.items()}]
    return [type(value).__name__, value]


def known(source: str = "saved") -> list[Any]:
    """What datasets gives; audio as the bytes of its file, but for the cache file, whose features say not to decode."""
    rows = json.loads((DATA / "rows.json").read_text())
    for _, fields in rows if source != "cache" else ():
        fields["audio"] = fields["audio"][1]["bytes"]
    return rows


@pytest.mark.parametrize("source", SOURCES)
def test_rows_are_those_of_datasets(source: str) -> None:
    ds = shoal.open(SOURCES[source]).decode("hf")
    assert [plain(sample) for sample in ds] == known(source)
    assert plain(ds[2]) == known(source)[2]


def test_without_asking_nothing_is_decoded() -> None:
    sample = shoal.open(SOURCES["saved"])[1]
    assert set(sample["image"]) == {"bytes", "path"}
    assert sample["audio"]["bytes"] == b"RI\x01"


def test_classes_by_name() -> None:
    ds = shoal.open(SOURCES["saved"]).decode("hf-names")
    assert [sample["label"] for sample in ds] == ["cat", "dog", "cat", None, "cat", "dog"]
    assert ds[5]["deep"] == {"label": "dog", "text": "row 5"}
    assert ds[2]["boxes"] == [{"label": "cat", "area": 0.0}, {"label": "dog", "area": 0.5}]


def test_features_go_along_to_processes_and_batches() -> None:
    ds = shoal.open(SOURCES["saved"]).decode("hf")
    stage = pickle.loads(pickle.dumps(ds.stream.spec.stages[0]))
    assert plain(stage(shoal.open(SOURCES["saved"])[1], 1)) == known()[1]
    (batch,) = ds.batch(6)
    assert batch["label"].tolist() == [0, 1, 0, -1, 0, 1]
    assert [image if image is None else image.mode for image in batch["image"]] == ["L", "RGB", "L", "RGB", None, "RGB"]


def test_lists_of_structs_of_older_versions() -> None:
    label = {"names": ["a", "b"], "_type": "ClassLabel"}
    found = {
        "old": {"feature": {"label": label}, "_type": "Sequence"},
        "plain": [label],
        "large": {"feature": label, "_type": "LargeList"},
        "text": {"dtype": "string", "_type": "Value"},
    }
    decoders = feature_decoders(found, names=True)
    assert sorted(decoders) == ["large", "old", "plain"]
    assert decoders["old"]({"label": [0, 1, None], "x": 1}) == {"label": ["a", "b", None], "x": 1}
    assert decoders["plain"]([1]) == decoders["large"](np.array([1])) == ["b"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"info": {"features": [1]}}', b'{"info": 1}'])
def test_other_descriptions_are_none(text: bytes) -> None:
    assert features_in({b"huggingface": text}) is None
    assert features_in(None) is None


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="these jsonl have none"):
        shoal.open(tmp_path).decode("hf")
    features = {"image": {"_type": "Image"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table({"image": [{"bytes": None, "path": "/a/b.png"}]}).replace_schema_metadata(metadata)
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UsageError, match=r"the image is not in the shard, which has only the path '/a/b\.png'"):
        shoal.open(tmp_path / "a.arrow").decode("hf")[0]
