"""Fields of sequences, compared with a plain loop over tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.order.sequences.packing_strategies import best_fit, concatenated
from shoal.pipeline.packed_fields import PackedField
from shoal.pipeline.sequence_arrays import SequenceFields


def plainly(
    documents: list[list[int]], sequences: list[list[tuple[int, int, int]]], fields: SequenceFields
) -> dict[str, Any]:
    """One token after the other."""
    key, separator = fields.tokens.name, fields.tokens.separator
    found: dict[str, Any] = {key: [], "segment_ids": [], "position_ids": [], "loss_mask": []}
    borders = {0}
    for number, pieces in enumerate(sequences):
        rows: dict[str, list[int]] = {name: [] for name in found}
        for segment, (doc, start, stop) in enumerate(pieces, 1):
            borders.add(number * fields.length + len(rows["segment_ids"]))
            for position, at in enumerate(range(start, stop)):
                rows[key].append(documents[doc][at])
                rows["segment_ids"].append(segment)
                rows["position_ids"].append(position)
                rows["loss_mask"].append(separator is None or at < len(documents[doc]) - 1)
        missing = fields.length - len(rows["segment_ids"])
        borders.add((number + 1) * fields.length - missing)
        for name, row in rows.items():
            found[name].append(row + [fields.tokens.padding if name == key else 0] * missing)
        borders.add((number + 1) * fields.length)
    return {**found, "cu_seqlens": sorted(borders)}


@pytest.mark.parametrize("pack", [concatenated, best_fit])
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=30),
    length=st.integers(1, 25),
    separator=st.sampled_from([None, 99]),
)
def test_fields_are_those_of_a_plain_loop(pack: Any, lengths: list[int], length: int, separator: int | None) -> None:
    mask = PackedField("loss_mask", is_optional=True)
    fields = SequenceFields(length, PackedField("text", 7, separator), (mask,), ("loss_mask", "cu_seqlens"))
    plain = [[100 * doc + token for token in range(size)] for doc, size in enumerate(lengths)]
    documents = [each + ([99] if separator else []) for each in plain]
    sizes = np.array([len(each) for each in documents])
    block = pack(sizes, length)
    packed = [
        fields.columns_of({"text": np.array(tokens, np.int32)}, size, doc)
        for doc, (tokens, size) in enumerate(zip(plain, sizes.tolist(), strict=True))
    ]
    pieces_of = [packed[doc] for doc in block.document]
    found, _ = fields.arrays(pieces_of, block.first_piece, block.start, block.stop, block.document)
    pieces = list(zip(block.document.tolist(), block.start.tolist(), block.stop.tolist(), strict=True))
    sequences = [pieces[a:b] for a, b in zip(block.first_piece, block.first_piece[1:], strict=False)]
    wanted = plainly(documents, sequences, fields)
    if not sequences:
        wanted["cu_seqlens"] = [0]
    assert {name: array.tolist() for name, array in found.items()} == wanted


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"text": "abc"}, "has no such field"),
        ({"tokens": np.zeros((2, 2), np.int32)}, r"is int32 of shape \(2, 2\)"),
        ({"tokens": np.zeros(2)}, "is float64"),
        ({"tokens": np.zeros(2, np.int32)}, "has 2 tokens, but 3 according to the index"),
    ],
)
def test_documents_that_do_not_fit_are_named(document: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        SequenceFields(8).columns_of(document, 3, 41)
    assert "id 41" in str(caught.value)


@pytest.mark.parametrize(
    ("dtypes", "separator", "padding", "expected"),
    [
        (["uint64", "int64"], None, 0, "int64"),
        (["uint64"], -1, 0, "int64"),
        (["uint16"], None, -100, "int32"),
        (["uint16", "uint8"], 9, 0, "uint16"),
    ],
)
def test_tokens_of_several_types_stay_whole_numbers(
    dtypes: list[str], separator: int | None, padding: int, expected: str
) -> None:
    fields = SequenceFields(8, PackedField("tokens", padding, separator))
    packed = [fields.columns_of({"tokens": np.array([5, 6], dtype)}, None, 0) for dtype in dtypes]
    sizes = np.array([each.num_tokens for each in packed])
    made = fields.arrays(packed, np.array([0, len(packed)]), np.zeros_like(sizes), sizes, sizes)[0]["tokens"]
    assert made.dtype == expected
    filled = [5, 6, *([] if separator is None else [separator])] * len(packed)
    assert made[0].tolist() == filled + [padding] * (8 - len(filled))


@pytest.mark.parametrize("padding", [-1, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("documents", [[], [np.arange(3, dtype=np.uint16)]])
def test_any_padding_fits_even_if_no_document_has_a_type(documents: list[Any], padding: int) -> None:
    num, sizes = len(documents), np.array([len(each) for each in documents], dtype=np.int64)
    first = np.array([0, num], dtype=np.int64)
    fields = SequenceFields(8, PackedField("tokens", padding))
    packed = [fields.columns_of({"tokens": each}, None, 0) for each in documents]
    found, _ = fields.arrays(packed, first, np.zeros(num, np.int64), sizes, sizes)
    assert found["tokens"][0].tolist() == [number for each in documents for number in each] + [padding] * (
        8 - int(sizes.sum())
    )
