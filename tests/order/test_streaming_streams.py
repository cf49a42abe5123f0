"""Streams of MosaicML Streaming: what its package gave, and what each way of batching promises."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.compat.orders.streaming_streams_orders import configurations, ids_of
from tests.examples import few_examples

import shoal
from shoal.errors import UsageError
from shoal.orders import Streaming
from shoal.peers.streaming.stream_batches import BATCHINGS
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS

STORED = json.loads(Path(__file__).with_name("streams_of_streaming_digests.json").read_text())
"""Digests of what mosaicml-streaming 0.13.0 gave for every 31st of the configurations of `make compat`."""

MDS = Path(__file__).parent.parent / "guides" / "mds"
SHARDS = np.array([40, 60, 50, 70, 30])
STREAMS = [{"shards": 2, "proportion": 0.25}, {"shards": 3, "proportion": 0.75}]


def test_ids_of_streams_are_those_of_the_package() -> None:
    found = [json.dumps(ids_of(each)) for each in configurations()[::31]]
    assert [hashlib.sha256(text.encode()).hexdigest()[:12] for text in found] == STORED


def epoch(order: Streaming, shards: NDArray[np.int64] = SHARDS, number: int = 0) -> NDArray[np.int64]:
    bound = order.bind(shards, epoch=number)
    return bound.ids(0, bound.num_samples)


@few_examples(20)
@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(BATCHINGS),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.integers(0, 5),
    st.data(),
)
def test_positions_of_streams_are_found_from_both_sides(
    algorithm: str, batching: str, nodes: int, parity: bool, number: int, data: st.DataObject
) -> None:
    more: dict[str, Any] = {"physical_nodes": nodes, "ranks_per_node": 2, "batch_size": 4, "num_canonical_nodes": 4}
    order = Streaming(algorithm, **more, parity=parity, streams=STREAMS, batching_method=batching, shuffle_seed=5)
    bound = order.bind(SHARDS, epoch=number)
    ids = bound.ids(0, bound.num_samples)
    assert bound.num_samples == order.num_positions(SHARDS)
    expected = np.full(SHARDS.sum(), -1)
    expected[ids[::-1]] = np.arange(len(ids))[::-1]
    assert np.array_equal(bound.positions(np.arange(SHARDS.sum())), expected)
    start = data.draw(st.integers(0, len(ids)))
    assert np.array_equal(order.bind(SHARDS, epoch=number).ids(start, len(ids)), ids[start:])


def test_an_epoch_of_random_batches_has_what_was_asked_of_each_stream() -> None:
    streams = [{"shards": 2, "choose": 130}, {"shards": 2, "repeat": 0.5}, {"shards": 1}]
    ids = epoch(Streaming("py1s", streams=streams, num_canonical_nodes=2))
    counts = np.bincount(ids, minlength=250)
    assert [counts[:100].sum(), counts[100:220].sum(), counts[220:].sum()] == [130, 60, 30]
    assert set(counts[:100]) == {1, 2}
    assert set(counts[100:220]) == {0, 1}
    assert set(counts[220:]) == {1}


def test_balanced_draws_others_in_every_epoch_and_fixed_the_same() -> None:
    streams = [{"shards": 5, "choose": 100}]
    for method, alike in (("balanced", False), ("fixed", True)):
        one, other = (
            epoch(Streaming("py1e", streams=streams, sampling_method=method, sampling_granularity=7), number=number)
            for number in (0, 1)
        )
        assert (set(one.tolist()) == set(other.tolist())) is alike
        assert one.tolist() != other.tolist()


def test_batches_have_the_streams_that_their_method_says() -> None:
    more: dict[str, Any] = {"streams": STREAMS, "physical_nodes": 2, "ranks_per_node": 2, "batch_size": 4}
    stratified = epoch(Streaming("py1e", **more, batching_method="stratified")).reshape(-1, 16)
    assert set((stratified < 100).sum(axis=1).tolist()) == {4}
    of_one = epoch(Streaming("py1e", **more, batching_method="per_stream")).reshape(-1, 16)
    assert set((of_one < 100).sum(axis=1).tolist()) == {0, 16}
    of_rank = epoch(Streaming("py1e", **more, batching_method="device_per_stream")).reshape(-1, 4)
    assert set((of_rank < 100).sum(axis=1).tolist()) == {0, 4}
    assert {len(set(step)) for step in (of_rank < 100)[:, 0][:56].reshape(-1, 4).tolist()} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": [{"shards": 2}]}, r"have the shards \[0, 2\); each of the 5 shards.*first_shard="),
        ({"streams": []}, "a list with a mapping for each stream"),
        ({"streams": [{"shards": 2, "choose": 3, "repeat": 2}]}, "at most one of proportion, repeat, choose"),
        (
            {"streams": [{"shards": 2, "proportion": 3}, {"shards": 3}]},
            "some streams have a proportion",
        ),
        ({"streams": [{"shards": 2, "repeat": -1}]}, "a weight of at least 0"),
        ({"streams": [{"shards": 5, "repeat": 2}], "epoch_size": 100}, "repeat and choose are counts"),
        ({"streams": [{"shards": 5, "choose": 0}]}, "no stream contributes a sample"),
        ({"streams": [{"shards": 5, "proportion": 0}]}, "a proportion of 0"),
        ({"epoch_size": "many"}, "epoch_size must be an integer"),
        ({"batching_method": "stratified"}, "needs batch_size="),
        ({"batching_method": "mixed"}, "batching_method must be one of"),
        ({"batching_method": "per_stream", "batch_size": 1000}, "too few samples for a single batch"),
        ({"streams": STREAMS, "batching_method": "stratified", "batch_size": 1}, "no sample in a global batch of 1"),
    ],
)
def test_streams_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        Streaming(**arguments).bind(SHARDS)


def test_the_seed_of_streams_is_said_once() -> None:
    with pytest.raises(UsageError, match=r"(?s)shuffle_seed=9176; the seed is 3.*give shuffle_seed=3"):
        Streaming(streams=STREAMS).bind(SHARDS, seed=3)
    assert epoch(Streaming(streams=STREAMS, shuffle_seed=3)).tolist() != epoch(Streaming(streams=STREAMS)).tolist()


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_dataset_of_streams_goes_on_from_states_and_checkpoints(batching: str) -> None:
    streams = [{"shards": 1, "first_shard": 3}, {"shards": 3, "first_shard": 0, "repeat": 0.5}]
    more: dict[str, Any] = {"batching_method": batching, "batch_size": 4, "num_canonical_nodes": 1}
    ds = shoal.open(MDS).shuffle("py1s", streams=streams, **more).batch(4)
    batches = [batch["id"].tolist() for batch in ds]
    checkpoint = {"epoch": 0, "sample_in_epoch": 24, "num_canonical_nodes": 1, "shuffle_seed": 9176}
    for state in (ds.state_at(24, epoch=0), checkpoint):
        ds.load_state_dict(state)
        assert [batch["id"].tolist() for batch in ds] == batches[6:]
