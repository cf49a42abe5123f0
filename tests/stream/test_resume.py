"""Stop anywhere, go on with any number of ranks and any batch size: every sample once, through the real dataset."""

from __future__ import annotations

import json

import pytest
from tests.stream.made import check_batch, flat, ids_of

from shoal.orders import Block, Buffer, Full, Order, Sequential, Window
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS: dict[str, Order] = {
    "none": Sequential(),
    "full": Full(),
    "window": Window(chunks=4, num_canonical_nodes=1),
    "nodes": Window(chunks=12, num_canonical_nodes=3),
    "block": Block(chunks=3),
    "buffer": Buffer(samples=20),
}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_set_of_a_global_batch_does_not_depend_on_the_world_size(order: str, tars: Dataset) -> None:
    ds = tars.shuffle(ORDERS[order], seed=9).with_ids().batch(global_batch_size=34)
    sets = []
    for world_size in (1, 3, 17):
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
