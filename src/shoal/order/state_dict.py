"""The state of a stream: a few integers and a fingerprint, equal on every rank.

It counts the samples yielded to the trainer, in positions of the global order; the state of any one rank resumes all
ranks, at any world size, number of workers and batch size. After the last sample of an epoch it is the start of the
next one. Only where ranks fill their batches (`shoal.order.deals`) each has a state of its own.
"""

from __future__ import annotations

import json
import operator
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from shoal.errors import StateError, UsageError
from shoal.order.deals import Deal
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.seeds import MAX_SEED

STATE_VERSION = 3
_WITHOUT_CHECKSUM = (1, 2)

MAX_POSITION = 2**63 - 1
"""Largest position, and largest number of anything in an order."""

_FIELDS = ("version", "epoch", "position", "seed", "order", "index", "check")
_LIMITS = {"epoch": MAX_SEED, "position": MAX_POSITION, "seed": MAX_SEED}
_CHANGED = "load the state as it was saved; one for a position of your own choice is ds.state_at(position, epoch=...)"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class State:
    """A position in a stream, and the identity of the stream.

    ``order`` holds the name, version and resolved parameters of the order, and everything else that selects samples;
    ``index`` is the fingerprint of the dataset; ``gaps`` are the positions that the run leaves out. ``deals`` say what
    each rank has taken behind ``position`` if ranks fill their batches, in this epoch and later ones. ``segments``
    identifies what the order depends on up to the position, if the fingerprint does not say it; else it is "".
    """

    epoch: int
    position: int
    seed: int
    order: Mapping[str, Any]
    index: str
    gaps: Gaps = NO_GAPS
    deals: tuple[Deal, ...] = ()
    segments: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON types, with a checksum; under 1 KB, but for the deals of more than 100 ranks."""
        found = {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "order": dict(self.order),
            "index": self.index,
        }
        found |= {"segments": self.segments} if self.segments else {}
        found |= {"without": [list(each) for each in self.gaps.ranges]} if self.gaps else {}
        return sealed(found | ({"refill": [deal.to_dict() for deal in self.deals]} if self.deals else {}))

    @staticmethod
    def from_dict(given: Any) -> State:
        """Restore a state from the result of `to_dict`, or raise `StateError` saying what is wrong with it."""
        if not isinstance(given, Mapping):
            msg = f"a state is the dict that state_dict() gave; got {type(given).__name__}"
            raise StateError(msg, hint="json.load() the file first, if it is one")
        version = given.get("version")
        if not isinstance(version, int | str | float | None):
            version = shown(version)  # comparing an array gives no single truth value
        if isinstance(version, int) and version > STATE_VERSION:
            msg = f"the state has version {shown(version)}; this shoal reads up to {STATE_VERSION}"
            raise StateError(msg, hint="the state was saved by a newer shoal: upgrade this one")
        if version in _WITHOUT_CHECKSUM and "check" not in given:
            msg = f"the state has version {version}, which has no checksum: it was saved before there was a release"
            raise StateError(msg, hint="ds.state_at(position, epoch=...) with the numbers in it gives one of today")
        missing = [name for name in _FIELDS if name not in given]
        if missing or version != STATE_VERSION:
            msg = f"not a state of shoal: missing {missing}" if missing else f"the state has version {shown(version)}"
            raise StateError(msg, hint=f"a state has the fields {', '.join(_FIELDS)}")
        order, segments = given["order"], given.get("segments", "")
        if not isinstance(order, Mapping) or not isinstance(given["index"], str) or not isinstance(segments, str):
            msg = "the state's order must be a dict and its index a fingerprint, as are its segments"
            raise StateError(msg, hint=_CHANGED)
        numbers = {name: count_in("state", name, given[name], limit) for name, limit in _LIMITS.items()}
        gaps, deals = _gaps(given), _deals(given)
        check = _checksum(given)
        if not isinstance(given["check"], str) or given["check"] != check:
            msg = f"the state was changed after it was saved: its checksum is {shown(given['check'])}, and not {check}"
            raise StateError(msg, hint=_CHANGED)
        told = order_in("state", order)
        return State(order=told, index=given["index"], gaps=gaps, deals=deals, segments=segments, **numbers)

    def check(self, *, seed: int, order: Mapping[str, Any], index: str, num_samples: int) -> None:
        """Raise `StateError`, naming the field and both values, unless the state belongs to a stream like this."""
        if self.index != index:
            msg = f"the state belongs to dataset {self.index}; this dataset is {index}"
            hint = (
                "the shards, their order or contents changed since the state was saved, or what a sample is in them: "
            )
            hint += "the length of windows, as in format=Tokens(length), is part of the dataset"
            raise StateError(msg, hint=hint)
        if self.seed != seed:
            msg = f"the state was saved with seed={self.seed}; this stream has seed={seed}"
            verb = "mix" if order.get("name") == "mix" else "shuffle"
            raise StateError(msg, hint=f"{verb}(seed={self.seed}) continues it; another seed is another order")
        # If orders differ, their names say more than the first parameter that differs.
        for name in sorted({*self.order, *order}, key=lambda name: (name != "name", name)):
            theirs, ours = self.order.get(name), order.get(name)
            if theirs != ours and name in _CHOICES:
                sides = ["all of them" if side is None else f"those named {side!r}" for side in (theirs, ours)]
                msg = f"{_CHOICES[name]} differ: the state was saved with {sides[0]}; this stream has {sides[1]}"
                raise StateError(msg, hint=f"give {_VERBS} what they were given then")
            if theirs != ours and name == PACKED:
                raise _other_packing(theirs, ours)
            if theirs != ours:
                msg = f"the state was saved with order {_told(name, theirs)}; this stream has {_told(name, ours)}"
                verbs = "mix(), shuffle()" if order.get("name") == "mix" else "shuffle()"
                raise StateError(msg, hint=f"give {verbs}, {_VERBS} what they were given then")
        if self.position > num_samples:
            msg = f"the state is at position {self.position} of an epoch of {num_samples} samples"
            raise StateError(msg)


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a state with their checksum."""
    return {**fields, "check": _checksum(fields)}


def count_in(what: str, name: str, value: object, limit: int) -> int:
    """Return a number of a state or certificate as an int; raise `StateError` unless it is from 0 to ``limit``."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError if it is not an integer
    except TypeError:
        number = -1
    if number < 0 or number > limit or isinstance(value, bool):
        msg = f"the {what}'s {name} must be an integer from 0 to {limit}; got {shown(value)}"
        raise StateError(msg, hint=f"the {what} was changed after it was saved")
    return number


def order_in(what: str, value: Any) -> dict[str, Any]:
    """Return the order of a state or certificate; raise `StateError` if its numbers are not valid."""
    try:
        found = _plain(value)
        if not all(abs(number) <= MAX_POSITION for number in found.values() if isinstance(number, int)):
            msg = f"a number is larger than {MAX_POSITION}"
            raise ValueError(msg)  # noqa: TRY301  # reported once, below
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        msg = f"the {what}'s order is no dict of names and numbers: {shown(error)}"
        raise StateError(msg, hint=f"the {what} was changed after it was saved") from None
    return cast("dict[str, Any]", found)


def shown(value: object) -> str:
    """Format any value in few characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # for example, an integer of thousands of digits
        return f"a value of {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return the CRC-32 in hexadecimal of all fields of a state but the checksum; unknown fields do not count."""
    names = [name for name in (*_FIELDS, "segments", "without", "refill") if name in fields and name != "check"]
    try:
        told = json.dumps([[name, _plain(fields[name])] for name in names], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"the state holds what is no number, text, list or dict of these: {shown(error)}"
        raise StateError(msg, hint=_CHANGED) from None
    return f"{zlib.crc32(told.encode()):08x}"


def _plain(value: Any) -> Any:
    """Convert mappings, sequences and numbers of other libraries to JSON types."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            msg = "a name that is no text"
            raise TypeError(msg)
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | float):
        return value
    number = operator.index(value)
    if abs(number) > MAX_SEED:
        msg = f"a number of {number.bit_length()} bits"
        raise ValueError(msg)
    return number


def _gaps(given: Mapping[str, Any]) -> Gaps:
    try:
        return Gaps.of([(epoch, start, stop) for epoch, start, stop in given.get("without", ())])
    except (TypeError, ValueError, UsageError) as error:
        msg = f"the state's positions to leave out are no ranges [epoch, start, stop]: {shown(error)}"
        raise StateError(msg, hint="the state was changed after it was saved") from None


def _deals(given: Mapping[str, Any]) -> tuple[Deal, ...]:
    try:
        return tuple(Deal.from_dict(each) for each in given.get("refill", ()))
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        msg = f"the state does not say what ranks have taken, or not in numbers: {shown(error)}"
        raise StateError(msg, hint=_CHANGED) from None


def _other_packing(saved: Any, ours: Any) -> StateError:
    """Return the error for documents that were grouped otherwise, given the groupings of both sides or None."""
    sides = [each if isinstance(each, Mapping) else None for each in (saved, ours)]
    verbs = [None if each is None else "batch_by_length" if "alike" in each else "pack_sequences" for each in sides]
    names: list[str] = []
    if verbs[0] == verbs[1] and sides[0] is not None and sides[1] is not None:
        names = [name for name in {**sides[0], **sides[1]} if sides[0].get(name) != sides[1].get(name)]
    if names == [LENGTHS]:
        what = "lengths= or separator=" if verbs[1] == "pack_sequences" else "lengths="
        msg = f"the state was saved with other lengths of documents: another {what} of {verbs[1]}(), or another index"
        return StateError(msg, hint=f"give {verbs[1]}() what it was given then, of the index of then")
    told = []
    for verb, side in zip(verbs, sides, strict=True):
        given = ", ".join(f"{name}={(side or {}).get(name)!r}" for name in names if name != LENGTHS)
        told.append("documents that were not grouped" if verb is None else f"{verb}({given})")
    msg = f"the state was saved with {told[0]}; this stream has {told[1]}"
    hint = f"give {verbs[0]}() what it was given then" if verbs[0] else f"leave {verbs[1]}() out, or begin anew"
    return StateError(msg, hint=hint)


PACKED, LENGTHS = "packed", "lengths"
"""Parts of an order in a state: how documents are grouped, and in that the digest of their lengths."""
_VERBS = "select(), sample(), take() and skip()"
_CHOICES = {
    "stored": "the samples chosen before shuffle()",
    "sampled": "the samples that sample() draws",
    "delivered": "the positions chosen after shuffle()",
}


def _told(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name}={value!r}"
