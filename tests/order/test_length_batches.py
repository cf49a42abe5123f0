"""Batches of documents of similar length: every document once, within limits, and alike where ranks share a step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import few_examples

from shoal.errors import UsageError
from shoal.order.sequences.groupings import LengthBatches
from shoal.order.sequences.packed_order import PackedOrder
from shoal.order.window.order import Window

LENGTHS = st.lists(st.integers(0, 40), max_size=80)


@given(
    lengths=LENGTHS,
    size=st.none() | st.integers(1, 9),
    max_tokens=st.integers(40, 200),
    buckets=st.sampled_from([(), (8, 16, 40), (40,)]),
)
def test_every_document_comes_once_and_no_batch_is_too_large(
    lengths: list[int], size: int | None, max_tokens: int, buckets: tuple[int, ...]
) -> None:
    batches = LengthBatches(size, max_tokens, buckets)
    found = batches.packed(np.array(lengths, dtype=np.int64))
    assert sorted(found.document.tolist()) == [number for number, tokens in enumerate(lengths) if tokens]
    assert found.start.tolist() == [0] * len(found.document)
    assert found.stop.tolist() == [lengths[number] for number in found.document]
    widths = batches.padded(found.stop)
    assert np.all(np.diff(widths) <= 0)
    counts = np.diff(found.first_piece)
    for first, count in zip(found.first_piece.tolist(), counts.tolist(), strict=False):
        most = max_tokens // int(widths[first])
        limit = most if size is None else min(size, most)
        assert 1 <= count <= limit
        assert count == limit or first + count == len(widths)  # only the last batch is not full


@given(lengths=LENGTHS, longest=st.integers(1, 30))
def test_documents_that_are_too_long_are_cut_or_dropped(lengths: list[int], longest: int) -> None:
    cut = LengthBatches(3, longest, too_long="cut").packed(np.array(lengths, dtype=np.int64))
    pieces = zip(cut.document.tolist(), cut.start.tolist(), cut.stop.tolist(), strict=True)
    tokens = Counter((doc, token) for doc, start, stop in pieces for token in range(start, stop))
    assert tokens == Counter((doc, token) for doc, count in enumerate(lengths) for token in range(count))
    assert np.all(cut.stop - cut.start <= longest)
    dropped = LengthBatches(3, longest, too_long="drop").packed(np.array(lengths, dtype=np.int64))
    assert sorted(dropped.document.tolist()) == [doc for doc, count in enumerate(lengths) if 0 < count <= longest]


def order_of(batches: LengthBatches, *, num_samples: int = 4_000, nodes: int = 4, epoch: int = 0) -> PackedOrder:
    lengths = np.random.default_rng(1).lognormal(4, 1, num_samples).astype(np.int64) + 1
    window = Window(chunks=32, num_canonical_nodes=nodes)
    documents = window.bind(np.full(num_samples // 10, 10), seed=3, epoch=epoch)
    return PackedOrder(documents, lengths, batches, seed=3, epoch=epoch)


def sizes_of(order: PackedOrder) -> np.ndarray:
    """Tokens of each batch, padding included."""
    pieces = order.pieces(np.arange(order.num_samples))
    longest = (pieces.stops - pieces.starts)[pieces.first[:-1]]
    return longest * np.diff(pieces.first)


@few_examples(10)
@given(block=st.integers(1, 5_000), alike=st.integers(1, 16), nodes=st.sampled_from([1, 3, 4]))
def test_an_epoch_has_every_document_once(block: int, alike: int, nodes: int) -> None:
    order = order_of(LengthBatches(16, alike=alike, block=block), num_samples=600, nodes=nodes)
    pieces = order.pieces(np.arange(order.num_samples))
    assert sorted(pieces.ids.tolist()) == list(range(600))
    found = order.locate(0, order.num_samples)[1]
    assert np.array_equal(np.repeat(found, np.diff(pieces.first)), pieces.positions % order.num_canonical_nodes)
    assert np.all(np.diff(pieces.positions // block) >= 0)


def test_ranks_of_a_step_have_batches_that_are_alike() -> None:
    spreads = {}
    for alike in (1, 8):
        order = order_of(LengthBatches(8, alike=alike, block=2_000))
        steps = sizes_of(order)[: order.num_samples // 8 * 8].reshape(-1, 8)
        spreads[alike] = float((steps.max(1) / steps.mean(1)).mean())
    assert spreads[8] < 1.2
    assert spreads[1] > 1.5


def test_runs_come_in_random_order_and_epochs_differ() -> None:
    first, second = (sizes_of(order_of(LengthBatches(8, block=2_000), epoch=epoch)) for epoch in (0, 1))
    runs = first[: len(first) // 8 * 8].reshape(-1, 8).mean(1)
    assert abs(np.corrcoef(runs[:-1], runs[1:])[0, 1]) < 0.4
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "a number of documents, max_tokens=, or both"),
        ({"size": 0}, r"size=0\) must be at least 1"),
        ({"size": 3, "buckets": (4, 4)}, "in ascending order"),
        ({"size": 3, "buckets": (0, 4)}, "lengths of at least 1"),
        ({"max_tokens": 8, "buckets": (4, 16)}, "no room for a document of the bucket 16"),
        ({"size": 3, "too_long": "dropped"}, "did you mean 'drop'"),
        ({"size": 3, "alike": 0}, "alike=0"),
    ],
)
def test_batches_that_cannot_be_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LengthBatches(**wrong)
