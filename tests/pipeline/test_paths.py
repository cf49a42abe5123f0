"""Paths into nested fields: `rename`, `columns`, `to_tuple` and `tokenize` take them as columns of an index do."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tokenizers_of_tests import write_tokenizer
from tokenizers import Tokenizer

import shoal
from shoal.errors import ShardError, UsageError
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple
from shoal.pipeline.stages.running import FieldError
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with

DOCUMENT: dict[str, Any] = {"id": 3, "document": {"body": "a text", "meta": {"lang": "de", "note": None}}}


def test_rename_takes_a_value_from_inside_a_field_and_leaves_the_field() -> None:
    renamed = Rename({"text": "document.body", "language": "document.meta.lang"})(DOCUMENT, 0)
    assert renamed == {**DOCUMENT, "text": "a text", "language": "de"}


def test_columns_and_to_tuple_take_paths() -> None:
    assert SelectColumns(("id", "document.body"))(DOCUMENT, 0) == {"id": 3, "document.body": "a text"}
    assert ToTuple(("document.meta.lang", "id"))(DOCUMENT, 0) == ("de", 3)


def test_a_null_inside_a_field_is_a_value() -> None:
    assert SelectColumns(("document.meta.note",))(DOCUMENT, 0) == {"document.meta.note": None}


def test_a_field_of_exactly_that_name_comes_first() -> None:
    sample = {"seg.png": b"field", "seg": {"png": b"inside"}}
    assert Rename({"mask": "seg.png"})(sample, 0) == {"seg": {"png": b"inside"}, "mask": b"field"}


def test_a_field_that_holds_json_text_is_looked_into() -> None:
    sample = {"json": b'{"caption": {"en": "a cat"}}'}
    assert ToTuple(("json.caption.en",))(sample, 0) == ("a cat",)


def test_a_path_that_leads_nowhere_names_the_fields() -> None:
    with pytest.raises(UsageError, match=r"columns\(\) needs the field 'document.text'; this sample has 'id', 'docu"):
        SelectColumns(("document.text",))(DOCUMENT, 0)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_batches_of_shards_follow_paths(tmp_path: Path, suffix: str) -> None:
    samples = [{"id": number, "document": {"body": f"text {number}"}} for number in range(40)]
    shoal.pack.pack(samples, tmp_path / "in", format=suffix)
    ds = shoal.open(tmp_path / "in")
    assert next(iter(ds.columns("document.body").batch(3))) == {"document.body": ["text 0", "text 1", "text 2"]}
    assert next(iter(ds.rename(text="document.body").batch(2)))["text"] == ["text 0", "text 1"]
    assert next(iter(ds.to_tuple("document.body"))) == ("text 0",)


def test_tokenize_takes_a_path_and_removes_the_text_there(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    tokenized = tokenize_with(path, field="document.body")(DOCUMENT, 0)
    assert tokenized["tokens"].tolist() == Tokenizer.from_file(str(path)).encode("a text").ids
    assert tokenized["document"] == {"meta": DOCUMENT["document"]["meta"]}
    assert DOCUMENT["document"]["body"] == "a text"


def test_shards_are_tokenized_from_a_path(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    lines = [json.dumps({"document": {"body": f"text {number}"}, "id": number}) for number in range(20)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    shoal.pack.repack(
        tmp_path / "in.jsonl", tmp_path / "out", format="parquet", tokenize=path, text_field="document.body"
    )
    expected = Tokenizer.from_file(str(path)).encode("text 7").ids
    assert list(shoal.open(tmp_path / "out")[7]["tokens"]) == expected


def test_a_tokenizer_object_is_taken_where_a_file_is(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    library = Tokenizer.from_file(str(path))
    stage = pickle.loads(pickle.dumps(tokenize_with(library)))
    assert stage({"text": "a text"}, 0)["tokens"].tolist() == library.encode("a text").ids
    assert repr(stage) == "tokenize(Tokenizer)"
    again = tokenize_with(Tokenizer.from_file(str(path)))
    assert again.digest == stage.digest

    class Fast:  # as transformers wraps it
        backend_tokenizer = library

    assert tokenize_with(Fast()).digest == stage.digest
    with pytest.raises(
        UsageError,
        match=r"a fast tokenizer; got <object object at .*> of type object",
    ):
        tokenize_with(object())


def test_a_null_text_is_a_damaged_sample_that_the_error_names(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(FieldError):
        tokenize_with(path)({"text": None}, 0)
    lines = [json.dumps({"text": None if number == 5 else "a text"}) for number in range(20)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ShardError, match=r"in\.jsonl.*null in place of a text") as caught:
        shoal.pack.repack(tmp_path / "in.jsonl", tmp_path / "out", format="mds", tokenize=path)
    assert caught.value.byte == sum(len(line) + 1 for line in lines[:5])
    made = shoal.pack.repack(tmp_path / "in.jsonl", tmp_path / "kept", format="mds", tokenize=path, on_error="skip")
    assert made.summary.num_samples == 19
