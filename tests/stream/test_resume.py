"""Stop anywhere, go on with any number of ranks and any batch size: every sample once, through the real dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.made import check_batch, check_sample, flat, ids_of, open_finely, repeats_of, write_lines, write_tars

from shoal.orders import Block, Buffer, Full, Order, Sequential, Window
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import read_schedule

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

COUNTS = {
    "one": [1],
    "few": [3, 2],
    "uneven": [30, 1, 0, 47, 9],
    "many": [17] * 13,
}
ORDERS: dict[str, Order] = {
    "none": Sequential(),
    "full": Full(),
    "window": Window(chunks=4, num_canonical_nodes=1),
    "nodes": Window(chunks=12, num_canonical_nodes=3),
    "block": Block(chunks=3),
    "buffer": Buffer(samples=20),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    found = {}
    for name, counts in COUNTS.items():
        directory = tmp_path_factory.mktemp(name)
        write = write_lines if name == "few" else write_tars
        found[name] = open_finely(write(directory / "data", counts), extent_bytes=6000)
    return found


@dataclass(frozen=True)
class Leg:
    """A run of some steps: at a world size, with batches of one size per rank, of one size in all, or none."""

    world_size: int
    size: int | None
    is_global: bool
    remainder: str
    steps: int

    def batched(self, ds: Dataset) -> Dataset:
        if self.size is None:
            return ds
        if self.is_global:
            return ds.batch(global_batch_size=max(self.size, self.world_size), remainder=self.remainder)
        return ds.batch(self.size, remainder=self.remainder)

    @property
    def global_batch(self) -> int:
        if self.size is None:
            return self.world_size
        return max(self.size, self.world_size) if self.is_global else self.size * self.world_size


LEGS = st.builds(
    Leg,
    world_size=st.integers(1, 17),
    size=st.none() | st.integers(1, 24),
    is_global=st.booleans(),
    remainder=st.sampled_from(["keep", "pad", "drop"]),
    steps=st.integers(0, 6),
)

CHOICES: dict[str, Callable[[Dataset, Any], Dataset]] = {
    "all": lambda ds, order: ds.shuffle(order, seed=3),
    "stored": lambda ds, order: ds.skip(ds.num_samples // 3).shuffle(order, seed=3),
    "sparse": lambda ds, order: ds.select(np.arange(0, ds.num_samples, 17)).shuffle(order, seed=3),
    "split": lambda ds, order: (
        ds.split({"a": 0.7, "b": 0.2}, by=np.arange(ds.num_samples) // 2, seed=1)["a"].shuffle(order, seed=3)
        if ds.num_samples > 1
        else ds.shuffle(order, seed=3)
    ),
    "delivered": lambda ds, order: ds.shuffle(order, seed=3).take((ds.num_samples + 1) // 2),
    "balanced": lambda ds, order: ds.sample(by=np.arange(ds.num_samples) < 3, balanced=True).shuffle(order, seed=3),
    "weighted": lambda ds, order: (
        ds.select(np.arange(ds.num_samples) % 3 != 1)
        .sample(1.0 / (1 + np.arange(ds.num_samples)), num_samples=ds.num_samples + 40)
        .shuffle(order, seed=3)
        .skip(20)
    ),
    "limited": lambda ds, order: ds.sample(by="shard", limit=3).shuffle(order, seed=3),
    "both": lambda ds, order: (
        ds.select(np.arange(ds.num_samples) % 3 != 1).shuffle(order, seed=3).skip(ds.num_samples // 4)
    ),
}


@settings(max_examples=60)
@given(data=st.data())
def test_any_chain_of_resumes_delivers_every_sample_once(datasets: dict[str, Dataset], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(datasets)), label="dataset")
    order = ORDERS[data.draw(st.sampled_from(sorted(ORDERS)), label="order")]
    choice = data.draw(st.sampled_from(sorted(CHOICES)), label="choice")
    described = CHOICES[choice](datasets[name], order).with_ids()
    legs = [*data.draw(st.lists(LEGS, max_size=4), label="legs")]
    positions = data.draw(st.sampled_from([1, 20, 1 << 15]), label="positions of a span")
    last = Leg(data.draw(st.integers(1, 17)), data.draw(st.integers(1, 24)), False, "keep", 10**6)
    state = described.state_dict()
    delivered: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_schedule, "span_positions", lambda *_: positions)
        for leg in [*legs, last]:
            state, got = run(described, leg, state)
            delivered += got
            if state["epoch"]:
                break
    expected = described.ids().tolist()
    if leg.size is not None and leg.remainder == "drop":
        assert len(delivered) > len(expected) - leg.global_batch
        expected = expected[: len(delivered)]
    assert sorted(delivered) == sorted(expected)
    assert (state["epoch"], state["position"]) == (1, 0)


def run(described: Dataset, leg: Leg, state: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """One leg on all ranks: the state after it, and the ids delivered, repeats left out."""
    order = described.ids(epoch=state["epoch"])
    position = state["position"]
    ranks = []
    for rank in range(leg.world_size):
        ds = leg.batched(described.partition(rank=rank, world_size=leg.world_size))
        ds.load_state_dict(json.loads(json.dumps(state)))
        assert ds.state_dict() == state
        ranks.append((ds, iter(ds)))
    delivered: list[int] = []
    for _ in range(leg.steps):
        results = [next(iterator, None) for _, iterator in ranks]
        if leg.size is None:
            got = [check_sample(sample) for sample in results if sample is not None]
            ended = not got
        else:
            ended = results[0] is None
            assert all((result is None) == ended for result in results), "ranks differ in their number of batches"
            got = [] if ended else new_ids(results, order, position, leg)
        if not ended:
            stop = min(position + leg.global_batch, len(order))
            assert sorted(got) == sorted(order[position:stop].tolist())
            delivered += got
            position = stop
        states = [ds.state_dict() for ds, _ in ranks]
        if leg.size is not None or len(got) == leg.world_size:
            assert all(other == states[0] for other in states)
        state = states[0]
        assert len(json.dumps(state)) < 1000
        assert all(iterator.state_dict() == ds.state_dict() for ds, iterator in ranks)
        if ended:
            break
        if position < len(order) and leg.remainder != "drop":
            assert (state["epoch"], state["position"]) == (0, position)
    for _, iterator in ranks:
        iterator.close()
    return state, delivered


def new_ids(results: list[Any], order: Any, position: int, leg: Leg) -> list[int]:
    """The ids of a global batch that are not marked as repeats; what is marked must be a repeat of this dataset."""
    new: list[int] = []
    num_marked = 0
    for batch in results:
        ids, marks = check_batch(batch), repeats_of(batch)
        assert len(ids) > 0
        new += [number for number, again in zip(ids, marks, strict=True) if not again]
        marked = [number for number, again in zip(ids, marks, strict=True) if again]
        num_marked += len(marked)
        assert set(marked) <= set(order.tolist())
    left = len(order) - position
    if left >= leg.global_batch:
        assert num_marked == 0
    elif leg.remainder == "keep":
        assert num_marked == max(0, leg.world_size - left)
    else:
        assert num_marked == leg.global_batch - left
    sizes = [len(check_batch(batch)) for batch in results]
    assert max(sizes) - min(sizes) <= 1
    return new


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_set_of_a_global_batch_does_not_depend_on_the_world_size(order: str, tars: Dataset) -> None:
    ds = tars.shuffle(ORDERS[order], seed=9).with_ids().batch(global_batch_size=34)
    sets = []
    for world_size in (1, 2, 3, 5, 17):
        ranks = [ds.partition(rank=rank, world_size=world_size) for rank in range(world_size)]
        lists = [[check_batch(batch) for batch in rank] for rank in ranks]
        assert [len(batches) for batches in lists] == [len(rank) for rank in ranks] == [6] * world_size
        for rank, (described, batches) in enumerate(zip(ranks, lists, strict=True)):
            for step, batch in enumerate(batches):
                assert described.batch_ids(step).tolist() == batch
                assert ds.batch_ids(step, rank=rank, world_size=world_size).tolist() == batch
        sets.append([sorted(flat(batches[step] for batches in lists)) for step in range(6)])
    assert all(other == sets[0] for other in sets)
    assert [sorted(ds.ids(start=i * 34, stop=min(197, i * 34 + 34)).tolist()) for i in range(6)] == sets[0]


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_epochs_follow_each_other_and_differ(order: str, tars: Dataset) -> None:
    ds = tars.shuffle(ORDERS[order], seed=1)
    seen = []
    for epoch in range(3):
        assert ds.state_dict()["epoch"] == epoch
        seen.append(ids_of(ds))
        assert seen[-1] == ds.ids(epoch=epoch).tolist()
        assert sorted(seen[-1]) == list(range(197))
        assert (ds.state_dict()["epoch"], ds.state_dict()["position"]) == (epoch + 1, 0)
    assert (seen[0] == seen[1]) == (seen[1] == seen[2]) == (order == "none")


def test_a_state_continues_in_a_later_epoch(tars: Dataset) -> None:
    ds = tars.shuffle("full", seed=5).batch(10)
    ds.set_epoch(4)
    iterator = iter(ds)
    first = [check_batch(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(ds.state_dict()))
    assert (state["epoch"], state["position"]) == (4, 30)
    other = tars.shuffle("full", seed=5).batch(7)
    other.load_state_dict(state)
    rest = [check_batch(batch) for batch in other]
    assert flat(first + rest) == ds.ids(epoch=4).tolist()
    assert other.state_dict()["epoch"] == 5


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_each_remainder_says_its_length(remainder: str, tars: Dataset) -> None:
    for world_size in (1, 2, 7, 16):
        for size in (1, 5, 64):
            ranks = [
                tars.shuffle("full").batch(size, remainder=remainder).partition(rank=rank, world_size=world_size)
                for rank in range(world_size)
            ]
            lists = [[check_batch(batch) for batch in rank] for rank in ranks]
            assert {len(batches) for batches in lists} == {len(rank) for rank in ranks}
            whole, rest = divmod(197, size * world_size)
            assert len(ranks[0]) == whole + bool(rest and remainder != "drop")
            delivered = flat(map(flat, lists))
            if remainder == "pad":
                assert all(len(batch) == size for batches in lists for batch in batches)
            if remainder == "drop":
                assert len(delivered) == len(set(delivered)) == whole * size * world_size
            else:
                assert set(delivered) == set(range(197))


def test_single_samples_over_ranks(tars: Dataset) -> None:
    for world_size in (1, 3, 10, 17):
        ranks = [tars.shuffle("window").partition(rank=rank, world_size=world_size) for rank in range(world_size)]
        lists = [ids_of(rank) for rank in ranks]
        assert [len(got) for got in lists] == [len(rank) for rank in ranks]
        assert max(map(len, lists)) - min(map(len, lists)) <= 1
        assert sorted(flat(lists)) == list(range(197))
        assert all(rank.state_dict() == ranks[0].state_dict() for rank in ranks)
