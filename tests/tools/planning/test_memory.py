"""What a plan says of arrays is what making them takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from shoal.orders import Block, Window


@pytest.mark.parametrize(
    ("order", "each", "num_chunks"), [(Window(64), 400, 1000), (Window(1024, 64), 56, 5600)], ids=str
)
def test_spans_of_an_order_take_what_is_planned(order: Window, each: int, num_chunks: int) -> None:
    tracemalloc.start()
    try:
        bound = order.bind(np.full(num_chunks, each), seed=0)
        before, _ = tracemalloc.get_traced_memory()
        peaks, kept = [], []
        for begin in (0, *order.span_starts(bound.num_samples)):
            tracemalloc.reset_peak()
            bound.locate(begin, begin + 1)
            now, peak = tracemalloc.get_traced_memory()
            kept.append(now - before)
            peaks.append(peak - before)
    finally:
        tracemalloc.stop()
    assert len(peaks) > 2
    assert max(kept) == pytest.approx(order.kept_bytes(bound.num_samples), rel=0.05)
    assert max(peaks[1:]) == pytest.approx(order.span_bytes(bound.num_samples), rel=0.1)


def test_an_order_that_fits_one_span_is_made_once() -> None:
    assert (Window(64).span_bytes(100_000), len(Window(64).span_starts(100_000))) == (0, 0)
    assert Window(64).kept_bytes(100_000) == 1_600_000
    assert (Block(64).kept_bytes(10**9), Block(64).span_bytes(10**9), len(Block(64).span_starts(10**9))) == (0, 0, 0)
