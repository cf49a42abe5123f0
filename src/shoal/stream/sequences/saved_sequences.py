"""Sequences as a state says that they were packed, for commands that follow a state and no call of `pack_sequences`."""

from __future__ import annotations

from typing import Any

from shoal.errors import StateError, UsageError
from shoal.order.position_subsets import NO_GAPS
from shoal.order.sequences.length_batches import LengthBatches
from shoal.order.sequences.packed_order import Packing
from shoal.order.state_dict import LENGTHS, PACKED, State
from shoal.pipeline.sequence_arrays import PaddedFields, SequenceFields
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.sequences.sequence_requests import SequenceRequest

_ANY_TOKEN = 0


def of_documents(saved: State) -> State:
    """Return the state without what it says of sequences: it names the order of their documents."""
    return State(saved.epoch, 0, saved.seed, {n: v for n, v in saved.order.items() if n != PACKED}, saved.index)


def packed_as_saved(documents: ResolvedOrder | ResolvedMixture, saved: State, column: str) -> ResolvedSequences:
    """Return the sequences of a state, or of a certificate, of documents in this order.

    ``column`` of the index has the tokens of each document. A separator behind each follows from the digest of lengths.

    Raises
    ------
    StateError
        The state says nothing that can be packed, or is of other lengths, or of another order of the documents.
    UsageError
        There is no such column.
    """
    told = dict(saved.order[PACKED])
    digest = told.pop(LENGTHS, None)
    for request in _requests(told, column):
        packed = ResolvedSequences(documents, request.packing, request.lengths_in(documents.parts))
        if packed.state_order[PACKED][LENGTHS] == digest:
            return packed.resumed(saved, NO_GAPS)
    msg = f"the documents of the state had other lengths than the column {column!r} says"
    raise StateError(
        msg, hint="lengths= names the column that was packed by; or the data, or their tokenizer, changed since"
    )


def _requests(told: dict[str, Any], column: str) -> list[SequenceRequest]:
    """Return what the dataset may have been asked for: without separators, and with them."""
    try:
        if "buckets" in told:
            batches = LengthBatches(**{**told, "buckets": tuple(told["buckets"])})
            return [SequenceRequest(batches, PaddedFields(batches.padded), column)]
        packing = Packing(**told)
    except (TypeError, UsageError) as error:
        msg = f"the state was packed by what this shoal does not know: {told!r:.200} ({error})"
        raise StateError(msg, hint="the state was saved by another shoal: use that one") from None
    separators = (None, _ANY_TOKEN)
    return [SequenceRequest(packing, SequenceFields(packing.length, separator=each), column) for each in separators]
