from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.order.datasets import datasets, scan

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute
from shoal.order.seeds import draws, key
from shoal.orders import Buffer


def naive_reservoir(samples: NDArray[np.int64], size: int, seed: int, epoch: int) -> list[int]:
    """A buffer that holds what it holds."""
    first = np.concatenate([[0], np.cumsum(samples)])
    places = permute(np.arange(len(samples)), len(samples), key(seed, epoch, "buffer-place"))
    stream = [sample for chunk in places for sample in range(first[chunk], first[chunk + 1])]
    size = min(size, len(stream))
    buffer, found = stream[:size], []
    steps = draws(key(seed, epoch, "buffer"), np.arange(len(stream) - size)).tolist()
    for step, arriving in zip(steps, stream[size:], strict=True):
        slot = (step >> 32) * size >> 32
        found.append(buffer[slot])
        buffer[slot] = arriving
    return found + [buffer[slot] for slot in permute(np.arange(size), size, key(seed, epoch, "buffer-end"))]


@given(samples=datasets(max_samples=1000, max_chunks=50), size=st.integers(1, 1500), seed=st.integers(0, 100))
@example(samples=np.array([1]), size=1, seed=0)
@example(samples=np.array([300, 0, 300]), size=599, seed=0)
def test_it_is_the_naive_reservoir(samples: NDArray[np.int64], size: int, seed: int) -> None:
    bound = Buffer(samples=size).bind(samples, seed=seed, epoch=4)
    assert scan(bound).tolist() == naive_reservoir(samples, size, seed, 4)


def test_it_is_the_naive_reservoir_over_tiles_and_seeks() -> None:
    samples = np.full(90, 1000)
    naive = np.array(naive_reservoir(samples, 2000, 0, 0))
    bound = Buffer(samples=2000).bind(samples)
    for start, stop in [(70_000, 80_000), (80_000, 90_000), (65_000, 66_000), (0, 90_000), (87_990, 88_010)]:
        assert np.array_equal(bound.ids(start, stop), naive[start:stop])
    some = np.random.default_rng(0).permutation(90_000)[:5000]
    assert np.array_equal(naive[bound.positions(some)], some)


def test_samples_linger_as_a_reservoir_lets_them() -> None:
    """For as many steps as the buffer has samples on average, with an exponential tail."""
    bound = Buffer(samples=500).bind([1] * 40_000, seed=1)
    arrival = bound._line.line_of(bound.ids(0, 30_000))
    lingered = np.arange(30_000) + 500 - arrival
    assert lingered.min() == 1
    assert 470 < lingered[5000:].mean() < 530
    assert 0.11 < (lingered > 1000).mean() < 0.16  # exp(-2) = 0.135


@pytest.mark.parametrize("size", [0, -5, 2**32])
def test_sizes_a_buffer_cannot_have(size: int) -> None:
    with pytest.raises(UsageError, match=f"got samples={size}"):
        Buffer(samples=size)
