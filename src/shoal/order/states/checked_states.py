"""The check of a loaded value: the expected kind of state, another kind, or a checkpoint with a state inside."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.errors import StateError
from shoal.figures import shown
from shoal.order.states.forms import Form, MisfitError
from shoal.order.states.state_fields import KINDS, Kind

_MOST_PARTS = 10_000  # searched parts of a checkpoint
_FEW = 8
_ALIKE = 0.5  # a dict with a larger share of a kind's fields counts as an attempt at this kind
_NAMES_OF_DATA = ("data", "load", "sampl", "stream", "shoal", "train")


def checked(kind: Kind, given: Any, form: Form | None = None) -> dict[str, Any]:
    """Return a state as JSON types with its known fields, or raise `StateError` naming the fault.

    ``form`` replaces the form of the kind's fields.
    """
    if not isinstance(given, Mapping):
        msg = f"a {kind.what} is the dict that {kind.call} returned; got {type(given).__name__}"
        raise StateError(msg, hint="for a file, call json.load() first")
    other = max(KINDS, key=lambda candidate: (_likeness(candidate, given), candidate is kind))
    if other is not kind and _likeness(other, given) > max(_ALIKE, _likeness(kind, given)):
        raise StateError(f"this is not a {kind.title}, but a {other.title}", hint=other.taken_by)
    if _likeness(kind, given) < _ALIKE:
        _refuse_checkpoint(kind, given)
    _check_version(kind, given)
    if missing := [name for name in kind.fields.required if name not in given]:
        msg = f"not a {kind.title}: missing {missing}"
        raise StateError(msg, hint=f"the required fields are {', '.join(kind.fields.required)}")
    try:
        fields = (form or kind.fields).made(given)
    except MisfitError as misfit:
        msg = f"the {kind.what}'s {misfit.place.removeprefix('.')} {misfit.text}"
        raise StateError(msg, hint=changed_hint(kind)) from None
    except RecursionError:
        raise StateError(f"the {kind.what} is nested too deeply", hint=changed_hint(kind)) from None
    return dict(fields)


def changed_hint(kind: Kind) -> str:
    """Return the hint for a state that was changed after it was made."""
    return f"the {kind.what} was changed after it was made: use the unchanged result of {kind.call}"


def _likeness(kind: Kind, given: Mapping[Any, Any]) -> float:
    required = kind.fields.required
    return sum(name in given for name in required) / len(required)


def _check_version(kind: Kind, given: Mapping[Any, Any], *, only_newer: bool = False) -> None:
    if kind.version is None or kind.version[0] not in given:
        return
    name, ours = kind.version
    version = given[name]
    is_newer = isinstance(version, int) and version > ours
    if (type(version) is int and version == ours) or (only_newer and not is_newer):
        return
    msg = f"the {kind.what} has version {shown(version)}; this version of shoal reads up to {ours}"
    if is_newer:
        raise StateError(msg, hint=f"the {kind.what} was made by a newer version of shoal: upgrade shoal")
    raise StateError(msg, hint=f"the {kind.what} was made before the first release of shoal{kind.instead}")


def _refuse_checkpoint(kind: Kind, given: Mapping[Any, Any]) -> None:
    """Raise `StateError` for a dict with other fields, such as a checkpoint with a state inside."""
    names = ", ".join([shown(name) for name in given][:_FEW]) or "nothing"
    for place, inner in _states_inside(given):
        msg = f"this is a whole checkpoint with {names}; {place} is a {inner.title}"
        raise StateError(msg, hint=f"pass checkpoint{place}" if inner is kind else inner.taken_by)
    _check_version(kind, given, only_newer=True)
    likely = [name for name, value in given.items() if isinstance(name, str) and isinstance(value, Mapping | list)]
    likely = [name for name in likely if any(word in name.lower() for word in _NAMES_OF_DATA)]
    msg = f"not a {kind.title}: it holds {names}"
    hint = f"a {kind.title} has the fields {', '.join(kind.fields.required)}"
    if likely:
        hint = f"if this is a whole checkpoint, the state is probably in checkpoint[{likely[0]!r}]; {hint}"
    raise StateError(msg, hint=hint)


def _states_inside(given: Mapping[Any, Any]) -> Iterator[tuple[str, Kind]]:
    """Yield the place and kind of each state in a checkpoint, from its top down."""
    waiting: deque[tuple[str, Any]] = deque([("", given)])
    num_left = _MOST_PARTS
    while waiting and num_left > 0:
        place, value = waiting.popleft()
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in itertools.islice(parts, num_left):
            num_left -= 1
            inner_place = f"{place}[{name!r:.80}]"
            whole = [kind for kind in KINDS if isinstance(part, Mapping) and _likeness(kind, part) == 1]
            if whole:
                yield inner_place, whole[0]
            elif isinstance(part, Mapping | list | tuple):
                waiting.append((inner_place, part))
