"""Documents packed into sequences: every token once, and as well as the algorithm by documents would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.order.sequences.concatenation import concatenated
from shoal.order.sequences.fitting import best_fit
from shoal.order.sequences.packed_block import PackedBlock

Pack = Callable[[np.ndarray, int], PackedBlock]
LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def pieces_of(block: PackedBlock) -> list[list[tuple[int, int, int]]]:
    pieces = list(zip(block.document.tolist(), block.start.tolist(), block.stop.tolist(), strict=True))
    return [pieces[start:stop] for start, stop in zip(block.first_piece, block.first_piece[1:], strict=False)]


@pytest.mark.parametrize("pack", [concatenated, best_fit])
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


def test_best_fit_fills_sequences_of_a_large_block() -> None:
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(6.0, 1.0, 1 << 16)).astype(np.int64)
    assert best_fit(lengths, 4096).fill > 0.999


@given(lengths=LENGTHS, length=st.integers(1, 30), seed=st.integers(0, 9))
def test_sequences_in_another_order_are_the_same_sequences(lengths: list[int], length: int, seed: int) -> None:
    found = best_fit(np.array(lengths, dtype=np.int64), length)
    order = np.random.default_rng(seed).permutation(found.num_sequences)
    assert pieces_of(found.reordered(order)) == [pieces_of(found)[number] for number in order]
