"""States and certificates of every kind: each is taken where it belongs, and elsewhere refused by an error of shoal."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.order.forms_drawn import changes_of, fitting
from tests.stream.states_saved import KINDS, Streams, resealed

import shoal
from shoal.errors import StateError, UsageError
from shoal.order.states.checked_states import checked
from shoal.order.states.state_fields import CERTIFICATE, LIVE, LIVE_SOURCES, PART, STATE, WORKER

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
FEW = settings(max_examples=15, deadline=None)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return Streams.at(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def saved(streams: Streams) -> dict[str, list[dict[str, Any]]]:
    return {kind: streams.saved(kind) for kind in KINDS}


def form_of(state: dict[str, Any]) -> Any:
    return LIVE_SOURCES if "live" in state else STATE.fields


def taken(stream: Any, state: Any) -> bool:
    """Load a state and iterate; any error but those of shoal's users is raised."""
    try:
        stream.load_state_dict(state)
        stream.state_dict()
        list(itertools.islice(stream, 2))
        if isinstance(stream, shoal.Dataset):
            stream.check_certificate(stream.certificate())
    except (StateError, UsageError):
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_has_its_form_and_is_taken(
    streams: Streams, saved: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    for state in saved[kind]:
        is_live = "live" in state
        made = checked(LIVE, state, LIVE_SOURCES) if is_live else checked(STATE, state)
        assert made == state
        assert {*state} <= {*(LIVE if is_live else STATE).fields.fields}
        streams.make(kind).load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_kind_is_refused(
    streams: Streams, saved: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    fit = {
        "window": {"gaps"},
        "gaps": {"window"},
        "mixture": {"reweighted"},
        "reweighted": {"mixture"},
        "live sequence": {"live replay"},
        "live replay": {"live sequence"},
    }
    for other, states in saved.items():
        if other != kind and other not in fit.get(kind, ()):
            for state in states[2:4]:
                assert not taken(streams.make(kind), state), (other, state)


def test_a_state_of_ranks_that_fill_batches_is_no_state_of_ranks_that_pack(streams: Streams) -> None:
    filter_all = streams.lines.shuffle(seed=3, window="40KiB").filter(lambda _: True, refill=True)
    two = filter_all.batch(4, steps="apart").partition(rank=0, world_size=2)
    iterator = iter(two)
    next(iterator)
    packed = streams.make("packed as they come, rank 0 of 2")
    with pytest.raises(StateError, match=r"the state has packing=None; this stream has packing=\{'length': "):
        packed.load_state_dict(two.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_state_is_taken_or_refused(
    streams: Streams, saved: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    @FEW
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(saved[kind]))
        place, forged = data.draw(changes_of(state, form_of(state)))
        if place == "source.next" and isinstance(forged["source"]["next"], int) and forged["source"]["next"] > 10**6:
            return  # a source that is replayed is read up to there
        try:
            forged = resealed(forged)
        except StateError:
            return
        taken(streams.make(kind), forged)

    check()


@pytest.mark.parametrize("kind", ["window", "mixture", "growing", "refill", "live sequence", "followed"])
def test_a_state_drawn_from_its_description_is_taken_or_refused(
    streams: Streams, saved: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    real = saved[kind][2]
    form = form_of(real)

    @FEW
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        drawn = data.draw(fitting(form))
        kept = data.draw(st.sets(st.sampled_from(sorted(real))))
        state = resealed({**drawn, **{name: real[name] for name in kept}})
        if "live" in state:
            state["source"]["next"] = min(state["source"].get("next", 0), 1000)
            state = resealed(state)
        taken(streams.make(kind), state)

    check()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "live" not in kind and kind != "followed"])
def test_a_forged_certificate_is_taken_or_refused(streams: Streams, kind: str) -> None:
    stream = streams.make(kind)
    list(itertools.islice(stream, 3))
    made = stream.certificate()
    assert checked(CERTIFICATE, made) == made

    @FEW
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        _, forged = data.draw(changes_of(made, CERTIFICATE.fields))
        for use in (stream.check_certificate, lambda given: shoal.merge_certificates([made, given])):
            try:
                use(forged)
            except (StateError, UsageError):
                continue

    check()


@pytest.mark.parametrize("kind", [WORKER, PART], ids=lambda kind: kind.title)
@given(data=st.data())
@FEW
def test_a_forged_state_of_a_part_is_refused_at_the_door(kind: Any, data: st.DataObject) -> None:
    drawn = data.draw(fitting(kind.fields))
    assert checked(kind, drawn)
    _, forged = data.draw(changes_of(drawn, kind.fields))
    try:
        checked(kind, forged)
    except StateError:
        return


def test_an_iterator_of_a_live_stream_has_a_state() -> None:
    def stream() -> Any:
        return shoal.from_iterable(range(20)).batch(4)

    iterator = iter(stream())
    next(iterator)
    again = stream()
    again.load_state_dict(iterator.state_dict())
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]


WHOLE = {"epoch": 3, "model": {"w": [1.0]}, "optimizer": {"lr": 0.1}}


def test_a_whole_checkpoint_is_called_one_and_the_key_of_the_state_is_named(streams: Streams, tmp_path: Path) -> None:
    ds, live = streams.make("window"), streams.make("live sequence")
    given = {**WHOLE, "data": {"train": ds.state_dict()}}
    with pytest.raises(StateError, match=r"whole checkpoint with 'epoch', 'model'(?s:.)*\['data'\]\['train'\]"):
        ds.load_state_dict(given)
    with pytest.raises(StateError, match=r"pass checkpoint\['data'\]\['train'\]"):
        ds.load_state_dict(given)
    with pytest.raises(StateError, match=r"\['data'\]\['train'\] is a state of a dataset"):
        live.load_state_dict(given)
    with pytest.raises(StateError, match=r"holds 'epoch', 'model', 'optimizer', 'loader'(?s:.)*probably in .*'loader'"):
        ds.load_state_dict({**WHOLE, "loader": {"position": 5}})
    with pytest.raises(StateError, match=r"not a state of a live stream, but a state of a dataset(?s:.)*shoal.open"):
        live.load_state_dict(ds.state_dict())
    with pytest.raises(StateError, match=r"not a certificate, but a state of a dataset(?s:.)*load_state_dict"):
        ds.check_certificate(ds.state_dict())
    with pytest.raises(StateError, match=r"not a state of a dataset, but a certificate(?s:.)*check_certificate"):
        ds.load_state_dict(ds.certificate())


def test_other_weights_are_named_by_shares_as_users_write_them(streams: Streams) -> None:
    state = streams.mixed({"a": 0.6, "b": 0.4}).reweight(at=16, weights={"a": 3, "b": 1}).state_at(64)
    with pytest.raises(StateError) as caught:
        streams.mixed({"a": 0.123, "b": 0.877}).load_state_dict(state)
    assert caught.value.message == (
        "the weights before position 64 differ: the state has a 0.6, b 0.4 from position 0 on; a 0.75, b 0.25 from "
        "position 16 on; this mixture has a 0.123, b 0.877 from position 0 on"
    )


def test_weights_by_tokens_are_named_as_shares_of_tokens(streams: Streams) -> None:
    def mixed(weights: dict[str, float]) -> Any:
        lines = shoal.open(streams.directory / "lines" / "data", index_columns=["n=id"])
        sources = {"first": lines.take(40), "rest": lines.skip(40)}
        return shoal.mix(sources, weights=weights, unit="tokens", length="n").shuffle(seed=0)

    state = mixed({"first": 0.3, "rest": 0.7}).state_at(20)
    said = r"has first 0\.3, rest 0\.7 from position 0 on \(shares of n\); .* has first 0\.5, rest 0\.5 from"
    with pytest.raises(StateError, match=said):
        mixed({"first": 0.5, "rest": 0.5}).load_state_dict(state)


def test_a_large_checkpoint_is_searched_only_so_far(streams: Streams) -> None:
    ds = streams.make("window")
    layers = {f"layer {number}": {"weights": [0.0] * 100} for number in range(20_000)}
    with pytest.raises(StateError, match="not a state of a dataset: it holds 'model', 'last'"):
        ds.load_state_dict({"model": layers, "last": {"deep": {"deeper": ds.state_dict()}}})
    with pytest.raises(StateError, match=r"\['last'\] is a state of a dataset"):
        ds.load_state_dict({"model": layers, "last": ds.state_dict()})


def test_a_followed_file_that_was_new_when_the_state_was_saved_may_be_gone(
    streams: Streams, saved: dict[str, list[dict[str, Any]]]
) -> None:
    state = saved["followed"][2]
    state = resealed({**state, "source": {**state["source"], "fresh": ["gone.jsonl"]}})
    assert taken(streams.make("followed"), state)
