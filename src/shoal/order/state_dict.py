"""The state of a stream, the result of ``state_dict()``: a few integers and a fingerprint, equal on every rank.

A state counts the samples yielded to the trainer, in positions of the global order. The state of any rank resumes all
ranks, at any world size, number of workers and batch size. After the last sample of an epoch, the state is the start of
the next epoch. Only if ranks fill their batches (`shoal.order.states.deals`), each rank has its own state.
`shoal.order.states.state_fields` describes every field.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.figures import shown
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.states.checked_states import changed_hint, checked
from shoal.order.states.deals import Deal
from shoal.order.states.forms import MisfitError, Plain
from shoal.order.states.state_fields import STATE, Kind

Tokenizers = Mapping[str, Sequence[str]]
"""Identities of the tokenizers of each source; a dataset without a mixture has the single source ""."""

STATE_VERSION = 3
_SUMMED = (
    "version", "epoch", "position", "seed", "order", "index", "segments", "without", "refill", "tokenizers", "shards",
    "snapshot", "next",
)  # fmt: skip
_CHANGED = (
    "load the state as it was saved (torch.distributed.checkpoint drops fields: save json.dumps(state) with it); "
    "ds.state_at(position, epoch=...) makes a state for any position"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The sizes by which a dataset is found again, by source; a dataset without a mixture has the single source "".

    ``shards`` is the number of shards, ``snapshots`` the name of the snapshot of a table. Both are empty in states of
    older versions: the fingerprint alone identifies a dataset.
    """

    shards: Mapping[str, int] = field(default_factory=dict)
    snapshots: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a state."""
        return {"shards": _plain(self.shards), "snapshot": _plain(self.snapshots)}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Identity:
        """Restore the identity from the fields of a state."""
        return Identity(by_source(fields.get("shards")), by_source(fields.get("snapshot")))


@dataclass(frozen=True, slots=True)
class NextDataset:
    """The dataset of later epochs: its first epoch, its fingerprint by source, and its sizes."""

    epoch: int
    index: Mapping[str, str]
    identity: Identity = field(default_factory=Identity)

    def to_dict(self) -> dict[str, Any]:
        """Return the field ``next`` of a state."""
        sizes = {name: value for name, value in self.identity.to_dict().items() if value}
        return {"epoch": self.epoch, "index": _plain(self.index), **sizes}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> NextDataset:
        """Restore the dataset from the field ``next`` of a state."""
        return NextDataset(fields["epoch"], by_source(fields["index"]), Identity.from_dict(fields))


def _plain(values: Mapping[str, Any]) -> Any:
    """Return the value of a single dataset, or the values of a mixture by source."""
    return values[""] if values.keys() == {""} else dict(values)


def by_source(value: Any) -> dict[str, Any]:
    """Return the values by source; a single value has the source "", and None is no value."""
    return {} if value is None else dict(value) if isinstance(value, Mapping) else {"": value}


@dataclass(frozen=True, slots=True)
class State:
    """A position in a stream, and the identity of the stream.

    ``order`` holds the name, version and resolved parameters of the order, and everything else that selects samples;
    ``index`` is the fingerprint of the dataset; ``gaps`` are the positions that the run leaves out. ``deals`` are the
    samples that each rank has taken after ``position`` if ranks fill their batches, in this epoch and later ones.
    ``segments`` identifies the growing order's segments up to the position, and is "" for other orders. ``tokenizers``
    identify the tokenizers of each source, if they are known. ``identity`` helps to find the dataset again where more
    shards exist now; ``following`` is the dataset of later epochs.
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
    identity: Identity = field(default_factory=Identity)
    following: NextDataset | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON types, with a checksum; under 1 KB, except with deals of more than 100 ranks."""
        fields = {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "order": dict(self.order),
            "index": self.index,
            **self.identity.to_dict(),
            "next": None if self.following is None else self.following.to_dict(),
            "segments": self.segments,
            "tokenizers": {name: list(names) for name, names in self.tokenizers.items()},
            "without": [list(gap) for gap in self.gaps.ranges],
            "refill": [deal.to_dict() for deal in self.deals],
        }
        optional = ("shards", "snapshot", "next", "segments", "tokenizers", "without", "refill")
        return sealed({name: value for name, value in fields.items() if value or name not in optional})

    @staticmethod
    def from_dict(given: Any) -> State:
        """Restore a state from the result of `to_dict`, or raise `StateError` naming the fault."""
        fields = checked(STATE, given)
        if fields["check"] != (check := _checksum(fields)):
            msg = f"the state was changed after it was saved: its checksum is {fields['check']!r:.80}, not {check}"
            raise StateError(msg, hint=_CHANGED)
        terms = {name: fields[name] for name in ("epoch", "position", "seed", "order", "index")}
        optional = {name: fields[name] for name in ("segments", "tokenizers") if name in fields}
        following = NextDataset.from_dict(fields["next"]) if "next" in fields else None
        sizes = {"identity": Identity.from_dict(fields), "following": following}
        return State(**terms, gaps=gaps_in(STATE, fields), deals=_deals(fields), **optional, **sizes)

    def check_tokenizers(self, tokenizers: Tokenizers, order: Mapping[str, Any]) -> None:
        """Raise `StateError` if a source of a stream with this order has other tokenizers than in the state.

        A state without tokenizers fits every stream, and a stream without tokenizers takes every state. A new source
        may have any tokenizers.
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
            saved, now = (tokenizers_text({name: side.get(name, ()) for name in changed}) for side in both)
            msg = f"the tokenizer{of} changed: the state was saved with the tokenizer {saved}; this stream has {now}"
            hint = "resume with the tokenizer.json (and chat template) of the saved run, or with shards made with them"
            raise StateError(msg, hint=hint)

    def check(self, *, seed: int, order: Mapping[str, Any], index: str, num_samples: int) -> None:
        """Raise `StateError` if the state belongs to another stream; the error names the field and both values."""
        if self.order.get("name") == "mix" != order.get("name"):
            msg = "the state was saved with a mixture, but this stream is not a mixture"
            raise StateError(msg, hint="load it into the dataset that it was saved with")
        if self.index != index:
            msg = f"the state belongs to dataset {self.index}; this dataset is {index}"
            hint = "the shards, their order or contents changed since the state was saved, or their cut into samples: "
            hint += "the length of windows, as in format=Tokens(length), is part of the dataset"
            raise StateError(msg, hint=hint)
        if self.seed != seed:
            msg = f"the state was saved with seed={self.seed}; this stream has seed={seed}"
            verb = "mix" if order.get("name") == "mix" else "shuffle"
            raise StateError(msg, hint=f"{verb}(seed={self.seed}) resumes; another seed gives another order")
        # Names of orders are compared first: a different name says more than different parameters.
        for name in sorted({*self.order, *order}, key=lambda name: (name != "name", name)):
            theirs, ours = self.order.get(name), order.get(name)
            if theirs != ours and name in _CHOICES:
                sides = ["no choice" if side is None else f"the choice {side!r}" for side in (theirs, ours)]
                msg = f"{_CHOICES[name]} differ: the state was saved with {sides[0]}; this stream has {sides[1]}"
                raise StateError(msg, hint=f"give {_VERBS} the arguments of the saved run")
            if theirs != ours and name == PACKED:
                raise _other_packing(theirs, ours)
            if theirs != ours:
                sides = [f"no {name}" if side is None else f"{name}={side!r}" for side in (theirs, ours)]
                msg = f"the state was saved with order {sides[0]}; this stream has {sides[1]}"
                verbs = "mix(), shuffle()" if order.get("name") == "mix" else "shuffle()"
                raise StateError(msg, hint=f"give {verbs}, {_VERBS} the arguments of the saved run")
        if self.position > num_samples:
            raise StateError(f"the state is at position {self.position} of an epoch of {num_samples} samples")


def tokenizers_text(tokenizers: Tokenizers) -> str:
    """Describe tokenizers, with the names of sources of a mixture.

    >>> tokenizers_text({"": ("6f7e",)}), tokenizers_text({"web": ("6f7e",), "code": ()})
    ('6f7e', "6f7e of 'web', none of 'code'")
    """
    return ", ".join(
        (", ".join(names) or "none") + (f" of {source!r}" if source else "") for source, names in tokenizers.items()
    )


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a state with their checksum."""
    return {**fields, "check": _checksum(fields)}


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return the CRC-32 in hexadecimal of the known fields of a state without the checksum."""
    summed = [[name, fields[name]] for name in _SUMMED if name in fields]
    try:
        text = json.dumps(Plain().made(summed), sort_keys=True)
    except (MisfitError, RecursionError) as error:
        msg = f"the state holds a value other than numbers, texts, and lists and dicts of these: {shown(error)}"
        raise StateError(msg, hint=_CHANGED) from None
    return f"{zlib.crc32(text.encode()):08x}"


def gaps_in(kind: Kind, fields: Mapping[str, Any]) -> Gaps:
    """Return the positions that a state or certificate leaves out; `StateError` for empty or too many ranges."""
    try:
        return Gaps.of(fields.get("without", ()))
    except UsageError as error:
        msg = f"the positions to leave out in the {kind.what} are invalid: {error.message}"
        raise StateError(msg, hint=changed_hint(kind)) from None


def _deals(fields: Mapping[str, Any]) -> tuple[Deal, ...]:
    try:
        return tuple(Deal.from_dict(deal) for deal in fields.get("refill", ()))
    except (TypeError, ValueError) as error:
        raise StateError(f"the progress of ranks in the state is invalid: {shown(error)}", hint=_CHANGED) from None


def _other_packing(saved: Any, ours: Any) -> StateError:
    """Return the error for another grouping of documents; None stands for no grouping."""
    sides = [side if isinstance(side, Mapping) else None for side in (saved, ours)]
    verbs = [None if side is None else _verb_of(side) for side in sides]
    names: list[str] = []
    if verbs[0] == verbs[1] and sides[0] is not None and sides[1] is not None:
        names = [name for name in {**sides[0], **sides[1]} if sides[0].get(name) != sides[1].get(name)]
    if names == [LENGTHS]:
        what = "lengths= or separator=" if verbs[1] == "pack_sequences" else "lengths="
        msg = f"the state was saved with other lengths of documents: another {what} of {verbs[1]}(), or another index"
        return StateError(msg, hint=f"give {verbs[1]}() the arguments and the index of the saved run")
    calls = []
    for verb, side in zip(verbs, sides, strict=True):
        arguments = ", ".join(f"{name}={(side or {}).get(name)!r}" for name in names if name != LENGTHS)
        calls.append("ungrouped documents" if verb is None else f"{verb}({arguments})")
    msg = f"the state was saved with {calls[0]}; this stream has {calls[1]}"
    hint = f"give {verbs[0]}() the arguments of the saved run" if verbs[0] else f"leave {verbs[1]}() out, or start over"
    return StateError(msg, hint=hint)


def _verb_of(packing: Mapping[str, Any]) -> str:
    if "by" in packing or "limits" in packing:
        return "batch"
    return "batch_by_length" if "alike" in packing else "pack_sequences"


PACKED, LENGTHS, CHANGES = "packed", "lengths", "changes"
"""Names in the order of a state: the grouping of documents, and in it the digest of lengths and changes of weights."""
_VERBS = "select(), sample(), take() and skip()"
_CHOICES = {
    "stored": "the samples chosen before shuffle()",
    "sampled": "the samples that sample() draws",
    "delivered": "the positions chosen after shuffle()",
}
