from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.order.datasets import datasets, windows
from tests.order.mixing import alive

from shoal.order.window import timeline_slabs
from shoal.orders import Window

CASES = [
    (2, 1, 30, 50),
    (16, 1, 200, 600),
    (64, 4, 64, 2000),
    (64, 1, 3, 4000),
    (256, 16, 10, 4096),
    (256, 1, 64, 2000),
]


def chunks_of_node(window: Window, samples: NDArray[np.int64], node: int, seed: int = 0) -> NDArray[np.int64]:
    bound = window.bind(samples, seed=seed, epoch=1)
    return bound.locate(0, bound.num_samples)[1][node :: window.resolved_nodes]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_more_chunks_are_alive_than_the_window_has(case: tuple[int, int, int, int]) -> None:
    """One more for each node where a slab begins before the chunk that makes room has ended."""
    chunks, nodes, each, num_chunks = case
    window, most = Window(chunks=chunks, num_canonical_nodes=nodes), chunks // nodes
    for seed in (0, 1):
        for node in range(0, nodes, 3):
            found = alive(chunks_of_node(window, np.full(num_chunks, each), node, seed))
            assert found.max() <= most + 1
            assert np.median(found) >= 0.85 * most * (1 - 1 / each) - 1, "and hardly fewer"


def test_all_nodes_together_keep_the_window() -> None:
    samples = np.full(4096, 64)
    bound = Window(chunks=256, num_canonical_nodes=16).bind(samples)
    assert alive(bound.locate(0, bound.num_samples)[1]).max() <= 256 + 16 + 15  # 15 chunks belong to two nodes each


@pytest.mark.parametrize(("chunks", "nodes"), [(16, 1), (64, 4), (256, 1)])
def test_uneven_chunks_keep_the_window(chunks: int, nodes: int) -> None:
    for seed in (0, 1):
        samples = np.random.default_rng(seed).integers(50, 151, 3000)
        for node in range(nodes):
            found = alive(chunks_of_node(Window(chunks=chunks, num_canonical_nodes=nodes), samples, node, seed))
            assert found.max() <= chunks // nodes + 2


@given(samples=datasets(max_samples=20_000), order=windows(max_chunks=60), seed=st.integers(0, 2**64 - 1))
def test_any_chunks_keep_the_window(samples: NDArray[np.int64], order: Window, seed: int) -> None:
    """However uneven: besides those that begin or end in the slab, which holds a quarter of the window's samples."""
    if order.chunks >= len(samples):
        return  # all may be alive: each node is permuted as a whole
    width = order.chunks // order.resolved_nodes
    for node in range(min(3, order.resolved_nodes)):
        chunks = chunks_of_node(order, samples, node, seed)
        if len(chunks):
            num_chunks, num_samples = len(np.unique(chunks)), len(chunks)
            slab = max(2, width // 4) * (num_chunks + 2) / num_samples  # in chunks; two are parts
            assert alive(chunks).max() <= min(num_chunks, width + 2 * slab + 3)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_the_window_is_full_from_the_start_to_the_end(at_the_end: bool) -> None:
    """The first chunks begin together and end one after the other, the last ones the other way round."""
    chunks = chunks_of_node(Window(chunks=64, num_canonical_nodes=1), np.full(1000, 64), 0)
    if at_the_end:
        chunks = chunks[::-1]
    assert len(np.unique(chunks[:64])) >= 40, "two thirds of the window in a batch as large as it"
    assert len(np.unique(chunks[:200])) == 64, "all of it soon after"
    assert len(np.unique(chunks[: 64 * 32])) <= 66, "and no other for half a window"


@pytest.mark.parametrize("case", [*CASES, (64, 1, 40, 65), (64, 1, 40, 100)], ids=str)
def test_a_lane_has_one_chunk_at_any_time(case: tuple[int, int, int, int]) -> None:
    """From the first slab to the last: as one chunk of a lane ends, the next begins."""
    chunks, nodes, each, num_chunks = case
    bound = Window(chunks=chunks, num_canonical_nodes=nodes).bind(np.full(num_chunks, each), seed=1)
    timeline, width = bound._timeline, chunks // nodes
    for node in range(0, nodes, 3):
        count, unit = int(timeline._count[node]), 1 << timeline._bits
        slots = np.arange(count)
        born, lives = timeline._lives(np.full(count, node), slots)
        died = born + lives * unit // 2
        for lane in range(min(width, count)):
            mine = slots % width == lane
            assert born[mine][0] == 0
            assert died[mine][-1] == count * unit
            assert np.array_equal(died[mine][:-1], born[mine][1:])
        assert lives.min() >= min(width, 2 * (count - width) + 1)
        assert lives.max() <= max(3 * width, min(4 * width, 2 * count))


@given(samples=datasets(max_samples=50_000), order=windows(max_chunks=60), seed=st.integers(0, 2**64 - 1))
def test_slabs_are_small_whatever_the_chunks(samples: NDArray[np.int64], order: Window, seed: int) -> None:
    """No chunk gives a slab more than a few times what it should have, besides a sample of each."""
    bound = order.bind(samples, seed=seed)
    timeline, width = bound._timeline, order.chunks // order.resolved_nodes
    for node in bound._windowed[:4]:
        slabs = np.arange(timeline.num_slabs[node] + 1)
        delivered = timeline.delivered(np.full(len(slabs), node), slabs)
        assert delivered[0] == 0
        assert delivered[-1] == timeline._node_samples[node]
        assert np.diff(delivered).max() <= 6 * max(2, width // 4) + 2 * width
        assert len(slabs) <= delivered[-1] + 2


def test_a_chunk_that_outnumbers_all_others_costs_no_more() -> None:
    """Slabs that were even in time made up to three times what a span gives, and 3,000 samples for each id."""
    samples = np.full(200_000, 3)
    samples[70_000] = 10**8
    bound = Window(chunks=256).bind(samples, seed=3)
    timeline, made = bound._timeline, 0
    emit = timeline.emit

    def counted(*arguments: NDArray[np.int64]) -> object:
        nonlocal made
        counts = timeline.delivered(arguments[0], arguments[2]) - timeline.delivered(arguments[0], arguments[1])
        made += int(counts.sum())
        return emit(*arguments)

    timeline.emit = counted  # type: ignore[assignment]  # counts what the window asks for
    spans = [*range(3), *range(300, 303), bound.num_samples // bound.span - 2]
    for number in spans:
        bound.ids(number * bound.span, (number + 1) * bound.span)
    assert made < 1.1 * len(spans) * bound.span
    made, ids = 0, bound.ids(bound.num_samples // 2, bound.num_samples // 2 + 50)
    made = 0
    bound.positions(ids)
    assert made < 50 * 60


def test_a_chunk_lives_for_the_window() -> None:
    """A chunk delivers over as many chunks' worth of samples as the window has, at an even pace."""
    chunks = chunks_of_node(Window(chunks=32, num_canonical_nodes=1), np.full(500, 40), 0)
    positions = np.argsort(chunks, kind="stable").reshape(500, 40)
    lives = positions[:, -1] - positions[:, 0]
    inner = (positions[:, 0] > 32 * 40) & (positions[:, -1] < (500 - 32) * 40)
    assert np.abs(lives[inner] / (32 * 39) - 1).max() < 0.08
    gaps = np.diff(positions[inner], axis=1)
    assert gaps.max() <= 32 + 2 * 8 + 16


@pytest.mark.parametrize("num_samples", [2**20, 2**28])
def test_a_look_into_huge_chunks_does_not_make_all_of_them(num_samples: int) -> None:
    samples = np.random.default_rng(0).integers(num_samples // 2, num_samples, 200)
    bound = Window(chunks=32, num_canonical_nodes=2).bind(samples, seed=1)
    timeline, made = bound._timeline, []
    emit = timeline.emit

    def counted(*arguments: NDArray[np.int64]) -> object:
        made.append(timeline.delivered(arguments[0], arguments[2]) - timeline.delivered(arguments[0], arguments[1]))
        return emit(*arguments)

    timeline.emit = counted  # type: ignore[assignment]  # counts what the window asks for
    start = bound.num_samples // 3
    assert np.array_equal(bound.positions(bound.ids(start, start + 1000)), np.arange(start, start + 1000))
    assert sum(counts.sum() for counts in made[:2]) < 1.5 * bound.span


@given(
    samples=datasets(max_samples=2000),
    order=windows(max_chunks=60),
    tile=st.integers(1, 200),
    together=st.integers(0, 400),
)
def test_tiles_make_no_difference(samples: NDArray[np.int64], order: Window, tile: int, together: int) -> None:
    """Nodes are laid out together, alone or in several tiles."""
    bound = order.bind(samples, seed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_slabs, "_TILE", tile)
        patch.setattr(timeline_slabs, "_TOGETHER", together)
        by_tiles = order.bind(samples, seed=3)
        filled = np.flatnonzero(samples)  # others have no lane
        assert np.array_equal(by_tiles.lanes(filled), bound.lanes(filled))
    assert np.array_equal(by_tiles.ids(0, by_tiles.num_samples), bound.ids(0, bound.num_samples))
