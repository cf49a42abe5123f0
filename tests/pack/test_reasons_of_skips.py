"""What a packing leaves out is listed with the error that reading it alone gives: shard, byte and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.pipeline.tokenizers_of_tests import write_tokenizer

import shoal
from shoal.errors import ShardError

LINES = '{"text": "good"}\n{"text": x}\n{"text": "half \\ud83d pair"}\n{"text": "fine"}\n'


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "texts.jsonl").write_text(LINES)
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path / "texts.jsonl"


def reasons(calls: Calls, *arguments: object) -> dict[str, str]:
    return {skip["name"]: skip["reason"] for skip in calls.json("repack", *arguments, "--on-error", "skip")["skipped"]}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_broken_line_is_listed_with_its_byte(workers: str, texts: Path, tmp_path: Path, calls: Calls) -> None:
    with pytest.raises(ShardError) as alone:
        shoal.open(texts)[1]
    found = reasons(calls, texts, tmp_path / "out", "--to", "mds", "--workers", workers)
    assert found["sample 1"] == alone.value.message
    assert found["sample 1"].startswith("texts.jsonl, byte 26: this line is not JSON")
    assert "surrogates not allowed" in found["sample 2"]


def test_a_text_that_cannot_be_tokenized_is_listed_with_the_cause(texts: Path, tmp_path: Path, calls: Calls) -> None:
    found = reasons(calls, texts, tmp_path / "out", "--to", "arrow", "--tokenize", tmp_path / "tokenizer.json")
    assert found["sample 1"].startswith("texts.jsonl, byte 26: this line is not JSON")
    assert found["sample 2"].startswith("texts.jsonl, byte 29: the field 'text' (11 characters)")
    assert "surrogates not allowed" in found["sample 2"]


def test_a_damaged_field_is_listed_with_the_cause(tmp_path: Path, calls: Calls) -> None:
    from tests.formats.writers import tar_of

    (tmp_path / "a.tar").write_bytes(tar_of({"0.json": b"{}", "1.json": b"{", "2.json": b"{}"}))
    found = reasons(calls, tmp_path / "a.tar", tmp_path / "out", "--to", "tar", "--decode")
    assert list(found) == ["sample 1"]
    assert found["sample 1"].startswith("a.tar, byte 1024: the field 'json'")
