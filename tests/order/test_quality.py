"""On data whose chunks each hold one class (rho = 1), the window mixes as predicted."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.order.datasets import chunk_of
from tests.order.mixing import alive, autocorrelations, batch_variances, variance_ratio

from shoal.orders import Block, Buffer, Full, Window

# chunks in the window, canonical nodes, samples per chunk, chunks: smaller and larger than the batches
EQUAL = [
    (16, 1, 200, 600),
    (32, 2, 10, 3000),
    (64, 1, 16, 4000),
    (64, 4, 64, 2000),
    *(
        pytest.param(case, marks=pytest.mark.drill)
        for case in [
            (64, 1, 1000, 640),
            (256, 16, 64, 4096),
            (256, 16, 300, 2560),
            (256, 1, 64, 4096),
            (1024, 64, 16, 16_384),
            (1024, 1, 16, 16_384),
        ]
    ),
]
SEEDS = (0, 1, 2)
_FEWEST_BATCHES = 12  # whose mean variance says something


@functools.lru_cache(maxsize=4)
def order_of(chunks: int, nodes: int, each: int, num_chunks: int) -> list[NDArray[np.int64]]:
    """The chunk at each position, for each seed."""
    samples = np.full(num_chunks, each)
    bounds = [Window(chunks=chunks, num_canonical_nodes=nodes).bind(samples, seed=seed) for seed in SEEDS]
    return [bound.locate(0, bound.num_samples)[1] for bound in bounds]


def batches_for(chunks: int) -> list[int]:
    """16 to 4K, also between whole multiples of K, where it is hardest."""
    sizes = {16, 64, *(int(chunks * times) for times in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4))}
    return sorted(size for size in sizes if 16 <= size <= 4 * chunks)


@pytest.mark.parametrize("case", EQUAL, ids=str)
def test_batches_vary_as_predicted(case: tuple[int, int, int, int]) -> None:
    for batch in batches_for(case[0]):
        found = np.mean([variance_ratio(chunks, batch) for chunks in order_of(*case)])
        assert found <= 1.15 * max(1, batch / case[0]), batch


@pytest.mark.parametrize("case", EQUAL, ids=str)
def test_the_ends_of_an_epoch_are_mixed(case: tuple[int, int, int, int]) -> None:
    """Over the first and the last window, quarter of a window and twentieth, nearly as well as in the middle."""
    chunks, _, each, num_chunks = case
    for batch in batches_for(chunks):
        found = [batch_variances(order, batch) for order in order_of(*case)]
        for samples in (chunks * each, chunks * each // 4, num_chunks * each // 20):
            size = samples // batch
            if size * len(SEEDS) >= _FEWEST_BATCHES:
                for end in (slice(0, size), slice(-size, None)):
                    assert np.mean([vr[end] for vr in found]) <= 1.3 * max(1, batch / chunks), (batch, samples, end)


@pytest.mark.parametrize("case", EQUAL, ids=str)
def test_labels_have_no_echo(case: tuple[int, int, int, int]) -> None:
    chunks, nodes = case[:2]
    lags = np.arange(1, 4 * chunks + 1)
    if nodes > 1:  # samples of one node are so many positions apart; the others have nothing in common
        lags = np.union1d(lags[lags % nodes == 0], lags[:40])
    for found in order_of(*case)[:1]:
        bound = 5 / (chunks // nodes) + 4 / len(found) ** 0.5
        assert autocorrelations(found, lags).max() <= bound


UNEVEN = [
    (64, 4, 20, 4000),
    *(
        pytest.param(case, marks=pytest.mark.drill)
        for case in [(64, 1, 64, 3000), (256, 16, 100, 4096), (256, 1, 400, 2000)]
    ),
]


@pytest.mark.parametrize("case", UNEVEN, ids=str)
def test_uneven_chunks_count_for_fewer(case: tuple[int, int, int, int]) -> None:
    """Counts within half of each other: K means K * mean(m)^2 / mean(m^2)."""
    chunks, nodes, mean, num_chunks = case
    for seed in SEEDS[:2]:
        samples = np.random.default_rng(seed).integers(mean // 2, mean + mean // 2 + 1, num_chunks)
        weighted = chunks * samples.mean() ** 2 / (samples.astype(float) ** 2).mean()
        bound = Window(chunks=chunks, num_canonical_nodes=nodes).bind(samples, seed=seed)
        found = bound.locate(0, bound.num_samples)[1]
        for batch in batches_for(chunks):
            assert variance_ratio(found, batch) <= 1.25 * max(1, batch / weighted), batch


@pytest.mark.parametrize("is_even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("draw", [0, *(pytest.param(draw, marks=pytest.mark.drill) for draw in range(1, 6))])
def test_windows_drawn_at_random_hold_every_promise(draw: int, is_even: bool) -> None:
    """Over eight seeds: the first window, both ends, the whole epoch, echoes and the chunks alive, on fixed draws."""
    rng = np.random.default_rng([18, draw])
    nodes = int(rng.choice([1, 2, 4, 8]))
    width = int(rng.integers(8, 48))
    chunks, each = nodes * width, int(rng.integers(16, 120))
    num_chunks = max(12 * chunks, min(30 * chunks, 100_000 // each))
    samples = np.full(num_chunks, each) if is_even else rng.integers(each // 2, each + each // 2 + 1, num_chunks)
    window, total = int(chunks * samples.mean()), int(samples.sum())
    weighted = chunks * samples.mean() ** 2 / (samples.astype(float) ** 2).mean()
    bounds = [Window(chunks=chunks, num_canonical_nodes=nodes).bind(samples, seed=seed) for seed in range(8)]
    orders = [bound.locate(0, total)[1] for bound in bounds]
    for batch in (chunks // 2, chunks, chunks + chunks // 4, 2 * chunks, 3 * chunks):
        ratios = [batch_variances(order, batch) / max(1, batch / weighted) for order in orders]
        assert np.mean([found.mean() for found in ratios]) <= (1.15 if is_even else 1.25), batch
        for span in (slice(0, window // batch), slice(0, total // 20 // batch), slice(-(total // 20 // batch), None)):
            averages = [found[span].mean() for found in ratios if found[span].size]
            if total // 20 >= batch:
                assert np.mean(averages) <= (1.3 if is_even else 1.4), (batch, span)
                assert max(averages) <= 1.6, (batch, span, "of one seed")
    lags = nodes * np.arange(1, 2 * width + 1)
    assert autocorrelations(orders[0], lags).max() <= 5 / width + 4 / total**0.5
    assert alive(orders[0]).max() <= chunks + nodes, "one more for each node"


def alikes(orders: list[NDArray[np.int64]], batch: int, end: slice) -> list[float]:
    """For each order, how often two samples of some batches together are of one chunk."""
    found = []
    for order in orders:
        part = order[: len(order) // batch * batch].reshape(-1, batch)[end]
        found.append(float(((np.bincount(part.reshape(-1)) / part.size) ** 2).sum()))
    return found


ODD = {  # chunks of the window, canonical nodes, samples of each chunk
    "uneven": (64, 4, np.random.default_rng(1).integers(20, 180, 2000)),
    "files of a crawl": (64, 4, np.random.default_rng(2).lognormal(4, 0.7, 3000).astype(np.int64) + 1),
    "one giant": (64, 1, np.where(np.arange(2000) == 77, 5000, 64)),
    "hardly more than the window": (64, 1, np.full(65, 100)),
    "one and a half windows": (64, 1, np.full(96, 100)),
    "as many as the window": (64, 4, np.full(64, 100)),
    "fewer than the window": (64, 4, np.full(40, 100)),
    "one": (64, 4, np.array([5000])),
}


@pytest.mark.parametrize("name", ODD)
def test_the_ends_are_mixed_on_any_geometry(name: str) -> None:
    """Against K weighted by the sizes of all chunks, or of those that come there."""
    chunks, nodes, samples = ODD[name]
    total = int(samples.sum())
    bounds = [Window(chunks=chunks, num_canonical_nodes=nodes).bind(samples, seed=seed) for seed in range(6)]
    orders = [bound.locate(0, total)[1] for bound in bounds]
    if len(samples) == 1:
        assert all(np.array_equal(order, np.zeros(total)) for order in orders)
        return
    weighted = chunks * samples.mean() ** 2 / (samples.astype(float) ** 2).mean()
    for batch in (chunks // 4, chunks // 2, chunks, 2 * chunks):
        found = [batch_variances(order, batch) for order in orders]
        for span in (int(chunks * samples.mean()), total // 20):
            size = max(1, min(span, total) // batch)
            if size * len(orders) >= _FEWEST_BATCHES:
                for end in (slice(0, size), slice(-size, None)):
                    bound = np.mean([max(1, batch / weighted, batch * alike) for alike in alikes(orders, batch, end)])
                    assert np.mean([variances[end] for variances in found]) <= 1.35 * bound, (batch, span, end)


def test_classes_of_many_chunks_are_mixed_as_well() -> None:
    """A class of 40 chunks in a row: the chunks are drawn from all over the dataset."""
    for chunks in order_of(256, 16, 64, 4096):
        for batch in (64, 256, 1024):
            assert variance_ratio(chunks // 40, batch) <= 1.2 * max(1, batch / 256)


def test_order_inside_a_chunk_is_mixed_as_well() -> None:
    """Chunks that are sorted inside: where in its chunk a sample lies says nothing about when it comes."""
    samples = np.full(2048, 128)
    bound = Window(chunks=64, num_canonical_nodes=4).bind(samples, seed=3)
    inside = scan_inside = bound.ids(0, bound.num_samples) % 128
    for batch in (64, 256):
        assert variance_ratio(inside // 16, batch) < 1.05
    centred = scan_inside - 63.5
    for lag in range(1, 300):
        correlation = (centred[lag:] * centred[:-lag]).mean() / (128**2 - 1) * 12
        assert abs(correlation) * len(centred) ** 0.5 < 6, lag


# ---- the measure itself, and orders that mix less


def test_the_measure_is_that_of_random_labels() -> None:
    """What is computed as an expectation is what labels drawn at random give on average."""
    rng = np.random.default_rng(0)
    samples = rng.integers(1, 60, 200)
    bound = Block(chunks=8).bind(samples, seed=1)
    chunks = chunk_of(samples, bound.ids(0, bound.num_samples))
    batch, num_batches = 50, len(chunks) // 50
    drawn, perfect = [], []
    for _ in range(3000):
        values = rng.standard_normal(len(samples))
        labels = values[chunks] - values[chunks].mean()
        drawn.append((labels[: num_batches * batch].reshape(-1, batch).mean(axis=1) ** 2).mean())
        perfect.append(labels.var() / batch * (len(chunks) - batch) / (len(chunks) - 1))
    assert np.mean(drawn) / np.mean(perfect) == pytest.approx(variance_ratio(chunks, batch), rel=0.05)


def test_a_perfect_shuffle_measures_one() -> None:
    samples = np.full(4096, 64)
    bound = Full().bind(samples, seed=0)
    chunks = bound.locate(0, bound.num_samples)[1]
    for batch in (16, 64, 256, 1024):
        assert variance_ratio(chunks, batch) == pytest.approx(1, abs=0.03)
    assert np.abs(autocorrelations(chunks, np.arange(1, 200))).max() < 1e-3


def test_no_shuffle_measures_the_batch() -> None:
    assert variance_ratio(np.repeat(np.arange(1000), 64), 32) == pytest.approx(32, rel=0.01)


def test_blocks_and_buffers_measure_worse_in_the_same_memory() -> None:
    samples = np.full(4096, 64)
    window, block, buffer = (
        variance_ratio(order.bind(samples, seed=0).locate(0, 4096 * 64)[1], 256)
        for order in (Window(chunks=256, num_canonical_nodes=1), Block(chunks=128), Buffer(samples=128 * 64))
    )
    assert window < 1.1 < buffer
    assert block > 2 * window * 0.95
