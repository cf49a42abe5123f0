"""The state of a live stream on one rank, and of all ranks together."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import StateError
from shoal.live.live_source import Sharing
from shoal.live.shuffle_buffer import BufferSize
from shoal.order.states.checked_states import changed_hint, checked
from shoal.order.states.state_fields import LIVE, LIVE_SOURCES

VERSION = 1


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a state with their checksum."""
    return {**fields, "check": _checksum(fields)}


def checked_live(given: Any) -> dict[str, Any]:
    """Return the checked state of one rank; raises `StateError` with the defect."""
    state = checked(LIVE, given, LIVE_SOURCES)
    if state["check"] != (check := _checksum(given)):
        msg = f"the state was changed after it was saved: its checksum is {state['check']!r:.20}, and not {check}"
        raise StateError(msg, hint=changed_hint(LIVE))
    num_places, num_first = len(state["places"]), state["pending"] + state["again"]
    if state["rank"] >= state["world_size"] or num_first > num_places or (state["hole"] or 0) > num_places - num_first:
        msg = f"numbers of the state contradict each other: rank {state['rank']} of {state['world_size']}; of "
        msg += f"{num_places} samples, {num_first} due first; slot {state['hole']} free"
        raise StateError(msg, hint=changed_hint(LIVE))
    return state


def states_of_run(given: Any) -> list[dict[str, Any]]:
    """Return the states of a run, sorted by rank, from a list or from the state of one rank.

    Raises `StateError` if they are of different runs, or the state of a rank is missing or repeated.
    """
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    states = [checked_live(state) for state in (given if several else [given])]
    if not states:
        raise StateError("there are no states to load", hint="give the state of each rank")
    for name in ("kind", "seed", "buffer", "world_size"):
        if len(values := {json.dumps(state[name]) for state in states}) > 1:
            msg = f"these states are of different runs: {name} is {' and '.join(sorted(values))}"
            raise StateError(msg, hint="give the states of the ranks of one run, saved after the same step")
    ranks = sorted(state["rank"] for state in states)
    if several and ranks != list(range(states[0]["world_size"])):
        msg = f"the run had {states[0]['world_size']} ranks, and these states are of ranks {str(ranks)[1:-1][:80]}"
        raise StateError(msg, hint="give the state of every rank once")
    return sorted(states, key=lambda state: state["rank"])


def own_state(states: Sequence[dict[str, Any]], sharing: Sharing) -> dict[str, Any] | None:
    """Return the state of this rank; None for all states of a run with another number of ranks.

    Raises `StateError` for a single state of another rank or number of ranks.
    """
    world_size = states[0]["world_size"]
    for state in states:
        if (state["rank"], world_size) == (sharing.rank, sharing.world_size):
            return state
    if len(states) == world_size:
        return None
    theirs, ours = f"rank {states[0]['rank']} of {world_size}", f"rank {sharing.rank} of {sharing.world_size}"
    msg = f"the state is of {theirs}, and this is {ours}"
    hint = "each rank has a state of its own; for another number of ranks give a list of all of them"
    raise StateError(msg, hint=f"{hint}: load_state_dict([state, ...])")


def check_same_stream(state: Mapping[str, Any], kind: str, size: BufferSize) -> None:
    """Raise `StateError` unless the state is of a source of this kind with this shuffle."""
    if state["kind"] != kind:
        msg = f"the state is of a source of the kind {state['kind']!r}; this one is {kind!r}"
        raise StateError(msg, hint="resume with a source like the one of the run that saved the state")
    theirs = BufferSize(state["seed"], *state["buffer"])
    if theirs != size:
        msg = f"the state was saved with {theirs}; this stream has {size}"
        raise StateError(msg, hint="give shuffle() the same arguments as then: the size decides about the order")


def _checksum(fields: Mapping[str, Any]) -> str:
    try:
        rest = {name: value for name, value in fields.items() if name != "check"}
        text = json.dumps(rest, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"the state cannot be written as JSON: {error}"
        hint = "the state_dict() of the source must return JSON types: numbers, texts, lists and dicts"
        raise StateError(msg, hint=hint) from None
    return f"{zlib.crc32(text.encode()):08x}"
