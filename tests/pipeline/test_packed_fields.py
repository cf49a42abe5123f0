"""Several fields along the tokens: each value beside its token, compared with a plain loop over tokens."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import MaskWarning, UsageError
from shoal.order.sequences.packing_strategies import best_fit, concatenated, first_fit
from shoal.pipeline.mask_totals import NUM_TOKENS_TO_WARN, MaskCount, MaskTotals
from shoal.pipeline.packed_fields import PackedDocument, PackedField, token_type
from shoal.pipeline.sequence_arrays import SequenceFields

OTHERS = (
    PackedField("labels", -100),
    PackedField("weights", 0.5),
    PackedField("rows", 9),
    PackedField("per_document", -1),
    PackedField("loss_mask", is_optional=True),
)


def document_of(number: int, size: int) -> dict[str, Any]:
    """A document whose values say their place; every third has a mask."""
    tokens = np.arange(size, dtype=np.int32) + 100 * number
    document = {
        "tokens": tokens,
        "labels": tokens.astype(np.int64) + 1,
        "weights": (tokens / 4).astype(np.float32),
        "rows": np.stack([tokens, -tokens], axis=1).astype(np.int16),
        "per_document": number,
    }
    if number % 3 == 0:
        document["loss_mask"] = (tokens % 2).astype(np.uint8 if number % 2 else bool)
    return document


def expected_at(document: dict[str, Any], place: int, name: str) -> Any:
    """The value of a field at a token of a document; the padding behind its last token, where a separator is."""
    padding = {field.name: field.padding for field in OTHERS}[name]
    if place == len(document["tokens"]):
        return [padding] * 2 if name == "rows" else padding
    if name not in document:
        return True
    value = document[name]
    return value if name == "per_document" else value[place].tolist()


@pytest.mark.parametrize("pack", [concatenated, first_fit, best_fit])
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    length=st.integers(1, 25),
    separator=st.sampled_from([None, 99]),
)
def test_every_value_is_beside_its_token(pack: Any, sizes: list[int], length: int, separator: int | None) -> None:
    fields = SequenceFields(length, PackedField("tokens", 7, separator), OTHERS)
    documents = [document_of(number, size) for number, size in enumerate(sizes)]
    packed = [fields.columns_of(document, None, number) for number, document in enumerate(documents)]
    block = pack(np.array([document.num_tokens for document in packed]), length)
    of_pieces = [packed[number] for number in block.document]
    arrays, _ = fields.arrays(of_pieces, block.first_piece, block.start, block.stop, block.document)
    alone, _ = SequenceFields(length, fields.tokens).arrays(
        [PackedDocument(each.columns[:1], each.num_tokens) for each in of_pieces],
        block.first_piece,
        block.start,
        block.stop,
        block.document,
    )
    for name, values in alone.items():
        assert values.dtype == arrays[name].dtype
        assert np.array_equal(values, arrays[name])
    for field in OTHERS:
        assert arrays[field.name].shape[:2] == (block.num_sequences, length)
        for row in range(block.num_sequences):
            expected: list[Any] = []
            for piece in range(block.first_piece[row], block.first_piece[row + 1]):
                document = documents[block.document[piece]]
                places = range(block.start[piece], block.stop[piece])
                expected += [expected_at(document, place, field.name) for place in places]
            padding = arrays[field.name][row, len(expected) :]
            assert arrays[field.name][row, : len(expected)].tolist() == expected
            assert (padding == field.padding).all()
    if any(sizes):
        types = {name: arrays[name].dtype for name in ("labels", "weights", "rows", "loss_mask")}
        assert types == {"labels": np.int64, "weights": np.float32, "rows": np.int16, "loss_mask": np.bool_}


@pytest.mark.parametrize("mask", [[1, 0, 1], [1.0, 0.0, 1.0], [True, False, True], np.array([1, 0, 1], np.uint8)])
def test_separators_join_a_given_mask(mask: Any) -> None:
    fields = SequenceFields(6, PackedField("tokens", 0, 99), (PackedField("loss_mask"),))
    document = fields.columns_of({"tokens": [5, 6, 7], "loss_mask": mask}, 4, 0)
    one = np.array([0])
    arrays, counts = fields.arrays([document], np.array([0, 1]), one, np.array([4]), one)
    assert arrays["tokens"].tolist() == [[5, 6, 7, 99, 0, 0]]
    assert arrays["loss_mask"].tolist() == [[True, False, True, False, False, False]]
    assert counts == {"loss_mask": MaskCount(3, 2, is_mask=True)}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"labels": [1, 2]}, r"'labels' of the sample with id 41 has 2 values, but the document has 3 tokens in 'ids'"),
        ({"labels": np.zeros((2, 3))}, "has 2 values, but the document has 3 tokens in 'ids'"),
        ({}, r"fields=\['labels'\]\): the sample with id 41 has no such field; it has 'ids'"),
        ({"labels": "abc"}, "'labels' of the sample with id 41 is <U3"),
        ({"labels": None}, "'labels' of the sample with id 41 is object"),
        ({"labels": 1, "loss_mask": [0, 2, 1]}, "'loss_mask' of the sample with id 41 is int64"),
        ({"labels": 1, "loss_mask": [0, 0.5, 1]}, "'loss_mask' of the sample with id 41 is float64"),
        ({"labels": 1, "loss_mask": [True] * 4}, "has 4 values, but the document has 3 tokens in 'ids'"),
    ],
)
def test_documents_that_do_not_fit_are_named(values: dict[str, Any], says: str) -> None:
    others = (PackedField("labels", -100), PackedField("loss_mask", is_optional=True))
    fields = SequenceFields(8, PackedField("ids"), others)
    with pytest.raises(UsageError, match=says) as caught:
        fields.columns_of({"ids": [1, 2, 3], **values}, 3, 41)
    assert caught.value.hint


def test_rows_of_other_shapes_are_refused() -> None:
    fields = SequenceFields(8, PackedField("tokens"), (PackedField("rows"),))
    packed = [fields.columns_of({"tokens": [1], "rows": np.zeros((1, width))}, 1, 0) for width in (2, 3)]
    pieces = np.array([0, 0])
    with pytest.raises(UsageError, match=r"'rows' with rows of the shapes \[\(2,\), \(3,\)\]"):
        fields.arrays(packed, np.array([0, 2]), pieces, pieces + 1, pieces)


@pytest.mark.parametrize(
    ("dtypes", "padding", "expected"),
    [
        (["bool"], 0, "bool"),
        (["bool"], -100, "int8"),
        (["float32", "bool"], -1, "float32"),
        (["float16"], math.nan, "float16"),
    ],
)
def test_padding_fits_its_type(dtypes: list[str], padding: float, expected: str) -> None:
    assert token_type(map(np.dtype, dtypes), padding) == expected


@pytest.mark.parametrize("dtype", ["bool", "int64"])
@pytest.mark.parametrize("padding", [0.5, math.nan, math.inf])
def test_no_padding_is_rounded(dtype: str, padding: float) -> None:
    with pytest.raises(UsageError, match="is not an integer"):
        token_type([np.dtype(dtype)], padding)


@pytest.mark.parametrize(
    ("array", "number", "expected"),
    [
        (np.zeros(1, np.float32), 0.1, "float32"),
        (np.zeros(1, np.uint8), 1, "uint8"),
        (np.zeros(1, np.uint8), -100, "int16"),
        (np.zeros(1, np.int32), 0.5, "float64"),
        (0.5, 0.1, "float64"),
    ],
)
def test_numbers_of_whole_documents_widen_a_type_only_if_needed(array: Any, number: float, expected: str) -> None:
    fields = SequenceFields(4, PackedField("tokens"), (PackedField("values"),))
    packed = [fields.columns_of({"tokens": [1], "values": values}, None, 0) for values in (array, number)]
    pieces = np.array([0, 0])
    arrays, _ = fields.arrays(packed, np.array([0, 2]), pieces, pieces + 1, pieces)
    assert arrays["values"].dtype == expected
    assert arrays["values"][0, 1] == np.array(number, dtype=expected)


@pytest.mark.parametrize("padding", [0.0, -100])
def test_empty_lists_do_not_change_a_type(padding: float) -> None:
    fields = SequenceFields(4, PackedField("tokens"), (PackedField("values", padding),))
    packed = [fields.columns_of({"tokens": [], "values": []}, None, number) for number in range(2)]
    pieces = np.array([0, 0])
    arrays, _ = fields.arrays(packed, np.array([0, 2]), pieces, pieces, pieces)
    assert arrays["values"].dtype == type(padding)
    assert arrays["tokens"].dtype == int


@pytest.mark.parametrize(
    ("name", "values", "padding", "count"),
    [
        ("loss_mask", [True, False], 0, (2, 1, True)),
        ("completion_mask", [1, 0], 0, (2, 1, True)),
        ("is_answer", [True, True], 0, (2, 2, True)),
        ("labels", [-100, 3], -100, (2, 1, False)),
        ("labels", [0, 3], 0, None),
        ("attention_mask", [1, 1], 0, None),
        ("weights", [1.0, 1.0], 0, None),
        ("loss_mask", True, 0, None),
    ],
)
def test_which_fields_are_masks(name: str, values: Any, padding: int, count: tuple[int, int, bool] | None) -> None:
    fields = SequenceFields(4, PackedField("tokens", 0, 99), (PackedField(name, padding),))
    document = fields.columns_of({"tokens": [0, 1], name: values}, None, 0)
    one = np.array([0])
    _, counts = fields.arrays([document], np.array([0, 1]), one, np.array([3]), one)
    assert counts == ({} if count is None else {name: MaskCount(*count)})


HALF = NUM_TOKENS_TO_WARN // 2


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([(HALF, 0, True), (HALF, 0, True)], "'f' of 1,000,000 tokens leaves out all of them"),
        ([(HALF, 0, False), (HALF + 5, 0, False)], "'f' of 1,000,005 tokens leaves out all of them"),
        ([(HALF, HALF, True), (HALF, HALF, True)], "'f' of 1,000,000 tokens leaves out none of them"),
        ([(HALF, HALF, False), (HALF, HALF, False)], ""),
        ([(HALF, HALF, True), (HALF, HALF - 1, True)], ""),
        ([(HALF, 1, True), (HALF, 0, True)], ""),
        ([(HALF, 0, True), (HALF - 1, 0, True)], ""),
    ],
)
def test_a_constant_mask_is_warned_of_once(batches: list[tuple[int, int, bool]], says: str) -> None:
    totals = MaskTotals()
    again = batches if says else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in (*batches, *again):
            totals.add({"f": MaskCount(*count)})
    assert [warning.category for warning in caught] == ([MaskWarning] if says else [])
    assert all(str(warning.message).startswith(says) for warning in caught)


def test_workers_only_count() -> None:
    totals = MaskTotals(warns=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        totals.add({"f": MaskCount(2 * NUM_TOKENS_TO_WARN, 0, is_mask=True)})
        totals.add({"f": MaskCount(3, 2, is_mask=True)})
    assert totals.take() == {"f": MaskCount(2 * NUM_TOKENS_TO_WARN + 3, 2, is_mask=True)}
    assert totals.take() == {}
