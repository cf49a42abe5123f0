"""The state of a stream: a few integers and a fingerprint, equal on every rank.

It counts the samples yielded to the trainer, in positions of the global order; the state of any one rank resumes all
ranks, at any world size, number of workers and batch size. After the last sample of an epoch it is the start of the
next one. Only where ranks fill their batches (`shoal.order.states.deals`) each has a state of its own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.states.checked_states import changed_hint, checked
from shoal.order.states.deals import Deal
from shoal.order.states.forms import MisfitError, Plain, shown
from shoal.order.states.state_fields import STATE, Kind

Tokenizers = Mapping[str, Sequence[str]]
"""The identities of the tokenizers of each source; "" names the only source of a dataset that is no mixture."""

STATE_VERSION = 3
_SUMMED = ("version", "epoch", "position", "seed", "order", "index", "segments", "without", "refill", "tokenizers")
_CHANGED = (
    "load the state as it was saved (torch.distributed.checkpoint drops fields: save json.dumps(state) with it); "
    "one for a position of your own choice is ds.state_at(position, epoch=...)"
)


@dataclass(frozen=True, slots=True)
class State:
    """A position in a stream, and the identity of the stream.

    ``order`` holds the name, version and resolved parameters of the order, and everything else that selects samples;
    ``index`` is the fingerprint of the dataset; ``gaps`` are the positions that the run leaves out. ``deals`` say what
    each rank has taken behind ``position`` if ranks fill their batches, in this epoch and later ones. ``segments``
    identifies what the order depends on up to the position, if the fingerprint does not say it; else it is "".
    ``tokenizers`` identify the tokenizers that made the tokens of each source, as far as they are known.
    """

    epoch: int
    position: int
    seed: int
    order: Mapping[str, Any]
    index: str
    gaps: Gaps = NO_GAPS
    deals: tuple[Deal, ...] = ()
    segments: str = ""
    tokenizers: Tokenizers = field(default_factory=dict)

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
        found |= {"tokenizers": {name: list(each) for name, each in self.tokenizers.items()}} if self.tokenizers else {}
        found |= {"without": [list(each) for each in self.gaps.ranges]} if self.gaps else {}
        return sealed(found | ({"refill": [deal.to_dict() for deal in self.deals]} if self.deals else {}))

    @staticmethod
    def from_dict(given: Any) -> State:
        """Restore a state from the result of `to_dict`, or raise `StateError` saying what is wrong with it."""
        made = checked(STATE, given)
        if made["check"] != (check := _checksum(made)):
            msg = f"the state was changed after it was saved: its checksum is {made['check']!r:.80}, and not {check}"
            raise StateError(msg, hint=_CHANGED)
        terms = {name: made[name] for name in ("epoch", "position", "seed", "order", "index")}
        segments, tokenizers = made.get("segments", ""), made.get("tokenizers", {})
        return State(**terms, gaps=gaps_in(STATE, made), deals=_deals(made), segments=segments, tokenizers=tokenizers)

    def check_tokenizers(self, tokenizers: Tokenizers, order: Mapping[str, Any]) -> None:
        """Raise `StateError` if a source of a stream with this order has other tokenizers than in the state.

        A state without tokenizers, and a stream without them, fit any; a source that was added may bring its own.
        """
        if not self.tokenizers or not tokenizers:
            return
        theirs, ours = self.order.get("sources", {"": None}), order.get("sources", {"": None})
        changed = [
            name
            for name in {**self.tokenizers, **tokenizers}
            if name.partition("/")[0] in theirs.keys() & ours.keys()
            and set(self.tokenizers.get(name, ())) != set(tokenizers.get(name, ()))
        ]
        if changed:
            of = f" of the source{'s' * (len(changed) > 1)} {' and '.join(map(repr, changed))}" if changed[0] else ""
            both = (self.tokenizers, tokenizers)
            saved, now = (told_tokenizers({name: side.get(name, ()) for name in changed}) for side in both)
            msg = f"the tokenizer{of} changed: the state was saved with the tokenizer {saved}; this stream has {now}"
            hint = "resume with the tokenizer.json of then, or with the shards that were made with it"
            raise StateError(msg, hint=hint)

    def check(self, *, seed: int, order: Mapping[str, Any], index: str, num_samples: int) -> None:
        """Raise `StateError`, naming the field and both values, unless the state belongs to a stream like this."""
        if self.order.get("name") == "mix" != order.get("name"):
            msg = "the state was saved with a mixture, and this stream is none"
            raise StateError(msg, hint="load it into the dataset that it was saved with")
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
            raise StateError(f"the state is at position {self.position} of an epoch of {num_samples} samples")


def told_tokenizers(tokenizers: Tokenizers) -> str:
    """Return tokenizers in words, with the names of their sources if there are any.

    >>> told_tokenizers({"": ("6f7e",)}), told_tokenizers({"web": ("6f7e",), "code": ()})
    ('6f7e', "6f7e of 'web', none of 'code'")
    """
    return ", ".join(
        (", ".join(each) or "none") + (f" of {name!r}" if name else "") for name, each in tokenizers.items()
    )


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a state with their checksum."""
    return {**fields, "check": _checksum(fields)}


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return the CRC-32 in hexadecimal of all fields of a state but the checksum; unknown fields do not count."""
    told = [[name, fields[name]] for name in _SUMMED if name in fields]
    try:
        text = json.dumps(Plain().made(told), sort_keys=True)
    except (MisfitError, RecursionError) as error:
        msg = f"the state holds what is no number, text, list or dict of these: {shown(error)}"
        raise StateError(msg, hint=_CHANGED) from None
    return f"{zlib.crc32(text.encode()):08x}"


def gaps_in(kind: Kind, made: Mapping[str, Any]) -> Gaps:
    """Return the positions that a state or certificate leaves out; `StateError` if they are empty or too many."""
    try:
        return Gaps.of(made.get("without", ()))
    except UsageError as error:
        msg = f"the {kind.what}'s positions to leave out cannot be: {error.message}"
        raise StateError(msg, hint=changed_hint(kind)) from None


def _deals(made: Mapping[str, Any]) -> tuple[Deal, ...]:
    try:
        return tuple(Deal.from_dict(each) for each in made.get("refill", ()))
    except (TypeError, ValueError) as error:
        raise StateError(f"the state does not say what ranks have taken: {shown(error)}", hint=_CHANGED) from None


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


PACKED, LENGTHS, CHANGES = "packed", "lengths", "changes"
"""Parts of an order in a state: how documents are grouped, and in that their lengths' digest and changes of weights."""
_VERBS = "select(), sample(), take() and skip()"
_CHOICES = {
    "stored": "the samples chosen before shuffle()",
    "sampled": "the samples that sample() draws",
    "delivered": "the positions chosen after shuffle()",
}


def _told(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name}={value!r}"
