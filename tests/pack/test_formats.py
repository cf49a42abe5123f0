"""Every format through the writer, with what its own readers want beside the shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import UsageError
from shoal.index.assembly import validate
from shoal.indexing.index_files import load_index
from shoal.pack.writer import Writer
from shoal.storage.files.local_store import LocalStore

FORMATS = ["tar", "mds", "parquet", "arrow", "jsonl", "jsonl.zst", "tfrecord"]


def sample(number: int, name: str) -> dict[str, Any]:
    text = f"document {number} " * (number % 7 + 1)
    if name == "tar":
        return {"__key__": f"{number:04d}", "txt": text, "cls": number % 3}
    return {"text": text, "cls": number % 3}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written_indexed_and_read(tmp_path: Path, name: str) -> None:
    with Writer(tmp_path, format=name, shard_bytes=6000, columns=["cls"]) as writer:
        for number in range(200):
            writer.write(sample(number, name))
    assert writer.summary is not None
    assert len(writer.summary.shards) > 1
    index = load_index(str(tmp_path / "shoal.index"), store=LocalStore())
    validate(index)
    assert index.columns["cls"].tolist() == [number % 3 for number in range(200)]
    dataset = shoal.open(tmp_path)
    read = dataset.decode()[150] if name == "tar" else dataset[150]
    texts = read["txt" if name == "tar" else "text"]
    assert (texts.decode() if isinstance(texts, bytes) else texts) == sample(150, "")["text"]
    assert np.ravel(read["cls"]).tolist() == [0]


def test_mds_has_the_index_that_its_own_readers_want(tmp_path: Path) -> None:
    with Writer(tmp_path, format="mds", shard_bytes=6000) as writer:
        for number in range(200):
            writer.write(sample(number, "mds"))
    found = json.loads((tmp_path / "index.json").read_text())
    assert found["version"] == 2
    assert sum(shard["samples"] for shard in found["shards"]) == 200
    assert found["shards"][0]["column_encodings"] == ["str", "int"]
    assert found["shards"][1]["raw_data"]["bytes"] == (tmp_path / "shard-000001.mds").stat().st_size


def test_mds_columns_that_differ_between_shards_are_refused(tmp_path: Path) -> None:
    values: list[Any] = [1] * 50 + [1.5] * 50
    with pytest.raises(UsageError, match="which cannot hold this value"), Writer(tmp_path, format="mds") as w:
        for value in values:
            w.write({"a": value})
