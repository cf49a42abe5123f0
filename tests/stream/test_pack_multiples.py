"""Documents padded to a multiple of tokens while they are packed: tokens, fields, counts and states."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.stream.test_pack_fields import (
    LENGTH,
    NUM_DOCUMENTS,
    SEPARATOR,
    check_fields,
    document_of,
    packed,
    size_of,
    written,
)

from shoal.errors import StateError, UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning", "ignore::shoal.errors.MaskWarning")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return written(tmp_path_factory.mktemp("documents") / "d", map(document_of, range(NUM_DOCUMENTS)))


def is_padding(batch: dict[str, Any]) -> Any:
    """Places without a token or separator; token 0 is the first token of document 0, and no separator is 0."""
    is_first = (batch["document_ids"][:, 1:] == 0).any(axis=1)[:, None] & (batch["weights"] == 0)
    return (batch["tokens"] == 0) & ~(is_first & (batch["position_ids"] == 0) & (batch["segment_ids"] > 0))


@pytest.mark.parametrize("separator", [None, SEPARATOR])
@pytest.mark.parametrize("lengths", ["num_tokens", None])
@pytest.mark.parametrize("strategy", ["concat", "first_fit", "best_fit"])
def test_each_document_is_padded_in_its_segment(
    documents: Dataset, strategy: str, lengths: str | None, separator: int | None
) -> None:
    how: Any = {"strategy": strategy, "lengths": lengths, "separator": separator, "multiple_of": 8}
    ds = packed(documents, extras=["loss_mask", "cu_seqlens", "document_ids"], **how).batch(3)
    tokens: dict[int, list[int]] = {}
    num_padding = 0
    for batch in ds:
        padding = is_padding(batch)
        assert not (batch["cu_seqlens"] % 8).any()
        assert not batch["loss_mask"][padding].any()
        assert (batch["labels"][padding] == -100).all()
        num_padding += int(padding.sum())
        flat, is_token = batch["tokens"].reshape(-1), ~padding.reshape(-1)
        positions, segments = batch["position_ids"].reshape(-1), batch["segment_ids"].reshape(-1)
        for low, high in pairwise(batch["cu_seqlens"]):
            size = int(is_token[low:high].sum())
            assert is_token[low : low + size].all(), "tokens come before their padding"
            assert segments[low:high].tolist() == [segments[low]] * (high - low)
            if segments[low]:
                assert size > high - low - 8
                assert positions[low:high].tolist() == list(range(high - low))
                sample_id = int(batch["document_ids"][low // LENGTH, segments[low]])
                tokens.setdefault(sample_id, []).extend(flat[low : low + size].tolist())
    ends = [] if separator is None else [separator]
    expected = {number: sorted(document_of(number)["tokens"] + ends) for number in range(NUM_DOCUMENTS)}
    assert {number: sorted(values) for number, values in tokens.items()} == {k: v for k, v in expected.items() if v}
    stats = ds.stats()
    assert stats["num_padding_tokens"] == num_padding
    assert stats["num_tokens"] == sum(map(len, expected.values()))


def test_fields_follow_their_tokens(documents: Dataset) -> None:
    for batch in packed(documents, extras=["loss_mask"], separator=None, multiple_of=16).batch(4):
        batch["segment_ids"] = np.where(batch["labels"] != -100, batch["segment_ids"], 0)
        is_learned = batch["segment_ids"] > 0
        assert (batch["labels"] == np.where(is_learned, batch["tokens"] + 1, -100)).all()
    constant = documents.map(lambda document: {**document, "weights": 0.5})
    for batch in packed(constant, extras=["document_ids"], separator=None, multiple_of=16, fields=["weights"]).batch(4):
        sizes = np.array([size_of(int(number)) for number in batch["document_ids"][:, 1:].ravel() if number >= 0])
        assert set(np.unique(batch["weights"]).tolist()) <= {0.0, 0.5}
        assert np.count_nonzero(batch["weights"]) <= sizes.sum()
        assert (batch["tokens"][batch["weights"] == 0] == 0).all()


def test_a_state_knows_the_multiple(documents: Dataset) -> None:
    ds = packed(documents, multiple_of=8).batch(4)
    batches = iter(ds)
    next(batches)
    state = ds.state_dict()
    assert state["order"]["packed"]["multiple_of"] == 8
    again = packed(documents, multiple_of=8).batch(2)
    again.load_state_dict(state)
    assert np.array_equal(next(iter(again))["tokens"], next(batches)["tokens"][:2])
    with pytest.raises(StateError, match="multiple_of"):
        packed(documents).batch(4).load_state_dict(state)


def test_a_multiple_of_one_is_no_change(documents: Dataset) -> None:
    plain, one = packed(documents).batch(4), packed(documents, multiple_of=1).batch(4)
    assert plain.state_dict() == one.state_dict()
    for left, right in zip(plain, one, strict=True):
        check_fields(left)
        assert all(np.array_equal(left[name], right[name]) for name in left)


def test_segments_are_those_of_the_documents(documents: Dataset) -> None:
    ds = packed(documents, separator=None, multiple_of=8).batch(4)
    for step, batch in enumerate(ds):
        for row, segment, number, start, stop in zip(*ds.batch_segments(step), strict=True):
            tokens = batch["tokens"][row][batch["segment_ids"][row] == segment]
            assert tokens[: stop - start].tolist() == document_of(int(number))["tokens"][start:stop]
            assert len(tokens) == -(-(stop - start) // 8) * 8


def test_a_length_has_room_for_whole_multiples(documents: Dataset) -> None:
    with pytest.raises(UsageError, match=r"pack_sequences\(48, multiple_of=5\)(.|\n)*a multiple of 5"):
        packed(documents, multiple_of=5)
    with pytest.raises(UsageError, match="multiple_of"):
        packed(documents, multiple_of=0)
