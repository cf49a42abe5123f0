"""The orders of Hugging Face datasets: equal to what the library gave, and lawful.

The digests are of runs of the library; tests/compat/orders/huggingface_streams.py makes thousands more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.compat.orders.huggingface_streams import RELEASES, digest, ids_of, state_says
from tests.examples import few_examples

from shoal.errors import UsageError
from shoal.orders import HuggingFace

DIGESTS = json.loads(Path(__file__).with_name("huggingface_digests.json").read_text(encoding="utf-8"))


@pytest.mark.golden
@pytest.mark.parametrize("number", range(len(DIGESTS)))
def test_ids_are_those_of_the_library(number: int) -> None:
    wanted, expected, state, before = DIGESTS[number]
    assert digest(ids_of(wanted)) == expected
    assert state is None or state_says(wanted, state, before) in {"all", "a range", "nothing"}


def order_of(release: str, **arguments: Any) -> HuggingFace:
    kind: Literal["block", "reservoir"] = "reservoir" if release < "5.1" else "block"
    return HuggingFace(kind, release=release, **arguments)


@st.composite
def orders(draw: st.DrawFn) -> HuggingFace:
    return order_of(
        draw(st.sampled_from(list(RELEASES.values()))),
        buffer_size=draw(st.integers(1, 300)),
        max_buffer_input_shards=draw(st.integers(1, 12)),
        world_size=draw(st.integers(1, 5)),
        num_workers=draw(st.integers(0, 3)),
        batch_size=draw(st.integers(1, 9)),
        tables=draw(st.booleans()),
    )


shards = st.lists(st.integers(0, 60), min_size=1, max_size=20).map(np.array)


def naive_block(arriving: list[list[int]], size: int, generator: np.random.Generator) -> list[int]:
    """The buffer of datasets 5.2, with samples in it."""
    found: list[int] = []
    buffer: list[int] = []
    for chunk in arriving:
        buffer += chunk
        if len(buffer) >= size:
            shuffled = [buffer[at] for at in generator.permutation(len(buffer))]
            leaving = len(shuffled) - size // 2
            found += shuffled[:leaving]
            buffer = shuffled[leaving:]
    return found + [buffer[at] for at in generator.permutation(len(buffer))]


def naive_reservoir(arriving: list[int], size: int, generator: np.random.Generator) -> list[int]:
    """The buffer of datasets 4.8, with samples in it."""
    found: list[int] = []
    buffer: list[int] = []
    slots: list[int] = []
    for sample in arriving:
        if len(buffer) == size:
            slots = slots or generator.integers(0, size, size=1000).tolist()
            slot = slots.pop(0)
            found.append(buffer[slot])
            buffer[slot] = sample
        else:
            buffer.append(sample)
    generator.shuffle(buffer)
    return found + buffer


@pytest.mark.parametrize("size", [700, pytest.param(40_000, marks=pytest.mark.drill)])
def test_large_buffers_are_those_that_hold_samples(size: int) -> None:
    """Over several tiles and states of the generator, and from everywhere."""
    chunks = [list(range(at, min(at + size // 10, 600_000))) for at in range(0, 600_000, size // 10)]
    of_block = naive_block(chunks, size, np.random.default_rng(3))
    of_reservoir = naive_reservoir(list(range(600_000)), size, np.random.default_rng(3))
    # One shard: its order is that of storage, and chunks follow each other.
    for release, expected in (("5.2", of_block), ("4.8", of_reservoir)):
        order = order_of(release, buffer_size=size)
        bound = order.bind([600_000], seed=3)
        for start in (590_000, 0, 300_000, 299_000, 1):
            assert bound.ids(start, start + 10_000).tolist() == expected[start : start + 10_000]
        for start in (580_000, 130_000):
            assert order.bind([600_000], seed=3).ids(start, start + 9).tolist() == expected[start : start + 9]
        some = np.random.default_rng(0).integers(0, 600_000, 50)
        assert np.array_equal(np.array(expected)[bound.positions(some)], some)


@few_examples(25)
@given(order=orders(), samples=shards, seed=st.integers(0, 2**63), epoch=st.integers(0, 5))
@example(order=order_of("5.2"), samples=np.array([0]), seed=0, epoch=0)
@example(order=order_of("4.8", world_size=3, num_workers=2), samples=np.array([0, 0]), seed=0, epoch=1)
def test_every_sample_comes_once_and_positions_are_the_inverse(
    order: HuggingFace, samples: NDArray[np.int64], seed: int, epoch: int
) -> None:
    bound = order.bind(samples, seed=seed, epoch=epoch)
    ids, chunks = bound.locate(0, bound.num_samples)
    assert np.array_equal(np.sort(ids), np.arange(samples.sum()))
    assert np.array_equal(chunks, np.repeat(np.arange(len(samples)), samples)[ids])
    some = np.random.default_rng(0).permutation(ids)[:30]
    assert np.array_equal(ids[bound.positions(some)], some)


@few_examples(25)
@given(order=orders(), samples=shards, cuts=st.lists(st.integers(0, 1200), min_size=1, max_size=6))
def test_seeking_is_scanning(order: HuggingFace, samples: NDArray[np.int64], cuts: list[int]) -> None:
    bound = order.bind(samples, seed=5, epoch=1)
    scanned = order.bind(samples, seed=5, epoch=1).ids(0, bound.num_samples)
    for cut in cuts:
        start = min(cut, bound.num_samples)
        stop = min(start + 40, bound.num_samples)
        assert np.array_equal(bound.ids(start, stop), scanned[start:stop])
        fresh = order.bind(samples, seed=5, epoch=1)
        assert np.array_equal(fresh.ids(start, stop), scanned[start:stop])


@pytest.mark.parametrize("release", ["4.8", "5.2"])
def test_ranks_that_share_samples_have_one_order_at_every_world_size(release: str) -> None:
    samples = [9] * 7  # 7 shards: neither 2 nor 3 ranks can share them
    alone = order_of(release, buffer_size=20).bind(samples, seed=1)
    for ranks in (2, 3, 4):
        together: Any = order_of(release, buffer_size=20, world_size=ranks).bind(samples, seed=1)
        assert np.array_equal(together.ids(0, 63), alone.ids(0, 63))
        positions = np.arange(63)
        assert together.axis(positions, positions, positions).tolist() == (positions % ranks).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "blocks"}, "kind is one of block, reservoir"),
        ({"kind": "block", "strategy": "fair"}, "strategy one of auto"),
        ({"kind": "block", "buffer_size": 0}, "buffer_size must be from 1"),
        ({"kind": "block", "num_workers": -1}, "num_workers must be from 0"),
        ({"kind": "block", "release": "5.0"}, "5.0 has no block buffer.*hf-reservoir"),
        ({"kind": "reservoir", "release": "5.2.0"}, "5.2.0 has no reservoir buffer.*hf-block"),
        ({"kind": "reservoir", "release": "new"}, "version of datasets from 3.0 on.*'new'"),
        ({"kind": "reservoir", "release": "2.14"}, "version of datasets from 3.0 on"),
        ({"kind": "reservoir", "strategy": "shards"}, "4.8 has no strategy"),
    ],
)
def test_arguments_that_it_cannot_have(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        HuggingFace(**arguments)


def test_fewer_shards_than_ranks_that_get_shards() -> None:
    with pytest.raises(UsageError, match="needs a shard for each rank; there are 2 for 3 ranks"):
        HuggingFace("block", world_size=3, strategy="shards").bind([4, 4])
