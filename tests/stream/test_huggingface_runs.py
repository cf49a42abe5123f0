"""Runs of Hugging Face datasets that go on as streams: their ranks, and their states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import StateError
from shoal.orders import HuggingFace

SIZES = (24, 10, 31, 16, 8, 19)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    first = 0
    for part, size in enumerate(SIZES):
        lines = (json.dumps({"id": number}) for number in range(first, first + size))
        (tmp_path / f"{part}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        first += size
    return tmp_path


def ids_of(ds: Any) -> list[int]:
    return [number for batch in ds for number in batch["id"].tolist()]


@pytest.mark.parametrize(
    "arguments",
    [
        {"world_size": 3, "batch_size": 4},
        {"world_size": 4, "batch_size": 4},  # all ranks read all shards
        {"world_size": 2, "batch_size": 5, "num_workers": 2, "strategy": "shards"},
    ],
)
def test_each_rank_gets_what_was_its_own(parts: Path, arguments: dict[str, Any]) -> None:
    order = HuggingFace("block", buffer_size=20, **arguments)
    bound: Any = order.bind(SIZES, seed=3)
    ranks, size = arguments["world_size"], arguments["batch_size"]
    # As long as all ranks have whole batches.
    whole = len(bound.ids(0, 60)) // (ranks * size) * ranks * size
    positions = np.arange(whole)
    own = bound.axis(positions, positions, positions)
    ds = shoal.open(parts).shuffle("hf-block", seed=3, buffer_size=20, **arguments).batch(size)
    for rank in range(ranks):
        given = ids_of(ds.partition(rank=rank, world_size=ranks))
        expected = bound.ids(0, whole)[own == rank]
        assert given[: len(expected)] == expected.tolist()


def test_another_world_size_has_the_same_global_batches(parts: Path) -> None:
    ds = shoal.open(parts).shuffle("hf-reservoir", seed=3, buffer_size=20, world_size=3, batch_size=4)
    ds = ds.batch(global_batch_size=12)
    of_ranks = {}
    for ranks in (2, 3, 4):
        given = [[batch["id"].tolist() for batch in ds.partition(rank=rank, world_size=ranks)] for rank in range(ranks)]
        of_ranks[ranks] = [sorted(chain(*step)) for step in zip(*given, strict=True)]
    assert of_ranks[2] == of_ranks[3] == of_ranks[4]
    assert sorted(chain(*of_ranks[2])) == list(range(sum(SIZES)))


def reader(shard: int, inside: int) -> dict[str, Any]:
    return {"shard_idx": shard, "shard_example_idx": inside, "type": "ExamplesIterable"}


def taken(name: str, state: Mapping[str, Any], parts: Path, **arguments: Any) -> tuple[int, int]:
    """The epoch and position at which a run goes on."""
    ds = shoal.open(parts).shuffle(name, seed=3, buffer_size=20, **arguments)
    ds.load_state_dict({"examples_iterable": state, "epoch": 2} if "epoch" not in str(state) else state)
    after = ds.state_dict()
    return after["epoch"], after["position"]


def test_a_state_that_counts_samples(parts: Path) -> None:
    state = {"examples_iterable": {}, "batch_idx": 41, "type": "RebatchedArrowExamplesIterable"}
    assert taken("hf-block", state, parts) == (2, 41)
    assert taken("hf-block", state, parts, world_size=2) == (2, 82)


def test_a_reservoir_has_let_go_what_arrived_after_it_was_full(parts: Path) -> None:
    order = HuggingFace("reservoir", buffer_size=20).bind(SIZES, seed=3, epoch=2)
    first = int(order.locate(0, 1)[1][0])  # a shard of the first ones to arrive
    assert taken("hf-reservoir", reader(0, 0), parts) == (2, 0)
    sizes = [SIZES[shard] for shard in shards_in_order(epoch=2)]
    assert first in shards_in_order(epoch=2)[:2]
    assert taken("hf-reservoir", reader(2, 5), parts) == (2, sizes[0] + sizes[1] + 5 - 20)


def shards_in_order(epoch: int) -> list[int]:
    """Shards in the order in which release 4.8 reads them: a buffer of one sample moves none."""
    order = HuggingFace("reservoir", buffer_size=1).bind(SIZES, seed=3, epoch=epoch)
    return list(dict.fromkeys(order.locate(0, sum(SIZES))[1].tolist()))


LOADER = {
    "_snapshot": {
        "_snapshot_step": 3,
        "_main_snapshot": {
            "_num_workers": 2,
            "_sampler_iter_yielded": 3,
            "_sampler_iter_state": {"samples_yielded": 12},
        },
        "_worker_snapshots": {"worker_0": {"dataset_state": {"examples_iterable": reader(0, 9), "epoch": 1}}},
    },
    "_steps_since_snapshot": 2,
}


def test_the_state_of_a_loader_counts_batches(parts: Path) -> None:
    assert taken("hf-reservoir", LOADER, parts, num_workers=2, batch_size=4) == (1, 20)
    assert taken("hf-block", LOADER, parts, num_workers=2, batch_size=4, world_size=2) == (1, 40)
    alone = {"_num_yielded": 5, "dataset_state": {"examples_iterable": reader(0, 9), "epoch": 1}}
    assert taken("hf-block", alone, parts, batch_size=4) == (1, 20)


@pytest.mark.parametrize(
    ("name", "state", "arguments", "message"),
    [
        ("hf-block", reader(1, 3), {"tables": False, "max_buffer_input_shards": 1}, ".* to .* samples had been"),
        ("hf-reservoir", reader(6, 0), {}, "88 to 108 samples had been delivered"),
        ("hf-reservoir", reader(0, 50), {}, "in shard 0 of a list at sample 50"),
        ("hf-reservoir", reader(9, 0), {}, "in shard 9 of a list"),
        ("hf-reservoir", {"previous_states": [None] * 2}, {}, "has 2 lists of shards in turn; this order has 1"),
        ("hf-reservoir", reader(1, 0), {"world_size": 2}, "of one process"),
        ("hf-block", reader(1, 0), {"num_workers": 1}, "of one process"),
        ("hf-block", LOADER, {"num_workers": 2, "batch_size": 8}, "num_workers=2, batch_size=4"),
        ("hf-block", LOADER, {"batch_size": 4}, "num_workers=2, batch_size=4"),
        (
            "hf-block",
            {"examples_iterable": {}, "batch_idx": 7, "type": "RebatchedArrowExamplesIterable"},
            {"world_size": 2, "batch_size": 4},
            "had 7 samples, and these are not whole batches of 4",
        ),
    ],
)
def test_states_that_do_not_say_where_a_run_was(
    parts: Path, name: str, state: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError, match=message):
        taken(name, state, parts, **arguments)


def test_another_mapping_is_no_state_of_theirs(parts: Path) -> None:
    with pytest.raises(StateError):
        shoal.open(parts).shuffle("hf-block", seed=3).load_state_dict({"step": 5})
