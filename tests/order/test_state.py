from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import StateError
from shoal.order.position_subsets import Gaps
from shoal.order.seeds import MAX_SEED
from shoal.order.state_dict import STATE_VERSION, State, sealed
from shoal.order.states.forms import MAX_POSITION

ORDER = {"name": "window", "version": 1, "chunks": 256, "num_canonical_nodes": 16, "extents_per_chunk": 4}
STATE = State(epoch=3, position=70, seed=5, order=ORDER, index="a1b2c3d4e5f60718")
DESCRIPTION: dict[str, Any] = {"seed": 5, "order": ORDER, "index": "a1b2c3d4e5f60718", "num_samples": 100}


@given(
    epoch=st.integers(0, MAX_SEED),
    position=st.integers(0, MAX_POSITION),
    seed=st.integers(0, MAX_SEED),
    chunks=st.integers(0, MAX_POSITION),
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
        "version": 3,
        "epoch": 3,
        "position": 70,
        "seed": 5,
        "order": ORDER,
        "index": "a1b2c3d4e5f60718",
        "check": "64472cb2",
    }


def test_gaps_are_fields_of_a_state() -> None:
    gapped = State(3, 70, 5, ORDER, "a1b2c3d4e5f60718", Gaps.of([(3, 10, 20), (4, 0, 5)]))
    told = gapped.to_dict()
    assert told == sealed({**STATE.to_dict(), "without": [[3, 10, 20], [4, 0, 5]]})
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
    with pytest.raises(StateError, match=rf"the dict that state_dict\(\) returned; got {type(given_as).__name__}"):
        State.from_dict(given_as)


def test_a_state_of_a_newer_version() -> None:
    newer = {"version": STATE_VERSION + 1, "something": "else"}
    with pytest.raises(
        StateError, match=rf"version {STATE_VERSION + 1}; this version of shoal reads up to {STATE_VERSION}"
    ):
        State.from_dict(newer)


@pytest.mark.parametrize("field", ["version", "epoch", "position", "seed", "order", "index", "check"])
def test_a_missing_field_is_named(field: str) -> None:
    left = {name: value for name, value in STATE.to_dict().items() if name != field}
    with pytest.raises(StateError, match=rf"missing \['{field}'\]"):
        State.from_dict(left)


@pytest.mark.parametrize("version", [0, -1, "1", None, 0.5, 1, 2])
def test_a_version_that_never_was(version: Any) -> None:
    with pytest.raises(StateError, match=f"the state has version {version!r}"):
        State.from_dict(STATE.to_dict() | {"version": version})


@pytest.mark.parametrize("field", ["epoch", "position", "seed"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_counts_that_are_none(field: str, value: Any) -> None:
    with pytest.raises(StateError, match=rf"the state's {field} must be an integer from 0 to [0-9]+; got"):
        State.from_dict(STATE.to_dict() | {field: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": None}, "order must be a dict; got None"),
        ({"order": "window"}, "order must be a dict; got 'window'"),
        ({"index": 5}, "index must be a text; got 5"),
        ({"index": None}, "index must be a text; got None"),
    ],
)
def test_an_order_and_an_index_of_wrong_kinds(change: dict, said: str) -> None:
    with pytest.raises(StateError, match=f"the state's {said}"):
        State.from_dict(STATE.to_dict() | change)


GAPPED = State(3, 70, 5, ORDER, "a1b2c3d4e5f60718", Gaps.of([(3, 10, 20), (4, 0, 5)]))
GARBAGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, 2**63, 2**64, -1, float("inf"), float("nan"), -0.0, 1e400])
    | st.builds(pow, st.just(10), st.just(5000))  # which Python cannot show
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.sampled_from([np.arange(3), np.int64(7), np.float32(2), object(), {1: 2}, {2}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a value that may be changed, itself left out."""
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


def loaded(state: Any) -> State | None:
    """What a state means; None where it is refused by an error of shoal."""
    try:
        return State.from_dict(state)
    except StateError:
        return None


@pytest.mark.parametrize("state", [STATE, GAPPED], ids=["whole", "with gaps"])
@given(data=st.data(), new=GARBAGE)
def test_any_change_of_a_state_keeps_its_meaning_or_is_refused(state: State, data: st.DataObject, new: Any) -> None:
    told = state.to_dict()
    place = data.draw(st.sampled_from(list(places_in(told))))
    assert loaded(changed_at(told, place, new)) in (None, state)


@given(data=st.data(), new=st.integers(-3, 300))
def test_any_other_number_in_a_state_is_refused(data: st.DataObject, new: int) -> None:
    told = GAPPED.to_dict()
    place = data.draw(st.sampled_from(list(places_in(told))))
    before: Any = told
    for name in place:
        before = before[name]
    assert loaded(changed_at(told, place, new)) == (GAPPED if type(before) is int and before == new else None)


@pytest.mark.parametrize("field", list(GAPPED.to_dict()))
def test_a_field_that_is_gone_is_refused(field: str) -> None:
    assert loaded({name: value for name, value in GAPPED.to_dict().items() if name != field}) is None


@given(data=st.data(), new=GARBAGE)
def test_a_state_that_is_sealed_anew_is_taken_or_refused_by_an_error_of_shoal(data: st.DataObject, new: Any) -> None:
    """As one does who writes states: no number may be larger than those that can be counted with."""
    told = GAPPED.to_dict()
    place = data.draw(st.sampled_from([place for place in places_in(told) if place != ("check",)]))
    try:
        forged = sealed({name: value for name, value in changed_at(told, place, new).items() if name != "check"})
    except StateError:
        return
    if (found := loaded(forged)) is not None:
        assert max(found.epoch, found.seed) <= MAX_SEED
        assert found.position <= MAX_POSITION


def test_numbers_of_other_libraries_and_fields_beside_change_nothing() -> None:
    told = GAPPED.to_dict()
    found = {**told, "epoch": np.int64(3), "order": dict(reversed(ORDER.items())), "mine": object()}
    found["without"] = tuple(map(tuple, told["without"]))
    assert State.from_dict(found) == GAPPED


def test_what_to_do_with_a_state_that_was_changed_is_said() -> None:
    with pytest.raises(StateError, match=r"(?s)checksum is '64472cb2', not [0-9a-f]{8}.*ds\.state_at\(position"):
        State.from_dict(STATE.to_dict() | {"position": 71})
