from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal.pipeline.collate import collate


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([1, 2.5], "float64"),
        ([True, False], "bool"),
        ([1j, 2], "complex128"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.uint8(1), np.uint8(2)], "uint8"),
        ([2**64 - 1, 2**63], "uint64"),
    ],
)
def test_numbers_are_stacked(values: list[Any], dtype: str) -> None:
    got = collate(values)
    assert got.dtype == dtype
    assert got.tolist() == values


@pytest.mark.parametrize(
    "values",
    [
        [b"a", b"b"],
        ["a", "b"],
        [1, "a"],
        [1, None],
        [None, 1],
        [True, 2],
        [1, False],
        [2**64, 1],
        [2**63 + 1, 1],  # one fits only uint64, the other numpy takes for int64: together they would be rounded
        [1, 2**63 + 1],
        [-1, 2**64 - 1],
        [Fraction(1, 3), 1],
        [[1], [2]],
        [{"a": 1}, {"a": 2}],
    ],
)
def test_what_would_lose_something_stays_a_list(values: list[Any]) -> None:
    got = collate([{"x": value} for value in values])
    assert got == {"x": values}
    assert [type(value) for value in got["x"]] == [type(value) for value in values]


def test_arrays_of_one_shape_and_type_are_stacked() -> None:
    same = [np.ones((2, 3), dtype=np.float32)] * 4
    assert collate(same).shape == (4, 2, 3)
    assert collate(same).dtype == np.float32
    for other in (np.ones((3, 2), dtype=np.float32), np.ones((2, 3)), 3, None):
        assert isinstance(collate([same[0], other]), list)


def test_dicts_and_tuples_go_by_field_and_place() -> None:
    assert collate([{"a": "x", "b": 1}, {"b": 2, "a": "y"}])["a"] == ["x", "y"]
    assert collate([{"a": "x"}, {"b": "y"}, {"a": "z"}]) == {"a": ["x", None, "z"], "b": [None, "y", None]}
    first, second = collate([(1, "a"), (2, "b")])
    assert first.tolist() == [1, 2]
    assert second == ["a", "b"]
    assert collate([(1,), (1, 2)]) == [(1,), (1, 2)]


def test_a_batch_owns_its_arrays() -> None:
    array = np.zeros(3)
    batch = collate([{"a": array}])
    array[:] = 1
    assert batch["a"].tolist() == [[0, 0, 0]]
