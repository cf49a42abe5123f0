"""States and certificates that somebody changed end in errors of shoal, whatever is in them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import ShoalError, StateError
from shoal.order.state_dict import State, sealed
from shoal.orders import Block, Buffer, Window
from shoal.stream.dataset import Dataset
from shoal.stream.verbs.dataset_requests import request_of_state

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 5, 10**30, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**5000),
    *(0.5, 1e300, float("inf"), float("nan"), "", "x", "7", "10" * 3000, b"1", [], [[]], [0], {}, {"x": [1]}, {1: 2}),
    *([[0, 1, 2]], [[0, 1]], [[0, 2**63, 2**64]], [[10**30, 0, 1]], np.arange(2), np.int64(3), np.float64(3), object()),
]
RESHUFFLED = {
    "window": lambda ds: ds.shuffle(seed=3, window="40KiB"),
    "numbers": lambda ds: ds.shuffle(Window(chunks=8, num_canonical_nodes=2), seed=3),
    "block": lambda ds: ds.shuffle(Block(chunks=2), seed=3),
    "buffer": lambda ds: ds.shuffle(Buffer(samples=9), seed=3),
    "full": lambda ds: ds.shuffle("full", seed=3),
    "none": lambda ds: ds,
}


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*place, name)
        yield from places_in(part, (*place, name))


def changed_at(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    copied = copy.deepcopy(value)
    inner = copied
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = new
    return copied


@pytest.mark.parametrize("order", RESHUFFLED)
def test_a_forged_state_is_run_or_refused_by_an_error_of_shoal(tars: Dataset, order: str) -> None:
    saved = RESHUFFLED[order](tars).without(positions=[(20, 30)], epoch=1).state_at(40)
    values = VALUES if order == "window" else VALUES[:: len(VALUES) // 12]
    for place in places_in(saved):
        for new in values:
            if place == ("check",):
                continue
            ds = RESHUFFLED[order](tars).batch(8)
            try:
                forged = sealed({n: v for n, v in changed_at(saved, place, new).items() if n != "check"})
                request_of_state(State.from_dict(forged))
                ds.load_state_dict(forged)
                ds.state_dict()
                with iter(ds) as iterator:
                    next(iterator, None)
                ds.check_certificate(ds.certificate())
            except ShoalError:
                continue


@pytest.mark.parametrize("order", ["window", "full"])
def test_a_changed_state_is_not_taken(tars: Dataset, order: str) -> None:
    saved = RESHUFFLED[order](tars).without(positions=[(20, 30)], epoch=1).state_at(40)
    for place in places_in(saved):
        for new in VALUES:
            ds = RESHUFFLED[order](tars)
            try:
                ds.load_state_dict(changed_at(saved, place, new))
            except StateError:
                assert ds.epoch == 0
                continue
            assert ds.state_dict() == saved  # it was no change


@pytest.mark.parametrize("order", ["window", "none"])
def test_a_changed_certificate_is_refused_by_an_error_of_shoal(tars: Dataset, order: str) -> None:
    ds = RESHUFFLED[order](tars).without(positions=[(20, 30)], epoch=1).batch(50)
    list(ds)
    list(ds)
    made = ds.certificate()
    ds.check_certificate(made)
    epochs = [{name: made["epochs"]["0"]} for name in ("-1", "x", "1" * 5000, str(10**30), str(2**64 - 1), "1.5")]
    changes = [changed_at(made, place, new) for place in places_in(made) for new in VALUES]
    for changed in [*changes, *({**made, "epochs": each} for each in epochs), None, [], {}, "x"]:
        for use in (ds.check_certificate, lambda given: shoal.merge_certificates([made, given])):
            try:
                use(changed)
            except ShoalError:
                continue


@given(epoch=st.integers(), position=st.integers())
@settings(max_examples=30)
def test_any_position_has_a_state_or_is_refused(tars: Dataset, epoch: int, position: int) -> None:
    try:
        state = tars.state_at(position, epoch=epoch)
    except ShoalError:
        return
    loaded = tars.batch(4)
    loaded.load_state_dict(state)
    assert loaded.state_dict() == state
