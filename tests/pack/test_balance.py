"""The counts that were promised, exactly, and evenly inside a class."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.pack.inputs.repeats import Repeats, balanced, copy_of, oversampled, parse_factor, refuse_copies

LABELS = st.lists(st.sampled_from(["a", "b", "ü", "", "a=b"]), min_size=1, max_size=80)
SEEDS = st.integers(0, 2**64 - 1)


def samples_by_class(labels: list[str], repeats: Repeats) -> Counter[str]:
    return Counter(labels[number] for number in repeats.inputs_of(np.arange(repeats.num_samples))[0].tolist())


@given(labels=LABELS, seed=SEEDS)
def test_balanced_classes_are_as_large_as_the_largest(labels: list[str], seed: int) -> None:
    repeats = balanced(labels, seed=seed)
    largest = max(Counter(labels).values())
    assert samples_by_class(labels, repeats) == dict.fromkeys(labels, largest)
    check_shape(labels, repeats)


@given(labels=LABELS, seed=SEEDS, tenths=st.dictionaries(st.sampled_from(["a", "b", "ü"]), st.integers(10, 75)))
def test_oversampled_classes_have_what_was_asked(labels: list[str], seed: int, tenths: dict[str, int]) -> None:
    factors = {name: Fraction(tenth, 10) for name, tenth in tenths.items() if name in labels}
    repeats = oversampled(labels, factors, seed=seed)
    before = Counter(labels)
    for name, number in samples_by_class(labels, repeats).items():
        exact = before[name] * factors.get(name, Fraction(1))
        assert abs(number - exact) <= Fraction(1, 2)
    check_shape(labels, repeats)


def check_shape(labels: list[str], repeats: Repeats) -> None:
    """Reported as it is, no input is dropped, and those of one class differ by one at most."""
    after, before = samples_by_class(labels, repeats), Counter(labels)
    assert {(c.name, c.num_inputs, c.num_samples) for c in repeats.classes} == {
        (name, before[name], after[name]) for name in before
    }
    assert repeats.num_samples == sum(after.values())
    assert repeats.times.min() >= 1
    times = {name: [t for t, label in zip(repeats.times, labels, strict=True) if label == name] for name in before}
    assert all(max(some) - min(some) <= 1 for some in times.values())
    # Copies of an input are numbered from 0, and any part of the samples says what the whole says.
    inputs, copies = (found.tolist() for found in repeats.inputs_of(np.arange(repeats.num_samples)))
    assert Counter(inputs) == dict(enumerate(repeats.times.tolist()))
    pairs = list(zip(inputs, copies, strict=True))
    assert pairs == [(number, copy) for number, times in enumerate(repeats.times.tolist()) for copy in range(times)]
    middle = np.arange(repeats.num_samples // 2, repeats.num_samples)
    assert repeats.inputs_of(middle)[0].tolist() == [number for number, _ in pairs[repeats.num_samples // 2 :]]
    some = np.arange(repeats.num_samples)[::-3]
    assert repeats.inputs_of(some)[0].tolist() == [pairs[i][0] for i in some.tolist()]
    assert repeats.inputs_of(some)[1].tolist() == [pairs[i][1] for i in some.tolist()]


def test_the_seed_chooses_who_is_repeated_once_more() -> None:
    labels = ["a"] * 50 + ["b"] * 80
    first, again, other = (balanced(labels, seed=seed).times.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    # What is chosen in one class does not hang on what other classes there are.
    assert oversampled(labels, {"a": Fraction("1.6")}, seed=1).times.tolist()[:50] == first[:50]


def test_every_input_is_chosen_about_as_often() -> None:
    labels = ["a"] * 10 + ["b"] * 15
    chosen = np.sum([balanced(labels, seed=seed).times[:10] - 1 for seed in range(400)], axis=0)
    assert chosen.min() > 140  # 200 are expected, with a standard deviation of 10
    assert chosen.max() < 260


def test_without_a_class() -> None:
    with pytest.raises(UsageError, match=r"2 inputs have no value to balance by; the first is input 1"):
        balanced(["a", None, None])
    repeats = oversampled(["a", None], {"a": 2})
    assert repeats.times.tolist() == [2, 1]
    assert repeats.classes[1].name == "(none)"
    assert balanced([]).num_samples == 0


def test_a_class_that_nobody_has() -> None:
    with pytest.raises(UsageError, match=r"no input is of the class 'cow', .* there are a, b"):
        oversampled(["a", "b"], {"cow": 2})
    with pytest.raises(UsageError, match=r"a factor is at least 1"):
        oversampled(["a", "b"], {"a": Fraction(1, 2)})


@pytest.mark.parametrize("text", ["zebra", "zebra=", "zebra=0.5", "zebra=x", "zebra=1/0", "zebra=-3"])
def test_factors_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="class=times"):
        parse_factor(text)


def test_factors() -> None:
    assert parse_factor("a=b=3") == ("a=b", Fraction(3))
    assert parse_factor("=1.1") == ("", Fraction(11, 10))


@given(counts=st.dictionaries(st.sampled_from(["a", "b", "a~2", "a~3", "a~2~2", "b~02", "a~1"]), st.integers(1, 4)))
def test_keys_of_copies_are_of_one_sample_or_refused(counts: dict[str, int]) -> None:
    keys, times = list(counts), np.array([*counts.values()], dtype=np.int64)
    packed = [copy_of(key, copy) for key in keys for copy in range(counts[key])]
    if len(set(packed)) == len(packed):
        refuse_copies(keys, times)
    else:
        with pytest.raises(UsageError, match="which there is already"):
            refuse_copies(keys, times)
