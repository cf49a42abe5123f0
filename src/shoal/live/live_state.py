"""The state of a live stream: of one rank, of all ranks, and the samples that a state can hold.

Samples are text in a state: JSON for their structure, base64 for their bytes. Loading the text runs no code, unlike
pickle: a checkpoint that runs code cannot be shared. Every value is restored with its type, or refused when saving: a
resumed run delivers the samples that were taken.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import StateError, UsageError
from shoal.live.live_source import Sharing
from shoal.live.shuffle_buffer import BufferSize
from shoal.order.states.checked_states import changed_hint, checked
from shoal.order.states.state_fields import LIVE, LIVE_SOURCES

VERSION = 1

_MARK = "!"  # key of every JSON object that encodes a type unknown to JSON
_NUMPY_KINDS = "biufcSUmM"
_MOST_BYTES = 1 << 30  # of the samples in a state as JSON: a thousandth of the bytes can claim as many


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a state with their checksum."""
    return {**fields, "check": _checksum(fields)}


def checked_live(given: Any) -> dict[str, Any]:
    """Return the checked state of one rank; raises `StateError` with the defect."""
    state = checked(LIVE, given, LIVE_SOURCES)
    if state["check"] != (check := _checksum(given)):
        msg = f"the state was changed after it was saved: its checksum is {state['check']!r:.20}, not {check}"
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
        msg = f"the run had {states[0]['world_size']} ranks, but these states are of ranks {str(ranks)[1:-1][:80]}"
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
    msg = f"the state is of {theirs}, but this is {ours}"
    hint = "load the state of this rank; for another number of ranks, load a list of the states of all ranks"
    raise StateError(msg, hint=f"{hint}: load_state_dict([state, ...])")


def check_same_stream(state: Mapping[str, Any], kind: str, size: BufferSize) -> None:
    """Raise `StateError` unless the state is of a source of this kind with this shuffle."""
    if state["kind"] != kind:
        msg = f"the state is of a source of the kind {state['kind']!r}; this source is of the kind {kind!r}"
        raise StateError(msg, hint="resume with the same kind of source as in the saved run")
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


def kept(values: Sequence[Any]) -> str:
    """Return values as a compressed text of at most about 4/3 of their bytes; `UsageError` for an unknown type.

    >>> restored(kept([{"x": b"ab", "y": (1, 2.5)}]))
    [{'x': b'ab', 'y': (1, 2.5)}]
    """
    text = json.dumps([_encoded(value, "the sample") for value in values], separators=(",", ":"))
    if len(text) > _MOST_BYTES:  # json.dumps gives ASCII
        msg = f"state_dict(contents=True) would keep samples of more than {_MOST_BYTES:,} bytes"
        raise UsageError(msg, hint="give shuffle() a smaller buffer, or save the state without contents")
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def restored(text: Any) -> list[Any]:
    """Return the values in a text from `kept`; raises `StateError` for any other text."""
    try:
        values = json.loads(_decompressed(base64.b64decode(text, validate=True)).decode("utf-8", "surrogatepass"))
        return [_decoded(value) for value in values]
    except (TypeError, ValueError, KeyError, zlib.error, RecursionError) as error:
        msg = f"the contents in the state cannot be read: {type(error).__name__}: {error}"
        raise StateError(msg, hint="the state was changed or cut short after it was saved") from None


def _decompressed(data: bytes) -> bytes:
    member = zlib.decompressobj()
    plain = member.decompress(data, _MOST_BYTES + 1)
    if len(plain) > _MOST_BYTES:
        raise ValueError(f"they have more than {_MOST_BYTES:,} bytes")
    if not member.eof:
        raise ValueError("they are cut short")
    return plain


def _encoded(value: Any, where: str) -> Any:
    """Return a value as JSON types; ``where`` names it in errors."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (bytes, bytearray):
        return {_MARK: kind.__name__, "v": _text(value)}
    if kind is list:
        return [_encoded(item, where) for item in value]
    if kind is tuple:
        return {_MARK: "tuple", "v": [_encoded(item, where) for item in value]}
    if kind is dict:
        if all(type(name) is str for name in value) and _MARK not in value:
            return {name: _encoded(item, f"its field {name!r}") for name, item in value.items()}
        pairs = [[_encoded(name, where), _encoded(item, f"its field {name!r}")] for name, item in value.items()]
        return {_MARK: "dict", "v": pairs}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMPY_KINDS:
        array = np.ascontiguousarray(value)
        name = "array" if kind is np.ndarray else "scalar" if kind is value.dtype.type else ""
        if name:
            shape = list(value.shape)
            return {_MARK: name, "dtype": value.dtype.str, "shape": shape, "v": _text(array.tobytes())}
    msg = f"state_dict(contents=True) keeps the samples in the buffer, but {where} is of type {kind.__name__}"
    hint = "a state holds only None, numbers, texts, bytes, lists, tuples, dicts and numpy arrays"
    raise UsageError(msg, hint=f"{hint}: let the source return such values, and convert them in a map()")


def _decoded(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_decoded(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if _MARK not in encoded:
        return {name: _decoded(item) for name, item in encoded.items()}
    name, value = encoded[_MARK], encoded["v"]
    if name == "tuple":
        return tuple(_decoded(item) for item in value)
    if name == "dict":
        return {_decoded(key): _decoded(item) for key, item in value}
    data = base64.b64decode(value, validate=True)
    if name == "bytes":
        return data
    if name == "bytearray":
        return bytearray(data)
    if name in ("array", "scalar"):
        dtype = np.dtype(encoded["dtype"])
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(f"no array of {dtype} is kept")
        array = np.frombuffer(data, dtype=dtype).reshape(encoded["shape"]).copy()
        return array if name == "array" else array[()]
    raise ValueError(f"there is no {name!r}")


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()
