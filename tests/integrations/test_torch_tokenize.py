"""`Dataset.tokenize` in every loader: the tokens of the library one by one, at their places, counted, and resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.tokenizers_of_tests import TEXTS, write_tokenizer
from tokenizers import Tokenizer

import shoal
from shoal.errors import UsageError
from shoal.pipeline.decode_pool import choose_threads
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
NUM_TEXTS = 203


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


def write_texts(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "number": number}) + "\n" for number, text in enumerate(texts)))
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    rows = [" ".join(draw.choice(TEXTS, int(draw.integers(0, 9)))) + f" é {number}" for number in range(NUM_TEXTS)]
    return write_texts(tmp_path / "a.jsonl", rows)


def opened(texts: Path, tokenizer: Path) -> shoal.Dataset:
    return shoal.open(texts).shuffle(seed=3, window="1MiB").tokenize(tokenizer).batch(10)


def one_by_one(texts: Path, tokenizer: Path) -> list[list[int]]:
    library = Tokenizer.from_file(str(tokenizer))
    return [library.encode(json.loads(line)["text"]).ids for line in texts.read_text().splitlines()]


def rows_of(batches: Any) -> list[tuple[int, list[int]]]:
    return [
        (number, tokens.tolist())
        for batch in batches
        for number, tokens in zip(np.asarray(batch["number"]).tolist(), batch["tokens"], strict=True)
    ]


@pytest.mark.parametrize("how", [None, {"num_threads": 1}, {"num_threads": 3}, {"num_workers": 2}], ids=str)
def test_tokens_are_those_of_the_library_and_counted(texts: Path, tokenizer: Path, how: dict[str, Any] | None) -> None:
    expected = one_by_one(texts, tokenizer)
    ds = opened(texts, tokenizer)
    loader = ds if how is None else DataLoader(ds, **how)
    rows = rows_of(loader)
    assert [number for number, _ in rows] == ds.ids().tolist()
    assert [tokens for _, tokens in rows] == [expected[number] for number in ds.ids().tolist()]
    assert loader.stats()["num_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize("how", [{"num_threads": 3}, {"num_workers": 2}], ids=str)
def test_a_resumed_run_continues_where_it_stopped(texts: Path, tokenizer: Path, how: dict[str, Any]) -> None:
    expected = rows_of(opened(texts, tokenizer))
    first = DataLoader(opened(texts, tokenizer), **how)
    batches = iter(first)
    seen = rows_of(next(batches) for _ in range(7))
    second = DataLoader(opened(texts, tokenizer), **how)
    second.load_state_dict(first.state_dict())
    batches.close()
    assert seen + rows_of(second) == expected


@pytest.mark.parametrize("how", [None, {"num_threads": 3}, {"num_workers": 2}], ids=str)
def test_an_error_comes_in_the_batch_of_its_sample(tmp_path: Path, tokenizer: Path, how: dict[str, Any] | None) -> None:
    texts = write_texts(tmp_path / "a.jsonl", ["a"] * 57 + [7] + ["b"] * 20)
    ds = shoal.open(texts).tokenize(tokenizer).batch(10)
    batches = iter(ds if how is None else DataLoader(ds, **how))
    for _ in range(5):
        next(batches)
    with pytest.raises(UsageError, match="needs text in the field 'text', but got int") as error:
        next(batches)
    assert "sample with id 57" in "\n".join(error.value.__notes__)


def test_sources_of_a_mixture_tokenize_with_their_own_files(tmp_path: Path, texts: Path, tokenizer: Path) -> None:
    other = write_tokenizer(tmp_path / "other.json", vocab_size=270)
    parts = {"a": shoal.open(texts).tokenize(tokenizer), "b": shoal.open(texts).tokenize(other)}
    ds = shoal.mix(parts, weights={"a": 1, "b": 1}).shuffle(seed=0, window="1MiB").take(100)
    expected = {"a": one_by_one(texts, tokenizer), "b": one_by_one(texts, other)}
    loader = DataLoader(ds.batch(10), num_threads=2)
    for batch in loader:
        for source, number, tokens in zip(batch["__source__"], batch["number"].tolist(), batch["tokens"], strict=True):
            assert tokens.tolist() == expected[source][number]
    assert loader.stats()["num_tokens"] > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_workers_tokenize_that_were_forked_after_their_parent_has(texts: Path, tokenizer: Path) -> None:
    expected = rows_of(opened(texts, tokenizer))
    forked = DataLoader(opened(texts, tokenizer), num_workers=2, multiprocessing_context="fork")
    assert rows_of(forked) == expected


def test_threads_are_chosen_for_a_tokenizer(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr("shoal.pipeline.decode_pool.usable_processors", lambda: 16)
    monkeypatch.setattr("shoal.pipeline.decode_pool.decodes_without_lock", lambda: False)
    found = choose_threads([tokenize_with(tokenizer)], num_threads=None, limit_bytes=1)
    assert found.threaded is not None
    assert found.threaded.num_threads == 8
    assert (
        found.words == "8 threads: 16 processors for this rank, and the tokenizer works without the interpreter's lock"
    )


def test_it_comes_before_batches_and_wants_a_file(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenize\(\)"):
        shoal.open(texts).batch(2).tokenize(tokenizer)
    with pytest.raises(UsageError, match="cannot be read"):
        shoal.open(texts).tokenize(tmp_path / "none.json")
