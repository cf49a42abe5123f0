"""What is predicted from the order's numbers is what orders have, simulated over a grid.

The companions of a sample are counted in simulated orders, and that gives the variance ratio exactly for each rho
(`test_the_ratio_follows_from_companions` shows that on values), so the grid needs no random labels.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.quality.metrics import chunk_correlation, variance_ratio
from shoal.quality.prediction import companions, effective_chunks, predicted_variance_ratio, variance_ratio_of

TOLERANCE = 0.1  # what the documentation promises

# chunks in the window, canonical nodes, samples per chunk, chunks
WINDOWS = [
    (16, 1, 200, 600),
    (64, 1, 16, 4000),
    (64, 4, 64, 1000),
    (256, 16, 32, 4096),
    (256, 1, 64, 1024),
    (1024, 64, 16, 8192),
    (8, 1, 30, 100),
    (30, 1, 7, 1000),
    (100, 3, 50, 1000),
]


@functools.cache
def simulated(order: Any, samples: tuple[int, ...], num_seeds: int) -> list[NDArray[np.int64]]:
    bound = [order.bind(np.array(samples), seed=seed) for seed in range(num_seeds)]
    return [each.locate(0, each.num_samples)[1] for each in bound]


def counted_companions(epochs: list[NDArray[np.int64]], batch: int) -> float:
    found = []
    for chunks in epochs:
        full = len(chunks) // batch * batch
        words = np.arange(full) // batch * (int(chunks.max()) + 1) + chunks[:full]
        counts = np.unique(words, return_counts=True)[1]
        found.append((counts * (counts - 1)).sum() / full)
    return float(np.mean(found))


def check(order: Any, samples: NDArray[np.int64], batches: list[int], *, num_seeds: int = 2) -> None:
    epochs = simulated(order, tuple(samples.tolist()), num_seeds)
    for batch in batches:
        for rho in (1.0, 0.3, 0.01):
            found = variance_ratio_of(counted_companions(epochs, batch), samples, batch, rho=rho)
            wanted = predicted_variance_ratio(order, samples, batch, rho=rho)
            assert wanted == pytest.approx(found, rel=TOLERANCE), (order, batch, rho)


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_windows(case: tuple[int, int, int, int]) -> None:
    chunks, nodes, each, num_chunks = case
    sizes = [int(chunks * times) for times in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 8, 32)]
    batches = [size for size in sizes if 2 <= size <= each * num_chunks // 8]
    check(Window(chunks=chunks, num_canonical_nodes=nodes), np.full(num_chunks, each), batches)


@pytest.mark.parametrize(
    "case",
    [
        (64, 4, 20, 3000),
        *(pytest.param(case, marks=pytest.mark.drill) for case in [(64, 1, 64, 2000), (256, 16, 50, 3000)]),
    ],
    ids=str,
)
def test_windows_of_uneven_chunks(case: tuple[int, int, int, int]) -> None:
    chunks, nodes, mean, num_chunks = case
    samples = np.random.default_rng(0).integers(mean // 2, mean + mean // 2 + 1, num_chunks)
    batches = [int(chunks * times) for times in (0.5, 1, 1.5, 2, 4, 16)]
    check(Window(chunks=chunks, num_canonical_nodes=nodes), samples, batches)


@pytest.mark.parametrize("nodes", [2, 8])
def test_windows_that_hold_whole_nodes(nodes: int) -> None:
    check(Window(chunks=192, num_canonical_nodes=nodes), np.full(193, 40), [16, 128, 512], num_seeds=8)


@pytest.mark.parametrize(("chunks", "each", "num_chunks"), [(4, 64, 403), (32, 16, 1024), (100, 50, 350)])
def test_blocks(chunks: int, each: int, num_chunks: int) -> None:
    check(Block(chunks=chunks), np.full(num_chunks, each), [2, 16, 100, 256, 1024, 4096])


def test_blocks_of_uneven_chunks() -> None:
    check(Block(chunks=16), np.random.default_rng(1).integers(10, 90, 1000), [16, 100, 700, 2000])


@pytest.mark.parametrize(
    ("slots", "each", "num_chunks"),
    [(1000, 5000, 20), (1000, 50, 400), (256, 16, 1000), (4096, 1024, 64), (64, 64, 300)],
)
def test_buffers(slots: int, each: int, num_chunks: int) -> None:
    check(Buffer(samples=slots), np.full(num_chunks, each), [2, 16, 64, 256, 1024])


def test_buffers_of_uneven_chunks() -> None:
    check(Buffer(samples=500), np.random.default_rng(1).integers(1, 500, 200), [16, 64, 256, 1024])


def test_storage_order_and_full_are_exact() -> None:
    samples = np.random.default_rng(2).integers(0, 60, 500)
    for batch in (2, 16, 33, 100, 1000):
        counted = counted_companions(simulated(Sequential(), tuple(samples.tolist()), 1), batch)
        assert companions(Sequential(), samples, batch) == pytest.approx(counted, rel=1e-9)
        assert predicted_variance_ratio(Full(), samples, batch) == 1.0
        assert predicted_variance_ratio(Window(chunks=500), samples, batch) == 1.0


@pytest.mark.parametrize("rho", [0.2, *(pytest.param(rho, marks=pytest.mark.drill) for rho in (1.0, 0.02))])
def test_the_ratio_follows_from_companions(rho: float) -> None:
    """On values drawn with a known rho, simulated orders have the ratio of the formula."""
    rng = np.random.default_rng(0)
    each, num_chunks, batch = 32, 256, 96
    samples = np.full(num_chunks, each)
    for order in (Window(chunks=32), Block(chunks=8), Buffer(samples=256), Sequential()):
        ratios, correlations = [], []
        for seed in range(150):
            shared = np.repeat(rng.standard_normal(num_chunks), each)
            values = rho**0.5 * shared + (1 - rho) ** 0.5 * rng.standard_normal(len(shared))
            epoch = order.bind(samples, seed=seed).ids(0, len(shared))
            ratios.append(variance_ratio(values[epoch], batch))
            correlations.append(chunk_correlation(values, samples))
        found, error = np.mean(ratios), np.std(ratios) / len(ratios) ** 0.5
        wanted = predicted_variance_ratio(order, samples, batch, rho=float(np.mean(correlations)))
        assert abs(found - wanted) < 4 * error + 0.05 * wanted, (order, rho, found, wanted)


def test_rho_is_that_of_the_values() -> None:
    rng = np.random.default_rng(3)
    samples = rng.integers(1, 40, 3000)
    chunk = np.repeat(np.arange(3000), samples)
    for rho in (0.0, 0.1, 0.7):
        values = rho**0.5 * rng.standard_normal(3000)[chunk] + (1 - rho) ** 0.5 * rng.standard_normal(len(chunk))
        assert chunk_correlation(values, samples) == pytest.approx(rho, abs=0.04)
        # Signs of correlated normal values have the correlation 2 / pi * asin(rho).
        assert chunk_correlation(values > 0, samples) == pytest.approx(2 / np.pi * np.arcsin(rho), abs=0.04)
    assert chunk_correlation(chunk, samples) == pytest.approx(1.0)


def test_the_rule_of_as_many_chunks_as_samples_of_a_batch() -> None:
    """With K = b the shuffle is nearly perfect and with K = 2 b it is; fewer chunks vary by b / K."""
    samples = np.full(100_000, 256)
    for batch in (64, 1024):
        assert predicted_variance_ratio(Window(chunks=batch), samples, batch) < 1.13
        assert predicted_variance_ratio(Window(chunks=2 * batch), samples, batch) == pytest.approx(1.0, abs=0.01)
        assert predicted_variance_ratio(Window(chunks=batch // 8), samples, batch) == pytest.approx(8, rel=0.05)
        assert effective_chunks(Window(chunks=batch // 8), samples, batch) == pytest.approx(batch // 8, rel=0.05)


def test_what_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(UsageError, match="batches of 100 cannot"):
        predicted_variance_ratio(Full(), [50, 50], 100)
    with pytest.raises(UsageError, match=r"from -1 to 1; got 1.5"):
        predicted_variance_ratio(Full(), [50, 50], 10, rho=1.5)
    with pytest.raises(UsageError, match="chunk_samples"):
        predicted_variance_ratio(Full(), [], 10)
    with pytest.raises(UsageError, match="4 keys"):
        chunk_correlation([1, 2, 3, 4], [3])
    with pytest.raises(UsageError, match="all keys are equal"):
        chunk_correlation([1, 1, 1, 1], [2, 2])


@pytest.mark.parametrize("data", ["runs of 8", "runs of 64", "runs of 1000", "stripes", "stratified chunks"])
@pytest.mark.parametrize(
    "order",
    [Window(chunks=64, num_canonical_nodes=1), pytest.param(Block(chunks=16), marks=pytest.mark.drill)],
    ids=str,
)
def test_labels_in_runs_and_stripes(data: str, order: Any) -> None:
    """From rho of real labels: shorter and longer than chunks, taking turns, and every chunk the dataset in small."""
    each, num_chunks = 64, 2048
    place = np.arange(each * num_chunks)
    labels = {
        "runs of 8": place // 8 % 100,
        "runs of 64": place // 64 % 100,
        "runs of 1000": place // 1000,
        "stripes": place % 100,
        "stratified chunks": place % 8,
    }[data]
    samples = np.full(num_chunks, each)
    rho = chunk_correlation(labels, samples)
    batches = [32, 128, 512]
    measured = []
    for seed in range(4):
        emitted = labels[order.bind(samples, seed=seed).ids(0, len(place))]
        measured.append([variance_ratio(emitted, batch) for batch in batches])
    error = np.std(measured, axis=0) / 2
    predicted = np.array([predicted_variance_ratio(order, samples, batch, rho=rho) for batch in batches])
    assert np.all(np.abs(np.mean(measured, axis=0) - predicted) <= TOLERANCE * predicted + 3 * error), predicted
