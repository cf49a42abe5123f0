from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.order.datasets import chunk_of, datasets, scan

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute
from shoal.order.seeds import key
from shoal.orders import Block


@given(samples=datasets(max_samples=5000), chunks=st.integers(1, 50), seed=st.integers(0, 100))
def test_groups_of_permuted_chunks_come_one_after_the_other(samples: NDArray[np.int64], chunks: int, seed: int) -> None:
    ids = scan(Block(chunks=chunks).bind(samples, seed=seed, epoch=1))
    line = permute(np.arange(len(samples)), len(samples), key(seed, 1, "block-place"))
    first, at = np.concatenate([[0], np.cumsum(samples)]), 0
    for begin in range(0, len(line), chunks):
        group = [i for chunk in line[begin : begin + chunks] for i in range(first[chunk], first[chunk + 1])]
        assert sorted(ids[at : at + len(group)].tolist()) == sorted(group)
        at += len(group)


def test_a_group_is_mixed_as_a_whole() -> None:
    samples = np.full(400, 50)
    found = chunk_of(samples, scan(Block(chunks=40).bind(samples, seed=1))).reshape(10, 2000)
    for group in found:
        assert len(np.unique(group)) == 40
        halves = np.stack([np.bincount(half, minlength=400) for half in np.split(group, 2)])[:, np.unique(group)]
        assert ((halves - 25) ** 2 / 12.5).sum() / 80 < 1.8


def test_groups_are_mixed_each_in_its_own_way() -> None:
    ids = scan(Block(chunks=1).bind(np.full(200, 50), seed=1)).reshape(200, 50) % 50
    assert len({row.tobytes() for row in ids}) == 200


def test_a_block_needs_a_chunk() -> None:
    for chunks in (0, -1):
        with pytest.raises(UsageError, match=f"at least 1 chunk; got chunks={chunks}"):
            Block(chunks=chunks)


def test_a_block_of_too_many_samples() -> None:
    with pytest.raises(UsageError, match="a block of 4 chunks holds up to 8589934592 samples"):
        Block(chunks=4).bind(np.full(4, 2**31))
