"""Shards of tokens made from texts: the tokens of the library, their numbers in the index, in every format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pack.contents import contents_of
from tests.pipeline.tokenizers_of_tests import write_tokenizer
from tokenizers import Tokenizer

import shoal
from shoal.errors import UsageError
from shoal.formats import Folder
from shoal.pack import pack, plan_repack, repack

DOCUMENTS = [f"the quick brown fox {'jumps over the lazy dog ' * (number % 7)}{number}" for number in range(300)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


@pytest.fixture
def source(tmp_path: Path) -> str:
    samples = ({"number": number, "text": text} for number, text in enumerate(DOCUMENTS))
    return pack(samples, tmp_path / "texts", format="jsonl").url


@pytest.mark.parametrize("name", ["mds", "parquet", "arrow", "jsonl", "tar", "tfrecord", "mds.zst"])
def test_tokens_and_their_numbers_in_every_format(tmp_path: Path, tokenizer: Path, source: str, name: str) -> None:
    made = repack(source, tmp_path / "tokens", format=name, tokenize=tokenizer, shard_bytes="8KiB")
    assert len(made.summary.shards) > 1
    library = Tokenizer.from_file(str(tokenizer))
    expected = [library.encode(text).ids for text in DOCUMENTS]
    dataset = shoal.open(tmp_path / "tokens")
    if name == "tar":
        dataset = dataset.decode()
    for number, wanted in enumerate(expected):
        sample: dict[str, Any] = {key.partition(".")[0]: value for key, value in dataset[number].items()}
        assert np.asarray(sample["tokens"]).tolist() == wanted
        assert [np.asarray(sample[field]).item() for field in ("number", "num_tokens")] == [number, len(wanted)]
        assert "text" not in sample
    assert dataset.index_column("num_tokens").tolist() == list(map(len, expected))


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.drill)])
def test_units_of_a_job_make_the_same_bytes(tmp_path: Path, tokenizer: Path, source: str, num_workers: int) -> None:
    options: dict[str, Any] = {"format": "parquet", "tokenize": tokenizer, "shard_bytes": "8KiB", "columns": ["number"]}
    repack(source, tmp_path / "alone", **options, num_workers=num_workers)
    job = plan_repack(source, tmp_path / "units", **options)
    for number in reversed(job.missing()):
        pickle.loads(pickle.dumps(job.task(number)))()
    assert job.finish().num_samples == len(DOCUMENTS)
    assert contents_of(tmp_path / "units") == contents_of(tmp_path / "alone")


def test_another_tokenizer_is_another_job(tmp_path: Path, tokenizer: Path, source: str) -> None:
    job = plan_repack(source, tmp_path / "out", format="mds", tokenize=tokenizer, shard_bytes="8KiB")
    job.run(0)
    other = write_tokenizer(tmp_path / "other.json", vocab_size=290)
    with pytest.raises(UsageError, match="another packing was begun here"):
        plan_repack(source, tmp_path / "out", format="mds", tokenize=other, shard_bytes="8KiB")
    moved = tokenizer.rename(tmp_path / "moved.json")
    again = plan_repack(source, tmp_path / "out", format="mds", tokenize=moved, shard_bytes="8KiB")
    assert 0 not in again.missing()


def test_a_sample_without_text_ends_the_run(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS))
    with pytest.raises(UsageError, match="needs the field 'text'; this sample has 'body'"):
        repack(tmp_path / "a.jsonl", tmp_path / "out", format="mds", tokenize=tokenizer)
    made = repack(tmp_path / "a.jsonl", tmp_path / "out", format="mds", tokenize=tokenizer, text_field="body")
    assert made.summary.num_samples == len(DOCUMENTS)


def test_files_of_text(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, text in enumerate(DOCUMENTS):
        (folder / f"{number:04d}.txt").write_text(text)
    repack(
        folder,
        tmp_path / "out",
        format="mds",
        tokenize=tokenizer,
        text_field="txt",
        source_format=Folder(suffixes=[".txt"]),
    )
    library = Tokenizer.from_file(str(tokenizer))
    assert shoal.open(tmp_path / "out")[7]["tokens"].tolist() == library.encode(DOCUMENTS[7]).ids
