from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.order.window.order import Window
from shoal.reading.schedule.lifetimes import first_uses, last_uses, span_positions

STRETCHES = st.lists(st.lists(st.integers(0, 9), max_size=20), max_size=6)


def as_units(span: list[int]) -> np.ndarray:
    return np.array(span, dtype=np.int64)


@given(spans=STRETCHES)
def test_a_reader_that_follows_the_plan_has_every_unit_when_it_is_used(spans: list[list[int]]) -> None:
    """Against a simulation: read what `first_uses` says, let go where `last_uses` does."""
    held: set[int] = set()
    after_all = [*spans[1:], []][: len(spans)]
    before: list[int] = []
    for span, after in zip(spans, after_all, strict=True):
        reads = first_uses(as_units(span), as_units(before)).tolist()
        assert not held & set(reads), "what is held is not read again"
        waiting = list(reads)
        last = last_uses(as_units(span), as_units(after)).tolist()
        for place, unit in enumerate(span):
            if unit not in held:
                assert waiting.pop(0) == unit, "units are planned in the order of their first use"
                held.add(unit)
            still_used = unit in span[place + 1 :] or unit in after
            assert last[place] == (not still_used), "let go exactly after the last use in two spans"
            if last[place]:
                held.remove(unit)
        assert not waiting
        assert held == set(span) & set(after)
        before = span
    assert not held


def test_nothing_is_planned_for_nothing() -> None:
    nothing = as_units([])
    assert first_uses(nothing, nothing).tolist() == []
    assert last_uses(nothing, nothing).tolist() == []
    assert first_uses(as_units([3, 3]), as_units([3])).tolist() == []


@pytest.mark.parametrize(
    ("chunks", "nodes", "samples_per_chunk"), [(64, 4, 100), (512, 32, 60), (8192, 64, 16), (16, 1, 3000)]
)
def test_a_window_s_chunks_are_met_again_within_a_span(chunks: int, nodes: int, samples_per_chunk: int) -> None:
    """Else they would be let go and read again; a window of even chunks never does."""
    order = Window(chunks, nodes)
    bound = order.bind(np.full(3 * chunks, samples_per_chunk), seed=3)
    span = span_positions(order.parameters)
    _, units = bound.locate(0, bound.num_samples)
    last_seen = np.full(3 * chunks, -1)
    longest = 0
    for first in range(0, bound.num_samples, 1 << 16):
        part = units[first : first + (1 << 16)]
        positions = np.arange(first, first + len(part))
        by_unit = np.lexsort((positions, part))
        same = part[by_unit][1:] == part[by_unit][:-1]
        longest = max(longest, int(np.diff(positions[by_unit])[same].max(initial=0)))
        distinct, at = np.unique(part, return_index=True)
        known = last_seen[distinct] >= 0
        longest = max(longest, int((positions[at] - last_seen[distinct])[known].max(initial=0)))
        last_seen[part] = positions
    assert 0 < longest < span


def test_a_span_has_bounds() -> None:
    assert span_positions({}) == 1 << 13
    assert span_positions({"chunks": 10}) == 1 << 13
    assert span_positions({"chunks": 10_000}) == 80_000
    assert span_positions({"samples": 10_000}) == 80_000
    assert span_positions({"chunks": 10**9}) == 1 << 22
    assert span_positions({"chunks": 10**9, "most_positions": 512}, 64) == 512


def test_ranks_read_ahead_as_far_as_one_alone() -> None:
    """Their share of a span does not shrink, for up to eight of them, and for more it is eight times what it was."""
    assert [span_positions({"chunks": 256}, ranks) // ranks for ranks in (1, 2, 8)] == [1 << 13] * 3
    assert span_positions({"chunks": 256}, 64) == 1 << 16
    assert span_positions({"chunks": 10_000}, 64) == 80_000
