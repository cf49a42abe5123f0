"""What is predicted of the segments of a growing order is what simulated orders have."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.order.growing.segmented import in_turn

from shoal.errors import UsageError
from shoal.order.growing_segments import permuted_shards
from shoal.orders import Window
from shoal.quality.growing_quality import SegmentSizes, first_correlations, growing_quality, segments_quality
from shoal.quality.prediction import predicted_variance_ratio

MIB = 2**20

# Samples of each chunk, chunks of each shard, shards of each segment, chunks in the window, its nodes.
CASES = [
    (16, 8, (1, 2, 4, 8), 32, 1),
    (16, 8, (2, 4, 8, 8), 24, 2),
    (50, 1, (4, 8, 16, 32), 16, 1),
    (5, 40, (1, 2, 3, 3), 48, 3),
]


def sizes_of(case: tuple[int, int, tuple[int, ...], int, int]) -> list[SegmentSizes]:
    each, in_shard, shards, alive, nodes = case
    return [
        SegmentSizes(Window(alive, nodes), np.full(in_shard * num, each), np.full(num, each * in_shard))
        for num in shards
    ]


def drawn(shards: NDArray[np.int64], chunks: NDArray[np.int64], parts: tuple[float, float], seed: int) -> NDArray:
    """A value of each sample, of which these parts of the variance are of its shard and of its chunk."""
    rng = np.random.default_rng(seed)
    of_shard, of_chunk = parts
    values = of_shard**0.5 * rng.standard_normal(shards.max() + 1)[shards]
    values += of_chunk**0.5 * rng.standard_normal(chunks.max() + 1)[chunks]
    return values + (1 - of_shard - of_chunk) ** 0.5 * rng.standard_normal(len(shards))


@pytest.mark.parametrize("case", [*CASES[:3], pytest.param(CASES[3], marks=pytest.mark.drill)], ids=str)
@pytest.mark.parametrize(
    "parts",
    [(0.3, 0.2), *(pytest.param(part, marks=pytest.mark.drill) for part in [(1.0, 0.0), (0.0, 0.6), (0.02, 0.0)])],
    ids=str,
)
@pytest.mark.parametrize("batch", [16, pytest.param(40, marks=pytest.mark.drill)])
def test_segments_vary_as_predicted(
    case: tuple[int, int, tuple[int, ...], int, int], parts: tuple[float, float], batch: int
) -> None:
    each, in_shard, shards, alive, nodes = case
    segments = sizes_of(case)
    num_chunks = in_shard * sum(shards)
    chunks = np.repeat(np.arange(num_chunks), each)
    found, correlations, total = [], [], len(chunks)
    for seed in range(120):
        values = drawn(chunks // in_shard, chunks, parts, seed)
        order = in_turn([each.chunk_samples for each in segments], Window(alive, nodes), seed=seed)
        emitted = values[order.ids(0, total)]
        scale = batch * (total - 1) / (total - batch) / values.var()
        ratios = []
        for begin, end in zip(order.first_samples, order.first_samples[1:], strict=False):
            full = (end - begin) // batch * batch
            means = emitted[begin : begin + full].reshape(-1, batch).mean(axis=1)
            ratios.append(scale * float(((means - values.mean()) ** 2).mean()))
        found.append(ratios)
        # Relative to the mean and variance of this draw, as the formula has them.
        centred = (values - values.mean()) / values.std()
        sums = [np.bincount(by, centred) for by in (chunks, chunks // in_shard)]
        in_chunks, in_shards = (float(of @ of) - total for of in sums)
        beside = total * each * (in_shard - 1)
        correlations.append([in_chunks / (total * (each - 1)), (in_shards - in_chunks) / beside if beside else 0.0])
    rho, shard_rho = np.mean(correlations, axis=0).tolist()
    predicted = segments_quality(
        segments, Window(alive, nodes), batch, rho=min(1.0, rho), shard_rho=min(1.0, shard_rho)
    )
    errors = np.std(found, axis=0) / len(found) ** 0.5
    for number, quality in enumerate(predicted.segments):
        seen, error = float(np.mean(found, axis=0)[number]), float(errors[number])
        assert abs(quality.vr - seen) < 4 * error + 0.06 * seen, (number, quality.vr, seen, error)


@pytest.mark.parametrize("shard_rho", [0.0, 0.3])
def test_a_single_segment_is_mixed_as_its_window(shard_rho: float) -> None:
    order, samples = Window(chunks=32), np.full(400, 20)
    (found,) = segments_quality(
        [SegmentSizes(order, samples, np.full(50, 160))], order, 64, rho=0.4, shard_rho=shard_rho
    ).segments
    assert found.vr == pytest.approx(predicted_variance_ratio(order, samples, 64, rho=0.4), rel=1e-6)
    assert (found.share, found.num_shards, found.num_chunks, found.window_chunks) == (1.0, 50, 400, 32)


def test_the_epoch_begins_with_few_shards() -> None:
    sizes = [16 * MIB] * 2000
    found = growing_quality(sizes, 256, sample_bytes=2**16)
    assert [each.num_shards for each in found.segments[:6]] == [4, 8, 16, 32, 64, 64]
    assert [each.window_chunks for each in found.segments[:6]] == [128, 256, 512, 1024, 1024, 1024]
    assert sum(each.share for each in found.segments) == pytest.approx(1.0)
    assert sum(each.num_shards for each in found.segments) == 2000
    ratios = [each.vr for each in found.segments]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(256 / 4, rel=0.01), "a batch of 4 labels"
    assert ratios[-2] == pytest.approx(ratios[5], rel=1e-6)
    assert found.later_vr < 1.1
    assert found.vr == pytest.approx(sum(each.share * each.vr for each in found.segments))
    assert found.share_above(ratios[2]) == pytest.approx(12 / 2000)


def test_shards_with_samples_of_all_kinds_are_mixed_from_the_start() -> None:
    found = growing_quality([16 * MIB] * 2000, 256, sample_bytes=2**16, rho=0.01, shard_rho=0.0)
    assert found.segments[0].vr < 1.05
    assert found.warning() == ""
    alike = growing_quality([16 * MIB] * 2000, 256, sample_bytes=2**16, rho=0.2, shard_rho=0.2).warning()
    assert "samples of a shard are alike (rho = 0.2 between its chunks)" in alike
    assert "mixes 4 shards at the start, 84 at the end" in alike
    assert "With the whole index it would be 1.0 times" in alike


def test_large_shards_are_warned_of_although_all_segments_are_alike() -> None:
    found = growing_quality([2**30] * 40, 256, sample_bytes=2**16, rho=1.0)
    assert growing_quality([2**30] * 40, 256, sample_bytes=2**16).warning() == "", "what is assumed is no finding"
    assert "the growing order mixes 1 shard at the start, 1 at the end: batches of 256 vary 2" in found.warning()


def test_the_seed_decides_which_shards_are_first() -> None:
    sizes = np.where(np.arange(300) % 2, MIB, 20 * MIB)
    first = {growing_quality(sizes, 64, sample_bytes=2**14, seed=seed).segments[0].num_shards for seed in range(9)}
    assert len(first) > 2
    permuted = sizes[permuted_shards(300, seed=3)]
    told = growing_quality(permuted, 64, sample_bytes=2**14, seed=None)
    assert told == growing_quality(sizes, 64, sample_bytes=2**14, seed=3)


def test_batches_larger_than_segments_and_shards_without_samples() -> None:
    found = growing_quality([0, 64 * MIB, 70 * MIB, 0, 900 * MIB, 0, 2**31], 200, sample_bytes=2**20)
    assert sum(each.num_shards for each in found.segments) == 4
    assert all(np.isfinite(each.vr) and each.vr >= 0 for each in found.segments)
    empty = SegmentSizes(Window(2), np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64))
    filled = SegmentSizes(Window(2), np.full(4, 5), np.full(2, 10))
    assert segments_quality([empty, filled], Window(2), 5) == segments_quality([filled], Window(2), 5)


def test_a_small_segment_has_fewer_canonical_nodes() -> None:
    found = growing_quality(
        [4 * MIB] * 1000, 64, sample_bytes=2**16, window=2**32, chunk="8MiB", num_canonical_nodes=64
    )
    assert [each.window_chunks for each in found.segments] == [16, 32, 64, 128, 256, 504]


def test_a_listing_of_a_million_shards() -> None:
    found = growing_quality(np.full(10**6, MIB), 1024, sample_bytes=2**16)
    assert len(found.segments) > 900
    assert {round(each.vr, 6) for each in found.segments[8:-1]} == {round(found.segments[8].vr, 6)}


@pytest.mark.parametrize("parts", [(0.5, 0.0), (0.2, 0.3), (0.0, 0.4), (0.0, 0.0)], ids=str)
def test_correlations_of_few_shards_are_those_of_all(parts: tuple[float, float]) -> None:
    in_shard, each = 6, 10
    chunks = np.repeat(np.arange(8 * in_shard), each)
    counts = np.full(8 * in_shard, each), np.full(8, in_shard * each)
    found = [first_correlations(drawn(chunks // in_shard, chunks, parts, seed), *counts) for seed in range(400)]
    rho, shard_rho = np.median(found, axis=0).tolist()
    assert rho == pytest.approx(sum(parts), abs=0.06)
    assert shard_rho == pytest.approx(parts[0], abs=0.06)


def test_correlations_that_cannot_be_told_are_the_worst_case() -> None:
    assert first_correlations(["a", "b", "a", "b"], [2, 2], [4]) == (1.0, 1.0)
    assert first_correlations([3] * 8, [2] * 4, [4, 4]) == (1.0, 1.0)
    assert first_correlations([], [], []) == (1.0, 1.0)
    sorted_by_class = np.repeat(np.arange(6), 20)
    assert first_correlations(sorted_by_class, [5] * 24, [20] * 6) == pytest.approx((1.0, 1.0))
    of_single_samples = first_correlations(np.arange(60) % 7 / 7, [1] * 60, [10] * 6)
    assert abs(of_single_samples[1]) < 0.2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"batch": 10**6}, "batches of 1000000 cannot be cut from"),
        ({"rho": 1.5}, "from -1 to 1; got 1.5"),
        ({"shard_rho": -2.0}, "from -1 to 1; got -2.0"),
    ],
)
def test_what_cannot_be_predicted(arguments: dict, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        growing_quality([MIB] * 100, **{"batch": 16, "sample_bytes": 2**14, **arguments})
