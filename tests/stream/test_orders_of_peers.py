"""Orders of other libraries through a dataset: what holds for every order holds for them, repeats and gaps included."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.stream.made import check_batch, flat, open_finely, repeats_of, write_lines, write_tars

import shoal
from shoal.errors import StateError, UsageError
from shoal.order.protocol import OwnLength
from shoal.order.registry import ORDERS, argument_names, named_order, order_of_text
from shoal.quality.metrics import distinct_per_batch, variance_ratio
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

SEVERAL: list[dict[str, Any]] = [
    {"num_canonical_nodes": 4, "shuffle_block_size": 20, "physical_nodes": 2, "ranks_per_node": 2},
    {"parity": True, "physical_nodes": 2, "ranks_per_node": 3},
    {"partition": "orig", "parity": True, "num_canonical_nodes": 2, "physical_nodes": 4},
]
HUGGING_FACE = [
    {"buffer_size": 10, "world_size": 3},
    {"buffer_size": 10, "world_size": 2, "num_workers": 2, "batch_size": 4},
]
WEBDATASET = [{"bufsize": 10, "initial": 3}, {"bufsize": 10, "world_size": 2, "num_workers": 2, "batch_size": 4}]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "window": [{"chunks": 4}],
    "block": [{"chunks": 3}],
    "buffer": [{"samples": 20}],
    "grain-shuffle": [{"world_size": 2}, {"parity": True, "world_size": 3}],
    "grain-window-shuffle": [
        {"window_size": 10, "dataset": "iter"},
        {"window_size": 7, "parity": True, "world_size": 2},
    ],
    "litdata": [
        {"world_size": 3, "num_workers": 2, "batch_size": 2},
        {"world_size": 2, "drop_last": False, "batch_size": 3},
    ],
    "streaming": SEVERAL,
    **dict.fromkeys(("naive", "py1br", "py1e", "py1s", "py2s"), SEVERAL),
    "torch-distributed": [{"num_replicas": 3}, {"num_replicas": 4, "drop_last": True}, {"shuffle": False}],
    "torch-random": [{"replacement": True, "num_samples": 50}, {"num_samples": 200}, {"generator": "loader"}],
    "hf-block": HUGGING_FACE,
    "hf-reservoir": HUGGING_FACE,
    "wds-shuffle": WEBDATASET,
    "wds-detshuffle": WEBDATASET,
    "wds-resampled": [*WEBDATASET, {"samples_per_worker": 7, "split": True, "world_size": 3}],
}
"""Arguments beside none."""

CASES = [(name, given) for name in ORDERS for given in ({}, *VARIANTS.get(name, []))]


def shown(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(f"{name}={each}" for name, each in value.items()) or "-"


every_case = pytest.mark.parametrize(("name", "arguments"), CASES, ids=shown)
every_name = pytest.mark.parametrize("name", ORDERS)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """87 samples in tars, one of them empty."""
    return open_finely(write_tars(tmp_path_factory.mktemp("few") / "data", [30, 1, 0, 47, 9]))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A single sample."""
    return open_finely(write_lines(tmp_path_factory.mktemp("one") / "data", [1]))


@every_case
def test_what_comes_is_what_the_ids_say(name: str, arguments: dict[str, Any], few: Dataset) -> None:
    ds = few.shuffle(name, **arguments).with_ids()
    for epoch in range(2):
        ids = ds.ids(epoch)
        assert ds.epoch == epoch
        assert len(ids) == ds.num_samples == len(ds)
        assert [check_batch({key: [value] for key, value in sample.items()})[0] for sample in ds] == ids.tolist()
        found = ds.resolved.untouched(epoch).positions(np.arange(few.num_samples))
        delivered, first = np.unique(ids, return_index=True)
        expected = np.full(few.num_samples, -1)
        expected[delivered] = first
        assert found.tolist() == expected.tolist()
    bound = ds.resolved.untouched(0)
    cuts = itertools.pairwise([0, 1, len(ids) // 3, len(ids) // 2, len(ids)])
    assert [number for cut in cuts for number in bound.ids(*cut).tolist()] == ds.ids(0).tolist()


@every_case
def test_a_call_that_is_printed_gives_the_same_order(name: str, arguments: dict[str, Any], few: Dataset) -> None:
    ds = few.shuffle(name, seed=3, **arguments)
    pasted: Dataset = eval(f"few.{ds.resolved!r}", {"few": few, "shoal": shoal})
    assert pasted.ids().tolist() == ds.ids().tolist()
    pasted.load_state_dict(ds.state_at(5))
    shipped = pickle.loads(pickle.dumps(ds))
    assert shipped.ids(1).tolist() == ds.ids(1).tolist()
    text = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    assert order_of_text(text).parameters == named_order(name, arguments).parameters
    if not arguments:
        assert order_of_text(name).parameters == named_order(name, {}).parameters


@every_case
def test_any_run_gives_the_batches_of_the_order(name: str, arguments: dict[str, Any], few: Dataset) -> None:
    generator = random.Random(shown({"name": name, **arguments}))
    ids = few.shuffle(name, **arguments).ids()
    position, state, certificates = 0, few.shuffle(name, **arguments).state_dict(), []
    while position < len(ids):
        world_size, size, steps = generator.randint(1, 7), generator.randint(2, 12), generator.randint(1, 4)
        ranks = []
        for rank in range(world_size):
            ds = few.shuffle(name, **arguments).with_ids().batch(size).partition(rank=rank, world_size=world_size)
            ds.load_state_dict(json.loads(json.dumps(state)))
            ranks.append((ds, iter(ds)))
        for _ in range(steps):
            batches = [next(iterator, None) for _, iterator in ranks]
            if batches[0] is None:
                break
            new = [
                number
                for batch in batches
                for number, again in zip(check_batch(batch or {}), repeats_of(batch or {}), strict=True)
                if not again
            ]
            stop = min(position + size * world_size, len(ids))
            assert sorted(new) == sorted(ids[position:stop].tolist())
            position = stop
        state = ranks[0][0].state_dict()
        assert all(ds.state_dict() == state for ds, _ in ranks)
        certificates += [json.loads(json.dumps(ds.certificate())) for ds, _ in ranks]
        for _, iterator in ranks:
            iterator.close()
    assert (state["epoch"], state["position"]) == (1, 0)
    merged = shoal.merge_certificates(certificates)
    few.shuffle(name, **arguments).check_certificate(merged)
    merged["epochs"]["0"]["num_samples"] -= 1
    with pytest.raises(StateError, match="fewer"):
        few.shuffle(name, **arguments).check_certificate(merged)


@every_case
def test_parts_of_an_order_are_its_parts(name: str, arguments: dict[str, Any], few: Dataset) -> None:
    ds = few.shuffle(name, **arguments).with_ids()
    ids = ds.ids().tolist()
    half = len(ids) // 2
    parts = {
        "take": (ds.take(half), ids[:half]),
        "skip": (ds.skip(half), ids[half:]),
        "select": (ds.select(np.arange(0, len(ids), 3)), ids[::3]),
    }
    for part, expected in parts.values():
        batched = part.batch(4)
        assert flat(map(check_batch, batched)) == expected
        batched.check_certificate(batched.certificate())
    left = ds.batch(2).without(steps=[0, 2])
    assert flat(map(check_batch, left)) == ids[2:4] + ids[6:]
    left.check_certificate(left.certificate())
    filled = ds.filter(lambda sample: sample["__id__"] % 3, refill=True).batch(3)
    assert flat(map(check_batch, filled)) == [number for number in ids if number % 3]
    stored = few.select(np.arange(1, few.num_samples, 2)).shuffle(name, **arguments).with_ids()
    assert flat(map(check_batch, stored.batch(4))) == stored.ids().tolist()
    assert all(number % 2 for number in stored.ids().tolist())


@every_case
def test_quality_is_that_of_what_comes(name: str, arguments: dict[str, Any], few: Dataset) -> None:
    ds = few.shuffle(name, **arguments)
    labels = np.arange(few.num_samples) // 20
    shards = np.searchsorted([30, 31, 78], np.arange(few.num_samples), side="right")
    for batch in (2, ds.num_samples // 2):
        quality = ds.quality(batch=batch, key=labels)
        assert str(quality)
        if quality.is_measured:
            assert quality.vr[batch] == pytest.approx(variance_ratio(labels[ds.ids()], batch))
            assert quality.distinct_shards == pytest.approx(distinct_per_batch(shards[ds.ids()], batch), rel=0.2)
        assert quality.distinct_shards <= quality.perfect_shards + 2


@every_case
def test_a_single_sample(name: str, arguments: dict[str, Any], one: Dataset) -> None:
    order = named_order(name, arguments)
    if isinstance(order, OwnLength) and not order.num_positions(np.array([1])):
        with pytest.raises(UsageError, match="drops all of 1 samples"):
            one.shuffle(name, **arguments)
        return
    ds = one.shuffle(name, **arguments).with_ids()
    ranks = [ds.batch(2).partition(rank=rank, world_size=3) for rank in range(3)]
    lists = [flat(map(check_batch, rank)) for rank in ranks]
    assert Counter(flat(lists))[0] >= len(ds.ids())
    ds.check_certificate(shoal.merge_certificates([rank.certificate() for rank in ranks]))


WRONG = [-1, 0, 2**31, 2**63, 10**30, 1.5, "x", [], {}, b"x", float("nan"), (1, 2)]


@every_name
def test_a_wrong_argument_is_refused_or_is_one(name: str, one: Dataset) -> None:
    for argument in argument_names(name):
        for value in WRONG:
            if argument in ("bufsize", "samples_per_worker", "drawn", "num_samples", "shardshuffle") and value == 2**31:
                continue  # a large one, which takes long
            asked: dict[str, Any] = {argument: value}
            try:
                ds = one.shuffle(name, **asked)
            except UsageError:
                continue
            told = ds.resolved.order.parameters.get(argument, value)  # some only count beside others
            assert type(told) is type(value)
            assert told == value
            assert json.loads(json.dumps(ds.state_dict())) == ds.state_dict()


def test_a_text_may_have_anything_in_it() -> None:
    texts = ["", "(", "()", "hf-block(", "py1e(1)", "block()+1", "block()()", "block(\0)", "\0", "py1e().name"]
    for text in [*texts, "block(chunks=" + "-" * 5000 + "1)", "block(chunks=" + "[" * 300 + "]" * 300 + ")"]:
        with pytest.raises(UsageError, match="does not describe an order"):
            order_of_text(text)


LITDATA = {"num_samples_yielded": 8, "seed": 42, "world_size": 2, "num_workers": 1, "batch_size": 4, "drop_last": True}


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 2**70])
@pytest.mark.parametrize("name", sorted(LITDATA))
def test_a_damaged_checkpoint_of_another_library_is_a_state_that_is_refused(
    name: str, value: object, few: Dataset
) -> None:
    ds = few.shuffle("litdata", world_size=2, batch_size=4)
    before = ds.state_dict()
    try:
        ds.load_state_dict({"dataset": {**LITDATA, name: value}, "current_epoch": 1})
    except StateError:
        assert ds.state_dict() == before
    else:
        assert 0 <= ds.state_dict()["position"] <= ds.num_samples


@pytest.mark.parametrize(("name", "value"), [("epoch", -1), ("epoch", 2**64), ("sample_in_epoch", -16)])
def test_a_checkpoint_of_no_position_is_refused_and_changes_nothing(name: str, value: int, one: Dataset) -> None:
    ds = one.shuffle("py1e")
    before, state = ds.ids(), ds.state_dict()
    told = {
        "epoch": 0,
        "sample_in_epoch": 0,
        "num_canonical_nodes": 4,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    with pytest.raises(StateError):
        ds.load_state_dict(told | {name: value})
    assert np.array_equal(ds.ids(), before)
    assert ds.state_dict() == state
