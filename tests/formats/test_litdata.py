"""Chunks that LitData 0.2.76 wrote, and damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import UsageError
from shoal.formats.rows.litdata.reader import LitData
from shoal.formats.shard_format import Span
from shoal.testing import check_format

MADE = Path(__file__).parent / "data" / "litdata"
INDEX = json.loads((MADE / "index.json").read_text())


def plain(value: Any) -> Any:
    """As tests/formats/data/make_litdata.py wrote down what LitData's reader gave."""
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", {name: plain(inner) for name, inner in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [plain(inner) for inner in value]]
    return [type(value).__name__, str(value)]


def test_items_are_those_that_litdata_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(MADE, tmp_path / "made")
    ds = shoal.open(tmp_path / "made", format=shoal.formats.LitData(INDEX))
    expected = json.loads((MADE / "expected.json").read_text())
    assert [plain(sample)[1] for sample in ds] == expected
    assert sorted(sample["i"] for sample in ds.shuffle(seed=1)) == list(range(-2, 5))


def test_the_format_conforms() -> None:
    shards = {}
    for path in sorted(MADE.glob("*.bin")):
        data = path.read_bytes()
        found = LitData(INDEX).scan(lambda first, end, data=data: data[first:end], len(data), shard="a")
        begin = int(found.sample_starts[0])
        records = LitData(INDEX).parse(data[begin:], Span("a", begin, found.num_samples))
        shards[path.name] = (data, [records.sample(number) for number in range(len(records))])
    shards["none.bin"] = (bytes(4) + (8).to_bytes(4, "little"), [])
    report = check_format(LitData(INDEX), shards, num_damaged=120)
    assert report.num_samples == 7
    assert report.damage.num_refused > 100


def changed(**config: Any) -> dict[str, Any]:
    return {**INDEX, "config": {**INDEX["config"], **config}}


ONE_LEAF = json.dumps([1, {"type": None, "context": None, "children_spec": []}])


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ({}, "not an index of LitData chunks"),
        (changed(compression="lz4"), "compression 'lz4'"),
        (changed(compression="zstd", compression_level="rows"), "compression_level 'rows'"),
        (changed(encryption={"algorithm": "fernet", "level": "chunk"}), "encryption .*fernet"),
        (changed(item_loader="TokensLoader"), "item loader 'TokensLoader'"),
        (changed(data_format=["int"]), "12 leaves, but it names the kinds of 1"),
        (changed(data_spec="[1]"), "not an index"),
        (changed(data_spec=ONE_LEAF.replace("null", '"collections.namedtuple"', 1)), "dicts, lists and tuples"),
    ],
)
def test_other_indexes_are_refused(index: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        LitData(index)


def test_pickles_are_refused_unless_allowed() -> None:
    index = changed(data_format=["pickle"], data_spec=ONE_LEAF)
    pickled = b"\x80\x04K\x07."
    item = len(pickled).to_bytes(4, "little") + pickled

    def read(reader: LitData) -> Any:
        return reader.parse(item, Span("a", 0, 1)).sample(0)

    with pytest.raises(UsageError, match="can run any code"):
        read(LitData(index))
    assert read(LitData(index, allow_pickle=True)) == {"item": 7}
    with pytest.raises(UsageError, match="kind 'graph', which shoal does not read"):
        read(LitData(changed(data_format=["graph"], data_spec=ONE_LEAF)))


@pytest.mark.parametrize("kind", ["video:mp4", "audio:wav", "tiff", "file:txt", "pdf", "nifti:nii.gz", "mesh:glb"])
def test_files_of_other_kinds_are_their_bytes(kind: str) -> None:
    reader = LitData(changed(data_format=[kind], data_spec=ONE_LEAF))
    assert reader.parse(b"\4\0\0\0file", Span("a", 0, 1)).sample(0) == {"item": b"file"}
