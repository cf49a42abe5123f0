from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import StateError
from shoal.order.gaps import Gaps
from shoal.order.seeds import MAX_SEED
from shoal.order.state import STATE_VERSION, State

ORDER = {"name": "window", "version": 1, "chunks": 256, "num_canonical_nodes": 16, "extents_per_chunk": 4}
STATE = State(epoch=3, position=70, seed=5, order=ORDER, index="a1b2c3d4e5f60718")
DESCRIPTION: dict[str, Any] = {"seed": 5, "order": ORDER, "index": "a1b2c3d4e5f60718", "num_samples": 100}


@given(
    epoch=st.integers(0, 2**40), position=st.integers(0, 2**62), seed=st.integers(0, MAX_SEED), chunks=st.integers(0)
)
def test_a_state_comes_back_from_json(epoch: int, position: int, seed: int, chunks: int) -> None:
    state = State(epoch, position, seed, ORDER | {"chunks": chunks}, "0" * 16)
    assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_the_largest_state_is_under_a_kilobyte() -> None:
    order = dict.fromkeys(ORDER, 2**63) | {"name": "window", "samples": "0" * 16, "positions": "0" * 16}
    state = State(2**63, 2**63, MAX_SEED, order, "0" * 64)
    assert len(json.dumps(state.to_dict(), indent=2)) < 1000


def test_the_fields_of_a_state() -> None:
    assert STATE.to_dict() == {
        "version": 1,
        "epoch": 3,
        "position": 70,
        "seed": 5,
        "order": ORDER,
        "index": "a1b2c3d4e5f60718",
    }


def test_gaps_make_a_state_that_older_ones_refuse() -> None:
    gapped = State(3, 70, 5, ORDER, "a1b2c3d4e5f60718", Gaps.of([(3, 10, 20), (4, 0, 5)]))
    told = gapped.to_dict()
    assert told == {**STATE.to_dict(), "version": STATE_VERSION, "without": [[3, 10, 20], [4, 0, 5]]}
    assert State.from_dict(json.loads(json.dumps(told))) == gapped


def test_a_state_of_this_stream_is_taken() -> None:
    STATE.check(**DESCRIPTION)
    STATE.check(**DESCRIPTION | {"num_samples": 70})
    STATE.check(**DESCRIPTION | {"order": dict(reversed(ORDER.items()))})


@pytest.mark.parametrize(
    ("change", "theirs", "ours"),
    [
        ({"index": "ffff"}, "a1b2c3d4e5f60718", "ffff"),
        ({"seed": 6}, "seed=5", "seed=6"),
        ({"num_samples": 69}, "position 70", "69 samples"),
        ({"order": ORDER | {"name": "block"}}, "name='window'", "name='block'"),
        ({"order": ORDER | {"version": 2}}, "version=1", "version=2"),
        ({"order": ORDER | {"chunks": 255}}, "chunks=256", "chunks=255"),
        ({"order": ORDER | {"num_canonical_nodes": 8}}, "num_canonical_nodes=16", "num_canonical_nodes=8"),
        ({"order": ORDER | {"extents_per_chunk": 1}}, "extents_per_chunk=4", "extents_per_chunk=1"),
        ({"order": ORDER | {"select": "abcd"}}, "no select", "select='abcd'"),
        ({"order": {k: v for k, v in ORDER.items() if k != "chunks"}}, "chunks=256", "no chunks"),
    ],
)
def test_a_state_of_another_stream_is_refused_and_both_sides_named(change: dict, theirs: str, ours: str) -> None:
    with pytest.raises(StateError) as caught:
        STATE.check(**DESCRIPTION | change)
    assert theirs in caught.value.message
    assert ours in caught.value.message
    assert caught.value.message.index(theirs) < caught.value.message.index(ours)


def test_a_state_of_another_dataset_is_told_before_all_else() -> None:
    with pytest.raises(StateError, match="belongs to dataset"):
        STATE.check(seed=9, order={}, index="ffff", num_samples=0)


@pytest.mark.parametrize("given_as", [None, 7, "{}", b"{}", [1], [("version", 1)]])
def test_what_is_no_dict_is_no_state(given_as: Any) -> None:
    with pytest.raises(StateError, match=rf"the dict that state_dict\(\) gave; got {type(given_as).__name__}"):
        State.from_dict(given_as)


def test_a_state_of_a_newer_version() -> None:
    newer = {"version": STATE_VERSION + 1, "something": "else"}
    with pytest.raises(StateError, match=rf"version {STATE_VERSION + 1}; this shoal reads up to {STATE_VERSION}"):
        State.from_dict(newer)


@pytest.mark.parametrize("field", ["version", "epoch", "position", "seed", "order", "index"])
def test_a_missing_field_is_named(field: str) -> None:
    left = {name: value for name, value in STATE.to_dict().items() if name != field}
    with pytest.raises(StateError, match=rf"missing \['{field}'\]"):
        State.from_dict(left)


@pytest.mark.parametrize("version", [0, -1, "1", None, 0.5])
def test_a_version_that_never_was(version: Any) -> None:
    with pytest.raises(StateError, match=f"the state has version {version!r}"):
        State.from_dict(STATE.to_dict() | {"version": version})


@pytest.mark.parametrize("field", ["epoch", "position", "seed"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_counts_that_are_none(field: str, value: Any) -> None:
    with pytest.raises(StateError, match=rf"the state's {field} must be an integer of at least 0; got"):
        State.from_dict(STATE.to_dict() | {field: value})


@pytest.mark.parametrize("change", [{"order": None}, {"order": "window"}, {"index": 5}, {"index": None}])
def test_an_order_and_an_index_of_wrong_kinds(change: dict) -> None:
    with pytest.raises(StateError, match="order must be a dict and its index a fingerprint"):
        State.from_dict(STATE.to_dict() | change)
