"""A mixture in a state: its sources by name, each as a dataset's own state has it, and the changes of weights.

Up to 1,000 characters of changes are listed; of more, their positions and digests; of too many for that, one digest.
"""

from __future__ import annotations

import functools
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


def told(request: MixRequest, parts: Iterator[ResolvedOrder]) -> dict[str, Any]:
    """Describe a mixture for a state; ``parts`` are its datasets."""
    sources = {}
    for source in request.sources:
        if isinstance(source.request, MixRequest):
            sources[source.name] = told(source.request, parts) | {"seed": source.request.seed}
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
        "changes": _changes_told(request.changes),
        "sources": sources,
    }


def adopted(request: MixRequest, order: Mapping[str, Any], place: Callable[[MixRequest], int]) -> MixRequest:
    """Return the request with what the order of a state knows more: numbers of windows, and further changes.

    ``place`` says at which endless position a mixture is there; an epoch's length may depend on the changes.
    """
    if order["name"] != "mix":
        msg = f"the state was saved with order {order['name']!r}; this stream is a mixture"
        raise StateError(msg, hint="load it into the dataset that it was saved with")
    saved = order["sources"]
    if gone := [name for name in saved if name not in request.names]:
        msg = f"the state was saved with the source {gone[0]!r}; this mixture has {', '.join(map(repr, request.names))}"
        raise StateError(msg, hint="reweight(at=, add=) as it was called then; a source is retired by a weight of 0")
    request = replace(request, changes=_changes_adopted(request, order["changes"], place))
    sources = tuple(
        _source_adopted(source, saved.get(source.name), functools.partial(_inner_place, request, number, place))
        for number, source in enumerate(request.sources)
    )
    return replace(request, sources=sources)


def _count(request: MixRequest, source: int, place: Callable[[MixRequest], int]) -> int:
    """Return the samples of a source that come before a place."""
    return int(request.counts(place(request))[source])


def _inner_place(
    request: MixRequest,
    source: int,
    place: Callable[[MixRequest], int],
    inner: MixRequest,  # noqa: ARG001
) -> int:
    """Return the place of a nested mixture, counted in its samples.

    In a mixture that begins anew in each epoch it is behind all positions: then nothing in it may have changed.
    """
    return MOST_POSITIONS - 1 if isinstance(request, EpochsRequest) else _count(request, source, place)


def _source_adopted(source: SourceRequest, saved: Any, place: Callable[[MixRequest], int]) -> SourceRequest:
    is_mixture = isinstance(source.request, MixRequest)
    if saved is None or ("sources" in saved) != is_mixture:
        return source  # a new source, or one of another kind, which `check_sources` refuses
    if isinstance(source.request, MixRequest):
        return replace(source, request=adopted(source.request, saved, place))
    if isinstance(source.request, OrderRequest):
        state = State(0, 0, source.request.seed, saved["order"], "")
        return replace(source, request=source.request.adopting(state))
    return source


def check_sources(
    theirs: Mapping[str, Any], sources: Mapping[str, Any], request: MixRequest, place: Callable[[MixRequest], int]
) -> None:
    """Raise `StateError` unless the sources of a state are these; those without samples before it may be new."""
    for number, (name, ours) in enumerate(sources.items()):
        if name not in theirs:
            if count := _count(request, number, place):
                msg = f"the state knows no source {name!r}, of which {count} samples come before its position"
                raise StateError(msg, hint="add sources by reweight(at=, add=), at a position not yet reached")
            continue
        inner = functools.partial(_inner_place, request, number, place)
        _check_source(name, theirs[name], ours, request.sources[number].request, inner)


def _check_source(
    name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], request: Any, place: Callable[[MixRequest], int]
) -> None:
    if ("sources" in theirs) != ("sources" in ours):
        msg = f"the state's source {name!r} is another kind of source than this mixture's"
        raise StateError(msg, hint="load it into the mixture that it was saved with")
    if isinstance(request, MixRequest):
        if _mixed_how(theirs) != _mixed_how(ours):
            msg = f"the state's source {name!r} is mixed otherwise: {_mixed_how(theirs)}; here it is {_mixed_how(ours)}"
            raise StateError(msg, hint="load it into the mixture that it was saved with")
        check_sources(theirs["sources"], ours["sources"], request, place)  # `adopted` has compared the changes
        return
    state = State(0, 0, theirs["seed"], theirs["order"], theirs["index"])
    try:
        state.check(seed=ours["seed"], order=ours["order"], index=ours["index"], num_samples=0)
    except StateError as error:
        error.add_note(f"shoal: in the source {name!r}")
        msg, hint = f"source {name!r}: {error.message}", error.hint
        if theirs["seed"] != ours["seed"] and theirs["index"] == ours["index"]:  # made of name and shuffle(seed=)
            hint = "give shuffle(seed=) of the mixture, or of this source, what it was given then"
        raise StateError(msg, hint=hint) from None


def _mixed_how(mixture: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mixture.items() if name not in ("changes", "sources")}


def _changes_told(changes: tuple[Change, ...]) -> Any:
    whole = [_told(change) for change in changes]
    if len(json.dumps(whole)) <= _MOST_CHARACTERS:
        return whole
    digests = [[change.at, _digest([each])] for change, each in zip(changes, whole, strict=True)]
    return digests if len(json.dumps(digests)) <= _MOST_CHARACTERS else [[changes[-1].at, _digest(whole), len(whole)]]


def _told(change: Change) -> list[Any]:
    """Return a change as a state lists it; names without weight do not count."""
    return [change.at, change.ramp, {name: weight for name, weight in change.weights.items() if weight}]


def _changes_adopted(request: MixRequest, saved: Any, place: Callable[[MixRequest], int]) -> tuple[Change, ...]:
    """Return our changes, or those of the state if it has more; raise `StateError` if they differ before it."""
    changes, ours = request.changes, [_told(change) for change in request.changes]
    if isinstance(saved[0][-1], Mapping):
        theirs = tuple(_change(request, *each) for each in saved)
        if saved[: len(ours)] == ours:
            return (*changes, *theirs[len(ours) :])
        position = place(replace(request, changes=theirs))
        is_same = position == place(request) and _before(ours, position) == _before(saved, position)
    elif len(saved[0]) == 2:
        position = place(request)
        digests = [[each[0], _digest([each])] for each in ours]
        is_same = _before(digests, position) == _before(saved, position)
    else:
        position, num_told = place(request), saved[0][2]
        is_same = len(ours) >= num_told and _digest(ours[:num_told]) == saved[0][1]
        is_same = is_same and len(_before(ours, position)) <= num_told
    if is_same:
        return changes
    msg = f"the weights before position {position} differ: the state has {_words(request, saved)}; this mixture has "
    msg += _words(request, ours)
    hint = f"call mix(weights=) and reweight() as then, and change weights or add sources from position {position} on"
    raise StateError(msg, hint=hint)


def _change(request: MixRequest, at: int, ramp: int, weights: Mapping[str, int]) -> Change:
    """Return a change that a state lists; raise `StateError` if the mixture has no source for it."""
    if not any(weights.values()) or not set(weights) <= set(request.names):
        msg = f"the state's weights from position {at} on are of no source, or of one that is not here: {weights}"
        raise StateError(msg, hint=f"the sources are {', '.join(map(repr, request.names))}")
    return Change(at, dict(weights), ramp)


def _words(request: MixRequest, changes: list[list[Any]]) -> str:
    """Return changes of weights for people: shares of samples, or of tokens if the mixture counts these."""
    if not isinstance(changes[0][-1], Mapping):
        return f"the last of its changes at position {changes[-1][0]}, and only digests of their weights"
    means = {source.name: source.mean_tokens or 1 for source in request.sources}
    told = []
    for at, ramp, weights in changes:
        shares = {name: weight * means.get(name, 1) for name, weight in weights.items()}
        total = sum(shares.values())
        listed = ", ".join(f"{name} {float(share / total):.4g}" for name, share in shares.items())
        told.append(f"{listed} from position {at} on" + (f" (reached over {ramp} positions)" if ramp else ""))
    shown = told if len(told) <= _MOST_SHOWN else [*told[:_MOST_SHOWN], f"and {len(told) - _MOST_SHOWN} more changes"]
    return "; ".join(shown) + (f" (shares of {request.length})" if request.length else "")


def _before(changes: list[list[Any]], position: int) -> list[list[Any]]:
    return [each for each in changes if each[0] < position or each[0] == 0]


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
