from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import datasets

from shoal.order.arrays.permutation import permute
from shoal.order.protocol import chunk_starts
from shoal.order.seeds import key
from shoal.order.window.canonical_nodes import CanonicalNodes


def naive_nodes(samples: NDArray[np.int64], seed: int, num_nodes: int) -> list[list[int]]:
    """The sample ids of each node, along the line of permuted chunks."""
    first = np.concatenate([[0], np.cumsum(samples)])
    slots = permute(np.arange(len(samples)), len(samples), key(seed, 0, "assign"))
    line = [sample for chunk in slots for sample in range(first[chunk], first[chunk + 1])]
    each, more = divmod(len(line), num_nodes)
    cuts = [node * each + min(node, more) for node in range(num_nodes + 1)]
    return [line[begin:end] for begin, end in itertools.pairwise(cuts)]


@few_examples(25)
@given(samples=datasets(max_samples=2000, max_chunks=80), seed=st.integers(0, 1000), num_nodes=st.integers(1, 70))
@example(samples=np.array([1000]), seed=0, num_nodes=7)  # one chunk, cut six times
@example(samples=np.array([0, 2, 0]), seed=0, num_nodes=5)  # nodes without samples
@example(samples=np.full(64, 10), seed=0, num_nodes=64)  # no chunk is cut
def test_nodes_are_spans_of_the_permuted_chunks(samples: NDArray[np.int64], seed: int, num_nodes: int) -> None:
    nodes = CanonicalNodes(chunk_starts(samples), seed=seed, num_nodes=num_nodes)
    naive = naive_nodes(samples, seed, num_nodes)
    for node, expected in enumerate(naive):
        parts = np.arange(nodes.node_first_part[node], nodes.node_end_part[node])
        begins = nodes.part_first_id(np.full(len(parts), node), parts)
        counts = nodes.part_samples[parts].astype(np.int64)
        assert (counts > 0).all()
        found = [i for begin, count in zip(begins, counts, strict=True) for i in range(begin, begin + count)]
        assert found == expected
        if expected:
            in_nodes, in_parts = nodes.parts_of(np.array(expected))
            assert (in_nodes == node).all()
            assert in_parts.tolist() == np.repeat(parts, counts).tolist()
    sizes = [len(ids) for ids in naive]
    assert np.diff(nodes.node_first_sample).tolist() == sizes
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "so that positions alternate over the nodes to the end"


@pytest.mark.parametrize("num_chunks", [1, 65_535, 65_536, 65_537, 200_000])
def test_tiles_of_the_line_make_no_difference(num_chunks: int) -> None:
    samples = np.random.default_rng(0).integers(0, 4, num_chunks)
    samples[0] = 5
    nodes = CanonicalNodes(chunk_starts(samples), seed=1, num_nodes=3)
    slots = permute(np.arange(num_chunks), num_chunks, key(1, 0, "assign"))
    chunks = slots[samples[slots] > 0]
    kept = np.ones(len(nodes.part_chunk), dtype=bool)
    kept[1:] = nodes.part_chunk[1:] != nodes.part_chunk[:-1]
    assert np.array_equal(nodes.part_chunk[kept], chunks)
    whole = np.bincount(nodes.part_chunk.astype(np.int64), nodes.part_samples, num_chunks)
    assert np.array_equal(whole, samples)


def test_nodes_do_not_depend_on_the_epoch_and_do_on_the_seed() -> None:
    samples = np.full(100, 10)
    one, other = (CanonicalNodes(chunk_starts(samples), seed=seed, num_nodes=4) for seed in (0, 1))
    assert not np.array_equal(one.part_chunk, other.part_chunk)
