"""Measures of mixing give the answers that are known beforehand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.order.orders_without_window import Block, Buffer, Full
from shoal.order.window.order import Window
from shoal.quality.metrics import (
    chunk_correlation,
    distinct_per_batch,
    expected_distinct,
    position_correlation,
    variance_ratio,
)

NUM_SAMPLES = 1 << 15
CLASS_SAMPLES = 512
LABELS = np.arange(NUM_SAMPLES) // CLASS_SAMPLES  # sorted by class, as people's data are


def test_batches_of_one_class_have_the_ratio_of_the_formula() -> None:
    for batch in (2, 64, 512):
        exact = batch * (NUM_SAMPLES - 1) / (NUM_SAMPLES - batch)
        assert variance_ratio(LABELS, batch) == pytest.approx(exact, rel=1e-9)


def test_batches_that_all_hold_the_same_have_the_ratio_0() -> None:
    assert variance_ratio(np.arange(1024) % 8, 64) == pytest.approx(0.0, abs=1e-9)
    assert variance_ratio((np.arange(1024) % 8).astype(float), 64) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch", [16, 256, 2048])
def test_a_permutation_has_the_ratio_1(seed: int, batch: int) -> None:
    ids = np.random.default_rng(seed).permutation(NUM_SAMPLES)
    # The ratio is a mean of num_batches * (num_classes - 1) squares of about unit variance.
    error = math.sqrt(2 / ((NUM_SAMPLES // batch) * (NUM_SAMPLES // CLASS_SAMPLES - 1)))
    assert variance_ratio(LABELS[ids], batch) == pytest.approx(1.0, abs=4.5 * error)


def test_the_expectation_over_all_permutations_is_exactly_1() -> None:
    for keys in ([0, 0, 0, 1, 1, 2], [0.5, 1.0, 4.0, 4.5, 9.0, 1.0]):
        orders = np.array(list(itertools.permutations(keys)))
        for batch in (1, 2, 3, 4, 5):
            assert variance_ratio(orders, batch) == pytest.approx(1.0, rel=1e-9)
            assert np.mean([variance_ratio(order, batch) for order in orders[::7]]) == pytest.approx(1.0, abs=0.2)


def test_two_labels_are_measured_like_the_number_that_tells_them_apart() -> None:
    keys = np.random.default_rng(0).integers(0, 2, 999)
    assert variance_ratio(keys, 10) == pytest.approx(variance_ratio(keys.astype(float), 10), rel=1e-9)


def test_labels_of_any_kind_are_the_same_labels() -> None:
    words = np.array(["b", "a", "c", "a"])[LABELS % 4]
    numbers = np.array([7, -1, 3, -1])[LABELS % 4]
    assert variance_ratio(words, 100) == pytest.approx(variance_ratio(numbers, 100), rel=1e-12)
    assert distinct_per_batch(words, 100) == distinct_per_batch(numbers, 100)


@pytest.mark.parametrize(("chunk_samples", "chunks"), [(16, 256), (64, 64), (256, 32)])
def test_a_window_of_k_chunks_has_the_ratio_b_over_k(chunk_samples: int, chunks: int) -> None:
    order = Window(chunks=chunks, num_canonical_nodes=1)
    counts = np.full(NUM_SAMPLES // chunk_samples, chunk_samples)
    emitted = np.stack([LABELS[order.bind(counts, seed=3, epoch=e).ids(0, NUM_SAMPLES)] for e in range(8)])
    for batch in (16, 64, 256):
        assert variance_ratio(emitted, batch) <= 1.13 * max(1.0, batch / chunks) + 0.05
    # Sorted chunks allow no more than this: a batch of 4 K is 4 times as much of each chunk as of the dataset.
    assert variance_ratio(emitted, 4 * chunks) > 1.5


def test_a_reservoir_over_sorted_shards_is_far_from_perfect() -> None:
    shards = np.full(8, NUM_SAMPLES // 8)
    orders = [Buffer(samples=1024).bind(shards, seed=1, epoch=epoch) for epoch in range(8)]
    ratio = variance_ratio(np.stack([LABELS[order.ids(0, NUM_SAMPLES)] for order in orders]), 64)
    # What leaves together came in together: about 2 * 1024 samples, so some 4 classes, mix at a time.
    effective_classes = 2 * 1024 / CLASS_SAMPLES
    assert ratio == pytest.approx(64 / effective_classes, rel=0.25)


def test_groups_of_chunks_mix_within_themselves_only() -> None:
    chunks = 32
    order = Block(chunks=chunks).bind(np.full(NUM_SAMPLES // 64, 64), seed=0, epoch=0)
    assert variance_ratio(LABELS[order.ids(0, NUM_SAMPLES)], chunks * 64) == pytest.approx(64, rel=0.35)


def test_several_epochs_are_measured_as_one() -> None:
    epochs = np.stack([np.random.default_rng(seed).permutation(LABELS) for seed in range(3)])
    single = [variance_ratio(epoch, 100) for epoch in epochs]
    assert variance_ratio(epochs, 100) == pytest.approx(np.mean(single), rel=1e-9)


def test_the_last_batch_is_left_out_when_it_is_not_full() -> None:
    labels = np.array([0] * 50 + [1] * 50 + [2] * 7)
    assert distinct_per_batch(labels, 50) == 1.0
    assert distinct_per_batch(labels, 107 - 1) == 3.0


def test_distinct_labels_of_a_perfect_shuffle_are_expected_exactly() -> None:
    labels = [0, 0, 0, 1, 1, 2]
    for batch in range(1, 7):
        counted = np.mean([len(set(chosen)) for chosen in itertools.combinations(labels, batch)])
        assert expected_distinct(labels, batch) == pytest.approx(counted, rel=1e-12)


def test_a_permutation_has_as_many_distinct_labels_as_expected() -> None:
    order = Full().bind(np.array([NUM_SAMPLES]), seed=0, epoch=0)
    found = distinct_per_batch(LABELS[order.ids(0, NUM_SAMPLES)], 64)
    assert found == pytest.approx(expected_distinct(LABELS, 64), rel=0.01)


def test_positions_correlate_as_they_follow_storage() -> None:
    ids = np.arange(1000)
    assert position_correlation(ids) == pytest.approx(1.0)
    assert position_correlation(ids[::-1]) == pytest.approx(-1.0)
    for seed in range(5):
        assert abs(position_correlation(np.random.default_rng(seed).permutation(1000))) < 4.5 / math.sqrt(999)


@pytest.mark.parametrize("batch", [0, -1, 10, 11])
def test_a_batch_that_cannot_be_compared_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match=f"batches of {batch}"):
        variance_ratio(np.arange(10), batch)


def test_keys_that_cannot_vary_are_refused() -> None:
    with pytest.raises(UsageError, match="all 10 keys are equal"):
        variance_ratio(np.zeros(10, dtype=int), 2)
    with pytest.raises(UsageError, match="shape"):
        variance_ratio(np.zeros((2, 2, 2), dtype=int), 1)
    with pytest.raises(UsageError, match="two different values"):
        position_correlation([5])


def test_the_correlation_of_uneven_chunks_stays_one() -> None:
    # Pairs of the large chunks at both ends are farther from the mean than samples are on the whole.
    samples = [40, 1, 1, 1, 40]
    keys = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], samples)
    assert chunk_correlation(keys, samples) == 1.0
