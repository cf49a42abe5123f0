"""Fill in the middle: a document rearranged so that it can be put together again, by seed, epoch and sample alone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.pipeline.stages.tokens.fill_in_middle import FillInMiddle, fill_in_middle_with

PREFIX, MIDDLE, SUFFIX, END = 901, 902, 903, 99
ARGUMENTS = {
    "prefix": PREFIX,
    "middle": MIDDLE,
    "suffix": SUFFIX,
    "rate": 1.0,
    "spm_rate": 0.5,
    "end": None,
    "keep_length": True,
    "key": "tokens",
}


def function_of(**changes: Any) -> FillInMiddle:
    return fill_in_middle_with(**{**ARGUMENTS, **changes})


@given(
    size=st.integers(0, 60),
    seed=st.integers(0, 2**32),
    has_end_first=st.booleans(),
    has_end=st.booleans(),
    keep_length=st.booleans(),
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]),
)
def test_a_document_can_be_put_together_again(
    size: int, seed: int, has_end_first: bool, has_end: bool, keep_length: bool, dtype: Any
) -> None:
    body = np.arange(size, dtype=dtype)
    body[body == END] = 98
    tokens = np.concatenate([body, np.array([END] * has_end, dtype=dtype)])
    function = function_of(spm_rate=float(has_end_first), end=END if has_end else None, keep_length=keep_length)
    made = function({"tokens": tokens, "num_tokens": len(tokens), "id": 3}, np.random.default_rng(seed))
    rearranged = made["tokens"].tolist()
    assert made["num_tokens"] == len(rearranged)
    assert made["id"] == 3
    assert made["tokens"].dtype == np.result_type(dtype, np.uint16)
    num_kept = size - 3 * keep_length
    if num_kept < 1:
        assert rearranged == tokens.tolist()
        return
    assert len(rearranged) == len(tokens) + 3 * (not keep_length)
    assert sorted(rearranged) == sorted([*tokens[:num_kept].tolist(), *[END] * has_end, PREFIX, MIDDLE, SUFFIX])
    if has_end:
        assert rearranged.pop() == END
    middle = rearranged.index(MIDDLE)
    if has_end_first:
        assert rearranged[:2] == [PREFIX, SUFFIX]
        end, rest = rearranged[2:middle], rearranged[middle + 1 :]
        assert rest + end == tokens[:num_kept].tolist()
    else:
        suffix = rearranged.index(SUFFIX)
        assert rearranged[0] == PREFIX
        whole = rearranged[1:suffix] + rearranged[middle + 1 :] + rearranged[suffix + 1 : middle]
        assert whole == tokens[:num_kept].tolist()


def shares(**changes: Any) -> tuple[float, float, NDArray[np.float64]]:
    function, tokens = function_of(**changes), np.arange(100, dtype=np.uint16)
    documents = [function({"tokens": tokens}, np.random.default_rng(seed))["tokens"] for seed in range(4000)]
    moved = [each for each in documents if each[0] == PREFIX]
    ends_first = [each for each in moved if each[1] == SUFFIX]
    sizes = np.array([len(each) - 1 - int(np.flatnonzero(each == MIDDLE)[0]) for each in moved])
    return len(moved) / len(documents), len(ends_first) / max(1, len(moved)), sizes


def test_rates_are_shares_of_documents_and_cuts_are_uniform() -> None:
    moved, ends_first, sizes = shares(rate=0.3, spm_rate=0.0)
    assert abs(moved - 0.3) < 0.03
    assert ends_first < 0.03  # those with an empty beginning
    assert abs(sizes.mean() - 97 / 3) < 2  # two uniform cuts make three parts of equal mean length
    moved, ends_first, _ = shares(rate=1.0, spm_rate=0.7)
    assert moved == 1.0
    assert abs(ends_first - 0.7) < 0.03
    assert shares(rate=0.0)[0] == 0.0


def test_a_document_without_tokens_and_a_list_of_tokens() -> None:
    function = pickle.loads(pickle.dumps(function_of()))
    assert function({"tokens": []}, np.random.default_rng(0))["tokens"].tolist() == []
    made = function({"tokens": list(range(20))}, np.random.default_rng(0))
    assert len(made["tokens"]) == 20
    assert "num_tokens" not in made


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"prefix": None}, r"fill_in_middle\(prefix=\) takes the number of a token; got"),
        ({"suffix": -1}, r"fill_in_middle\(suffix=\) takes"),
        ({"end": "<eos>"}, r"fill_in_middle\(end=\) takes"),
        ({"rate": 1.5}, r"fill_in_middle\(rate=\) is a share of 0 to 1; got"),
        ({"spm_rate": "half"}, r"fill_in_middle\(spm_rate=\) is a share"),
        ({"keep_length": 1}, "keep_length"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        function_of(**changes)


@pytest.mark.parametrize(
    "sample, message",
    [
        ({"token": [1]}, r"needs the field 'tokens'; this sample has 'token'"),
        ({"tokens": [1, 2], "labels": [1, 2]}, "not the values of 'labels' along with them"),
        ({"tokens": [1, 2], "loss_mask": [1, 2]}, "not the values of 'loss_mask' along with them"),
        ({"tokens": [0.5]}, "needs an array of integers in 'tokens'; got float64"),
        ({"tokens": [[1, 2]]}, r"of shape \(1, 2\)"),
        ([1, 2], "needs samples that are dicts"),
    ],
)
def test_wrong_samples(sample: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        function_of()(sample, np.random.default_rng(0))
