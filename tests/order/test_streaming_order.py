"""The orders of MosaicML Streaming: what its package gave, and what it lacks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.compat.orders.streaming_orders import configurations, ids_of
from tests.examples import few_examples
from tests.order.datasets import chunk_of, datasets

from shoal.errors import StateError, UsageError
from shoal.order.partition import Partition
from shoal.orders import Streaming
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS

STORED = json.loads(Path(__file__).with_name("streaming_digests.json").read_text())
"""Digests of what mosaicml-streaming 0.13.0 gave for every 53rd of the configurations of `make compat`."""

CHECKPOINT = {
    "epoch": 1,
    "sample_in_epoch": 32,
    "num_canonical_nodes": 2,
    "shuffle_seed": 9176,
    "initial_physical_nodes": 1,
}


@pytest.mark.golden
def test_ids_are_those_of_the_package() -> None:
    found = [json.dumps(ids_of(each)) for each in configurations()[::53]]
    assert [hashlib.sha256(text.encode()).hexdigest()[:12] for text in found] == STORED


@st.composite
def streaming_orders(draw: st.DrawFn) -> Streaming:
    nodes = draw(st.sampled_from([1, 2, 3, 8]))
    return Streaming(
        draw(st.sampled_from(ALGORITHMS)),
        num_canonical_nodes=nodes,
        shuffle_block_size=draw(st.sampled_from([2, 50, 3000])),
        physical_nodes=draw(
            st.sampled_from([count for count in (1, 2, 3, 8, 16) if count % nodes * (nodes % count) == 0])
        ),
        ranks_per_node=draw(st.integers(1, 4)),
        parity=draw(st.booleans()),
    )


@few_examples(20)
@given(streaming_orders(), datasets(max_samples=3000, max_chunks=60), st.integers(0, 9), st.data())
def test_an_epoch_has_every_sample_and_is_found_from_both_sides(
    order: Streaming, shards: NDArray[np.int64], epoch: int, data: st.DataObject
) -> None:
    try:
        bound = order.bind(shards, epoch=epoch)
    except UsageError:
        assert order.parity
        return
    ids = bound.ids(0, bound.num_samples)
    assert bound.num_samples == order.num_positions(shards)
    counts = Counter(ids.tolist())
    assert len(counts) == shards.sum()
    if not order.parity:
        assert set(counts.values()) == {1}
    first = bound.positions(np.arange(shards.sum()))
    expected = np.full(shards.sum(), -1)
    expected[ids[::-1]] = np.arange(len(ids))[::-1]
    assert np.array_equal(first, expected)
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    again = order.bind(shards, epoch=epoch)
    found, where = again.locate(start, stop)
    assert np.array_equal(found, ids[start:stop])
    assert np.array_equal(where, chunk_of(shards, found))


@few_examples(20)
@given(streaming_orders(), datasets(max_samples=3000, max_chunks=60))
def test_repeats_are_only_at_the_end(order: Streaming, shards: NDArray[np.int64]) -> None:
    with_repeats = replace(order, parity=True)
    try:
        theirs = with_repeats.bind(shards)
    except UsageError:
        return
    ours = replace(order, parity=False).bind(shards)
    common = min(theirs.num_alike, ours.num_alike)
    assert common >= ours.num_samples - 2 * order.canonical_nodes or shards.sum() <= order.canonical_nodes
    if order.algorithm != "py1br":
        assert np.array_equal(theirs.ids(0, common), ours.ids(0, common))


def test_tails_of_py1br_are_mended_and_nothing_else_changes() -> None:
    shards, tails = np.full(200, 50), 0
    for epoch in range(20):
        theirs, ours = (
            Streaming("py1br", shuffle_block_size=2000, parity=parity).bind(shards, epoch=epoch).ids(0, 10_000)
            for parity in (True, False)
        )
        changed = np.flatnonzero(theirs != ours)
        if not len(changed):
            continue
        tails += 1
        assert np.count_nonzero(np.diff(theirs[changed[0] :]) == 1) > 0.9 * (len(changed) - 1)
        assert np.count_nonzero(np.diff(ours[changed[0] :]) == 1) <= max(5, 0.05 * len(changed))
        assert np.array_equal(np.sort(theirs), np.sort(ours))
    assert tails > 5


def test_every_rank_has_what_it_had_and_batches_are_the_same_sets_elsewhere() -> None:
    order = Streaming("py1s", num_canonical_nodes=4, physical_nodes=2, ranks_per_node=3)
    bound = order.bind(np.full(30, 8))
    ids = bound.ids(0, 240)
    for rank in range(6):
        share = Partition(24, 6).share(bound, rank, 0, 10)
        node, of_node = divmod(rank, 3)
        assert share.ids.tolist() == ids[node::2][of_node::3].tolist()
    for world_size in (1, 4, 5):
        shares = [Partition(24, world_size).share(bound, rank, 2, 3).ids for rank in range(world_size)]
        assert sorted(np.concatenate(shares).tolist()) == sorted(ids[48:72].tolist())


def test_defaults_are_those_of_streaming() -> None:
    assert Streaming("py1s", physical_nodes=2).canonical_nodes == 128
    assert Streaming("py1e", physical_nodes=2).canonical_nodes == 2
    assert Streaming(physical_nodes=2).block_size == 2_000_000
    assert Streaming("py2s").block_size == 2**18
    assert Streaming().default_seed == 9176


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "py1b"}, "algorithm must be one of .*did you mean 'py1br'"),
        ({"partition": "strict"}, "partition must be one of 'orig', 'relaxed'"),
        ({"num_canonical_nodes": 0}, "num_canonical_nodes must be at least 1"),
        ({"num_canonical_nodes": 4, "physical_nodes": 3}, "do not divide each other.*initial_physical_nodes="),
        (
            {"num_canonical_nodes": 4, "physical_nodes": 3, "initial_physical_nodes": 2, "partition": "orig"},
            "3 physical nodes and 4 canonical nodes do not divide",
        ),
    ],
)
def test_what_streaming_does_not_take(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        Streaming(**arguments)  # type: ignore[arg-type]  # as a user may


def test_a_block_that_is_too_small_is_refused_when_it_is_drawn() -> None:
    with pytest.raises(UsageError, match="at least 2 samples"):
        Streaming("py1br", shuffle_block_size=1).bind([3]).ids(0, 3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_checkpoint_gives_the_numbers_that_are_left_open(algorithm: str) -> None:
    adopted = Streaming(algorithm).adopted(CHECKPOINT | {"shuffle_seed": 7}, np.full(10, 20), 9176)
    assert adopted is not None
    assert adopted[1:] == (7, 1, 32)
    assert adopted.order.parameters["num_canonical_nodes"] == 2
    assert Streaming(algorithm).adopted({"epoch": 1, "sample": 32}, np.full(10, 20), 9176) is None


@pytest.mark.parametrize("others", [1, 4])
def test_a_checkpoint_of_another_run_is_refused(others: int) -> None:
    with pytest.raises(StateError, match="num_canonical_nodes=2; this stream has 9176 and"):
        Streaming("py1e", num_canonical_nodes=others).adopted(CHECKPOINT, np.full(10, 20), 9176)
    with pytest.raises(StateError, match=r"shuffle_seed=9176 .* this stream has 3 and"):
        Streaming("py1e").adopted(CHECKPOINT, np.full(10, 20), 3)


@few_examples(20)
@given(streaming_orders(), datasets(max_samples=300, max_chunks=20), st.integers(0, 320))
def test_what_was_seen_is_not_repeated_or_the_checkpoint_refused(
    order: Streaming, shards: NDArray[np.int64], position: int
) -> None:
    theirs, ours = replace(order, parity=True), replace(order, parity=False)
    checkpoint = CHECKPOINT | {"sample_in_epoch": position, "num_canonical_nodes": order.canonical_nodes}
    checkpoint |= {"initial_physical_nodes": order.physical_nodes}
    try:
        had = theirs.bind(shards, epoch=1)
        adopted = ours.adopted(checkpoint, shards, 9176)
    except UsageError:
        return
    except StateError as error:
        assert "parity=True" in str(error)  # noqa: PT017  # a refusal is as good
        return
    assert adopted is not None
    bound = adopted.order.bind(shards, seed=adopted.seed, epoch=1)
    rounded = min(position - position % order.physical_nodes, had.num_samples)
    seen, rest = had.ids(0, rounded), bound.ids(adopted.position, bound.num_samples)
    assert sorted({*seen.tolist()} | {*rest.tolist()}) == list(range(shards.sum()))
    assert not {*seen.tolist()} & {*rest.tolist()}
