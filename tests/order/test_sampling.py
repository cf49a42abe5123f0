from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import orders, scan

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.order.sampling import systematic_draws
from shoal.order.sampling.copies import Copies, OverCopies, Turns
from shoal.order.sampling.systematic_draws import weighted_counts
from shoal.order.sampling.weights_and_classes import ByClass, ByWeight, integer_weights
from shoal.orders import Full, Order, Sequential, Window
from shoal.quality.metrics import variance_ratio
from shoal.quality.prediction import predicted_variance_ratio
from shoal.tools.auditing.statistical_tests import ratio_tail

WEIGHTS = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=300),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60),
).filter(any)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=300)


def by_class(labels: list[int], num_samples: int) -> ByClass:
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return ByClass(classes.astype(np.uint8), sizes, num_samples)


def is_near(counts: NDArray[Any], expected: list[Fraction]) -> bool:
    """Whether each count is its expectation, rounded down or up."""
    return all(floor(share) <= count <= ceil(share) for count, share in zip(counts.tolist(), expected, strict=True))


@pytest.fixture(params=[3, 18])
def block_bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small blocks, so that a few hundred samples have many."""
    monkeypatch.setattr(systematic_draws, "_BLOCK_BITS", request.param)
    return int(request.param)


@given(weights=WEIGHTS, num_samples=st.integers(1, 2000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
@pytest.mark.usefixtures("block_bits")
def test_a_sample_comes_as_often_as_its_weight_says_rounded_down_or_up(
    weights: list[int], num_samples: int, seed: int, epoch: int
) -> None:
    rule = ByWeight(np.array(weights, dtype=np.uint32), num_samples)
    counts = rule.counts(seed=seed, epoch=epoch)
    assert int(counts.sum()) == num_samples
    assert is_near(counts, [Fraction(weight * num_samples, sum(weights)) for weight in weights])


@given(
    passed=st.lists(st.integers(0, 2**61 - 1), min_size=1, max_size=20),
    total=st.integers(1, 2**40),
    data=st.data(),
)
def test_products_of_more_than_64_bits_are_divided_exactly(passed: list[int], total: int, data: st.DataObject) -> None:
    weight_sum = data.draw(st.integers(max(1, *passed), 2**61 - 1))
    start = data.draw(st.integers(0, weight_sum - 1))
    found = systematic_draws._cuts_before(np.array(passed, dtype=np.uint64), total, start, weight_sum)
    assert found.tolist() == [(each * total + start) // weight_sum for each in passed]


@few_examples(25)
@given(labels=LABELS, num_samples=st.integers(1, 2000), seed=st.integers(0, 2**64 - 1), first=st.integers(0, 2**40))
@pytest.mark.usefixtures("block_bits")
def test_balanced_classes_have_equally_many_and_their_samples_come_in_turn(
    labels: list[int], num_samples: int, seed: int, first: int
) -> None:
    rule = by_class(labels, num_samples)
    num_classes = len(rule.sizes)
    of_classes, of_samples = np.zeros(num_classes, dtype=int), np.zeros(len(labels), dtype=int)
    for epoch in range(first, first + 4):
        counts = rule.counts(seed=seed, epoch=epoch)
        here = np.bincount(rule.classes, counts, minlength=num_classes).astype(int)
        assert here.sum() == num_samples
        assert is_near(here, [Fraction(num_samples, num_classes)] * num_classes)
        shares = [Fraction(int(here[number]), int(rule.sizes[number])) for number in rule.classes]
        assert is_near(counts, shares)
        of_classes, of_samples = of_classes + here, of_samples + counts
        # All epochs so far together, too.
        assert is_near(of_classes, [Fraction((epoch + 1 - first) * num_samples, num_classes)] * num_classes)
        shares = [Fraction(int(of_classes[number]), int(rule.sizes[number])) for number in rule.classes]
        assert is_near(of_samples, shares)


@few_examples(25)
@given(labels=LABELS, limit=st.integers(1, 60), seed=st.integers(0, 99))
def test_a_limit_takes_no_sample_twice_and_all_samples_in_turn(labels: list[int], limit: int, seed: int) -> None:
    whole = by_class(labels, len(labels))
    rule = ByClass.limited(whole.classes, whole.sizes, limit)
    visits = np.zeros(len(labels), dtype=int)
    for epoch in range(5):
        counts = rule.counts(seed=seed, epoch=epoch)
        assert counts.max() <= 1
        assert np.array_equal(np.bincount(rule.classes, counts), np.minimum(rule.sizes, limit))
        assert int(counts.sum()) == rule.num_samples
        visits += counts
    for number, size in enumerate(rule.sizes.tolist()):
        share = Fraction(5 * min(size, limit), size)
        assert is_near(visits[rule.classes == number], [share] * size)


@given(weights=WEIGHTS, data=st.data(), seed=st.integers(0, 99))
def test_without_repeats_no_sample_comes_twice(weights: list[int], data: st.DataObject, seed: int) -> None:
    possible = sum(weight > 0 for weight in weights)
    num_samples = data.draw(st.integers(1, possible))
    asked = ByWeight(np.array(weights, dtype=np.uint32), num_samples)
    rule = asked.without_repeats()
    counts = rule.counts(seed=seed, epoch=3)
    assert counts.max() <= 1
    assert int(counts.sum()) == num_samples
    # Only the largest are lowered, and only if they must be.
    highest = int(rule.weights.max())
    assert np.array_equal(rule.weights, np.minimum(asked.weights, highest))
    if max(weights) * num_samples <= sum(weights):
        assert np.array_equal(rule.weights, asked.weights)
    else:
        assert (highest + 1) * num_samples > int(np.minimum(asked.weights, highest + 1).sum(dtype=np.uint64))


def test_more_samples_without_repeats_than_there_are() -> None:
    with pytest.raises(UsageError, match="3 samples without repeats, but only 2 have a weight above 0"):
        ByWeight(np.array([5, 0, 1], dtype=np.uint32), 3).without_repeats()


def test_epochs_continue_each_other_with_weights_too() -> None:
    # With a random start in each epoch the worst sample is 24 visits off.
    weights = integer_weights(np.random.default_rng(0).lognormal(0, 1, 2000))
    shares = weights / weights.sum(dtype=np.float64)
    for seed in range(3):
        visits = np.zeros(len(weights))
        for epoch in range(200):
            visits += weighted_counts(weights, int(weights.sum(dtype=np.uint64)), 500, seed=seed, epoch=epoch)
            assert np.abs(visits - (epoch + 1) * 500 * shares).max() < 3


def test_neighbours_are_taken_independently() -> None:
    # Cut in storage order, half of all samples would be those with even numbers, or those with odd ones.
    for rule in (by_class([0] * 4000, 2000), ByWeight(np.full(4000, 7, dtype=np.uint32), 2000)):
        for epoch in range(5):
            counts = rule.counts(seed=1, epoch=epoch).astype(int)
            assert abs(counts[::2].sum() - 1000) < 5 * np.sqrt(4000) / 4
            assert abs((counts[1:] * counts[:-1]).sum() - 1000) < 5 * np.sqrt(4000) / 4


def test_seeds_and_epochs_take_other_samples() -> None:
    weights = integer_weights(np.random.default_rng(0).random(1000))
    for rule in (by_class([0, 1] * 500, 400), ByWeight(weights, 400)):
        drawn = [rule.counts(seed=seed, epoch=epoch).tobytes() for seed in range(4) for epoch in range(2)]
        assert len(set(drawn)) == len(drawn)


def test_the_distribution_is_that_of_a_weighted_random_sampler() -> None:
    torch = pytest.importorskip("torch")
    weights = np.repeat([1, 2, 5, 30], 25)
    shares, num_samples, num_epochs = weights / weights.sum(), 100, 400
    generator = torch.Generator().manual_seed(0)
    sampler = torch.utils.data.WeightedRandomSampler(weights.tolist(), num_samples, generator=generator)
    theirs = np.array([np.bincount(list(sampler), minlength=100) for _ in range(num_epochs)])
    rule = ByWeight(integer_weights(weights), num_samples)
    ours = np.array([rule.counts(seed=seed, epoch=seed % 7) for seed in range(num_epochs)])
    # Sums over epochs against their expectation, and against each other, over the variances of the two laws.
    expected, rest = shares * num_samples, shares * num_samples % 1
    variances = {"theirs": expected * (1 - shares), "ours": rest * (1 - rest)}
    sums = {"theirs": theirs.sum(axis=0), "ours": ours.sum(axis=0)}
    differences = {name: (sums[name] - num_epochs * expected, variances[name]) for name in sums}
    differences["both"] = (sums["theirs"] - sums["ours"], variances["theirs"] + variances["ours"])
    for name, (difference, variance) in differences.items():
        assert ratio_tail((difference**2 / (num_epochs * variance)).sum() / 99, 99) > 0.001, name
    assert ours.var(axis=0).sum() == pytest.approx(variances["ours"].sum(), rel=0.05)
    assert ours.var(axis=0).sum() < 0.2 * theirs.var(axis=0).sum()


@given(counts=st.lists(st.integers(0, 300), max_size=400))
def test_copies_are_numbered_sample_by_sample(counts: list[int]) -> None:
    copies = Copies(np.array(counts, dtype=np.uint16))
    samples = np.repeat(np.arange(len(counts)), counts)
    assert len(copies) == len(samples)
    assert np.array_equal(copies.samples(np.arange(len(samples))), samples)
    before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    assert np.array_equal(copies.before(np.arange(len(counts) + 1)), before)
    borders = np.arange(0, len(counts) + 1, 3)
    assert np.array_equal(copies.count_between(borders), np.diff(before[borders]))


@few_examples(25)
@given(
    chunks=st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any),
    order=orders(),
    most=st.sampled_from([1, 3, 200]),
    data=st.data(),
)
def test_an_order_over_copies(chunks: list[int], order: Order, most: int, data: st.DataObject) -> None:
    chunk_samples = np.array(chunks)
    total = int(chunk_samples.sum())
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    counts = draw.integers(0, most + 1, total) * (draw.random(total) < 0.7)
    turns = Turns.of(Copies(counts.astype(np.uint16)), chunk_samples, whole=data.draw(st.booleans()))
    sizes = np.diff(turns.starts)
    over = OverCopies(order.bind(sizes, seed=2), turns)
    samples, turn = over.locate(0, over.num_samples)
    assert np.array_equal(np.bincount(samples, minlength=total), counts)
    assert np.array_equal(np.bincount(turn, minlength=len(sizes)), sizes)
    # A turn is of one chunk, and no larger than its chunk, by more than half.
    chunk_of_turn = np.repeat(np.arange(len(chunks)), np.diff(turns.chunk_turns))
    assert np.array_equal(np.repeat(np.arange(len(chunks)), chunks)[samples], chunk_of_turn[turn])
    if (turns.stride > 1).any():
        assert (sizes <= 1.5 * chunk_samples[chunk_of_turn] + 1).all()
    start = data.draw(st.integers(0, len(samples)))
    stop = data.draw(st.integers(start, len(samples)))
    assert np.array_equal(over.ids(start, stop), samples[start:stop])
    firsts = np.full(total, -1)
    firsts[samples[::-1]] = np.arange(len(samples))[::-1]
    assert np.array_equal(over.positions(np.arange(total)), firsts)
    assert np.array_equal(np.sort(turns.all_samples()), np.sort(samples))
    world_size = data.draw(st.integers(1, 9))
    part = Partition(world_size * 3, world_size)
    shares = [part.share(over, rank, 0, part.num_batches(len(samples))) for rank in range(world_size)]
    dealt = np.concatenate([share.ids[~share.repeated] for share in shares])
    assert np.array_equal(np.sort(dealt), np.sort(samples))


def test_copies_of_a_sample_are_far_from_each_other() -> None:
    # 100 copies of each of 50 samples, stored in one chunk of 200: in one turn they would be a window apart at most.
    counts = np.concatenate([np.full(50, 100), np.ones(9950, dtype=int)])
    turns = Turns.of(Copies(counts.astype(np.uint8)), np.full(50, 200))
    ids = scan(OverCopies(Window(chunks=8, num_canonical_nodes=1).bind(np.diff(turns.starts), seed=1), turns))
    places = np.flatnonzero(ids == 7)
    assert np.diff(places).max() < 0.15 * len(ids)
    assert places.max() - places.min() > 0.8 * len(ids)


def test_a_rare_class_stored_together_mixes_as_well_as_all_others() -> None:
    # 100 chunks of 64, each of one class, the last of them alone: uncut, its copies give a variance ratio of 15.
    chunk_class = np.repeat([0, 1, 2, 3], [51, 32, 16, 1])
    classes = np.repeat(chunk_class, 64).astype(np.uint8)
    rule = ByClass(classes, np.bincount(classes), len(classes))
    order = Window(chunks=16, num_canonical_nodes=1)
    ratios, predicted = [], []
    for seed in range(40):
        turns = Turns.of(Copies(rule.counts(seed=seed, epoch=0)), np.full(100, 64))
        bound = order.bind(np.diff(turns.starts), seed=seed)
        emitted = classes[scan(OverCopies(bound, turns))]
        ratios.append(variance_ratio(emitted, 64))
        predicted.append(predicted_variance_ratio(order, np.diff(turns.starts), 64))
    assert np.mean(ratios) < 1.15 * np.mean(predicted)
    assert np.mean(predicted) < 1.5 * predicted_variance_ratio(order, np.full(100, 64), 64)


def test_weights_become_integers_of_32_bits() -> None:
    assert integer_weights(np.array([3, 0, 7])).tolist() == [3, 0, 7]
    assert integer_weights(np.array([True, False])).tolist() == [1, 0]
    assert integer_weights(np.array([0.5, 1.0, 0.0])).tolist() == [2**31, 2**32 - 1, 0]
    assert integer_weights(np.array([1e-30, 1.0])).tolist() == [1, 2**32 - 1]
    assert integer_weights(np.array([5e-324, 0.0])).tolist() == [2**32 - 1, 0]
    assert integer_weights(np.array([1, 2**60])).tolist() == [1, 2**32 - 1]


@pytest.mark.parametrize("bad", [[1.0, -1.0], [np.nan, 1.0], [1.0, np.inf], [0.0, 0.0]])
def test_impossible_weights(bad: list[float]) -> None:
    with pytest.raises(UsageError, match=r"weights are (finite|0)|all 2 weights are 0"):
        integer_weights(np.array(bad))


@few_examples(12)
@given(labels=LABELS, num_samples=st.integers(1, 2000))
def test_repeats_are_what_epochs_have_on_average(labels: list[int], num_samples: int) -> None:
    rule = by_class(labels, num_samples)
    repeats, counts = rule.repeats, [rule.counts(seed=seed, epoch=seed) for seed in range(60)]
    assert (repeats.num_samples, repeats.num_stored) == (num_samples, len(labels))
    assert max(int(each.max()) for each in counts) <= repeats.most_copies
    room = 3 * len(rule.sizes) + 1  # classes get one more or less
    assert abs(np.mean([(each > 1).sum() for each in counts]) - repeats.num_repeated) <= room
    assert abs(np.mean([(each == 0).sum() for each in counts]) - repeats.num_unvisited) <= room


def test_orders_without_chunks_leave_the_copies_of_a_sample_together() -> None:
    counts = np.array([3, 0, 2], dtype=np.uint8)
    for order, expected in ((Sequential(), [0, 0, 0, 2, 2]), (Full(), None)):
        turns = Turns.of(Copies(counts), np.array([2, 1]), whole=True)
        ids = scan(OverCopies(order.bind(np.diff(turns.starts)), turns))
        assert sorted(ids.tolist()) == [0, 0, 0, 2, 2]
        assert expected in (None, ids.tolist())
