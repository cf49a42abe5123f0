from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs

SIZE = 60
CHOICES = st.sets(st.integers(0, SIZE - 1))


def members(runs: Runs) -> list[int]:
    return runs.members(np.arange(len(runs))).tolist()


def check_form(runs: Runs) -> None:
    assert (runs.starts < runs.stops).all()
    assert (runs.starts[1:] > runs.stops[:-1]).all(), "runs neither touch nor overlap"
    assert runs.before.tolist() == np.concatenate([[0], np.cumsum(runs.stops - runs.starts)]).tolist()


@given(chosen=CHOICES, as_mask=st.booleans(), seed=st.integers(0, 10))
def test_runs_are_a_set(chosen: set[int], as_mask: bool, seed: int) -> None:
    given_as = np.isin(np.arange(SIZE), list(chosen)) if as_mask else np.array(sorted(chosen), dtype=np.int64)
    if not as_mask:
        np.random.default_rng(seed).shuffle(given_as)
    runs = Runs.of(given_as, SIZE)
    check_form(runs)
    ordered = sorted(chosen)
    assert members(runs) == ordered
    assert len(runs) == len(chosen)
    wanted = [ordered.index(i) if i in chosen else -1 for i in range(-1, SIZE + 2)]
    assert runs.numbers(np.arange(-1, SIZE + 2)).tolist() == wanted


@given(chosen=CHOICES, borders=st.lists(st.integers(0, SIZE)))
def test_members_between_borders(chosen: set[int], borders: list[int]) -> None:
    borders = sorted([*borders, 0])
    counts = Runs.of(np.array(sorted(chosen), dtype=np.int64), SIZE).count_between(np.array(borders))
    expected = [len(chosen & set(range(low, high))) for low, high in itertools.pairwise(borders)]
    assert counts.tolist() == expected


@given(chosen=CHOICES, inner=st.sets(st.integers(0, SIZE)), third=st.sets(st.integers(0, SIZE)))
def test_choices_of_choices(chosen: set[int], inner: set[int], third: set[int]) -> None:
    runs, ordered = Runs.of(np.array(sorted(chosen), dtype=np.int64), SIZE), sorted(chosen)
    for choice in (inner, third):
        numbers = sorted(i for i in choice if i < len(ordered))
        runs = runs.of_members(Runs.of(np.array(numbers, dtype=np.int64), len(ordered)))
        ordered = [ordered[i] for i in numbers]
        check_form(runs)
        assert members(runs) == ordered


@given(
    operations=st.lists(st.tuples(st.sampled_from(["take", "skip", "select"]), st.integers(0, SIZE)), max_size=6),
)
def test_take_skip_and_select_one_after_the_other(operations: list[tuple[str, int]]) -> None:
    runs, plain = Runs.span(0, SIZE), list(range(SIZE))
    for what, n in operations:
        if what == "select":
            kept = [i for i in range(len(plain)) if i % (n + 2)]
            runs, plain = runs.of_members(Runs.of(np.array(kept, np.int64), len(plain))), [plain[i] for i in kept]
        elif what == "take":
            runs, plain = runs.of_members(Runs.span(0, min(n, len(plain)))), plain[:n]
        else:
            runs, plain = runs.of_members(Runs.span(min(n, len(plain)), len(plain))), plain[n:]
        check_form(runs)
        assert members(runs) == plain


@pytest.mark.parametrize(("start", "stop", "expected"), [(3, 6, [3, 4, 5]), (3, 3, []), (6, 3, []), (0, 0, [])])
def test_spans(start: int, stop: int, expected: list[int]) -> None:
    check_form(Runs.span(start, stop))
    assert members(Runs.span(start, stop)) == expected


def test_a_choice_has_a_short_name_of_its_own() -> None:
    choices = [Runs.span(0, 5), Runs.span(0, 6), Runs.span(1, 6), Runs.of([0, 2, 4], 6), Runs.of([0, 2, 5], 6)]
    assert len({choice.digest() for choice in choices}) == len(choices)
    assert Runs.of([4, 0, 1, 2, 3], 9).digest() == Runs.span(0, 5).digest()
    assert len(Runs.span(0, 5).digest()) == 16


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ([1, 2, 1], "each sample can be chosen once; 1 was given more than once"),
        ([10], r"samples are chosen from \[0, 10\); got 10 to 10"),
        ([-1, 3], r"samples are chosen from \[0, 10\); got -1 to 3"),
        ([1.5], "by integers or a mask; got float64"),
        ([[1, 2]], r"by integers or a mask; got int64 of shape \(1, 2\)"),
        ([True, False], r"a boolean for each of 10 samples; got shape \(2,\)"),
    ],
)
def test_what_cannot_be_chosen(chosen: list, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Runs.of(chosen, 10)
