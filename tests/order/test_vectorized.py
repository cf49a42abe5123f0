from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.order.arrays.vectorized import distinct, order_by

COLUMNS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2**60)), max_size=30)


@given(values=st.lists(st.integers(-5, 5), max_size=30))
def test_distinct_is_numpy_s(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert distinct(array).tolist() == np.unique(array).tolist()


@given(rows=COLUMNS, bits=st.sampled_from([8, 60]))
def test_rows_are_sorted_stably_whether_they_fit_a_word_or_not(rows: list[tuple[int, int]], bits: int) -> None:
    first = np.array([one for one, _ in rows], dtype=np.int64)
    second = np.array([other % 2**bits for _, other in rows], dtype=np.int64)
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    assert order_by((first, 3), (second, bits)).tolist() == sorted(range(len(pairs)), key=pairs.__getitem__)


def test_an_epoch_does_without_masked_arrays() -> None:
    """Which are 15 ms to import, and numpy does that when `unique` or one of its kin is first called."""
    code = (
        "import sys, numpy as np; before = set(sys.modules)\n"
        "from shoal.order.partition import Partition; from shoal.order.window.order import Window\n"
        "from shoal.reading.schedule.lifetimes import first_uses, last_uses\n"
        "order = Window(16, 4).bind(np.arange(1, 90), seed=1); part = Partition(30, 3)\n"
        "units = part.share(order, 1, 0, part.num_batches(order.num_samples, 0), 0).chunks\n"
        "first_uses(units, units[:5]), last_uses(units, units[:5])\n"
        "assert not {name for name in set(sys.modules) - before if name.startswith('numpy.ma')}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
