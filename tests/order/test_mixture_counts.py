"""Integer weights, and counts of sources before any position: exact, monotonous, within the bounds that are stated."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.order.mixture.count_tree import CountTree
from shoal.order.mixture.integer_weights import TOTAL, integer_weights

WEIGHTS = st.lists(st.integers(0, 2**33), min_size=1, max_size=70).filter(any)
ZIPF = [round(2**38 / rank / 5) for rank in range(1, 65)]
LARGE = [round(0.9 * 2**40), *[round(0.1 * 2**40 / 63)] * 63]


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 10**9), min_size=1).filter(lambda each: any(each.values())))
def test_small_whole_weights_keep_their_ratio_exactly(weights: dict[str, int]) -> None:
    found, total = integer_weights(weights), sum(weights.values())
    assert sum(found.values()) <= TOTAL
    assert all(Fraction(found[name], sum(found.values())) == Fraction(weights[name], total) for name in weights)


@given(st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40).filter(any), st.randoms())
def test_any_weights_are_rounded_finely_and_in_any_order_alike(values: list[float], random: Any) -> None:
    weights = {f"s{number}": value for number, value in enumerate(values)}
    found = integer_weights(weights)
    assert sum(found.values()) <= TOTAL
    total = sum(Fraction(str(value)) for value in values)
    for name, value in weights.items():
        assert (found[name] > 0) == (value > 0)
        share = Fraction(found[name], sum(found.values()))
        assert abs(share - Fraction(str(value)) / total) <= Fraction(len(values) + 1, TOTAL)
    names = list(weights)
    random.shuffle(names)
    assert integer_weights({name: weights[name] for name in names}) == found


def test_weights_are_decimals() -> None:
    assert integer_weights({"a": 0.9, "b": 0.1}) == {"a": 9, "b": 1}
    assert integer_weights({"a": np.float32(0.1), "b": "0.2", "c": Fraction(3, 10)}) == {"a": 1, "b": 2, "c": 3}
    assert integer_weights({"a": 1e-12, "b": 1}) == {"a": 1, "b": 10**12}
    assert integer_weights({"a": 1e-30, "b": 1}) == {"a": 1, "b": TOTAL - 1}
    assert integer_weights({"a": 7}) == {"a": 1}


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "x", None, True, [1], 1j])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(UsageError, match="the weight of 'a' must"):
        integer_weights({"a": weight, "b": 1})


def test_no_weights_are_refused() -> None:
    for weights in ({}, {"a": 0, "b": 0.0}):
        with pytest.raises(UsageError, match="needs a weight above zero"):
            integer_weights(weights)


@given(WEIGHTS, st.integers(0, 2**40), st.integers(1, 200), st.integers(1, 500))
def test_counts_add_up_never_fall_and_stay_within_their_bounds(
    weights: list[int], first: int, step: int, num: int
) -> None:
    tree = CountTree(weights)
    counts = tree.beyond(first, step * np.arange(num))
    positions = first + step * np.arange(num)
    assert counts.sum(axis=0).tolist() == positions.tolist()
    assert (np.diff(counts, axis=1) >= 0).all()
    assert counts[:, num - 1].tolist() == tree.at(int(positions[-1])).tolist()
    total = sum(weights)
    for source, (weight, bound) in enumerate(zip(weights, tree.error_bounds, strict=True)):
        assert weight or not counts[source].any()
        for position, count in zip(positions.tolist(), counts[source].tolist(), strict=True):
            assert abs(count - Fraction(weight * position, total)) <= Fraction(bound) + Fraction(1, 10**9)


@given(WEIGHTS, st.integers(0, 10**7), st.integers(0, 69))
def test_the_unit_of_a_sample_is_the_inverse_of_counts(weights: list[int], number: int, source: int) -> None:
    source %= len(weights)
    if weights[source]:
        tree = CountTree(weights)
        unit = tree.unit_of(source, number)
        assert tree.at(unit)[source] == number
        assert tree.at(unit + 1)[source] == number + 1


@given(WEIGHTS)
def test_no_source_is_ever_off_by_two(weights: list[int]) -> None:
    assert max(CountTree(weights).error_bounds) < 2


def test_the_bounds_that_the_page_states() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    stated = [(ZIPF, 1.02), (LARGE, 1.05), (fibonacci, 1.11)]
    assert all(max(CountTree(weights).error_bounds) <= bound for weights, bound in stated)
    for weights, _ in stated:
        positions = np.arange(0, 10**6, 64)
        shares = np.array(weights)[:, None] / sum(weights)
        measured = np.abs(CountTree(weights).beyond(0, 64 * np.arange(len(positions))) - shares * positions).max()
        assert 0.75 < measured < 1.005


def test_counts_are_those_of_every_release() -> None:
    found = hashlib.sha256()
    for weights in ([1], [9, 1], [1, 1, 1, 0, 5], ZIPF, LARGE):
        tree = CountTree(weights)
        for position in (0, 1, 63, 64, 10**6 + 7, 10**15, 2**61):
            found.update(tree.at(position).astype("<i8").tobytes())
    assert found.hexdigest()[:16] == "7be69eb933d79b22"
