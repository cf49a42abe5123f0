"""Where a stream stands: a few integers and a fingerprint, the same on every rank.

The state counts what was yielded to the trainer, in positions of the global order; any one rank's state resumes all
ranks, at any world size, number of workers and batch size. After the last sample of an epoch it is the start of the
next one.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.order.gaps import NO_GAPS, Gaps

__all__ = ["STATE_VERSION", "State"]

STATE_VERSION = 2
_WITHOUT_GAPS = 1  # what a state has that names none: the fields of the first release

_FIELDS = ("version", "epoch", "position", "seed", "order", "index")


@dataclass(frozen=True, slots=True)
class State:
    """A place in the stream, and what the stream is.

    ``order`` holds the name, version and resolved parameters of the order, and whatever else chooses samples; ``index``
    the fingerprint of the dataset; ``gaps`` what the run leaves out.
    """

    epoch: int
    position: int
    seed: int
    order: Mapping[str, Any]
    index: str
    gaps: Gaps = NO_GAPS

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON types; under 1 KB."""
        found = {
            "version": STATE_VERSION if self.gaps else _WITHOUT_GAPS,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "order": dict(self.order),
            "index": self.index,
        }
        return found | ({"without": [list(each) for each in self.gaps.ranges]} if self.gaps else {})

    @staticmethod
    def from_dict(given: Any) -> State:
        """The state from what `to_dict` gave, or `StateError` saying what is wrong with it."""
        if not isinstance(given, Mapping):
            msg = f"a state is the dict that state_dict() gave; got {type(given).__name__}"
            raise StateError(msg, hint="json.load() the file first, if it is one")
        version = given.get("version")
        if isinstance(version, int) and version > STATE_VERSION:
            msg = f"the state has version {version}; this shoal reads up to {STATE_VERSION}"
            raise StateError(msg, hint="the state was saved by a newer shoal: upgrade this one")
        missing = [name for name in _FIELDS if name not in given]
        if missing or version not in (_WITHOUT_GAPS, STATE_VERSION):
            msg = f"not a state of shoal: missing {missing}" if missing else f"the state has version {version!r}"
            raise StateError(msg, hint=f"a state has the fields {', '.join(_FIELDS)}")
        order = given["order"]
        if not isinstance(order, Mapping) or not isinstance(given["index"], str):
            msg = "the state's order must be a dict and its index a fingerprint"
            raise StateError(msg)
        numbers = {name: _count(name, given[name]) for name in ("epoch", "position", "seed")}
        return State(order=dict(order), index=given["index"], gaps=_gaps(given), **numbers)

    def check(self, *, seed: int, order: Mapping[str, Any], index: str, num_samples: int) -> None:
        """`StateError`, naming the field and both sides, unless the state belongs to a stream of this description."""
        if self.index != index:
            msg = f"the state belongs to dataset {self.index}; this dataset is {index}"
            hint = "the shards, their order or their contents changed since the state was saved"
            raise StateError(msg, hint=hint)
        if self.seed != seed:
            msg = f"the state was saved with seed={self.seed}; this stream has seed={seed}"
            raise StateError(msg, hint=f"shuffle(seed={self.seed}) continues it; another seed is another order")
        # Of two orders the name says more than the first of their numbers that differs.
        for name in sorted({*self.order, *order}, key=lambda name: (name != "name", name)):
            theirs, ours = self.order.get(name), order.get(name)
            if theirs != ours and name in _CHOICES:
                sides = ["all of them" if side is None else f"those named {side!r}" for side in (theirs, ours)]
                msg = f"{_CHOICES[name]} differ: the state was saved with {sides[0]}; this stream has {sides[1]}"
                raise StateError(msg, hint="give select(), take() and skip() what they were given then")
            if theirs != ours:
                msg = f"the state was saved with order {_told(name, theirs)}; this stream has {_told(name, ours)}"
                raise StateError(msg, hint="give shuffle(), select(), take() and skip() what they were given then")
        if self.position > num_samples:
            msg = f"the state is at position {self.position} of an epoch of {num_samples} samples"
            raise StateError(msg)


def _gaps(given: Mapping[str, Any]) -> Gaps:
    try:
        return Gaps.of([(epoch, start, stop) for epoch, start, stop in given.get("without", ())])
    except (TypeError, ValueError, UsageError) as error:
        msg = f"the state's positions to leave out are no ranges [epoch, start, stop]: {error}"
        raise StateError(msg, hint="the state was changed after it was saved") from None


def _count(name: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the point is to find out
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        msg = f"the state's {name} must be an integer of at least 0; got {value!r}"
        raise StateError(msg)
    return number


_CHOICES = {
    "stored": "the samples chosen before shuffle()",
    "delivered": "the positions chosen after shuffle()",
}


def _told(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name}={value!r}"
