"""Tokenising: the tokens of the library itself, the same file on every machine, and errors that say what to do."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.pipeline.tokenizers_of_tests import TEXTS, write_tokenizer
from tokenizers import AddedToken, Tokenizer, models, processors

from shoal.errors import UsageError
from shoal.pipeline.stages.running import FieldError
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with


def test_tokens_are_those_of_the_library(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    stage = pickle.loads(pickle.dumps(tokenize_with(path, field="body", to="ids")))
    for number, text in enumerate((*TEXTS, "", "naïve 日本 \x00")):
        made = stage({"body": text, "number": number}, 0)
        assert made["ids"].tolist() == Tokenizer.from_file(str(path)).encode(text).ids
        assert made["ids"].dtype == np.uint16
        assert made == {"number": number, "ids": made["ids"], "num_tokens": len(made["ids"])}
        assert np.array_equal(stage({"body": text.encode(), "number": number}, 0)["ids"], made["ids"])


def test_special_tokens_as_the_file_says_and_nothing_is_cut_or_padded(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "plain.json")))
    tokenizer.add_special_tokens([AddedToken("<end>")])
    end = tokenizer.token_to_id("<end>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", end)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain = tokenize_with(tmp_path / "plain.json").tokens(TEXTS[0])
    assert tokenize_with(tmp_path / "tokenizer.json").tokens(TEXTS[0]).tolist() == [*plain.tolist(), end]


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    words = {f"w{number}": number for number in range((1 << 16) + 1)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    tokens = tokenize_with(tmp_path / "tokenizer.json").tokens("w65536")
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [65536]


def test_errors(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"cannot be read.*missing\.json"):
        tokenize_with(tmp_path / "missing.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a tokenizer"):
        tokenize_with(tmp_path / "other.json")
    stage = tokenize_with(path, field="txt")
    with pytest.raises(UsageError, match=r"needs the field 'txt'; this sample has 'text'"):
        stage({"text": "a"}, 0)
    with pytest.raises(UsageError, match="needs text in the field 'txt', but got int"):
        stage({"txt": 3}, 0)
    with pytest.raises(FieldError) as caught:
        stage({"txt": b"\xff"}, 0)
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)
    with pytest.raises(FieldError) as caught:  # as JSON may hold it
        stage({"txt": "half \ud83d of a pair"}, 0)
    assert isinstance(caught.value.__cause__, UnicodeEncodeError)


def test_another_file_on_another_machine_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "changed.json")
    stage = tokenize_with(path)
    shipped = pickle.dumps(stage)
    write_tokenizer(path, vocab_size=290)
    from shoal.pipeline.stages.tokens import tokenizing  # as in a process that has not read it yet

    tokenizing.loaded_tokenizer.cache_clear()
    with pytest.raises(UsageError, match="is not the tokenizer of the plan"):
        pickle.loads(shipped)({"text": "a"}, 0)
