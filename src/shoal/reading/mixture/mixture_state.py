"""A mixture in a state: its sources by name, each as in the state of a dataset, and the changes of weights.

Up to 1,000 characters of changes are listed. More changes are listed as positions and digests, or as one digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import StateError
from shoal.order.mixture.source_choice import MOST_POSITIONS
from shoal.order.mixture.source_schedule import Change
from shoal.order.state_dict import State
from shoal.reading.mixture.epochs_request import EpochsRequest
from shoal.reading.mixture.mix_request import MixRequest, SourceRequest
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder

VERSION = 1
_MOST_CHARACTERS = 1000
_MOST_SHOWN = 6  # changes, in an error

_Position = Callable[[MixRequest], int]


def description(request: MixRequest, parts: Iterator[ResolvedOrder]) -> dict[str, Any]:
    """Describe a mixture for a state; ``parts`` are its datasets."""
    sources = {}
    for source in request.sources:
        if isinstance(source.request, MixRequest):
            sources[source.name] = description(source.request, parts) | {"seed": source.request.seed}
        else:
            part = next(parts)
            sources[source.name] = {"index": part.index.fingerprint, "seed": part.seed, "order": part.state_order}
    return {
        "name": "mix",
        "version": VERSION,
        "choice": request.choice.name,
        "run": request.choice.run,
        **({"chosen": request.peer.parameters} if isinstance(request, EpochsRequest) else {}),
        "ends": request.ends if request.epoch_size is None else request.epoch_size,
        **({"counted": True} if request.is_counted else {}),
        "changes": _listed(request.changes),
        "sources": sources,
    }


def adopted(request: MixRequest, order: Mapping[str, Any], position_in: _Position) -> MixRequest:
    """Return the request with the window parameters and the later weight changes that a state records.

    ``position_in`` returns the endless position of the state in a mixture: the length of an epoch may depend on the
    changes.
    """
    if order["name"] != "mix":
        msg = f"the state was saved with order {order['name']!r}; this stream is a mixture"
        raise StateError(msg, hint="load it into the dataset that it was saved with")
    saved = order["sources"]
    if gone := [name for name in saved if name not in request.names]:
        msg = f"the state was saved with the source {gone[0]!r}; this mixture has {', '.join(map(repr, request.names))}"
        raise StateError(msg, hint="call reweight(at=, add=) as then; a weight of 0 retires a source")
    request = replace(request, changes=_changes_adopted(request, order["changes"], position_in))
    sources = tuple(
        _source_adopted(source, saved.get(source.name), _position_in_source(request, number, position_in))
        for number, source in enumerate(request.sources)
    )
    return replace(request, sources=sources)


def _count(request: MixRequest, source: int, position_in: _Position) -> int:
    """Return the samples of a source before a position."""
    return int(request.counts(position_in(request))[source])


def _position_in_source(request: MixRequest, source: int, position_in: _Position) -> _Position:
    """Return the position of a state in a nested mixture, counted in its samples.

    A mixture that restarts its sources in each epoch never changes its weights, so the position is after all positions.
    """

    def position(_: MixRequest) -> int:
        return MOST_POSITIONS - 1 if isinstance(request, EpochsRequest) else _count(request, source, position_in)

    return position


def _source_adopted(source: SourceRequest, saved: Any, position_in: _Position) -> SourceRequest:
    is_mixture = isinstance(source.request, MixRequest)
    if saved is None or ("sources" in saved) != is_mixture:
        return source  # a new source, or a source of another kind, which `check_sources` refuses
    if isinstance(source.request, MixRequest):
        return replace(source, request=adopted(source.request, saved, position_in))
    if isinstance(source.request, OrderRequest):
        state = State(0, 0, source.request.seed, saved["order"], "")
        return replace(source, request=source.request.adopting(state))
    return source


def check_sources(
    theirs: Mapping[str, Any], sources: Mapping[str, Any], request: MixRequest, position_in: _Position
) -> None:
    """Raise `StateError` if sources differ from a state; a source without earlier samples may be new."""
    for number, (name, ours) in enumerate(sources.items()):
        if name not in theirs:
            if count := _count(request, number, position_in):
                msg = f"the state knows no source {name!r}, but {count} of its samples come before the state's position"
                raise StateError(msg, hint="add sources by reweight(at=, add=), at a position not yet reached")
            continue
        position = _position_in_source(request, number, position_in)
        _check_source(name, theirs[name], ours, request.sources[number].request, position)


def _check_source(
    name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], request: Any, position_in: _Position
) -> None:
    if ("sources" in theirs) != ("sources" in ours):
        msg = f"the state's source {name!r} is another kind of source than this mixture's"
        raise StateError(msg, hint="load it into the mixture that it was saved with")
    if isinstance(request, MixRequest):
        if mixed_how(theirs) != mixed_how(ours):
            msg = f"the state's source {name!r} was mixed differently: {mixed_how(theirs)}; now {mixed_how(ours)}"
            raise StateError(msg, hint="load it into the mixture that it was saved with")
        check_sources(theirs["sources"], ours["sources"], request, position_in)  # `adopted` has compared the changes
        return
    state = State(0, 0, theirs["seed"], theirs["order"], theirs["index"])
    try:
        state.check(seed=ours["seed"], order=ours["order"], index=ours["index"], num_samples=0)
    except StateError as error:
        error.add_note(f"shoal: in the source {name!r}")
        msg, hint = f"source {name!r}: {error.message}", error.hint
        if theirs["seed"] != ours["seed"] and theirs["index"] == ours["index"]:  # the seed depends on shuffle(seed=)
            hint = "give shuffle(seed=) of the mixture, or of this source, the seed of the saved run"
        raise StateError(msg, hint=hint) from None


def mixed_how(mixture: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a mixture without its changes and sources, which are compared one by one."""
    return {name: value for name, value in mixture.items() if name not in ("changes", "sources")}


def _listed(changes: tuple[Change, ...]) -> Any:
    rows = [_row(change) for change in changes]
    if len(json.dumps(rows)) <= _MOST_CHARACTERS:
        return rows
    digests = [[row[0], digest_of([row])] for row in rows]
    return digests if len(json.dumps(digests)) <= _MOST_CHARACTERS else [[rows[-1][0], digest_of(rows), len(rows)]]


def _row(change: Change) -> list[Any]:
    """Return a change as a row of a state; sources of weight 0 are left out."""
    return [change.at, change.ramp, {name: weight for name, weight in change.weights.items() if weight}]


def _changes_adopted(request: MixRequest, saved: Any, position_in: _Position) -> tuple[Change, ...]:
    """Return our changes, or those of a state with more; raise `StateError` if they differ before its position."""
    changes, ours = request.changes, [_row(change) for change in request.changes]
    if isinstance(saved[0][-1], Mapping):
        theirs = tuple(_change(request, *row) for row in saved)
        if saved[: len(ours)] == ours:
            return (*changes, *theirs[len(ours) :])
        position = position_in(replace(request, changes=theirs))
        is_same = position == position_in(request) and _before(ours, position) == _before(saved, position)
    elif len(saved[0]) == 2:
        position = position_in(request)
        digests = [[row[0], digest_of([row])] for row in ours]
        is_same = _before(digests, position) == _before(saved, position)
    else:
        position, num_saved = position_in(request), saved[0][2]
        is_same = len(ours) >= num_saved and digest_of(ours[:num_saved]) == saved[0][1]
        is_same = is_same and len(_before(ours, position)) <= num_saved
    if is_same:
        return changes
    msg = f"the weights before position {position} differ: the state has {_words(request, saved)}; this mixture has "
    msg += _words(request, ours)
    hint = f"repeat the saved run's mix(weights=) and reweight(); change weights or sources from position {position} on"
    raise StateError(msg, hint=hint)


def _change(request: MixRequest, at: int, ramp: int, weights: Mapping[str, int]) -> Change:
    """Return a change that a state lists; raise `StateError` if the mixture has no source for it."""
    if not any(weights.values()) or not set(weights) <= set(request.names):
        msg = f"the state's weights from position {at} on name no source, or a source that is missing here: {weights}"
        raise StateError(msg, hint=f"the sources are {', '.join(map(repr, request.names))}")
    return Change(at, dict(weights), ramp)


def _words(request: MixRequest, changes: list[list[Any]]) -> str:
    """Describe weight changes in words: shares of samples, or of tokens if the mixture counts tokens."""
    if not isinstance(changes[0][-1], Mapping):
        return f"the last of its changes at position {changes[-1][0]}, and only digests of their weights"
    means = {source.name: source.mean_tokens or 1 for source in request.sources}
    words = []
    for at, ramp, weights in changes[:_MOST_SHOWN]:
        shares = {name: weight * means.get(name, 1) for name, weight in weights.items()}
        total = sum(shares.values())
        listed = ", ".join(f"{name} {float(share / total):.4g}" for name, share in shares.items())
        words.append(f"{listed} from position {at} on" + (f" (reached over {ramp} positions)" if ramp else ""))
    if len(changes) > _MOST_SHOWN:
        words.append(f"and {len(changes) - _MOST_SHOWN} more changes")
    return "; ".join(words) + (f" (shares of {request.length})" if request.length else "")


def _before(changes: list[list[Any]], position: int) -> list[list[Any]]:
    return [change for change in changes if change[0] < position or change[0] == 0]


def digest_of(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
