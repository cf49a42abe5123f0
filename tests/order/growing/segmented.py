"""Datasets in segments, as samples per chunk of each, and their growing orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.order.datasets import SHAPES, chunk_samples

from shoal.order.growing_segments import SegmentsInTurn, segment_seed
from shoal.orders import BoundOrder, Order

NOTHING = np.zeros(0, dtype=np.int64)


def in_turn(segments: Sequence[NDArray[np.int64]], order: Order, *, seed: int = 0) -> SegmentsInTurn:
    """The order of segments given by the samples of their chunks."""

    def order_of(number: int) -> BoundOrder:
        return order.bind(segments[number], seed=segment_seed(seed, number))

    first_samples = np.cumsum([0, *(int(samples.sum()) for samples in segments)])
    first_chunks = np.cumsum([0, *map(len, segments)])
    return SegmentsInTurn(first_samples, first_chunks, order_of, parameters=order.parameters)


@st.composite
def segmented(draw: st.DrawFn, *, max_samples: int = 20_000, most: int = 6) -> list[NDArray[np.int64]]:
    """Up to ``most`` segments, some of them without samples or without chunks."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        if draw(st.integers(0, 5)) == 0:
            found.append(draw(st.sampled_from((NOTHING, np.zeros(3, dtype=np.int64)))))
            continue
        size = int(10 ** draw(st.floats(0, np.log10(max_samples / most))))
        found.append(
            chunk_samples(draw(st.sampled_from(SHAPES)), draw(st.integers(1, 200)), size, draw(st.integers(0, 2**16)))
        )
    return found
