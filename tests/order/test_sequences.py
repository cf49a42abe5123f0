"""Documents packed into sequences: every token once, and as well as the algorithm by documents would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import few_examples

from shoal.errors import UsageError
from shoal.order.sequences.groupings import STRATEGIES, Packing
from shoal.order.sequences.packed_order import PackedOrder
from shoal.order.sequences.packing_strategies import PackedBlock, best_fit, concatenated, first_fit
from shoal.order.window.order import Window

Pack = Callable[[np.ndarray, int], PackedBlock]
LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def pieces_of(block: PackedBlock) -> list[list[tuple[int, int, int]]]:
    pieces = list(zip(block.document.tolist(), block.start.tolist(), block.stop.tolist(), strict=True))
    return [pieces[start:stop] for start, stop in zip(block.first_piece, block.first_piece[1:], strict=False)]


@pytest.mark.parametrize("pack", [concatenated, first_fit, best_fit])
@given(lengths=LENGTHS, length=st.integers(1, 30))
def test_every_token_comes_once_and_no_sequence_is_too_long(pack: Pack, lengths: list[int], length: int) -> None:
    found = pack(np.array(lengths, dtype=np.int64), length)
    sequences = pieces_of(found)
    tokens = Counter(
        (doc, token) for pieces in sequences for doc, start, stop in pieces for token in range(start, stop)
    )
    assert tokens == Counter((doc, token) for doc, size in enumerate(lengths) for token in range(size))
    for pieces in sequences:
        assert all(start < stop for _, start, stop in pieces)
        assert 0 < sum(stop - start for _, start, stop in pieces) <= length
    assert found.num_tokens == sum(lengths)
    assert found.fill == pytest.approx(sum(lengths) / (length * len(sequences)) if sequences else 1.0)


@given(lengths=LENGTHS, length=st.integers(1, 30))
def test_concatenated_documents_are_cut_where_a_sequence_is_full(lengths: list[int], length: int) -> None:
    stream = [(doc, token) for doc, size in enumerate(lengths) for token in range(size)]
    wanted = [stream[start : start + length] for start in range(0, len(stream), length)]
    found = pieces_of(concatenated(np.array(lengths, dtype=np.int64), length))
    assert [[(doc, t) for doc, start, stop in pieces for t in range(start, stop)] for pieces in found] == wanted
    for pieces in found:
        assert len({doc for doc, _, _ in pieces}) == len(pieces)


def by_documents(lengths: list[int], length: int) -> list[list[int]]:
    """Best-fit decreasing, one document after the other; of equal room, the sequence that has had it longest."""
    rooms: list[int] = []
    held: list[list[int]] = []
    for size in sorted((size % length for size in lengths if size % length), reverse=True):
        fitting = [(room, number) for number, room in enumerate(rooms) if room >= size]
        if not fitting:
            rooms.append(length)
            held.append([])
            fitting = [(length, len(rooms) - 1)]
        room, number = min(fitting)
        rooms[number] = room - size
        held[number].append(size)
    return held + [[length] for size in lengths for _ in range(size // length)]


@given(lengths=st.lists(st.integers(0, 30), max_size=80), length=st.integers(1, 30))
def test_best_fit_needs_as_many_sequences_as_one_document_after_the_other(lengths: list[int], length: int) -> None:
    found = best_fit(np.array(lengths, dtype=np.int64), length)
    assert found.num_sequences == len(by_documents(lengths, length))
    cut = {doc for doc, size in enumerate(lengths) if size > length}
    for pieces in pieces_of(found):
        assert all(doc in cut or (start, stop) == (0, lengths[doc]) for doc, start, stop in pieces)


@given(lengths=st.lists(st.integers(0, 30), max_size=80), length=st.integers(1, 30))
def test_first_fit_is_that_of_one_document_after_the_other(lengths: list[int], length: int) -> None:
    held: list[list[tuple[int, int, int]]] = []
    rooms: list[int] = []
    for document, size in enumerate(lengths):
        if rest := size % length:
            number = next((n for n, room in enumerate(rooms) if room >= rest), len(rooms))
            if number == len(rooms):
                rooms.append(length)
                held.append([])
            rooms[number] -= rest
            held[number].append((document, size - rest, size))
    found = first_fit(np.array(lengths, dtype=np.int64), length)
    num_full = sum(size // length for size in lengths)
    assert pieces_of(found)[num_full:] == held


def test_best_fit_fills_sequences_of_a_large_block() -> None:
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(6.0, 1.0, 1 << 16)).astype(np.int64)
    assert best_fit(lengths, 4096).fill > 0.999


def packed_order(
    chunk_samples: list[int], lengths: np.ndarray, packing: Packing, *, seed: int = 3, epoch: int = 1
) -> PackedOrder:
    documents = Window(chunks=4, num_canonical_nodes=2).bind(np.array(chunk_samples), seed=seed, epoch=epoch)
    return PackedOrder(documents, lengths, packing, seed=seed, epoch=epoch)


CHUNKS = st.lists(st.integers(1, 9), min_size=1, max_size=40)


@few_examples(25)
@given(
    chunks=CHUNKS,
    length=st.integers(1, 40),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    block=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_every_token_of_an_epoch_comes_once(
    chunks: list[int], length: int, strategy: str, block: int, seed: int
) -> None:
    lengths = np.random.default_rng(seed).integers(0, 30, sum(chunks))
    order = packed_order(chunks, lengths, Packing(length, strategy, block), seed=seed)
    pieces = order.pieces(np.arange(order.num_samples))
    found = Counter(
        (doc, token)
        for doc, start, stop in zip(pieces.ids.tolist(), pieces.starts.tolist(), pieces.stops.tolist(), strict=True)
        for token in range(start, stop)
    )
    assert found == Counter((doc, token) for doc, size in enumerate(lengths.tolist()) for token in range(size))
    sizes = np.add.reduceat(pieces.stops - pieces.starts, pieces.first[:-1]) if order.num_samples else np.zeros(0)
    assert np.all((sizes > 0) & (sizes <= length))
    documents = order.documents
    assert np.array_equal(documents.positions(pieces.ids), pieces.positions)
    assert np.array_equal(documents.locate(0, documents.num_samples)[1][pieces.positions], pieces.chunks)
    nodes = order.locate(0, order.num_samples)[1]
    assert np.array_equal(np.repeat(nodes, np.diff(pieces.first)), pieces.positions % order.num_canonical_nodes)
    blocks = pieces.positions // block
    assert np.all(np.diff(blocks) >= 0)


@few_examples(25)
@given(chunks=CHUNKS, block=st.integers(1, 50), data=st.data())
def test_any_sequences_are_those_of_the_whole(chunks: list[int], block: int, data: st.DataObject) -> None:
    lengths = np.random.default_rng(0).integers(0, 30, sum(chunks))
    order = packed_order(chunks, lengths, Packing(16, "best_fit", block))
    whole = order.pieces(np.arange(order.num_samples))
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, max(0, order.num_samples - 1))))), dtype=np.int64)
    wanted = wanted[wanted < order.num_samples]
    some = packed_order(chunks, lengths, Packing(16, "best_fit", block)).pieces(wanted)
    for number, sequence in enumerate(wanted.tolist()):
        mine, all_of = slice(*some.first[number : number + 2]), slice(*whole.first[sequence : sequence + 2])
        assert [column[mine].tolist() for column in some[1:]] == [column[all_of].tolist() for column in whole[1:]]


def test_sequences_with_a_document_are_found_where_a_block_ends_at_a_change() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 400)
    documents = packed_order([10] * 40, lengths, Packing(64)).documents
    vars(documents)["changes"] = [37]
    order = PackedOrder(documents, lengths, Packing(64, "concat", 50), seed=3, epoch=1)
    pieces = order.pieces(np.arange(order.num_samples))
    sequence_of_piece = np.repeat(np.arange(order.num_samples), np.diff(pieces.first))
    for position in (36, 40, 399):
        expected = np.unique(sequence_of_piece[pieces.positions == position])
        assert order.sequences_with(np.array([position])).tolist() == expected.tolist()


def test_epochs_are_packed_anew() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 400)
    first, second = (packed_order([10] * 40, lengths, Packing(64, "best_fit"), epoch=epoch) for epoch in (0, 1))
    together = [
        {tuple(sorted(p.ids[a:b].tolist())) for a, b in zip(p.first, p.first[1:], strict=False)}
        for p in (each.pieces(np.arange(each.num_samples)) for each in (first, second))
    ]
    assert len(together[0] & together[1]) < 5


@pytest.mark.parametrize("wrong", [{"length": 0}, {"length": 8, "block": 0}, {"length": 8, "strategy": "bestfit"}])
def test_a_packing_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Packing(**wrong)
