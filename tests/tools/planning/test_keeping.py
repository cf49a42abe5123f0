"""What is let go early: the same samples from what is held, within the limit, and as few reads again as can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.orders import Window
from shoal.reading.schedule.lifetimes import Keeping


def run(spans: list[list[int]], sizes: list[int], keep_bytes: int) -> tuple[int, int]:
    """Carry out the plans; the number of reads, and the most bytes that were held for use."""
    column = np.array(sizes, dtype=np.int64)
    keeping = Keeping(keep_bytes, lambda units: column[units])
    held: set[int] = set()
    num_reads = peak = 0
    for span, after in itertools.pairwise([*spans, []]):
        units = np.array(span, dtype=np.int64)
        plan = keeping.plan(units, np.array(after, dtype=np.int64))
        assert held.issuperset(plan.drops)
        held.difference_update(plan.drops)
        reads = iter(plan.reads.tolist())
        for unit, is_last in zip(span, plan.last.tolist(), strict=True):
            if unit not in held:
                assert next(reads) == unit  # in the order of their use
                held.add(unit)
                num_reads += 1
            peak = max(peak, sum(sizes[each] for each in held))
            if is_last:
                held.remove(unit)
        assert next(reads, None) is None
    assert not held
    return num_reads, peak


def fewest_reads(units: list[int], slots: int) -> int:
    """By trying everything: the fewest reads with memory for so many units."""
    states = {frozenset[int](): 0}
    for unit in units:
        following: dict[frozenset[int], int] = {}
        for state, num_reads in states.items():
            if unit in state:
                options = [(state, num_reads)]
            elif len(state) < slots:
                options = [(state | {unit}, num_reads + 1)]
            else:
                options = [(state - {other} | {unit}, num_reads + 1) for other in state]
            for option, reads in options:
                following[option] = min(reads, following.get(option, reads))
        states = following
    return min(states.values())


STRETCHES = st.lists(st.lists(st.integers(0, 6), max_size=12), min_size=1, max_size=4)


@given(spans=STRETCHES, sizes=st.lists(st.integers(1, 9), min_size=7, max_size=7), keep_bytes=st.integers(1, 70))
def test_every_sample_finds_its_unit_and_the_limit_is_kept(
    spans: list[list[int]], sizes: list[int], keep_bytes: int
) -> None:
    num_reads, peak = run(spans, sizes, keep_bytes)
    used = {unit for span in spans for unit in span}
    assert peak <= max(keep_bytes, max((sizes[unit] for unit in used), default=0))
    assert num_reads >= len(used)
    if keep_bytes >= sum(sizes) and len(spans) == 1:
        assert num_reads == len(used)


@given(units=st.lists(st.integers(0, 5), max_size=14), slots=st.integers(1, 5))
def test_units_of_one_size_are_read_as_rarely_as_can_be(units: list[int], slots: int) -> None:
    assert run([units], [1] * 6, slots)[0] == (fewest_reads(units, slots) if units else 0)


@pytest.mark.parametrize("share", [1.1, 0.5, 0.25])
def test_a_window_in_less_memory_is_read_again_a_few_times(share: float) -> None:
    order = Window(chunks=32, num_canonical_nodes=2).bind(np.full(200, 20), seed=3)
    _, units = order.locate(0, order.num_samples)
    spans = [part.tolist() for part in np.array_split(units, 5)]
    num_reads, peak = run(spans, [10] * 200, int(330 * share))
    assert peak <= 330 * share
    if share > 1:
        assert num_reads == 200
    else:
        assert 200 < num_reads < 200 * 20 * (1 - share)
