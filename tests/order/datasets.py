"""Random datasets and orders for the laws of this room, as samples per chunk."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.orders import (
    Block,
    BoundOrder,
    Buffer,
    Full,
    Order,
    Sequential,
    TorchRandom,
    WebDatasetDetshuffle,
    Window,
)

SHAPES = ("equal", "uneven", "sparse", "heavy")


def chunk_samples(shape: str, num_chunks: int, num_samples: int, seed: int) -> NDArray[np.int64]:
    """About ``num_samples`` samples, at least one, over ``num_chunks`` chunks."""
    rng = np.random.default_rng(seed)
    if shape == "equal":
        return np.full(num_chunks, max(1, num_samples // num_chunks))
    if shape == "heavy":
        weights = rng.pareto(1.0, num_chunks) + 1e-3
    else:
        weights = rng.random(num_chunks) + 1e-3
        weights *= (rng.random(num_chunks) < 0.3) if shape == "sparse" else 1
    counts = np.floor(weights / max(weights.sum(), 1e-9) * num_samples).astype(np.int64)
    counts[rng.integers(num_chunks)] += 1
    return counts


@st.composite
def datasets(draw: st.DrawFn, max_samples: int = 100_000, max_chunks: int = 500) -> NDArray[np.int64]:
    exponent = draw(st.floats(0, np.log10(max_samples)))
    return chunk_samples(
        draw(st.sampled_from(SHAPES)), draw(st.integers(1, max_chunks)), int(10**exponent), draw(st.integers(0, 2**16))
    )


@st.composite
def windows(draw: st.DrawFn, max_chunks: int = 300) -> Window:
    chunks = draw(st.integers(2, max_chunks))
    return Window(chunks=chunks, num_canonical_nodes=draw(st.none() | st.integers(1, chunks // 2)))


def orders() -> st.SearchStrategy[Order]:
    return st.one_of(
        windows(),
        windows(max_chunks=20),
        st.just(Full()),
        st.just(Sequential()),
        st.builds(Block, chunks=st.integers(1, 40)),
        st.builds(Buffer, samples=st.integers(1, 3000)),
        st.builds(TorchRandom, st.sampled_from(("sampler", "epoch"))),
        st.builds(
            WebDatasetDetshuffle,
            bufsize=st.integers(0, 3000),
            batch_size=st.integers(1, 50),
            world_size=st.integers(1, 4),
            num_workers=st.integers(0, 3),
        ),
    )


def scan(order: BoundOrder) -> NDArray[np.int64]:
    return order.ids(0, order.num_samples)


def chunk_of(samples: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chunk of each id, found another way than the orders find it."""
    return np.repeat(np.arange(len(samples)), samples)[ids]
