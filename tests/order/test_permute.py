from __future__ import annotations

import importlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.order.audit import worst_look

from shoal.errors import UsageError
from shoal.order.arrays.permutation import MAX_SIZE, permute, permute_each, unpermute, unpermute_each
from shoal.order.seeds import keys

# The package's `permute` is the function; the module is needed to weaken it.
permute_module = importlib.import_module("shoal.order.arrays.permutation")

SIZES = (1000, 10_000, 2**16, pytest.param(1_000_000, marks=pytest.mark.drill))
BOUND = 5.5  # the worst of some eighty looks, over a dozen keys: a random permutation gives 2 to 4
KEYS = st.integers(0, 2**64 - 1)


def all_of(size: int, key: int) -> NDArray[np.int64]:
    return permute(np.arange(size), size, key)


@given(size=st.integers(1, 5000), key=KEYS)
def test_a_permutation_and_its_inverse(size: int, key: int) -> None:
    permuted = all_of(size, key)
    assert np.array_equal(np.sort(permuted), np.arange(size))
    assert np.array_equal(unpermute(permuted, size, key), np.arange(size))


@pytest.mark.parametrize("size", [2**16 - 1, 2**16, 2**16 + 1, 10**6 + 3, 2**20])
def test_large_permutations_and_their_inverse(size: int) -> None:
    permuted = all_of(size, 9)
    assert np.array_equal(np.bincount(permuted, minlength=size), np.ones(size, dtype=np.int64))
    assert np.array_equal(unpermute(permuted, size, 9), np.arange(size))


@given(size=st.integers(1, 2**63), key=KEYS, data=st.data())
def test_single_elements_of_huge_permutations(size: int, key: int, data: st.DataObject) -> None:
    numbers = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True)))
    permuted = permute(numbers, size, key)
    assert len(np.unique(permuted)) == len(numbers)
    assert permuted.min() >= 0
    assert int(permuted.max()) < size
    assert np.array_equal(unpermute(permuted, size, key), numbers)


@pytest.mark.parametrize("size", [2**32 - 1, 2**32, 2**32 + 1, MAX_SIZE - 1, MAX_SIZE])
def test_both_word_sizes_at_their_border(size: int) -> None:
    ends = np.array([0, 1, size // 2, size - 2, size - 1])
    permuted = permute(ends, size, 3)
    assert np.array_equal(unpermute(permuted, size, 3), ends)
    assert len(set(permuted.tolist())) == 5


@given(
    sizes=st.lists(st.one_of(st.integers(1, 100), st.integers(1, 2**32 - 1)), min_size=1, max_size=40), data=st.data()
)
def test_many_permutations_at_once_are_each_a_permutation(sizes: list[int], data: st.DataObject) -> None:
    numbers = np.array([data.draw(st.integers(0, size - 1)) for size in sizes])
    each, words = np.array(sizes), keys(7, np.arange(len(sizes)))
    permuted = permute_each(numbers, each, words)
    assert np.array_equal(unpermute_each(permuted, each, words), numbers)
    alone = [int(permute(numbers[i : i + 1], size, int(words[i]))[0]) for i, size in enumerate(sizes)]
    assert permuted.tolist() == alone


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=30), seed=KEYS)
def test_runs_of_one_permutation_each(sizes: list[int], seed: int) -> None:
    each, words = np.array(sizes), keys(seed, np.arange(len(sizes)))
    numbers = np.concatenate([np.arange(size) for size in sizes])
    permuted = permute_each(numbers, each, words, each)
    parts = np.split(permuted, np.cumsum(each)[:-1])
    assert all(np.array_equal(np.sort(part), np.arange(size)) for part, size in zip(parts, sizes, strict=True))
    assert np.array_equal(unpermute_each(permuted, each, words, each), numbers)


def test_tiles_make_no_difference() -> None:
    size = 200_000
    whole = all_of(size, 4)
    assert np.array_equal(whole[33_000:99_999], permute(np.arange(33_000, 99_999), size, 4))


def test_nothing_of_nothing() -> None:
    assert permute(np.arange(0), 0, 1).tolist() == []


@pytest.mark.parametrize("size", [-1, 2**63 + 1])
def test_sizes_that_cannot_be(size: int) -> None:
    with pytest.raises(UsageError, match=f"a size from 0 to 2\\*\\*63; got {size}"):
        permute(np.arange(3), size, 0)


# ---- an auditor finds nothing


@pytest.mark.parametrize("size", SIZES)
def test_an_auditor_finds_nothing(size: int) -> None:
    for key in (0, 1, 2, 2**64 - 1) if size == 10**6 else range(12):
        score, look = worst_look(all_of(size, key))
        assert score < BOUND, look


@pytest.mark.parametrize("size", [1000, 2**16])
def test_an_auditor_finds_nothing_in_wide_words(size: int) -> None:
    """The 64-bit network, run on a size that can be looked at as a whole."""
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    for key in range(6):
        shape = (np.uint64(size), np.uint64(rows), np.uint64(columns), np.uint64(key * 2**60 + key))
        permuted = permute_module._walk_64(np.arange(size, dtype=np.uint64), *shape, inverse=False)
        score, look = worst_look(permuted.astype(np.int64))
        assert score < BOUND, look


@pytest.mark.parametrize("size", [2**40, 10**10, 2**62 + 12345])
def test_a_span_of_a_huge_permutation_is_even(size: int) -> None:
    permuted = permute(np.arange(10**6, 10**6 + 2**16), size, 1)
    centred = permuted / size - 0.5
    scores = [float((centred[lag:] * centred[:-lag]).mean() * 12 * 2**8) for lag in range(1, 65)]
    scores += [(np.count_nonzero(np.diff(permuted >> bit & 1)) - 2**15) / 2**7 for bit in range(30)]
    shares = np.bincount((permuted / size * 256).astype(np.int64), minlength=256)
    scores.append((((shares - 256) ** 2 / 256).sum() - 255) / math.sqrt(510))
    assert np.abs(scores).max() < BOUND


@pytest.mark.parametrize("size", [400, *(pytest.param(size, marks=pytest.mark.drill) for size in (4096, 2**16))])
def test_neither_rows_nor_columns_show_over_many_keys(size: int) -> None:
    """Four rounds pass `worst_look`, but over many keys they show at the lag of a row of the rectangle."""
    assert np.abs(row_lag_scores(size)).max() < 4.5


def test_four_rounds_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permute_module, "NUM_ROUNDS", 4)
    assert np.abs(row_lag_scores(2**16)).max() > 8


def row_lag_scores(size: int) -> NDArray[np.float64]:
    """z-scores of the autocorrelation at lags around multiples of a row, summed over keys."""
    columns = math.isqrt(size - 1) + 1
    num_keys = max(20, 2**21 // size)
    lags = [columns * i + j for i in (1, 2, 3) for j in (-1, 0, 1)]
    total = np.zeros(len(lags))
    for key in range(num_keys):
        centred = all_of(size, key) - (size - 1) / 2
        variance = (size * size - 1) / 12
        means = np.array([(centred[lag:] * centred[:-lag]).mean() for lag in lags])
        total += (means / variance + 1 / size) * np.sqrt(size - np.array(lags))
    return total / math.sqrt(num_keys)


# ---- and finds what is bad, with the same looks


def affine_feistel(size: int, rounds: int) -> NDArray[np.int64]:
    """A Feistel network with an affine round function modulo a power of two, as a published loader has it."""
    half = (size - 1).bit_length() // 2
    mask = (1 << half) - 1
    rng = np.random.default_rng(1)
    left, right = np.arange(size) >> half, np.arange(size) & mask
    for _ in range(rounds):
        a, b = int(rng.integers(mask)) | 1, int(rng.integers(mask))
        left, right = right, left ^ (a * right + b & mask)
    return left << half | right


def simon_feistel(size: int, rounds: int) -> NDArray[np.int64]:
    """Rounds of the cipher Simon, which another loader takes four of (the cipher itself: 32)."""
    half = (size - 1).bit_length() // 2
    mask = (1 << half) - 1
    rng = np.random.default_rng(1)

    def rotated(x: NDArray[np.int64], by: int) -> NDArray[np.int64]:
        return (x << by | x >> (half - by)) & mask

    left, right = np.arange(size) >> half, np.arange(size) & mask
    for _ in range(rounds):
        mixed = rotated(left, 1) & rotated(left, min(8, half - 1)) ^ rotated(left, 2)
        left, right = right ^ mixed ^ int(rng.integers(mask)), left
    return left << half | right


def congruential(size: int, _: int) -> NDArray[np.int64]:
    multiplier = next(a for a in range(int(size * 0.618), size) if math.gcd(a, size) == 1)
    return (np.arange(size) * multiplier + 12345) % size


@pytest.mark.parametrize("bad", [affine_feistel, simon_feistel, congruential])
def test_the_same_auditor_finds_bad_permutations(bad: Callable[[int, int], NDArray[np.int64]]) -> None:
    for size in (2**14, 2**16):
        permuted = bad(size, 4)
        assert np.array_equal(np.sort(permuted), np.arange(size))
        score, _ = worst_look(permuted)
        assert score > 2 * BOUND


@pytest.mark.parametrize("size", SIZES)
def test_the_same_auditor_finds_too_few_rounds(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(permute_module, "NUM_ROUNDS", 2)
    score, _ = worst_look(all_of(size, 1))
    assert score > 4 * BOUND


@pytest.mark.parametrize("size", SIZES)
def test_the_auditor_finds_nothing_in_a_random_permutation(size: int) -> None:
    for seed in range(3):
        score, look = worst_look(np.random.default_rng(seed).permutation(size))
        assert score < BOUND, look


# ---- small sizes, where a window has most of its permutations

NUM_KEYS = 60_000


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17, 20, 31, 50, 64])
def test_small_permutations_are_even(size: int) -> None:
    """Where an element goes, where two neighbours go, and where the two ends go: even over keys."""
    words = keys(11, np.arange(NUM_KEYS))
    each = np.full(NUM_KEYS, size)
    sent = np.stack([permute_each(np.full(NUM_KEYS, i), each, words).astype(np.int64) for i in range(size)])
    scores = [chi_squared_score(sent[i], size) for i in range(size)]
    for i, j in [*zip(range(size), range(1, size), strict=False), (0, size - 1)]:
        distance = (sent[j] - sent[i]) % size - 1  # 1 to size - 1, whatever sent[i] is
        pairs = sent[i] * (size - 1) + distance
        if size > 1 and 10 * size * (size - 1) < NUM_KEYS:
            scores.append(chi_squared_score(pairs, size * (size - 1)))
        if size > 2:
            scores.append(chi_squared_score(distance, size - 1))
    assert np.max(scores) < 5.0


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_small_permutations_are_equally_frequent(size: int) -> None:
    words = keys(13, np.arange(NUM_KEYS))
    each = np.full(NUM_KEYS, size)
    code = np.zeros(NUM_KEYS, dtype=np.int64)
    for i in range(size):
        code = code * size + permute_each(np.full(NUM_KEYS, i), each, words)
    seen = np.unique(code, return_counts=True)[1]
    assert len(seen) == math.factorial(size)
    expected = NUM_KEYS / len(seen)
    # The permutations of a tiny rectangle are all there, and within some percent of even.
    assert np.abs(seen / expected - 1).max() < 6 / math.sqrt(expected) + 0.02


def chi_squared_score(values: NDArray[np.int64], cells: int) -> float:
    """How many standard deviations the sum of squares is above what even values give."""
    expected = len(values) / cells
    counts = np.bincount(values, minlength=cells)
    chi = ((counts - expected) ** 2 / expected).sum()
    # Wilson and Hilferty's normal approximation, good for few cells too.
    freedom = cells - 1
    return float(((chi / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)))


def test_the_small_test_finds_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permute_module, "NUM_ROUNDS", 2)
    with pytest.raises(AssertionError):
        test_small_permutations_are_even(16)
